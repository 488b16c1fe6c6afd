"""The JSON of ``qualify run`` and ``qualify gate`` as a schema: the stable contract with pipelines.

Fields may be added within a version, never renamed or removed. A test validates what the program prints.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qualify.cards.schema import DRAFT, in_draft_07
from qualify.facts.case import Level
from qualify.facts.comparison import Bucket, Topic
from qualify.facts.outcome import FindingVerdict, Value
from qualify.facts.run import RunState, Verdict
from qualify.facts.waiver import WaiverState
from qualify.facts.weaker import LessKind

OutcomeName = Literal["measured", "refused", "substituted", "crashed", "timed_out", "not_run"]


class _Part(BaseModel):
    """A mapping of the contract; later versions of qualify may add fields."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True, populate_by_name=True)


class FindingJson(_Part):
    """What one check says."""

    check: str
    """name of the check"""
    verdict: FindingVerdict
    """what it says"""
    detail: str
    """one sentence"""
    values: dict[str, Value]
    """numbers behind it; one that JSON cannot hold is null"""


class CaseJson(_Part):
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


class CellJson(_Part):
    """One production shape."""

    cell: str
    """model/phase/shape/dtype/mask"""
    verdict: Verdict
    """whether it has its proven path"""
    proven_by: list[str]
    """kernels that were measured, witnessed and passed"""
    reasons: list[str]
    """why not"""


class CountsJson(_Part):
    """How many cases came to what."""

    verdicts: dict[Verdict, int]
    """by verdict, zeros included"""
    outcomes: dict[OutcomeName, int]
    """by outcome, zeros included"""


class WaiverJson(_Part):
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
    """who answers for it"""
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


class StackChangeJson(_Part):
    """One component that differs from the baseline's stack."""

    component: str
    """name of the component, variable or property of the device"""
    kind: str
    """what it is"""
    before: str | None = Field(alias="from")
    """version and digest; null = absent"""
    after: str | None = Field(alias="to")
    """version and digest; null = absent"""


class ChangeJson(_Part):
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


class ForbiddenJson(_Part):
    """A change that the matrix's policy does not allow."""

    id: str
    """case id"""
    topic: Topic
    """what changed"""


class AgainstJson(_Part):
    """The comparison with an earlier run."""

    run: str
    """id of that run"""
    accepted_by: str | None
    """who accepted it; null where it is no baseline"""
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
    verdicts: list[ChangeJson]
    """changed verdicts"""
    kernels: list[ChangeJson]
    """changed kernels and grids"""
    numbers: list[ChangeJson]
    """changed errors"""
    times: list[ChangeJson]
    """changed times"""


class SlowerJson(_Part):
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


class LessJson(_Part):
    """One thing of which less is asked than in the accepted baseline."""

    kind: LessKind
    """what it is about"""
    what: str
    """its name, for example policy.timeout_s"""
    then: str
    """what the baseline asked"""
    now: str
    """what is asked now"""
    count: int
    """cases that it is about, or shapes of an expectation; 0 = all"""
    first: list[str]
    """the first three of them"""


class WeakerJson(_Part):
    """What is asked less than in the accepted baseline."""

    run: str
    """id of the accepted run"""
    accepted_by: str
    """who accepted it"""
    accepted_at: str
    """when, ISO 8601"""
    forbidden: bool
    """whether the policy forbids it: then the gate does not promote"""
    changes: list[LessJson]
    """each point, alike cases together"""


class EnvironmentJson(_Part):
    """Another interpreter that kernels ran in, as KERNEL@NAME."""

    name: str
    """its name"""
    python: str
    """path of the interpreter"""
    stack: str | None
    """fingerprint of its stack; null = nobody reported it, and its evidence does not count"""
    changes: list[StackChangeJson]
    """what differs from the run's own stack, mapped files left out"""


class GateJson(_Part):
    """What `qualify run --json` and `qualify gate --json` print."""

    schema_: Literal["qualify.run/1"] = Field(alias="schema")
    """kind and version"""
    run: str
    """id of the run, or of the newest that the evidence is from"""
    runs: list[str]
    """ids of all runs that the evidence is from"""
    matrix: str
    """name of the matrix"""
    matrix_path: str
    """its file"""
    level: Level
    """level of the run"""
    state: RunState
    """whether it came to its end"""
    started_at: str
    """begin of the oldest evidence, ISO 8601"""
    stale: bool
    """whether it is older than was asked for"""
    future: bool
    """whether it is dated in the future, which is not believed"""
    narrowed: bool
    """whether the run was narrowed by --select or --kernel"""
    stack: str | None
    """fingerprint of the stack"""
    device: str | None
    """name of the device"""
    environments: list[EnvironmentJson]
    """the other interpreters of the run, by name"""
    headline: str
    """the verdict in one line; it names owner, case and expiry date of each waiver that it needs"""
    verdict: Literal["PASS", "FAIL", "INCONCLUSIVE"]
    """what the gate says"""
    exit_code: Literal[0, 1, 5]
    demonstration: bool
    """a CPU stood in for the GPU that kernels of the matrix need: it proves nothing about a GPU"""
    """exit code of the command"""
    selftest: dict[str, Any]
    """how well the checks detect planted faults"""
    counts: CountsJson
    """cases by verdict and outcome"""
    notes: list[str]
    """what must be known beside the verdict"""
    waivers: list[WaiverJson]
    """every waiver of the matrix"""
    against: AgainstJson | None
    """the comparison, where it was asked for"""
    slower: list[SlowerJson]
    """cases that became slower, the largest factor first; they fail only where policy.drift.times is fail"""
    weaker: WeakerJson | None
    """what is asked less than in the accepted baseline; null = nothing, or nobody accepted one"""
    cells: list[CellJson]
    """production shapes"""
    cases: list[CaseJson]
    """cases, in the order of the plan"""
    report: str | None = None
    """path of the page; `run` only"""


def gate_schema() -> dict[str, Any]:
    """The JSON Schema (draft-07) of the gate's JSON."""
    generated = GateJson.model_json_schema(by_alias=True, mode="validation", ref_template="#/definitions/{model}")
    definitions = generated.pop("$defs")
    return {"$schema": DRAFT, **in_draft_07({**generated, "definitions": definitions})}
