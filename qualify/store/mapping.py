"""Facts to rows and back. Pure functions: a row is a dictionary going in and a mapping coming out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from sys import intern
from typing import Any, get_args

from qualify.facts import codec
from qualify.facts.case import Case, Workload
from qualify.facts.environment import Environment
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
from qualify.facts.placement import Placement
from qualify.facts.run import Run
from qualify.facts.stack import Ceilings, Component, Device, Stack
from qualify.masks import PATTERNS, Mask
from qualify.store import tables
from qualify.store.failures import DamagedError, UnknownWordError
from qualify.store.types import decoded, unescaped

Row = dict[str, Any]

NOT_REACHED = NotRun(reason="the run ended before its turn")
"""what stands for a case without an outcome"""

MOST_SEQUENCES = 1 << 22
"""of one case; no plan has more"""
_VERDICTS: dict[str, FindingVerdict] = {word: word for word in get_args(FindingVerdict)}
_VALUES = frozenset(get_args(Value))
STATISTICS_COLUMNS = tuple(Statistics.__dataclass_fields__)
"""columns of ``statistics`` that are a field each"""
TIMING_COLUMNS = tuple(name for name in Timing.__dataclass_fields__ if name != "samples_us")
"""columns of ``outcomes`` that are of the timing"""
_LAUNCH = tuple(name for name in Launch.__dataclass_fields__ if name not in ("grid", "block"))
_CASE = tuple(name for name in Case.__dataclass_fields__ if name not in ("id", "unclaimed", "workload"))
_WORKLOAD = (
    "heads_q",
    "heads_kv",
    "head_dim",
    "head_dim_v",
    "softcap",
    "sinks",
    "scale",
    "page_size",
    "descale",
    "latent",
)
CASE_COLUMNS = ("key", "case_id", *_CASE, "unclaimed")
"""columns of ``cases`` that are not of the workload"""
WORKLOAD_COLUMNS = (
    *_WORKLOAD,
    *("workload_dtype", "causal", "window_left", "window_right", "pattern", "pattern_size"),
    *("seqlens_q", "seqlens_k", "spans"),
)
"""columns of ``cases`` that tell one workload from another"""
_RUN = tuple(
    name for name in Run.__dataclass_fields__ if name not in ("stack", "ceilings", "environments", "placement")
)
_COMPONENT = tuple(Component.__dataclass_fields__)
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


def lengths_to_text(lengths: Iterable[int]) -> str:
    """Sequence lengths, run-length encoded: ``(8192, 8192, 17)`` becomes ``8192x2,17``."""
    counted = ((length, sum(1 for _ in same)) for length, same in groupby(lengths))
    return ",".join(f"{length}x{count}" if count > 1 else f"{length}" for length, count in counted)


def lengths_from_text(text: str) -> tuple[int, ...]:
    """The sequence lengths that :func:`lengths_to_text` wrote."""
    pairs = [(int(length), int(count or 1)) for length, _, count in (part.partition("x") for part in _parts_of(text))]
    if sum(count for _, count in pairs) > MOST_SEQUENCES or any(length < 0 or count < 1 for length, count in pairs):
        raise DamagedError(f"the lengths of a batch are {text!r:.60}")
    return tuple(length for length, count in pairs for _ in range(count))


def _parts_of(text: str) -> Iterable[str]:
    return filter(None, text.split(","))


def _texts(value: Any) -> tuple[str, ...]:
    """A list of texts."""
    if type(value) is not list or not all(type(text) is str for text in value):
        raise DamagedError(f"a list of texts is {value!r:.60}")
    return tuple(value)


@lru_cache(maxsize=256)
def _texts_once(value: str | None) -> tuple[str, ...]:
    """A list of texts, from what the database has; equal ones are one object."""
    return _texts(decoded(value))


def _spans(value: Any) -> tuple[tuple[int, int, int], ...]:
    """A list of three whole numbers each."""
    if type(value) is not list or not all(type(span) is list and [int] * 3 == [*map(type, span)] for span in value):
        raise DamagedError(f"the spans of a case are {value!r:.60}")
    return tuple((sequence, start, end) for sequence, start, end in value)


def _nested(row: Row, name: str) -> None:
    """Raises DamagedError where a column holds neither NULL nor texts by key, by kernel."""
    value = row[name]
    if value is not None and not (type(value) is dict and all(map(are_texts, value.values()))):
        raise DamagedError(f"the {name} of a run is {value!r:.60}")


def are_texts(value: Any) -> bool:
    """Whether it is a dictionary of texts, as JSON gives it."""
    return type(value) is dict and {str} >= set(map(type, value.values()))


def stack_row(stack: Stack) -> Row:
    """The row of ``stacks``."""
    device = stack.device
    return {
        "fingerprint": stack.fingerprint,
        "device_kind": device.kind,
        "device_name": device.name,
        "compute_capability": device.compute_capability,
        "units": device.units,
        "memory_bytes": device.memory_bytes,
        "cache_bytes": device.cache_bytes,
    }


def component_rows(stack: Stack, stack_id: int) -> list[Row]:
    """The rows of ``components``; their order is part of the fingerprint."""
    return [
        {"stack_id": stack_id, "position": position, **_fields(component, _COMPONENT)}
        for position, component in enumerate(stack.components)
    ]


def environment_rows(stack: Stack, stack_id: int) -> list[Row]:
    """The rows of ``stack_environment``."""
    return [{"stack_id": stack_id, "name": name, "value": value} for name, value in stack.environment.items()]


def stack_from(row: Row, components: Iterable[Row], environment: Iterable[Row], *, uuid: str) -> Stack:
    """The stack as it was on the card ``uuid``; its environment by name, because databases sort text differently."""
    device = Device(
        kind=row["device_kind"],
        name=row["device_name"],
        uuid=uuid,
        compute_capability=row["compute_capability"],
        units=row["units"],
        memory_bytes=row["memory_bytes"],
        cache_bytes=row["cache_bytes"],
    )
    parts = tuple(Component(**_pick(part, _COMPONENT)) for part in components)
    values = sorted((pair["name"], pair["value"]) for pair in environment)
    return Stack(device=device, components=parts, environment=dict(values))


def run_row(run: Run) -> Row:
    """The row of ``runs``, without its stack."""
    placement = codec.to_data(run.placement) if run.placement else None
    return {**_fields(run, _RUN), "placement": placement}


def run_environment_rows(run: Run) -> list[Row]:
    """The rows of ``run_environments``, without their stacks."""
    return [{"run_id": run.id, "name": name, "python": one.python} for name, one in run.environments.items()]


def run_from(
    row: Row, stack: Stack | None, ceilings: Ceilings | None, environments: Iterable[tuple[Row, Stack | None]]
) -> Run:
    """The run; its environments by name, because databases sort text differently."""
    known = {part["name"]: Environment(python=part["python"], stack=there) for part, there in environments}
    _nested(row, "code")
    _nested(row, "terms")
    placement = None if row["placement"] is None else codec.from_data(Placement, row["placement"])
    return Run(
        **_pick(row, _RUN),
        stack=stack,
        ceilings=ceilings,
        environments=dict(sorted(known.items())),
        placement=placement,
    )


def ceilings_row(ceilings: Ceilings, run_id: str) -> Row:
    """The row of ``ceilings``."""
    return {
        "run_id": run_id,
        "copy_bytes_per_s": ceilings.copy_bytes_per_s,
        "exps_per_s": ceilings.exps_per_s,
        "launch_us": ceilings.launch_us,
    }


def matmul_rows(ceilings: Ceilings, run_id: str) -> list[Row]:
    """The rows of ``matmul_ceilings``."""
    reached = ceilings.matmul_flops_per_s
    return [{"run_id": run_id, "dtype": dtype, "matmul_flops_per_s": value} for dtype, value in reached.items()]


def ceilings_from(row: Row, matmuls: Iterable[Row]) -> Ceilings:
    """The ceilings of a run."""
    return Ceilings(
        matmul_flops_per_s=dict(sorted((matmul["dtype"], matmul["matmul_flops_per_s"]) for matmul in matmuls)),
        copy_bytes_per_s=row["copy_bytes_per_s"],
        exps_per_s=row["exps_per_s"],
        launch_us=row["launch_us"],
    )


def case_row(case: Case, run_id: str, position: int) -> Row:
    """The row of ``cases``."""
    workload = case.workload
    return {
        "run_id": run_id,
        "position": position,
        "case_id": case.id,
        **_fields(case, _CASE),
        "unclaimed": list(case.unclaimed),
        **_fields(workload, _WORKLOAD),
        "workload_dtype": workload.dtype,
        **_mask_fields(workload.mask),
        "seqlens_q": lengths_to_text(workload.seqlens_q),
        "seqlens_k": lengths_to_text(workload.seqlens_k),
        "spans": [list(span) for span in workload.spans],
    }


def case_from(row: Row, workload: Workload) -> Case:
    """The case, from its columns and its workload."""
    return Case(**_pick(row, _CASE), id=row["case_id"], unclaimed=tuple(row["unclaimed"]), workload=workload)


def workload_from(row: Row, case_id: str, lengths: Callable[[str], tuple[int, ...]] = lengths_from_text) -> Workload:
    """The workload of a case, from its columns; the spans as the database has them.

    Args:
        lengths: what reads the sequence lengths, where it is known which texts repeat.
    """
    return Workload(
        **_pick(row, _WORKLOAD),
        dtype=row["workload_dtype"],
        mask=_mask_from(row, case_id),
        seqlens_q=lengths(row["seqlens_q"]),
        seqlens_k=lengths(row["seqlens_k"]),
        spans=_spans(decoded(row["spans"])),
    )


def _mask_fields(mask: Mask) -> Row:
    left, right = mask.window
    return {
        "causal": mask.causal,
        "window_left": left,
        "window_right": right,
        "pattern": mask.pattern,
        "pattern_size": mask.size,
    }


def _mask_from(row: Row, case_id: str) -> Mask:
    window = (row["window_left"], row["window_right"])
    if row["pattern"] and row["pattern"] not in PATTERNS:
        raise UnknownWordError(f"{case_id}: pattern={row['pattern']!r} is none of {', '.join(PATTERNS)}")
    return _mask(row["causal"], window, row["pattern"], row["pattern_size"])


@lru_cache(maxsize=256)
def _mask(causal: bool, window: tuple[int, int], pattern: Any, size: int) -> Mask:
    """A mask; equal ones are one object."""
    return Mask(causal=causal, window=window, pattern=pattern, size=size)


def outcome_row(outcome: Outcome, case_key: int) -> Row:
    """The row of ``outcomes``."""
    return {**_NO_OUTCOME, "case_key": case_key, "outcome": outcome.outcome, **_outcome_fields(outcome)}


def _outcome_fields(outcome: Outcome) -> Row:
    match outcome:
        case Measured(evidence=evidence) | Substituted(evidence=evidence):
            return _evidence_fields(evidence)
        case Refused():
            return {"by": outcome.by, "reasons": list(outcome.reasons)}
        case Crashed():
            return {
                **_fields(outcome, ("stage", "error", "log", "attempt")),
                "device_uuid": outcome.device_uuid or None,
            }
        case TimedOut():
            return {**_fields(outcome, ("stage", "limit_s", "attempt")), "device_uuid": outcome.device_uuid or None}
        case NotRun():
            return {"reason": outcome.reason}


def _evidence_fields(evidence: Evidence) -> Row:
    witness = evidence.witness
    return {
        "attempt": evidence.attempt,
        "first_call_us": evidence.first_call_us,
        "peak_temporary_bytes": evidence.peak_temporary_bytes,
        "wall_s": evidence.wall_s,
        **{name: getattr(evidence, name) or None for name in _OMITTED},
        "witness_state": witness.state,
        "witness_reason": witness.reason,
        "witness_expected": list(witness.expected),
        "witness_calls": witness.calls,
        **(_fields(evidence.timing, TIMING_COLUMNS) if evidence.timing else {}),
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
        {"outcome_id": outcome_id, "position": position, **_fields(one, STATISTICS_COLUMNS)}
        for position, one in enumerate(evidence.statistics if evidence else ())
    ]


def launch_rows(outcome: Outcome, outcome_id: int) -> list[Row]:
    """The rows of ``launches``."""
    evidence = evidence_of(outcome)
    return [
        {
            "outcome_id": outcome_id,
            "position": position,
            **_fields(launch, _LAUNCH),
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
    """The finding, from its columns as the database has them: far more of them are read than of anything else."""
    if not all(type(stored) is str for stored in (check, verdict, detail, values)) or verdict not in _VERDICTS:
        raise DamagedError(f"a finding has the verdict {verdict!r:.60}, or a part that is no text")
    found = decoded(values)
    if type(found) is not dict or not {type(value) for value in found.values()} <= _VALUES:
        raise DamagedError(f"the values of a finding of {check:.60} are {values!r:.60}")
    # Thousands have the same keys and words: each is one object, as the checks' names are.
    own = {intern(name): intern(value) if type(value) is str else value for name, value in found.items()}
    return Finding(check=intern(unescaped(check)), verdict=_VERDICTS[verdict], detail=unescaped(detail), values=own)


def outcome_from(row: Row, parts: Parts) -> Outcome:
    """The outcome, of the kind that its row names; the patterns of its witness as the database has them."""
    findings = parts.findings
    match row["outcome"]:
        case "measured":
            return Measured(evidence=_evidence_from(row, findings, parts))
        case "substituted":
            return Substituted(evidence=_evidence_from(row, findings, parts))
        case "refused":
            return Refused(by=row["by"], reasons=_texts(row["reasons"]))
        case "crashed":
            told = _pick(row, ("stage", "error", "log", "attempt"))
            return Crashed(**told, findings=findings, device_uuid=row["device_uuid"] or "")
        case "timed_out":
            told = _pick(row, ("stage", "limit_s", "attempt"))
            return TimedOut(**told, findings=findings, device_uuid=row["device_uuid"] or "")
        case "not_run":
            return NotRun(reason=row["reason"])
    raise ValueError(f"outcome {row['outcome']!r} is none that this program knows")


def _evidence_from(row: Row, findings: tuple[Finding, ...], parts: Parts) -> Evidence:
    witness = Witness(
        state=row["witness_state"],
        reason=row["witness_reason"],
        expected=_texts_once(row["witness_expected"]),
        launches=parts.launches,
        calls=row["witness_calls"],
    )
    return Evidence(
        findings=findings,
        statistics=parts.statistics,
        witness=witness,
        timing=None if row["latency_us"] is None else Timing(**_pick(row, TIMING_COLUMNS), samples_us=parts.samples_us),
        first_call_us=row["first_call_us"],
        peak_temporary_bytes=row["peak_temporary_bytes"],
        wall_s=row["wall_s"],
        attempt=row["attempt"],
        **{name: row[name] or "" for name in _OMITTED},
    )


def launch_from(row: Row) -> Launch:
    """The launch, from its columns."""
    grid = None if row["grid_x"] is None else (row["grid_x"], row["grid_y"], row["grid_z"])
    block = None if row["block_x"] is None else (row["block_x"], row["block_y"], row["block_z"])
    return Launch(**_pick(row, _LAUNCH), grid=grid, block=block)


def _axes(name: str, size: tuple[int, int, int] | None) -> Row:
    x, y, z = size or (None, None, None)
    return {f"{name}_x": x, f"{name}_y": y, f"{name}_z": z}


def _fields(record: object, names: Iterable[str]) -> Row:
    return {name: getattr(record, name) for name in names}


def _pick(row: Row, names: Iterable[str]) -> Row:
    return {name: row[name] for name in names}
