"""Which cases take longer than in an earlier run: as much as two stored runs can say."""

from __future__ import annotations

from collections.abc import Sequence

from qualify.facts.comparison import Change, Slowdown
from qualify.facts.run import Record, Run
from qualify.verdict.compare import compare_times

NOISE = 0.035
"""share by which two runs of one stack on one card differ"""


def slowdown(
    before: Run, old: Sequence[Record], after: Run, new: Sequence[Record], *, accepted_by: str = ""
) -> Slowdown | None:
    """The cases that both runs timed on one card and that became slower; None where there is none."""
    return slower_among(compare_times(before, after, in_both(old, new)), run=before.id, accepted_by=accepted_by)


def in_both(old: Sequence[Record], new: Sequence[Record]) -> list[tuple[Record, Record]]:
    """The cases that both have, by their ids."""
    known = {record.case.id: record for record in old}
    return [(known[record.case.id], record) for record in new if record.case.id in known]


def slower_among(times: Sequence[Change], *, run: str, accepted_by: str = "") -> Slowdown | None:
    """The changes of times that are slowdowns beyond the noise between two runs; None where there is none."""
    cases = [change for change in times if change.bucket == "suspicious" and factor(change) > 1 + NOISE]
    cases.sort(key=lambda change: (-factor(change), change.id))
    return Slowdown(run=run, accepted_by=accepted_by, cases=tuple(cases)) if cases else None


def factor(change: Change) -> float:
    """How many times as long a case takes; 1.0 where a side has no time."""
    before, after = change.before, change.after
    if not isinstance(before, int | float) or not isinstance(after, int | float) or before <= 0:
        return 1.0
    return after / before
