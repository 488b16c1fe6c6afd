"""Why a run is not qualified: failures by kernel and cause, and everything else that blocks the release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from qualify.facts.run import Conclusion, Run, Verdict
from qualify.facts.typed import Typed
from qualify.facts.waiver import IN_FORCE, WaiverUse
from qualify.judge.causes import finding_of
from qualify.judge.worst import worst_first
from qualify.report.beside import Beside
from qualify.report.causes import Diagnosis, cause_of, diagnose, mistake, title
from qualify.report.hindrances import Hindrance, hindrances
from qualify.report.known import known_finding
from qualify.report.sections import Section, section
from qualify.report.views import CaseView, ModelView, ShapeView

SHOWN_OF_GROUP = 3
"""most failed cases of a group that the page shows whole from the start"""
SHOWN = 45
"""most failed cases of all groups that the page shows whole from the start"""
BRIEF = 900
"""failed cases of all groups that a reader opens one by one; without JavaScript their evidence is text"""
BRIEF_OF_GROUP = 20
"""least number of such cases that each group gets"""
SHAPES = 50
"""most production shapes without a path, of one model and phase, that the page names without JavaScript"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Cases of one kernel that failed, or stayed open, with the same cause, in one phase or in several."""

    verdict: Verdict
    kernel: str
    cause: str
    """name of a check, or crash, hang, refusal, substitution, witness, not run"""
    phases: tuple[tuple[str, int], ...]
    """each phase with the number of its cases, in the order in which the page tells them"""
    models: tuple[tuple[str, int], ...]
    """each model with the number of its cases, the largest number first"""
    diagnosis: Diagnosis
    """diagnosis of the first case"""
    known: tuple[str, ...]
    """what is known of the failure: a page of docs/findings, a waiver that does not cover it, a public incident"""
    repro: str
    """command that shows the failure of the first case again; empty where it did not run"""
    sections: tuple[Section, ...]
    """the first cases, with all evidence"""
    whole: int
    """how many of these sections the page shows whole from the start"""
    lines: tuple[CaseView, ...]
    """the remaining cases, for which the page has one line each"""

    @property
    def count(self) -> int:
        """Cases of the group."""
        return len(self.sections) + len(self.lines)

    @property
    def title(self) -> str:
        """Kernel, cause, phases, and number of cases."""
        return title(self.kernel, self.cause, dict(self.phases))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pathless:
    """Production shapes of one model and phase that have no proven path."""

    verdict: Verdict
    """verdict of the shapes"""
    model: str
    phase: str
    reason: str
    """why the first shape has no proven path"""
    shapes: tuple[ShapeView, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WhyNot:
    """Everything that keeps a run from being qualified."""

    groups: tuple[Group, ...]
    hindrances: tuple[Hindrance, ...]
    pathless: tuple[Pathless, ...]
    """production shapes that lack their proven path"""

    @property
    def empty(self) -> bool:
        """Whether nothing holds the run back."""
        return not (self.groups or self.hindrances or self.pathless)

    @property
    def first(self) -> tuple[str, str] | None:
        """The worst reason, and what is behind it; None where nothing holds the run back."""
        if self.groups:
            return self.groups[0].title, self.groups[0].diagnosis.short
        if self.hindrances:
            return self.hindrances[0].title, self.hindrances[0].detail
        if self.pathless:
            return f"{self.pathless[0].model} · {self.pathless[0].phase}", self.pathless[0].reason
        return None

    @property
    def lacking(self) -> int:
        """Production shapes without a proven path."""
        return sum(len(group.shapes) for group in self.pathless)


def why_not(
    run: Run,
    views: Sequence[CaseView],
    models: Sequence[ModelView],
    conclusion: Conclusion,
    beside: Beside,
) -> WhyNot:
    """Everything that keeps the gate's verdict from being PASS; empty where it is PASS."""
    if conclusion.verdict == "PASS":
        return WhyNot(groups=(), hindrances=(), pathless=())
    # People copy pages to other machines, so the commands in them name no store.
    beside = replace(beside, typed=replace(beside.typed, db=""))
    groups, pathless = _groups(run, views, conclusion, beside.typed), _pathless(models)
    told = tuple(hindrances(run, conclusion, beside, alone=not (groups or pathless)))
    return WhyNot(groups=groups, hindrances=told, pathless=pathless)


def _groups(run: Run, views: Sequence[CaseView], conclusion: Conclusion, typed: Typed) -> tuple[Group, ...]:
    members = _alike(views, _waivers(conclusion))
    whole, groups, each = SHOWN, [], max(BRIEF // max(len(members), 1), BRIEF_OF_GROUP)
    for alike, cases in members.items():
        first = min(whole, SHOWN_OF_GROUP, len(cases))
        whole -= first
        groups.append(
            Group(
                verdict=alike.verdict,
                kernel=alike.kernel,
                cause=alike.cause,
                phases=tuple(Counter(view.case.phase for view in cases).items()),
                models=tuple(Counter(view.case.model for view in cases).most_common()),
                diagnosis=diagnose(cases[0], alike.cause),
                known=alike.known,
                repro=typed.command("repro", cases[0].case.id, "--run", run.id) if cases[0].ran else "",
                sections=tuple(section(view) for view in cases[: first + each]),
                whole=first,
                lines=tuple(cases[first + each :]),
            )
        )
    return tuple(groups)


class _Alike(NamedTuple):
    """What the cases of one group have in common."""

    verdict: Verdict
    kernel: str
    cause: str
    words: tuple[str, ...]
    """what the page says of the first case of a phase, where that tells one mistake from another"""
    known: tuple[str, ...]
    """what is known of the cases of a phase"""


def _alike(views: Sequence[CaseView], waivers: Mapping[str, str]) -> dict[_Alike, list[CaseView]]:
    """The cases by kernel and cause, the worst first; a phase of which something else is told stands by itself."""
    by_phase: dict[tuple[Verdict, str, str, str], list[CaseView]] = {}
    for view in worst_first(view for view in views if view.verdict in {"FAIL", "INCONCLUSIVE"}):
        by_phase.setdefault((view.verdict, view.case.kernel, cause_of(view), view.case.phase), []).append(view)
    members: dict[_Alike, list[CaseView]] = {}
    for (verdict, kernel, cause, _), cases in by_phase.items():
        first = cases[0]
        words = mistake(cause, finding_of(first.outcome, cause), next(iter(first.reasons or first.why), ""))
        known = tuple(_known(cases, cause, waivers))
        alike = _Alike(verdict=verdict, kernel=kernel, cause=cause, words=words, known=known)
        members.setdefault(alike, []).extend(cases)
    return members


def _pathless(models: Sequence[ModelView]) -> tuple[Pathless, ...]:
    """The shapes by verdict, model and phase: failed ones first, then undecided ones."""
    members: dict[tuple[Verdict, str, str], list[ShapeView]] = {}
    for model in models:
        for shape in model.shapes:
            verdict = shape.judgement.verdict
            if verdict in {"FAIL", "INCONCLUSIVE"}:
                members.setdefault((verdict, model.model, shape.phase), []).append(shape)
    found = [
        Pathless(
            verdict=verdict,
            model=model,
            phase=phase,
            reason=next(iter(shapes[0].judgement.reasons), "no reason was recorded"),
            shapes=tuple(shapes),
        )
        for (verdict, model, phase), shapes in members.items()
    ]
    return tuple(sorted(found, key=lambda group: group.verdict != "FAIL"))


def _waivers(conclusion: Conclusion) -> Mapping[str, str]:
    """By case id, the waiver whose glob matches the failed case but that does not cover it, in words."""
    return {case: _uncovered(use) for use in conclusion.waivers for case in use.failing}


def _uncovered(use: WaiverUse) -> str:
    """Why a waiver does not cover a case that its glob matches: it is not in force, or accepts too little."""
    name = f"waiver {use.waiver.id} of {use.waiver.owner}"
    if use.state in IN_FORCE:
        return f"{name} accepts {', '.join(use.waiver.checks)}, and does not cover all that failed"
    return f"{name} is {use.state} and does not cover it"


def _known(cases: Iterable[CaseView], cause: str, waivers: Mapping[str, str]) -> Iterable[str]:
    """What is known of the cases, each text once."""
    told: dict[str, None] = {}
    for view in cases:
        if known := known_finding(view.case, cause):
            told[known.words] = None
        if view.case.id in waivers:
            told[waivers[view.case.id]] = None
        if view.case.incident:
            told[f"replays the public incident {view.case.incident}"] = None
    return told
