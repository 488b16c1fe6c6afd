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
    """the value now, in the same form"""
    detail: str
    """one sentence"""
    impact_us: float
    """microseconds in all layers of the model, or their change where the time changed; 0 = unknown"""


class ForbiddenJson(ContractPart):
    """A change that the matrix's policy does not allow."""

    id: str
    """case id"""
    topic: Topic
    """what changed"""


class LessJson(ContractPart):
    """One thing that the run requires less strictly than the accepted baseline."""

    kind: LessKind
    """kind of the requirement"""
    what: str
    """its name, for example policy.timeout_s"""
    then: str
    """what the baseline required"""
    now: str
    """what the run requires"""
    count: int
    """number of cases that the requirement covers, or of shapes for an expectation; 0 = all"""
    first: list[str]
    """the first three of these cases or shapes"""


class EarlierJson(ContractPart):
    """An earlier run, and who accepted it."""

    run: str
    """id of that run"""
    accepted_by: str | None
    """who accepted it; null where it is no baseline"""
    accepted_proven: bool | None
    """whether a token proved who that is"""
    accepted_at: str | None
    """when it was accepted, ISO 8601"""


class SinceJson(EarlierJson):
    """What changed under the kernels since an earlier run."""

    stack: list[StackChangeJson]
    """what changed in the stack"""
    code: dict[str, str]
    """by kernel, its own files that changed"""


class AgainstJson(EarlierJson):
    """The comparison with an earlier run."""

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
    """what changed in the stack under the kernels"""
    weaker: list[LessJson]
    """requirements that are weaker than that run's"""
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
    """its time now over its time then"""
    run: str
    """id of that run"""
    detail: str
    """how it was compared"""


class WeakerJson(ContractPart):
    """Requirements of the run that are weaker than the accepted baseline's."""

    run: str
    """id of the accepted run"""
    accepted_by: str
    """who accepted it"""
    accepted_proven: bool
    """whether a token proved who that is"""
    accepted_at: str
    """when, ISO 8601"""
    forbidden: bool
    """whether the policy forbids weaker requirements: then the gate does not promote"""
    changes: list[LessJson]
    """each weaker requirement; the cases that it covers stand together"""


class CellChangeJson(ContractPart):
    """A cell beside a budget of time; changes are shares: 0.02 = 2 % longer."""

    cell: str
    """production shape, with the kernel where the duel compared environments"""
    phase: Phase
    """phase of the call"""
    verdict: DuelVerdict
    """verdict on the cell's time"""
    evidence: TimeEvidence
    """kind of evidence behind the verdict"""
    basis: str
    """id of the duel, or how many runs of the history there were before and since"""
    change: float | None
    """null = it was not timed"""
    low: float | None
    """lower end of the 95 % interval"""
    high: float | None
    """upper end of the 95 % interval"""
    before_us: float | None
    """median time before"""
    reason: str
    """why it is undecided; empty where it is decided"""


class BudgetUseJson(ContractPart):
    """A budget of time, and whether it holds."""

    phase: str
    """phase that the budget limits; empty = all phases"""
    of: Share
    """what the budget limits: each cell, or the attention time of the traffic"""
    allowed: float
    """share by which that time may grow"""
    verdict: BudgetVerdict
    """PASS: the whole 95 % interval is within the budget; FAIL: all of it is beyond; else INCONCLUSIVE"""
    change: float | None
    """change of the worst cell, or of the traffic's attention time"""
    low: float | None
    """lower end of the 95 % interval"""
    high: float | None
    """upper end of the 95 % interval"""
    evidence: list[TimeEvidence]
    """kinds of evidence behind the verdicts on its cells"""
    cells: list[CellChangeJson]
    """cells that fail the budget or leave it undecided, the worst first"""


class PerformanceJson(ContractPart):
    """The verdict about time."""

    accepted: AcceptedEvidence
    """kinds of evidence that the matrix and the command accept for times"""
    duel: str
    """id of the duel; empty where none counts"""
    at: str | None
    """when the duel ended, ISO 8601"""
    against: str
    """what this stack is compared with: the duel's name of side A, or the earlier runs"""
    stack_a: str
    """fingerprint of the stack of side A"""
    budgets: list[BudgetUseJson]
    """each budget of the matrix"""
    cells: list[CellChangeJson]
    """every cell that was compared; the cell whose time grew most comes first"""
    why_not: str
    """why no evidence of time counts; empty where some evidence counts"""
    required: bool
    """whether the run has no verdict without such evidence"""
    verdict: BudgetVerdict
    """the worst of all budgets"""
