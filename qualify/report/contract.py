"""The JSON of ``qualify run`` and ``qualify gate`` as a schema: the stable contract with pipelines.

Fields may be added within a version, never renamed or removed. A test validates what the program prints.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from qualify.cards.schema import DRAFT, in_draft_07
from qualify.facts.case import Level
from qualify.facts.run import RunState
from qualify.report.contract_changes import AgainstJson, PerformanceJson, SinceJson, SlowerJson, WeakerJson
from qualify.report.contract_parts import (
    CaseJson,
    CellJson,
    ContractPart,
    CountsJson,
    EnvironmentJson,
    SignOffJson,
    WaiverJson,
)


class GateJson(ContractPart):
    """What `qualify run --json` and `qualify gate --json` print."""

    schema_: Literal["qualify.run/1"] = Field(alias="schema")
    """kind and version"""
    run: str
    """id of the run; where the evidence is from several runs, id of the newest"""
    runs: list[str]
    """ids of all runs that the evidence is from"""
    matrix: str
    """name of the matrix"""
    matrix_path: str
    """path of the matrix file"""
    level: Level
    """level of the run"""
    state: RunState
    """whether the run has completed"""
    started_at: str
    """when the first run of the evidence began, ISO 8601"""
    evidence_since: str
    """when the oldest evidence was made, from which its age counts, ISO 8601"""
    stale: bool
    """whether the evidence is older than --max-age allows"""
    future: bool
    """whether the evidence is dated in the future; the gate then refuses it"""
    narrowed: bool
    """whether the run was narrowed by --select or --kernel"""
    failed_cards: dict[str, str]
    """by UUID, what the driver reported of cards that failed during the run; none of their measurements count"""
    stack: str | None
    """fingerprint of the stack"""
    device: str | None
    """name of the device"""
    environments: list[EnvironmentJson]
    """the other interpreters of the run, by name"""
    headline: str
    """the verdict in one line, with the owner, a case and the expiry date of each waiver that it needs"""
    verdict: Literal["PASS", "FAIL", "INCONCLUSIVE"]
    """what the gate says"""
    exit_code: Literal[0, 1, 5]
    """exit code of the command"""
    demonstration: bool
    """whether a CPU stood in for the GPU that the kernels need; such a run proves nothing about a GPU"""
    selftest: dict[str, Any]
    """how well the checks detect planted faults"""
    counts: CountsJson
    """cases by verdict and outcome"""
    notes: list[str]
    """limits of the verdict that a reader must know"""
    signoffs: list[SignOffJson]
    """sign-offs of the evidence, including revoked ones and those of evidence that has changed since"""
    waivers: list[WaiverJson]
    """every waiver of the matrix"""
    do: list[str]
    """what to do now, in order; a command stands at the end of its line"""
    since: SinceJson | None
    """what changed under the kernels since the run of --against, or else since the accepted baseline; null = there is
    neither, or it is this run"""
    against: AgainstJson | None
    """the comparison with another run; null = --against was not given"""
    slower: list[SlowerJson]
    """cases that became slower, the largest factor first; they fail the gate only where policy.drift.times is fail"""
    performance: PerformanceJson | None
    """the verdict on the budgets of time; null = the matrix has none, and the command required no evidence of time"""
    weaker: WeakerJson | None
    """requirements that are weaker than the accepted baseline's; null = there are none, or there is no baseline"""
    cells: list[CellJson]
    """production shapes"""
    cases: list[CaseJson]
    """cases, in the order of the plan"""
    report: str = ""
    """path of the report's page; only `qualify run` writes one, and elsewhere this field is absent"""


def gate_schema() -> dict[str, Any]:
    """The JSON Schema (draft-07) of the gate's JSON."""
    generated = GateJson.model_json_schema(by_alias=True, mode="validation", ref_template="#/definitions/{model}")
    definitions = generated.pop("$defs")
    return {"$schema": DRAFT, **in_draft_07({**generated, "definitions": definitions})}
