"""Workloads, cards, cases and records for the tests: nothing here imports torch, which subjects.py does."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qualify.cards.kernel import KernelCard
from qualify.cards.load import LoadedKernel, LoadedMatrix, load_model
from qualify.cards.matrix import MatrixCard
from qualify.cards.words import content_hash
from qualify.facts.case import Case, Level, Workload
from qualify.facts.checks import asked_at
from qualify.facts.outcome import (
    Evidence,
    Finding,
    FindingVerdict,
    Launch,
    Measured,
    Outcome,
    Role,
    Statistics,
    Substituted,
    Timing,
    Witness,
)
from qualify.facts.run import Record
from qualify.facts.stack import Ceilings
from qualify.facts.xid import Xid
from qualify.masks import Mask

CAUSAL = Mask(causal=True)
CEILINGS = Ceilings(
    matmul_flops_per_s={"bf16": 1e12, "fp16": 1e12, "fp32": 5e11, "fp8_e4m3": 1e12},
    copy_bytes_per_s=1e11,
    exps_per_s=1e10,
    launch_us=3.0,
)

PATTERN_WORDS = {"chunk": "chunked", "dilation": "dilated"}
"""what tests call the size of a pattern"""

_CARD: dict[str, Any] = {
    "kernel": "under-test",
    "generation": "portable",
    "shipped_by": ["torch>=2.11"],
    "adapter": "tiled_torch",
    "requires": {"device": "any"},
    "claims": {
        "dtypes": ["bf16", "fp16", "fp32", "fp8_e4m3", "bf16_kv_fp8_e4m3", "fp16_kv_fp8_e4m3"],
        "head_dim": {"max": 256},
        "head_dim_v": "any",
        "layouts": ["packed", "paged"],
        "masks": ["full", "causal", "window", "band", "chunked", "spans"],
        "features": ["gqa", "softcap", "sinks", "lse", "ragged", "empty", "empty_batch"],
        "deterministic": True,
        "empty_row": {"out": 0, "lse": "-inf"},
    },
    "accuracy": {
        "bf16": "bf16",
        "fp16": "fp16",
        "fp32": "fp32",
        "fp8_e4m3": "bf16",
        "bf16_kv_fp8_e4m3": "fp8kv",
        "fp16_kv_fp8_e4m3": "fp8kv",
    },
    "witness": {"must_match": ["qualify::tiled_attention"]},
}

_MATRIX: dict[str, Any] = {
    "matrix": "example",
    "models": ["llama-3.1-8b"],
    "phases": {"prefill": {"seqlen": 128}},
    "dtypes": ["bf16"],
    "kernels": ["under-test"],
}

GROUP: dict[str, Any] = {"layers": [0], "heads_q": 8, "heads_kv": 2, "head_dim": 64, "mask": "causal"}


def make_workload(**changes: Any) -> Workload:
    """One causal bf16 sequence of 70 tokens, eight heads on two, with the given changes; values follow keys."""
    usual: dict[str, Any] = {
        "heads_q": 8,
        "heads_kv": 2,
        "head_dim": 64,
        "dtype": "bf16",
        "softcap": 0.0,
        "sinks": False,
        "seqlens_q": (70,),
        "page_size": 0,
    }
    given, sides = _apart(changes)
    fields = {"mask": make_mask(**sides)} | usual | given
    fields.setdefault("head_dim_v", fields["head_dim"])
    fields.setdefault("scale", fields["head_dim"] ** -0.5)
    fields.setdefault("seqlens_k", fields["seqlens_q"])
    return Workload(**fields)


def make_mask(mask: Mask = CAUSAL, **changes: Any) -> Mask:
    """A mask with changes to causal and window; ``chunk`` and ``dilation`` give it a pattern of that size."""
    for word, pattern in PATTERN_WORDS.items():
        if word in changes:
            size = changes.pop(word)
            changes |= {"pattern": pattern if size else "", "size": size}
    return replace(mask, **changes)


def alter(record: Any, **changes: Any) -> Any:
    """A workload, call or geometry with changes, of which causal, window, chunk and dilation are its mask's."""
    fields, sides = _apart(changes)
    return replace(record, **fields, **({"mask": make_mask(record.mask, **sides)} if sides else {}))


