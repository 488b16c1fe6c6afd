"""Parts of the gate's JSON that say what a run brought: cases, shapes, counts, waivers, sign-offs, environments."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from qualify.facts.outcome import FindingVerdict, Value
from qualify.facts.people import SignOffState
from qualify.facts.run import Verdict
from qualify.facts.waiver import WaiverState

OutcomeName = Literal["measured", "refused", "substituted", "crashed", "timed_out", "not_run"]


class ContractPart(BaseModel):
    """A mapping of the contract; later versions of qualify may add fields."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, populate_by_name=True)


class FindingJson(ContractPart):
    """What one check says."""

    check: str
    """name of the check"""
    verdict: FindingVerdict
    """what it says"""
    detail: str
    """one sentence"""
    values: dict[str, Value]
    """numbers behind it; one that JSON cannot hold is null"""


class CaseJson(ContractPart):
    """One case."""

    id: str
    """model/phase/shape/dtype/mask/kernel"""
    outcome: OutcomeName
    """what happened"""
    verdict: Verdict
    """what it means"""
    reasons: list[str]
    """why; the first is the weightiest"""
    line: int
    """line of the matrix that asked for it; 0 = unknown"""
    environment: str
    """environment that it ran in; empty = the interpreter of qualify itself"""
    kernel_launched: list[str]
    """raw names of the attention kernels that the witness saw"""
    identity_asserted: bool
    """whether the card's patterns tell its kernel from others, and the witness saw it"""
    findings: list[FindingJson]
    """what the checks say"""


class CellJson(ContractPart):
    """One production shape."""

    cell: str
    """model/phase/shape/dtype/mask"""
    verdict: Verdict
    """whether it has its proven path"""
    proven_by: list[str]
    """kernels that were measured, witnessed and passed"""
    reasons: list[str]
    """why not"""


class CountsJson(ContractPart):
    """How many cases came to what."""

    verdicts: dict[Verdict, int]
    """by verdict, zeros included"""
    outcomes: dict[OutcomeName, int]
    """by outcome, zeros included"""


class WaiverJson(ContractPart):
    """One waiver, and what it did."""

    id: str
    """its name"""
    state: WaiverState
    """what became of it"""
    place: str
    """file:line"""
    select: str
    """glob over case ids"""
    checks: list[str]
    """failures that it accepts"""
    owner: str
    """its owner"""
    reason: str
    """why"""
    link: str
    """where it is tracked"""
    created: str
    """first day, UTC"""
    expires: str
    """last day, UTC"""
    stack: dict[str, str]
    """conditions on the stack"""
    waived: list[str]
    """cases that it covers"""
    failing: list[str]
    """cases that fail although they meet its glob"""
    passing: list[str]
    """cases of its glob that pass"""


class RevocationJson(ContractPart):
    """The end of a sign-off."""

    by: str
    """who ended it"""
    reason: str
    """why"""
    at: str
    """when, UTC"""


class SignOffJson(ContractPart):
    """Somebody vouches for the evidence of a run."""

    id: int
    """its number in the store"""
    state: SignOffState
    """valid; revoked; changed: the evidence is no longer what was signed; imported: nobody here checked who signed;
    unproven: signed without a token. Only a valid one counts"""
    run: str
    """whose evidence"""
    sha256: str
    """digest of the evidence that was signed"""
    sealed: bool
    """whether the run had a seal then"""
    verdict: Verdict
    """on the run, then"""
    by: str
    """who signed"""
    role: str
    """in which role"""
    reason: str
    """why"""
    at: str
    """when, UTC"""
    origin: str | None
    """the imported file that it is from; null = it was given here"""
    how: str | None
    """how the person is known: token, session, jwt, loopback or command; null = it was imported"""
    revoked: RevocationJson | None
    """null = it was not revoked"""


class StackChangeJson(ContractPart):
    """One component that differs from the baseline's stack."""

    component: str
    """name of the component, variable or property of the device"""
    kind: str
    """what it is"""
    before: str | None = Field(alias="from")
    """version and digest; null = absent"""
    after: str | None = Field(alias="to")
    """version and digest; null = absent"""


class EnvironmentJson(ContractPart):
    """Another interpreter that kernels ran in, as KERNEL@NAME."""

    name: str
    """its name"""
    python: str
    """path of the interpreter"""
    stack: str | None
    """fingerprint of its stack; null = nobody reported it, and its evidence does not count"""
    changes: list[StackChangeJson]
    """what differs from the run's own stack, mapped files left out"""
