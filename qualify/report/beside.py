"""What a page shows beside the run's own evidence: comparisons, times, sign-offs, maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from qualify.facts.comparison import Since, Slowdown
from qualify.facts.people import SignedOff
from qualify.facts.performance import Performance
from qualify.facts.selftest import SelfTest
from qualify.facts.typed import PLAIN, Typed
from qualify.facts.weaker import Weaker
from qualify.judge.judged import Against, Judged
from qualify.report.cliffs import MapsFile
from qualify.report.next_step import NextStep
from qualify.report.next_steps import next_steps
from qualify.report.troubles import troubles


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """Facts that a page adds to a run, its records and its verdict; a default means that there are none."""

    selftest: SelfTest | None = None
    """how well the checks of this run detect planted faults"""
    against: Against | None = None
    """the comparison with another run"""
    slower: Slowdown | None = None
    """cases that take longer than in the baseline"""
    weaker: Weaker | None = None
    """what the baseline required and the run does not"""
    performance: Performance | None = None
    """the budgets of time, and what a duel says about them"""
    signed: tuple[SignedOff, ...] = ()
    """who signed the evidence, also where that was revoked"""
    maps: tuple[MapsFile, ...] = ()
    """kernel maps that somebody gave for the report"""
    failed_cards: Mapping[str, str] = field(default_factory=dict)
    """by UUID, what the driver said of cards whose hardware failed during the run"""
    notes: tuple[str, ...] = ()
    """what a reader must know beside the verdict"""
    since: Since | None = None
    """what changed since the run of the comparison, or else since the accepted baseline"""
    steps: tuple[NextStep, ...] = ()
    """what to do next; commands name no store, because people copy pages to other machines"""
    typed: Typed = PLAIN
    """options that printed commands repeat"""


NOTHING = Beside()
"""a run alone"""


def beside_of(judged: Judged, maps: Sequence[MapsFile] = ()) -> Beside:
    """What was found out about a judged run."""
    return Beside(
        selftest=judged.selftest,
        against=judged.against,
        slower=judged.slower,
        weaker=judged.weaker,
        performance=judged.performance,
        signed=judged.signoffs,
        maps=tuple(maps),
        failed_cards=judged.failed_cards,
        notes=judged.notes,
        since=judged.since,
        steps=tuple(_steps(judged)),
        typed=judged.typed,
    )


def _steps(judged: Judged) -> Iterable[NextStep]:
    """What to do next, for a reader who has the report before him, perhaps long after it was written."""
    run, typed = judged.run, replace(judged.typed, db="")
    if judged.conclusion.verdict == "PASS" and not (run.narrowed or judged.conclusion.demonstration):
        return [NextStep("ask the gate whether this evidence counts today", typed.command("gate", "--run", run.id))]
    judged, here = replace(judged, typed=typed), typed.command("report", run.id)
    return (step for step in next_steps(judged, troubles(judged)) if step.command != here)
