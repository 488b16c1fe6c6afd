"""Records for the store's tests: one of every kind, with the values that are hard to store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from qualify.facts.case import Case, Workload
from qualify.facts.duel import Duel, DuelCell, DuelPair, DuelQuad, Ratio
from qualify.facts.environment import Environment
from qualify.facts.outcome import (
    Crashed,
    Evidence,
    Finding,
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
)
from qualify.facts.placement import Placement
from qualify.facts.run import Record, Run
from qualify.facts.selftest import Alarm, CorrectKernel, Detection, PlantedFault, SelfTest
from qualify.facts.stack import Ceilings, Component, Device, Stack
from qualify.masks import Mask

NAN = float("nan")
INFINITY = float("inf")
# A NUL, a lone surrogate, the escape character itself, a quote, and what a page would have to escape.
HOSTILE = "flash<32, 'x'>\x00\udcff\x1a001a\N{SNOWMAN}\n</script>"
STARTED = datetime(2026, 11, 20, 23, 45, 0, 123456, tzinfo=UTC)
ENDED = STARTED + timedelta(seconds=90, microseconds=7)


def workload(**changes: object) -> Workload:
    """A packed causal call of two sequences."""
    base = Workload(
        heads_q=32,
        heads_kv=8,
        head_dim=128,
        head_dim_v=64,
        dtype="bf16",
        mask=Mask(causal=True),
        softcap=0.0,
        sinks=False,
        scale=128**-0.5,
        seqlens_q=(8192, 8192),
        seqlens_k=(8192, 17),
        page_size=0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def case(number: int = 0, **changes: object) -> Case:
    """The case of that number in a plan."""
    shape = f"b2.q{number}"
    base = Case(
        id=f"llama-3.1-8b.tp1/prefill/{shape}/bf16/causal/flash-attn-3",
        model="llama-3.1-8b.tp1",
        phase="prefill",
        shape=shape,
        dtype="bf16",
        mask="causal",
        kernel="flash-attn-3",
        layers=32,
        line=7,
        content_hash=f"{number:064x}",
        unclaimed=(),
        workload=workload(),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def cases(count: int) -> list[Case]:
    """A plan of that many cases."""
    return [case(number) for number in range(count)]


def ceilings() -> Ceilings:
    """Ceilings, one of them unmeasurable."""
    return Ceilings(
        matmul_flops_per_s={"bf16": 7.1e14, "fp32": NAN}, copy_bytes_per_s=2.9e12, exps_per_s=INFINITY, launch_us=1.25
    )


def stack(uuid: str = "GPU-1", driver: str = "580.65") -> Stack:
    """A stack on the card of that UUID; the components are in no sorted order."""
    return Stack(
        device=Device(
            kind="cuda",
            name="NVIDIA H100 80GB HBM3",
            uuid=uuid,
            compute_capability="9.0",
            units=132,
            memory_bytes=85_000_000_000,
            cache_bytes=52_428_800,
        ),
        components=(
            Component(kind="driver", name="nvidia", version=driver, digest=""),
            Component(kind="binary", name="_vllm_fa3_C.abi3.so", version="", digest="ab" * 32),
            Component(kind="distribution", name="torch", version="2.13.0", digest="cd" * 32),
        ),
        environment={"VLLM_FLASH_ATTN_VERSION": "3", "EMPTY": ""},
    )


def run(number: int = 0, **changes: object) -> Run:
    """The run of that number: a later one has a later id and start."""
    base = Run(
        id=f"2026112{number}T234500Z-1f3a9c",
        matrix="hopper-nightly",
        matrix_hash="ef" * 32,
        matrix_source="models:\n  - llama  # ü\n",
        matrix_path="matrices/hopper-nightly.yaml",
        level="smoke",
        device="cuda",
        select="",
        kernel="",
        qualify_version="0.1.0",
        check_version=1,
        started_at=STARTED + timedelta(hours=number),
        finished_at=None,
        state="running",
        stack=None,
        ceilings=None,
        code={"flash-attn": {"csrc/ü.cu": "ab" * 32}, "mine": {}},
        terms={"flash-attn": {"accuracy.bf16": "bf16", "witness.may_match": "ü.*\nmemcpy"}, "mine": {}},
        environments={name: Environment(python=f"/opt/{name}/bin/python") for name in ("Next", "next", "old")},
        placement=Placement(node="ü1", spread="shard", cards=("GPU-1", "GPU-2"), fleet="f1", attempt=2),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def findings() -> tuple[Finding, ...]:
    """Two findings; the values hold every type that a value may have."""
    values: dict[str, Value] = {
        "text": HOSTILE,
        "whole": 2**70,
        "real": 0.1,
        "nan": NAN,
        "low": -INFINITY,
        "yes": True,
        "none": None,
    }
    return (
        Finding(check="numerics", verdict="fail", detail=HOSTILE, values=values),
        Finding(check="witness", verdict="note", detail=""),
    )


def statistics(**changes: object) -> Statistics:
    """The statistics of one good call."""
    base = Statistics(
        inputs="normal",
        seed=2**63 - 1,
        reference="fp64",
        declared_class="bf16",
        measured_class="bf16",
        rows=8192 * 32,
        E=0.53,
        E_without_underflow=0.54,
        R=1.1,
        G=1.01,
        G_limit=1.63,
        beta=-1e-5,
        beta_limit=1e-3,
        worst_sequence=7,
        lse_rel=3e-7,
        lse_base="e",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def launches() -> tuple[Launch, ...]:
    """An attention kernel with everything known, and one of which nothing is."""
    return (
        Launch(
            name=HOSTILE,
            count=1,
            role="attention",
            family="flash-attention-3",
            generation="hopper",
            grid=(132, 1, 1),
            block=(384, 1, 1),
            registers=168,
            shared_bytes=231_424,
            stream=7,
            duration_us=411.5,
        ),
        Launch(
            name="prepare",
            count=2,
            role="unclassified",
            family="",
            generation="",
            grid=None,
            block=None,
            registers=None,
            shared_bytes=None,
            stream=None,
            duration_us=NAN,
        ),
    )


def timing(samples_us: tuple[float, ...] = (410.0, 411.25, NAN)) -> Timing:
    """The timing of one call."""
    return Timing(
        latency_us=410.5,
        samples_us=samples_us,
        launches_per_block=50,
        rotated_bytes=5 * 52_428_800,
        cold=True,
        host_us=11.5,
        flops=2**62,
        compulsory_bytes=160_000_000,
        exps=10**12,
        roofline_us=330.0,
        bound="flops",
        ceiling_share=0.8,
    )


def evidence(**changes: object) -> Evidence:
    """Everything that a case can leave."""
    base = Evidence(
        findings=findings(),
        statistics=(
            statistics(),
            statistics(E=NAN, R=INFINITY, G=-INFINITY, lse_rel=None, lse_base="", seed=0, worst_sequence=None),
        ),
        witness=Witness(state="proven", reason="", expected=("FlashAttnFwdSm90", "a,b"), launches=launches(), calls=3),
        timing=timing(),
        first_call_us=5e6,
        peak_temporary_bytes=0,
        wall_s=1.5,
        attempt=1,
        output_digest="ab" * 32,
        inputs_digest="cd" * 32,
        device_uuid="GPU-2",
        ended_at=ENDED,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def bare_evidence() -> Evidence:
    """As little as a case that ran can leave."""
    witness = Witness(state="unproven", reason="no profiler", expected=(), launches=(), calls=0)
    return evidence(
        findings=(),
        statistics=(),
        witness=witness,
        timing=None,
        peak_temporary_bytes=None,
        first_call_us=NAN,
        output_digest="",
        inputs_digest="",
        device_uuid="",
        ended_at=None,
    )


def outcomes() -> list[Outcome]:
    """Every kind of outcome, full and bare."""
    last: dict[str, Any] = {"device_uuid": "GPU-2", "ended_at": ENDED}
    return [
        Measured(evidence=evidence()),
        Measured(evidence=bare_evidence()),
        Measured(evidence=evidence(timing=timing(samples_us=()))),
        Measured(evidence=evidence(timing=replace(timing(), latency_us=NAN))),
        Substituted(evidence=evidence(attempt=2)),
        Refused(by="plan", reasons=("head_dim=320 > 256 (flash-attn-3 claims ≤ 256)", HOSTILE)),
        Refused(by="library", reasons=(), ended_at=ENDED),
        Crashed(stage="call", error="SIGSEGV", log=HOSTILE, attempt=1, findings=findings(), **last),
        Crashed(stage="load", error="ImportError", log="", attempt=2),
        TimedOut(stage="timing", limit_s=60.0, attempt=1, findings=findings(), **last),
        TimedOut(stage="call", limit_s=INFINITY, attempt=1),
        NotRun(reason="interrupted"),
    ]


def simple(one: Case) -> Record:
    """A small outcome of the case, as a crash leaves it."""
    return Record(case=one, outcome=Crashed(stage="call", error=one.id, log="", attempt=1))


def selftest() -> SelfTest:
    """A result with faults that were caught, missed and equivalent, and with false alarms."""
    caught = Detection(level="smoke", cases=3, caught_by=("witness", "census"), example=HOSTILE)
    missed = Detection(level="full", cases=16, caught_by=(), example="")
    alarm = Alarm(case_id="selftest/prefill/x", level="full", seed=2, check="budget", detail="E 1.2 > 1")
    return SelfTest(
        check_version=1,
        qualify_version="0.1.0",
        levels=("smoke", "full"),
        select="",
        started_at=STARTED,
        wall_s=201.5,
        faults=(
            PlantedFault(
                name="topleft", kind="A", mirrors="x#1", does="shifts", equivalent="", detections=(caught, missed)
            ),
            PlantedFault(name="same", kind="I", mirrors="x#2", does="nothing", equivalent="because", detections=()),
        ),
        correct=(
            CorrectKernel(name="plain", does="as it is", runs=160, alarms=()),
            CorrectKernel(name="exp2", does="exp2", runs=144, alarms=(alarm, alarm)),
        ),
    )


def ratio(**changes: object) -> Ratio:
    """Two per cent slower."""
    base = Ratio(
        verdict="SLOWER",
        change=0.02,
        low=0.015,
        high=0.026,
        a_us=100.0,
        b_us=102.0,
        pairs=5,
        quads=10,
        detectable=0.014,
        margin=0.01,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def duel(number: int = 1, **changes: object) -> Duel:
    """Two cells, one of which was timed in two ways."""
    timed = DuelCell(
        name=case(0).cell,
        a=case(0).id,
        b=f"{case(0).id}@next",
        phase="decode",
        verdict="SLOWER",
        reason="",
        way="graph",
        ratios={"graph": ratio(), "host": ratio(verdict="AMBIGUOUS", change=-0.5)},
        thrown_away=3,
        planted=0.25,
        notes=(HOSTILE,),
    )
    failed = replace(
        timed, name=case(1).cell, verdict="INCONCLUSIVE", reason=HOSTILE, way=None, ratios={}, planted=0.0, notes=()
    )
    quad = DuelQuad(a_us=(1.5, 2.0), b_us=(1.0, 2.5))
    pairs = tuple(
        DuelPair(way=way, pair=at, quads=(quad,), thrown_away=at, confirming=at > 0)
        for way in ("graph", "host")
        for at in (0, 1)
    )
    base = Duel(
        id=f"duel-20261120T23450{number}Z-00000{number}",
        matrix="smoke",
        matrix_hash="ab" * 32,
        select=HOSTILE,
        a="here",
        b="next",
        null=False,
        device=stack().device.variant,
        device_uuid=stack().device.uuid,
        stack_a=stack(),
        stack_b=stack(driver="581.1"),
        started_at=STARTED,
        finished_at=STARTED + timedelta(seconds=90),
        complete=True,
        least_pairs=5,
        cells=(timed, failed),
        samples={timed.name: pairs},
        only_a=(HOSTILE,),
        only_b=("m/prefill/s/bf16/causal/k", HOSTILE),
        code={"flash-attn": {"csrc/ü.cu": "ab" * 32}, HOSTILE: {}},
        content={case(0).id: "cd" * 32, HOSTILE: "ef" * 32},
    )
    return replace(base, **changes)  # type: ignore[arg-type]
