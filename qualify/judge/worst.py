"""Which failure to look at first: one order for the gate, the report, the site and every format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from qualify.facts.case import Case
from qualify.facts.checks import CHECKS
from qualify.facts.outcome import Outcome
from qualify.facts.run import Verdict
from qualify.judge.causes import cause_of
from qualify.judge.judged import Judged

BAD: tuple[Verdict, ...] = ("FAIL", "INCONCLUSIVE", "WAIVED")
"""verdicts of cases that did not pass, the worst first"""
WORST_OUTCOMES = ("measured", "substituted", "crashed", "timed_out", "refused", "not_run")
"""outcomes, the worst first: a wrong result that nothing stopped is worse than a result that never came"""
TELLING = {finding: place for place, known in enumerate(CHECKS) for finding in known.findings}
"""
By name of a finding: the smaller, the more it says of the cause. The table begins with what a result must be and which
keys it sees, and ends with how large its errors are, which any mistake makes large.
"""


class EndedLike(Protocol):
    """A case, how it ended, and the verdict on it."""

    @property
    def case(self) -> Case:
        """The case."""

    @property
    def outcome(self) -> Outcome:
        """What happened."""

    @property
    def verdict(self) -> Verdict:
        """The verdict on it."""

    @property
    def reasons(self) -> Sequence[str]:
        """Why; empty where it passed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedCase:
    """A case of a judged run."""

    case: Case
    outcome: Outcome
    verdict: Verdict
    reasons: tuple[str, ...]


Item = TypeVar("Item", bound=EndedLike)


def ended_cases(judged: Judged) -> list[EndedCase]:
    """All cases of a judged run, in the order of the plan."""
    return [
        EndedCase(case=record.case, outcome=record.outcome, verdict=judgement.verdict, reasons=judgement.reasons)
        for record, judgement in zip(judged.records, judged.conclusion.judgements, strict=True)
    ]


def worst_first(items: Iterable[Item]) -> list[Item]:
    """The cases that did not pass.

    Failed before undecided, wrong results before crashes, the kernel with most of them first, of a kernel the cause
    that says most, and of a cause the phase with most cases; then in their order.
    """
    bad = [item for item in items if item.verdict in BAD]
    ends = [(BAD.index(item.verdict), WORST_OUTCOMES.index(item.outcome.outcome)) for item in bad]
    kernels = [(*end, item.case.kernel) for end, item in zip(ends, bad, strict=True)]
    causes = [(*kernel, cause_of(it.outcome, it.verdict, it.reasons)) for kernel, it in zip(kernels, bad, strict=True)]
    phases = [(*cause, item.case.phase) for cause, item in zip(causes, bad, strict=True)]
    counts = Counter([*kernels, *phases])

    def rank(number: int) -> tuple[int | str, ...]:
        verdict, outcome, kernel, cause, phase = phases[number]
        alike = -counts[kernels[number]], kernel
        return verdict, outcome, *alike, TELLING.get(cause, 0), cause, -counts[phases[number]], phase, number

    return [bad[number] for number in sorted(range(len(bad)), key=rank)]
