"""Outcomes and their parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import get_args

from qualify.facts.outcome import (
    Crashed,
    Evidence,
    Finding,
    FindingVerdict,
    Launch,
    Measured,
    NotRun,
    Outcome,
    Refused,
    Statistics,
    Substituted,
    TimedOut,
    Timing,
    Value,
    Witness,
    evidence_of,
    findings_of,
)
from qualify.store import tables
from qualify.store.failures import DamagedError
from qualify.store.mapping.row import Row, fields, pick, present
from qualify.store.types import decoded, texts, unescaped

NOT_REACHED = NotRun(reason="the run goes on, or ended before its turn")
"""what stands for a case without an outcome"""
_VERDICTS: dict[str, FindingVerdict] = {word: word for word in get_args(FindingVerdict)}
_VALUES = frozenset(get_args(Value))
STATISTICS_COLUMNS = tuple(Statistics.__dataclass_fields__)
"""columns of ``statistics``: one for each field"""
TIMING_COLUMNS = tuple(name for name in Timing.__dataclass_fields__ if name != "samples_us")
"""columns of ``outcomes`` that hold the timing"""
_LAUNCH = tuple(name for name in Launch.__dataclass_fields__ if name not in ("grid", "block"))
_EVIDENCE = ("attempt", "first_call_us", "wall_s", "witness_state", "witness_reason", "witness_calls")
"""columns that all evidence has"""
_OMITTED = ("output_digest", "inputs_digest", "device_uuid")
"""fields of evidence that are empty in evidence of an older qualify"""
# Bulk inserts want the same keys in every row, so each outcome starts from all of them.
_NO_OUTCOME: Row = {column.name: None for column in tables.outcomes.columns if column.name != "id"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The parts of one outcome, each in the order in which it was stored."""

    findings: tuple[Finding, ...] = ()
    statistics: tuple[Statistics, ...] = ()
    launches: tuple[Launch, ...] = ()
    samples_us: tuple[float, ...] = ()


@lru_cache(maxsize=256)
def _texts_once(value: str | None) -> tuple[str, ...]:
    """The list of texts in a stored text; equal ones are one object."""
    return texts(decoded(value))


def outcome_row(outcome: Outcome, case_key: int) -> Row:
    """The row of ``outcomes``."""
    counted = {"case_key": case_key, "outcome": outcome.outcome, "finding_count": len(findings_of(outcome))}
    return {**_NO_OUTCOME, **counted, **_outcome_fields(outcome)}


def _outcome_fields(outcome: Outcome) -> Row:
    match outcome:
        case Measured(evidence=evidence) | Substituted(evidence=evidence):
            return _evidence_fields(evidence)
        case Refused():
            return {"by": outcome.by, "reasons": list(outcome.reasons), "ended_at": outcome.ended_at}
        case Crashed():
            return {
                **fields(outcome, ("stage", "error", "log", "attempt", "ended_at")),
                "device_uuid": outcome.device_uuid or None,
            }
        case TimedOut():
            return {
                **fields(outcome, ("stage", "limit_s", "attempt", "ended_at")),
                "device_uuid": outcome.device_uuid or None,
            }
        case NotRun():
            return {"reason": outcome.reason}


def _evidence_fields(evidence: Evidence) -> Row:
    witness = evidence.witness
    return {
        "attempt": evidence.attempt,
        "first_call_us": evidence.first_call_us,
        "peak_temporary_bytes": evidence.peak_temporary_bytes,
        "wall_s": evidence.wall_s,
        "ended_at": evidence.ended_at,
        **{name: getattr(evidence, name) or None for name in _OMITTED},
        "witness_state": witness.state,
        "witness_reason": witness.reason,
        "witness_expected": list(witness.expected),
        "witness_calls": witness.calls,
        **(fields(evidence.timing, TIMING_COLUMNS) if evidence.timing else {}),
    }


def finding_rows(outcome: Outcome, outcome_id: int) -> list[Row]:
    """The rows of ``findings``."""
    return [
        {
            "outcome_id": outcome_id,
            "position": position,
            "check": finding.check,
            "verdict": finding.verdict,
            "detail": finding.detail,
            "values": dict(finding.values),
        }
        for position, finding in enumerate(findings_of(outcome))
    ]


def statistics_rows(outcome: Outcome, outcome_id: int) -> list[Row]:
    """The rows of ``statistics``."""
    evidence = evidence_of(outcome)
    return [
        {"outcome_id": outcome_id, "position": position, **fields(one, STATISTICS_COLUMNS)}
        for position, one in enumerate(evidence.statistics if evidence else ())
    ]


