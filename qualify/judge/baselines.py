"""The accepted runs: which are current."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from qualify.errors import NoVerdict
from qualify.facts.baseline import Baseline
from qualify.facts.typed import PLAIN, Typed
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
        last = store.latest(matrix)
        accept = typed.accept(last.id, "first baseline") if last else ""
        todo = f"Accept its last run: {accept}" if last else "No run of that matrix is stored there."
        where = "" if variant == "*" else f" on {variant}"
        raise NoVerdict(f"no baseline of {matrix}{where} in {store.where}, which has {one_line(known)}. {todo}")
    return found
