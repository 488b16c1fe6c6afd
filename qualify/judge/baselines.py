"""The accepted runs: which are current."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from qualify.errors import NoVerdict
from qualify.facts.baseline import Baseline
from qualify.facts.typed import PLAIN, Typed, level_words
from qualify.store.store import Store
from qualify.text import one_line


def marked(baselines: Iterable[Baseline]) -> list[tuple[Baseline, bool]]:
    """Each acceptance, newest first as given, and whether it is the current one."""
    seen: set[tuple[str, str, str]] = set()
    found = []
    for baseline in baselines:
        key = baseline.matrix, baseline.variant, baseline.name
        found.append((baseline, key not in seen))
        seen.add(key)
    return found


def current_of(store: Store, matrix: str, variant: str, typed: Typed = PLAIN) -> list[Baseline]:
    """The current baselines of a matrix on the device models that a glob matches.

    Raises:
        NoVerdict: there is none.
    """
    found = [
        item for item, current in marked(store.baselines(matrix)) if current and fnmatchcase(item.variant, variant)
    ]
    if not found:
        others = sorted({f"{item.matrix} on {item.variant}" for item in store.baselines()})
        known = f"one of {', '.join(others)}" if others else "no baseline of any matrix"
        where = "" if variant == "*" else f" on {variant}"
        todo = _todo(store, matrix, variant, typed)
        raise NoVerdict(f"no baseline of {matrix}{where} in {store.where}, which has {one_line(known)}. {todo}")
    return found


def _todo(store: Store, matrix: str, variant: str, typed: Typed) -> str:
    """Which run of the matrix may become the first baseline: the newest whole one on a device model that is meant."""
    stored = [run for run in store.runs(matrix) if run.stack and fnmatchcase(run.stack.device.variant, variant)]
    whole = next((run for run in stored if run.state == "completed" and not run.narrowed), None)
    if whole:
        return f"If its last whole run qualifies, accept it: {typed.accept(whole.id, 'first baseline')}"
    if not stored:
        return f"No run of that matrix is stored there{'' if variant == '*' else ' for that device model'}."
    run = stored[0]
    make = typed.command("run", run.matrix_path, *level_words(run.level), "--device", run.device)
    return f"No run of it is whole, because each was narrowed or did not complete. Make one: {make}"