def launch_rows(outcome: Outcome, outcome_id: int) -> list[Row]:
    """The rows of ``launches``."""
    evidence = evidence_of(outcome)
    return [
        {
            "outcome_id": outcome_id,
            "position": position,
            **fields(launch, _LAUNCH),
            **_axes("grid", launch.grid),
            **_axes("block", launch.block),
        }
        for position, launch in enumerate(evidence.witness.launches if evidence else ())
    ]


def sample_rows(outcome: Outcome, outcome_id: int) -> list[Row]:
    """The rows of ``samples``."""
    evidence = evidence_of(outcome)
    samples_us = evidence.timing.samples_us if evidence and evidence.timing else ()
    return [
        {"outcome_id": outcome_id, "position": position, "latency_us": latency_us}
        for position, latency_us in enumerate(samples_us)
    ]


def finding_from(check: str, verdict: FindingVerdict, detail: str, values: str) -> Finding:
    """The finding, from its columns as the database has them. It must be fast: findings are most of what is read."""
    if not all(type(stored) is str for stored in (check, verdict, detail, values)) or verdict not in _VERDICTS:
        raise DamagedError(f"a finding has the verdict {verdict!r:.60}, or a part that is no text")
    found = decoded(values)
    if type(found) is not dict or not {type(value) for value in found.values()} <= _VALUES:
        raise DamagedError(f"the values of a finding of {check:.60} are {values!r:.60}")
    # Thousands of findings have the same keys and words: each text becomes one object, like the checks' names.
    own = {intern(name): intern(value) if type(value) is str else value for name, value in found.items()}
    return Finding(check=intern(unescaped(check)), verdict=_VERDICTS[verdict], detail=unescaped(detail), values=own)


def outcome_from(row: Row, parts: Parts) -> Outcome:
    """The outcome, of the kind that its row names; the patterns of its witness are still text."""
    findings = parts.findings
    match row["outcome"]:
        case "measured":
            return Measured(evidence=_evidence_from(row, findings, parts))
        case "substituted":
            return Substituted(evidence=_evidence_from(row, findings, parts))
        case "refused":
            return Refused(**present(row, ("by",)), reasons=texts(row["reasons"]), ended_at=row["ended_at"])
        case "crashed":
            told = present(row, ("stage", "error", "log", "attempt"))
            return Crashed(**told, findings=findings, **_of_attempt(row))
        case "timed_out":
            told = present(row, ("stage", "limit_s", "attempt"))
            return TimedOut(**told, findings=findings, **_of_attempt(row))
        case "not_run":
            return NotRun(**present(row, ("reason",)))
    raise ValueError(f"outcome {row['outcome']!r} is none that this program knows")


def _of_attempt(row: Row) -> Row:
    """Which card ran a case that gave no evidence, and when it ended."""
    return {"device_uuid": row["device_uuid"] or "", "ended_at": row["ended_at"]}


def _evidence_from(row: Row, findings: tuple[Finding, ...], parts: Parts) -> Evidence:
    there = present(row, _EVIDENCE)
    timed = None if row["latency_us"] is None else present(row, TIMING_COLUMNS)
    witness = Witness(
        state=there["witness_state"],
        reason=there["witness_reason"],
        expected=_texts_once(row["witness_expected"]),
        launches=parts.launches,
        calls=there["witness_calls"],
    )
    return Evidence(
        findings=findings,
        statistics=parts.statistics,
        witness=witness,
        timing=Timing(**timed, samples_us=parts.samples_us) if timed else None,
        first_call_us=there["first_call_us"],
        peak_temporary_bytes=row["peak_temporary_bytes"],
        wall_s=there["wall_s"],
        attempt=there["attempt"],
        ended_at=row["ended_at"],
        **{name: row[name] or "" for name in _OMITTED},
    )


def launch_from(row: Row) -> Launch:
    """The launch, from its columns."""
    grid = None if row["grid_x"] is None else (row["grid_x"], row["grid_y"], row["grid_z"])
    block = None if row["block_x"] is None else (row["block_x"], row["block_y"], row["block_z"])
    return Launch(**pick(row, _LAUNCH), grid=grid, block=block)


def _axes(name: str, size: tuple[int, int, int] | None) -> Row:
    x, y, z = size or (None, None, None)
    return {f"{name}_x": x, f"{name}_y": y, f"{name}_z": z}
