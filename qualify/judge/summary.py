"""The summary of a verdict that lists show, without its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qualify.facts.case import INCIDENTS, Phase
from qualify.facts.outcome import Finding
from qualify.facts.run import VERDICTS, Conclusion, Verdict
from qualify.facts.waiver import WaiverUse
from qualify.judge.causes import cause_of, finding_of
from qualify.judge.judged import Judged
from qualify.judge.worst import EndedCase, ended_cases, worst_first
from qualify.verdict.slower import factor
from qualify.verdict.waivers import WAIVED_BY


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What is told of a run without its evidence."""

    verdict: Verdict
    exit_code: int
    demonstration: bool
    """a CPU stood in for the GPU that kernels of the matrix need"""
    cases: Mapping[str, int]
    """by verdict"""
    outcomes: Mapping[str, int]
    shapes: int
    """production shapes that need a path"""
    proven: int
    """those with a proven path"""
    slower: int = 0
    """cases that take longer than in the accepted baseline"""
    slowest: float = 1.0
    """how many times as long the slowest of them takes"""
    slower_than: str = ""
    """id of the baseline's run; empty where no case became slower"""

    @property
    def qualified(self) -> bool:
        """Whether the run qualified what production serves; a demonstration on a CPU does not."""
        return self.exit_code == 0 and not self.demonstration

    @property
    def shown(self) -> Verdict:
        """The verdict whose colour and glyph a reader sees: a demonstration that passed is not shown in green."""
        return "NOT_REQUIRED" if self.demonstration and self.verdict == "PASS" else self.verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class TroubleGroup:
    """Cases of one kernel and phase that failed in the same way."""

    kernel: str
    phase: Phase
    check: str
    """the check that failed, or how the cases ended, as `judge.causes` names it"""
    verdict: Verdict
    reason: str
    """of the first case"""
    finding: Finding | None
    """of the first case, behind the check; None where the cases ended in another way"""
    models: tuple[str, ...]
    cases: tuple[str, ...]
    """ids, the worst first, then in the order of the plan"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """How the cases of one model on one kernel in one phase ended."""

    model: str
    kernel: str
    phase: Phase
    verdicts: Mapping[Verdict, int]
    """zeros left out"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    """The part of a run that the pages of models, kernels, findings and waivers show."""

    shares: tuple[Share, ...]
    troubles: tuple[TroubleGroup, ...]
    """the worst first"""
    waivers: tuple[WaiverUse, ...]
    shapes: Mapping[str, tuple[int, int]]
    """by model: production shapes with a proven path, and all that need one"""
    cases: Mapping[str, int]
    """by kernel, those of incidents too"""


def summarize(judged: Judged) -> Summary:
    """The summary of a verdict."""
    conclusion, slower = judged.conclusion, judged.slower
    return Summary(
        verdict=conclusion.verdict,
        exit_code=conclusion.exit_code,
        demonstration=conclusion.demonstration,
        cases=conclusion.counts["verdicts"],
        outcomes=conclusion.counts["outcomes"],
        shapes=len(conclusion.required),
        proven=conclusion.proven,
        slower=len(slower.cases) if slower else 0,
        slowest=factor(slower.cases[0]) if slower else 1.0,
        slower_than=slower.run if slower else "",
    )


def detail(judged: Judged) -> Details:
    """What went wrong and where, grouped."""
    found = ended_cases(judged)
    return Details(
        shares=_shares(found),
        troubles=_troubles(found),
        waivers=judged.conclusion.waivers,
        shapes=_shapes(judged.conclusion),
        cases=Counter(record.case.kernel for record in judged.records),
    )


def _shares(found: Iterable[EndedCase]) -> tuple[Share, ...]:
    """How cases ended, by model, kernel and phase; cases of incidents are of no model."""
    counts: dict[tuple[str, str, Phase], Counter[Verdict]] = {}
    for item in found:
        counts.setdefault((item.case.model, item.case.kernel, item.case.phase), Counter())[item.verdict] += 1
    return tuple(
        Share(model=model, kernel=kernel, phase=phase, verdicts={name: ended[name] for name in VERDICTS if ended[name]})
        for (model, kernel, phase), ended in counts.items()
        if model != INCIDENTS
    )


def _troubles(found: Iterable[EndedCase]) -> tuple[TroubleGroup, ...]:
    """Cases that came to the same bad end, the worst groups first."""
    groups: dict[tuple[Verdict, str, Phase, str], list[EndedCase]] = {}
    for item in worst_first(found):
        check = cause_of(item.outcome, item.verdict, item.reasons)
        groups.setdefault((item.verdict, item.case.kernel, item.case.phase, check), []).append(item)
    return tuple(
        TroubleGroup(
            verdict=verdict,
            kernel=kernel,
            phase=phase,
            check=check,
            reason=_found_first(same[0]),
            finding=finding_of(same[0].outcome, check),
            models=tuple(dict.fromkeys(item.case.model for item in same)),
            cases=tuple(item.case.id for item in same),
        )
        for (verdict, kernel, phase, check), same in groups.items()
    )


def _found_first(item: EndedCase) -> str:
    """The reasons that tell what was found, before those that name waivers; a verdict has them the other way round."""
    reasons = sorted(item.reasons, key=lambda it: it.startswith(WAIVED_BY))
    return "; ".join(reasons if item.verdict == "WAIVED" else reasons[:1])


def _shapes(conclusion: Conclusion) -> dict[str, tuple[int, int]]:
    """By model: production shapes with a proven path, and all that need one."""
    shapes: dict[str, tuple[int, int]] = {}
    for cell in conclusion.required:
        model = cell.cell.partition("/")[0]
        proven, needed = shapes.get(model, (0, 0))
        shapes[model] = proven + (cell.verdict == "PASS"), needed + 1
    return shapes