def _apart(changes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of a record, and what is its mask's."""
    sides = {name: value for name, value in changes.items() if name in {"causal", "window", *PATTERN_WORDS}}
    return {name: value for name, value in changes.items() if name not in sides}, sides


def make_card(**changes: Any) -> KernelCard:
    """A kernel card that claims everything; a change is a top-level key, or a key of ``claims``; ... removes it."""
    data = copy.deepcopy(_CARD)
    for name, value in changes.items():
        (data if name in KernelCard.model_fields else data["claims"])[name] = value
    return KernelCard.model_validate({name: value for name, value in data.items() if value is not ...})


def make_kernel(name: str = "under-test", **changes: Any) -> LoadedKernel:
    """That card as if it had been loaded from a file."""
    card = make_card(kernel=name, **changes)
    return LoadedKernel(card=card, path=Path(f"{name}.yaml"), content_hash=content_hash(card))


def geometry(*groups: Mapping[str, Any], model: str = "small") -> dict[str, Any]:
    """An entry of ``models`` with an explicit geometry; groups get the layers 0, 1, … unless they name theirs."""
    written = [{**GROUP, "layers": [index], **group} for index, group in enumerate(groups or ({},))]
    return {"model": model, "geometry": {"groups": written}}


def make_matrix(**changes: Any) -> LoadedMatrix:
    """A matrix of one prefill shape of one model, with the given top-level keys changed; ... removes one."""
    data = {name: value for name, value in (copy.deepcopy(_MATRIX) | changes).items() if value is not ...}
    card = MatrixCard.model_validate(data)
    text = json.dumps(data)
    models = {entry.model: entry.card() or load_model(entry.model).card for entry in card.models}
    return LoadedMatrix(
        card=card,
        path=Path("example.yaml"),
        source=text,
        content_hash=hashlib.sha256(text.encode()).hexdigest(),
        models=models,
        lines={("phases", "prefill"): 7},
    )


def make_launch(name: str, role: Role = "attention", *, duration_us: float = 10.0, **changes: Any) -> Launch:
    """One launched kernel."""
    usual = Launch(
        name=name,
        count=1,
        role=role,
        family="",
        generation="",
        grid=(132, 1, 1),
        block=(128, 1, 1),
        registers=168,
        shared_bytes=0,
        stream=7,
        duration_us=duration_us,
    )
    return replace(usual, **changes)


def make_witness(state: Any = "proven", *names: str, reason: str = "") -> Witness:
    """What the witness says of a call that launched attention kernels of the given names."""
    launches = tuple(make_launch(name) for name in names or ("under_test",))
    expected = tuple(map(re.escape, names)) if names and state == "proven" else ("under_test",)
    return Witness(state=state, reason=reason, expected=expected, launches=launches, calls=3)


def make_finding(verdict: FindingVerdict = "pass", detail: str = "as it should be", check: str = "census") -> Finding:
    """A finding without values."""
    return Finding(check=check, verdict=verdict, detail=detail)


def make_xid(number: int) -> Finding:
    """The note of a run that the driver reported this error during a case."""
    return Xid(number=number, card="", bus="", seen_s=0.0, text="").note


def make_evidence(*findings: Finding, witness: Witness | None = None) -> Evidence:
    """Evidence of a case that ran to its end."""
    return Evidence(
        findings=findings or (make_finding(),),
        statistics=(),
        witness=witness or make_witness(),
        timing=None,
        first_call_us=10.0,
        peak_temporary_bytes=None,
        wall_s=0.1,
        attempt=1,
    )


def answered(outcome: Outcome, level: Level) -> Outcome:
    """The outcome with a pass of each check of the level that says nothing yet, as every run leaves it."""
    if not isinstance(outcome, Measured | Substituted):
        return outcome
    evidence = outcome.evidence
    said = {finding.check for finding in evidence.findings}
    more = tuple(make_finding(check=name) for name in asked_at(level) if name not in said)
    return replace(outcome, evidence=replace(evidence, findings=(*evidence.findings, *more)))


def make_statistics(inputs: str = "normal", **changes: Any) -> Statistics:
    """Errors of a kernel that is as good as it claims."""
    usual = Statistics(
        inputs=inputs,
        seed=1,
        reference="fp64",
        declared_class="bf16",
        measured_class="bf16",
        rows=1024,
        E=0.62,
        E_without_underflow=0.62,
        R=1.7,
        G=1.2,
        G_limit=1.6,
        beta=1.1e-4,
        beta_limit=6.1e-4,
        worst_sequence=None,
        lse_rel=8e-7,
        lse_base="e",
    )
    return replace(usual, **changes)


def budget_of(statistics: Statistics) -> Finding:
    """What the budget says about statistics within their limits."""
    names = ("inputs", "E", "R", "G", "G_limit", "beta", "beta_limit", "measured_class")
    values = {name: getattr(statistics, name) for name in names}
    return Finding(check="budget", verdict="pass", detail="within the budget", values=values)


def lse_of(statistics: Statistics) -> Finding:
    """What the budget says about the LSE of such statistics."""
    values = {"inputs": statistics.inputs, "lse_rel": statistics.lse_rel}
    return Finding(check="lse", verdict="pass", detail="within its limit", values=values)


def make_timing(latency_us: float, **changes: Any) -> Timing:
    """A time with samples half a percent around it."""
    usual = Timing(
        latency_us=latency_us,
        samples_us=tuple(latency_us * (1 + step / 2000) for step in range(-10, 11)),
        launches_per_block=64,
        rotated_bytes=1 << 28,
        cold=True,
        host_us=9.4,
        flops=1 << 30,
        compulsory_bytes=1 << 20,
        exps=1 << 20,
        roofline_us=50.0,
        bound="flops",
        ceiling_share=50.0 / latency_us,
    )
    return replace(usual, **changes)


def make_case(
    kernel: str = "under-test", cell: str = "small.tp1/prefill/b1.q70.k70/bf16/causal", **changes: Any
) -> Case:
    """A case of the given production shape and kernel."""
    model, phase, shape, dtype, mask = cell.split("/")
    usual: dict[str, Any] = {
        "id": f"{cell}/{kernel}",
        "model": model,
        "phase": phase,
        "shape": shape,
        "dtype": dtype,
        "mask": mask,
        "kernel": kernel,
        "layers": 1,
        "line": 0,
        "content_hash": hashlib.sha256(f"{cell}/{kernel}".encode()).hexdigest(),
        "unclaimed": (),
        "workload": make_workload(),
    }
    return Case(**{**usual, **changes})


def make_record(outcome: Outcome | None = None, kernel: str = "under-test", **case: Any) -> Record:
    """A case that was measured and found right, or had the given outcome."""
    return Record(case=make_case(kernel, **case), outcome=outcome or Measured(evidence=make_evidence()))


def sees(
    i: int,
    j: int,
    seqlen_q: int,
    seqlen_k: int,
    causal: bool,
    window: Sequence[int],
    chunk: int = 0,
    dilation: int = 0,
) -> bool:
    """Whether query i sees key j, from the words of the contract and in nobody else's code."""
    distance = j - (i + seqlen_k - seqlen_q)
    left, right = window
    if chunk and math.floor((i + seqlen_k - seqlen_q) / chunk) != math.floor(j / chunk):
        return False
    if dilation and abs(distance) % dilation:
        return False
    return (not causal or distance <= 0) and (left < 0 or distance >= -left) and (right < 0 or distance <= right)
