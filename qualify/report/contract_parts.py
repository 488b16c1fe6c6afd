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
    """the check's verdict"""
    detail: str
    """one sentence"""
    values: dict[str, Value]
    """the numbers behind the verdict; a number that JSON cannot hold is null"""


class CaseJson(ContractPart):
    """One case."""

    id: str
    """model/phase/shape/dtype/mask/kernel"""
    outcome: OutcomeName
    """what happened"""
    verdict: Verdict
    """the gate's verdict on the case"""
    reasons: list[str]
    """why the case has this verdict; the most important reason comes first"""
    line: int
    """line of the matrix that asked for it; 0 = unknown"""
    environment: str
    """environment that it ran in; empty = the interpreter of qualify itself"""
    ended_at: str | None
    """when the case ended, ISO 8601; null where nobody ran it, and in outcomes of an older qualify"""
    kernel_launched: list[str]
    """raw names of the attention kernels that the witness saw"""
    identity_asserted: bool
    """whether the card's patterns tell its kernel from others, and the witness saw that kernel"""
    findings: list[FindingJson]
    """one finding for each thing that a check found"""


class CellJson(ContractPart):
    """One production shape."""

    cell: str
    """model/phase/shape/dtype/mask"""
    verdict: Verdict
    """whether it has its proven path"""
    proven_by: list[str]
    """kernels that were measured, witnessed and passed"""
    reasons: list[str]
    """why the shape has no proven path"""


class CountsJson(ContractPart):
    """Numbers of cases by verdict and by outcome."""

    verdicts: dict[Verdict, int]
    """by verdict, zeros included"""
    outcomes: dict[OutcomeName, int]
    """by outcome, zeros included"""


class WaiverJson(ContractPart):
    """One waiver, and the cases that it met."""

    id: str
    """its name"""
    state: WaiverState
    """state of the waiver after the verdict"""
    place: str
    """file:line"""
    select: str
    """glob over case ids"""
    checks: list[str]
    """checks whose failures it accepts"""
    owner: str
    """its owner"""
    reason: str
    """why the failure is accepted"""
    link: str
    """where the failure is tracked"""
    created: str
    """first day, UTC"""
    expires: str
    """last day, UTC"""
    stack: dict[str, str]
    """conditions on the stack: by component (or ``device``), the version that the waiver needs"""
    waived: list[str]
    """failing cases that it covers"""
    failing: list[str]
    """cases that match its glob and fail, but that it does not cover"""
    passing: list[str]
    """cases that match its glob and pass"""


class RevocationJson(ContractPart):
    """The end of a sign-off."""

    by: str
    """who revoked the sign-off"""
    reason: str
    """why it was revoked"""
    at: str
    """when it was revoked, UTC"""


class SignOffJson(ContractPart):
    """Somebody vouches for the evidence of a run."""

    id: int
    """number of the sign-off in the store"""
    state: SignOffState
    """valid; revoked; changed: the evidence is no longer what was signed; imported: nobody here checked who signed;
    unproven: signed without a token. Only a valid one counts"""
    run: str
    """id of the run whose evidence was signed"""
    sha256: str
    """digest of the evidence that was signed"""
    sealed: bool
    """whether the run had a seal when it was signed"""
    verdict: Verdict
    """verdict on the run when it was signed"""
    by: str
    """who signed"""
    role: str
    """role in which the person signed"""
    reason: str
    """why the person signed"""
    at: str
    """when the person signed, UTC"""
    origin: str | None
    """imported file that holds the sign-off; null = it was given here"""
    how: str | None
    """how the person is known: token, session, jwt, loopback or command; null = it was imported"""
    revoked: RevocationJson | None
    """how the sign-off was revoked; null = it was not"""


class StackChangeJson(ContractPart):
    """One component that differs from the baseline's stack."""

    component: str
    """name of the component, variable or property of the device"""
    kind: str
    """kind of component"""
    before: str | None = Field(alias="from")
    """version and digest; null = absent"""
    after: str | None = Field(alias="to")
    """version and digest; null = absent"""


class EnvironmentJson(ContractPart):
    """Another interpreter that kernels ran in, as KERNEL@NAME."""

    name: str
    """name of the environment"""
    python: str
    """path of the interpreter"""
    stack: str | None
    """fingerprint of its stack; null = no host reported it, and the evidence from there does not count"""
    changes: list[StackChangeJson]
    """components that differ from the run's own stack, without the files that processes mapped"""
