"""Which cases of a run look slower than before, by stored runs alone: a duel has to confirm it."""

from __future__ import annotations

from collections.abc import Iterator

from qualify.errors import NoVerdict, UsageError
from qualify.judge.history import histories
from qualify.judge.judged import Judged
from qualify.store.store import Store

LOOKED_AT = 60
"""newest runs of the matrix whose times make the history"""


def look_slower(store: Store, judged: Judged) -> tuple[str, ...]:
    """Ids of the cases that took longer than in the baseline, or whose history rose since; the largest factor first.

    Args:
        judged: compared with the baseline, where somebody accepted one.
    """
    found = dict.fromkeys(change.id for change in (judged.slower.cases if judged.slower else ()))
    return tuple(found | dict.fromkeys(_risen(store, judged)))


def _risen(store: Store, judged: Judged) -> Iterator[str]:
    """Cases whose last change point is a rise after the baseline, and whose newest time is from this run."""
    since = judged.against.comparison.before.started_at if judged.against else None
    try:
        known = histories(store, judged.run.matrix, limit=LOOKED_AT)
    except (NoVerdict, UsageError):  # no run has timed anything
        return
    for series in known:
        if not series.changes or series.points[-1].run != judged.run.id:
            continue
        last = series.changes[-1]
        if last.change > 0 and (since is None or last.at > since):
            yield series.case
