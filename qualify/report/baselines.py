"""Baselines for people and machines."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

from qualify.errors import NoVerdict
from qualify.facts.baseline import Baseline
from qualify.report.one_line import one_line
from qualify.store.store import Store


def marked(baselines: Iterable[Baseline]) -> list[tuple[Baseline, bool]]:
    """Each acceptance, newest first as given, and whether it is the current one."""
    seen: set[tuple[str, str]] = set()
    found = []
    for baseline in baselines:
        key = baseline.matrix, baseline.variant
        found.append((baseline, key not in seen))
        seen.add(key)
    return found


def current_of(store: Store, matrix: str, variant: str) -> list[Baseline]:
    """The current baselines of a matrix on the device models that a glob matches.

    Raises:
        NoVerdict: there is none.
    """
    found = [
        item for item, current in marked(store.baselines(matrix)) if current and fnmatchcase(item.variant, variant)
    ]
    if not found:
        known = ", ".join(sorted({f"{item.matrix} on {item.variant}" for item in store.baselines()})) or "no matrix"
        raise NoVerdict(
            f"no baseline of {matrix} on {variant} in {store.where}; there is one of {one_line(known)}. Accept a run "
            "that qualified: qualify baseline accept RUN --by NAME --reason TEXT"
        )
    return found


def to_line(baseline: Baseline, *, current: bool) -> str:
    """One line."""
    state = "current" if current else "earlier"
    text = (
        f"{state}  {baseline.matrix} on {baseline.variant}: run {baseline.run_id}, accepted by {baseline.accepted_by} "
        f"on {baseline.accepted_at:%Y-%m-%d %H:%M} UTC: {baseline.reason}"
    )
    return one_line(text)


def to_data(baseline: Baseline, *, current: bool) -> dict[str, Any]:
    """The same for machines."""
    return {
        "matrix": baseline.matrix,
        "variant": baseline.variant,
        "run": baseline.run_id,
        "accepted_by": baseline.accepted_by,
        "reason": baseline.reason,
        "accepted_at": baseline.accepted_at.isoformat(),
        "current": current,
    }
