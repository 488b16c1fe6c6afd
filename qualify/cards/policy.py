"""The policy of a matrix: how cases are run, what fails the gate, and what a waiver may do."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from qualify.cards.words import Card, Count, Flag, Positive, Several, Text
from qualify.facts.case import Phase

LONGEST_DAYS = 90
"""most days for which a waiver may hold, whatever a policy says"""


class Drift(Card):
    """What a change against the baseline means where the gate compares."""

    kernels: Literal["report", "fail"] = "report"
    """another attention kernel, or another grid, than in the baseline"""
    numbers: Literal["report", "fail"] = "report"
    """a looser measured accuracy class, or errors much nearer to their limits"""
    times: Literal["warn", "fail"] = "warn"
    """a case that became slower by more than the difference between two runs of one stack: warn, or fail the gate"""


class WaiverPolicy(Card):
    """Who may waive what; a waiver that goes beyond this is an error."""

    owners: Several[Text] = ()
    """globs over the owners who may waive; left out = anybody"""
    max_days: Annotated[Count, Field(le=LONGEST_DAYS)] | None = None
    """days from created to expires, at most; left out = 90"""
    max_cases: Count | None = None
    """cases of the matrix that one waiver may cover, at most; left out = no limit"""
    max_waivers: Count | None = None
    """waivers in the file, at most; left out = no limit"""
    stars: Literal["allow", "forbid"] = "allow"
    """forbid: a waiver must name its kernel, and a part of the case; a bare * is allowed for neither"""


class TimeBudget(Card):
    """By how much something may take longer than before."""

    phase: Phase | None = None
    """prefill, chunked, varlen, decode or verify; left out = all"""
    of: Literal["cell", "mean", "p50", "p95", "p99"]
    """cell: every single cell; else the attention time of a layer's call, weighted by the matrix's traffic"""
    percent: Annotated[Positive, Field(le=1000)]
    """how much it may grow, in per cent"""


class PerformancePolicy(Card):
    """What the gate says about time."""

    require: Literal["nothing", "duel"] = "nothing"
    """duel: the gate gives no verdict without a duel that counts"""
    evidence: Literal["duel", "history", "either"] = "duel"
    """what may judge a budget. duel: two stacks that took turns on one card. history: the runs before, compared with
    those since; it shows changes of 3.5 % and more. either: history where no duel has timed the cell"""
    budgets: Several[TimeBudget] = ()
    """each of them must hold"""

    @model_validator(mode="after")
    def _no_contradiction(self) -> Self:
        if self.require == "duel" and self.evidence == "history":
            raise ValueError(
                "require: duel needs a duel, but with evidence: history no duel counts; write evidence: either"
            )
        return self


class Policy(Card):
    """How cases are run and judged."""

    reference: Literal["fp64", "fp32"] = "fp64"
    """precision of the golden result"""
    timeout_s: Annotated[Positive, Field(le=86400)] = 60
    """seconds without a sign of life after which a case is killed"""
    compile_timeout_s: Annotated[Positive, Field(le=86400)] = 600
    """the same limit while a library loads, and, where its card's jit says that it compiles, in its first calls and in
    each check"""
    fallback: Literal["forbid", "record"] = "forbid"
    """what a substituted kernel means where no expectation says so"""
    claims: Literal["enforce", "ignore"] = "enforce"
    """ignore: also run what the cards do not claim, only to learn what happens"""
    limit_cases: Count = 200000
    """a matrix that expands to more cases is an error"""
    drift: Drift = Drift()
    """changes against the baseline that fail the gate"""
    performance: PerformancePolicy = PerformancePolicy()
    """budgets of time, which today's stack must keep against the one before"""
    forbid_weaker: Flag = True
    """evidence with weaker requirements than the accepted baseline fails the gate; false takes effect only once the
    accepted baseline has it, too"""
    waivers: WaiverPolicy = WaiverPolicy()
    """who may waive what, and for how long"""
