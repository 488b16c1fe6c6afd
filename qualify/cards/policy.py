"""The policy of a matrix: how cases are run, what fails the gate, and what a waiver may do."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from qualify.cards.words import Card, Count, Flag, Positive, Several, Text

LONGEST_DAYS = 90
"""for which a waiver may hold, whatever a policy says"""


class Drift(Card):
    """What a change against the baseline means, where the gate is asked to compare."""

    kernels: Literal["report", "fail"] = "report"
    """another attention kernel, or another grid, than in the baseline"""
    numbers: Literal["report", "fail"] = "report"
    """a looser measured accuracy class, or errors much nearer to their limits"""
    times: Literal["warn", "fail"] = "warn"
    """a case that takes longer by more than two runs of one stack differ: say so, or fail the gate"""


class WaiverPolicy(Card):
    """Who may waive what; a waiver beyond it is an error."""

    owners: Several[Text] = ()
    """globs over the owners who may waive; left out = anybody"""
    max_days: Annotated[Count, Field(le=LONGEST_DAYS)] | None = None
    """days from created to expires, at most; left out = 90"""
    max_cases: Count | None = None
    """cases of the matrix that one waiver may cover, at most; left out = no limit"""
    max_waivers: Count | None = None
    """waivers in the file, at most; left out = no limit"""
    stars: Literal["allow", "forbid"] = "allow"
    """forbid: a waiver names its kernel, and a part of the case; no bare * stands for one of them"""


class Policy(Card):
    """How cases are run and judged."""

    reference: Literal["fp64", "fp32"] = "fp64"
    """precision of the golden result"""
    timeout_s: Annotated[Positive, Field(le=86400)] = 60
    """seconds without a sign of life after which a case is killed"""
    compile_timeout_s: Annotated[Positive, Field(le=86400)] = 600
    """the same while a library compiles"""
    fallback: Literal["forbid", "record"] = "forbid"
    """what a substituted kernel means where no expectation says so"""
    claims: Literal["enforce", "ignore"] = "enforce"
    """ignore: also run what the cards do not claim, only to learn what happens"""
    limit_cases: Count = 200000
    """a matrix that expands to more cases is an error"""
    drift: Drift = Drift()
    """changes against the baseline that fail the gate"""
    forbid_weaker: Flag = True
    """evidence that asks less than the accepted baseline fails the gate; false counts once a baseline has it"""
    waivers: WaiverPolicy = WaiverPolicy()
    """who may waive what, and for how long"""
