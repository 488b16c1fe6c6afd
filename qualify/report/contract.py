"""The JSON of ``qualify run`` and ``qualify gate`` as a schema: the stable contract with pipelines.

Fields may be added within a version, never renamed or removed. A test validates what the program prints.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from qualify.cards.schema import DRAFT, in_draft_07
from qualify.facts.case import Level
from qualify.facts.run import RunState
from qualify.report.contract_changes import AgainstJson, PerformanceJson, SlowerJson, WeakerJson
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
    """whether it is older than --max-age allows"""
    future: bool
    """whether it is dated in the future, which is not believed"""
    narrowed: bool
    """whether the run was narrowed by --select or --kernel"""
    failed_cards: dict[str, str]
    """by UUID, what the driver said of cards whose hardware failed during the run: nothing that they measured counts"""
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
    """exit code of the command"""
    demonstration: bool
    """a CPU stood in for the GPU that kernels of the matrix need: it proves nothing about a GPU"""
    selftest: dict[str, Any]
    """how well the checks detect planted faults"""
    counts: CountsJson
    """cases by verdict and outcome"""
    notes: list[str]
    """what must be known beside the verdict"""
    signoffs: list[SignOffJson]
    """who vouches for the evidence, also where that was revoked, or the evidence changed since"""
    waivers: list[WaiverJson]
    """every waiver of the matrix"""
    against: AgainstJson | None
    """the comparison, with --against"""
    slower: list[SlowerJson]
    """cases that became slower, the largest factor first; they fail only where policy.drift.times is fail"""
    performance: PerformanceJson | None
    """budgets of time beside a duel; null = the matrix has none, and no duel was required"""
    weaker: WeakerJson | None
    """what the run asks less than the accepted baseline; null = nothing, or nobody accepted one"""
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
