"""Parts of the gate's JSON that compare a run: with an earlier run, with its baseline, and with its budgets of time."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from qualify.facts.case import Phase
from qualify.facts.comparison import Bucket, Topic
from qualify.facts.duel import DuelVerdict
from qualify.facts.performance import AcceptedEvidence, BudgetVerdict, Share, TimeEvidence
from qualify.facts.weaker import LessKind
from qualify.report.contract_parts import ContractPart, StackChangeJson


class ChangeJson(ContractPart):
    """One thing about one case that differs from the baseline."""

    id: str
    """case id"""
    bucket: Bucket
    """how much it matters"""
    before: Any = Field(alias="from")
    """a word, a number, names, or numbers by name; null = absent"""
    after: Any = Field(alias="to")
    """the same"""
    detail: str
    """one sentence"""
    impact_us: float | None
    """time over all layers; 0 = unknown"""


class ForbiddenJson(ContractPart):
    """A change that the matrix's policy does not allow."""

    id: str
    """case id"""
    topic: Topic
    """what changed"""


class LessJson(ContractPart):
    """One thing that the run requires less strictly than the accepted baseline."""

    kind: LessKind
    """what it is about"""
    what: str
    """its name, for example policy.timeout_s"""
    then: str
    """what the baseline asked"""
    now: str
    """what the run asks"""
    count: int
    """cases that it is about, or shapes of an expectation; 0 = all"""
    first: list[str]
    """the first three of them"""


class AgainstJson(ContractPart):
    """The comparison with an earlier run."""

    run: str
    """id of that run"""
    accepted_by: str | None
    """who accepted it; null where it is no baseline"""
    accepted_proven: bool | None
    """whether a token proved who that is"""
    accepted_at: str | None
    """when"""
    forbidden: list[ForbiddenJson]
    """changes that fail the gate"""
    before: str
    """id of that run"""
    after: str
    """id of the judged run"""
    buckets: dict[Bucket, int]
    """cases by their worst bucket"""
    caveats: list[str]
    """what limits the comparison"""
    stack: list[StackChangeJson]
    """what changed under the kernels"""
    weaker: list[LessJson]
    """what the run asks less than that one"""
    verdicts: list[ChangeJson]
    """changed verdicts"""
    kernels: list[ChangeJson]
    """changed kernels and grids"""
    numbers: list[ChangeJson]
    """changed errors"""
    times: list[ChangeJson]
    """changed times"""
    bits: list[ChangeJson]
    """outputs of equal inputs whose bits changed; both sides are digests"""


class SlowerJson(ContractPart):
    """A case that takes longer than in the accepted baseline, or in the run that it was compared with."""

    id: str
    """case id"""
    before_us: float
    """its time in that run"""
    after_us: float
    """its time now"""
    factor: float
    """how many times as long it takes"""
    run: str
    """id of that run"""
    detail: str
    """how it was compared"""


class WeakerJson(ContractPart):
    """What the run asks less than the accepted baseline."""

    run: str
    """id of the accepted run"""
    accepted_by: str
    """who accepted it"""
    accepted_proven: bool
    """whether a token proved who that is"""
    accepted_at: str
    """when, ISO 8601"""
    forbidden: bool
    """whether the policy forbids it: then the gate does not promote"""
    changes: list[LessJson]
    """each point, alike cases together"""


class CellChangeJson(ContractPart):
    """A cell beside a budget of time; changes are shares: 0.02 = 2 % longer."""

    cell: str
    """production shape, with the kernel where the duel compared environments"""
    phase: Phase
    """of the call"""
    verdict: DuelVerdict
    """what the evidence says of it"""
    evidence: TimeEvidence
    """what judged it"""
    basis: str
    """the duel's id, or how many runs there were before and since"""
    change: float | None
    """null = it was not timed"""
    low: float | None
    """lower end of the 95 % interval"""
    high: float | None
    """its upper end"""
    before_us: float | None
    """median time before"""
    reason: str
    """why it is undecided; empty where it is decided"""


class BudgetUseJson(ContractPart):
    """A budget of time, and what became of it."""

    phase: str
    """empty = all phases"""
    of: Share
    """each cell, or the attention time of the traffic"""
    allowed: float
    """share by which it may grow"""
    verdict: BudgetVerdict
    """PASS: the whole interval is within; FAIL: it is beyond; else INCONCLUSIVE"""
    change: float | None
    """of the worst cell, or of the traffic"""
    low: float | None
    """lower end of the 95 % interval"""
    high: float | None
    """its upper end"""
    evidence: list[TimeEvidence]
    """what judged its cells"""
    cells: list[CellChangeJson]
    """those that fail it or leave it undecided, the worst first"""


class PerformanceJson(ContractPart):
    """The verdict about time."""

    accepted: AcceptedEvidence
    """what may judge a time, by the matrix and the command"""
    duel: str
    """id of the duel; empty where none counts"""
    at: str | None
    """when the duel ended, ISO 8601"""
    against: str
    """what was there before: the duel's name of that side, or the runs before"""
    stack_a: str
    """fingerprint of the stack that was there before"""
    budgets: list[BudgetUseJson]
    """each budget of the matrix"""
    cells: list[CellChangeJson]
    """every cell that the duel compared, the one that grew most first"""
    why_not: str
    """why no evidence of time counts; empty where some does"""
    required: bool
    """whether there is no verdict without such evidence"""
    verdict: BudgetVerdict
    """the worst of all budgets"""
