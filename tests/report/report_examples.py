"""Facts of runs that never happened: real records, built by hand, with every kind of outcome in them."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from builders import make_launch, make_statistics, make_timing
from stored_runs import NOW

from qualify.facts.case import Case, Phase, Workload
from qualify.facts.duel import DuelVerdict
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
    Role,
    Substituted,
    TimedOut,
    Timing,
    Witness,
)
from qualify.facts.people import Revocation, SignedOff, SignOff, SignOffState
from qualify.facts.performance import BudgetUse, BudgetVerdict, CellChange, Performance
from qualify.facts.run import VERDICTS, CellJudgement, Conclusion, Judgement, Record, Run, Verdict
from qualify.facts.stack import Ceilings, Component, Device, Stack
from qualify.masks import Mask

HOSTILE = '<script>alert(1)</script>"&'
DUEL = "duel-20261121T025000Z-000001"
CELL = "llama-3.1-8b.tp1/decode/b1.q1.k1024.p16/bf16/causal/flash-attn-3"
PROBES = ("census", "needle", "poison", "suffix")

RAW_NAMES: Mapping[str, tuple[str, str, str]] = {
    "torch-sdpa": (
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0",
        "cudnn",
        "hopper",
    ),
    "flash-attn-2": (
        (
            "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t, "
            "Flash_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t> >, false, true, false, false, true, true, "
            "false, false>(flash::Flash_fwd_params)"
        ),
        "flash-attention-2",
        "ampere",
    ),
    "flash-attn-3": (
        (
            "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
            "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, cute::tuple<"
            "cute::C<128>, cute::C<176>, cute::C<128> >, 128, cutlass::bfloat16_t, float, cutlass::arch::Sm90, true, "
            "false> > >(flash::FlashAttnFwdSm90<...>::Params)"
        ),
        "flash-attention-3",
        "hopper",
    ),
    "flash-attn-4": (
        "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__tensorptrbf16gmem",
        "flash-attention-4",
        "hopper",
    ),
    "flashinfer-fa3": (
        (
            "void flashinfer::PrefillWithKVCacheKernel<flashinfer::CollectiveMainloop<"
            "flashinfer::AttentionKernelTraits<false, 128, 128, 128, 128, 2, cutlass::bfloat16_t> > >(flashinfer::P)"
        ),
        "flashinfer",
        "hopper",
    ),
}
SPEED = {"torch-sdpa": 1.0, "flash-attn-2": 1.35, "flash-attn-3": 0.68, "flash-attn-4": 0.74, "flashinfer-fa3": 0.8}
DECODE_SPEED = {
    "torch-sdpa": 1.0,
    "flash-attn-2": 1.1,
    "flash-attn-3": 0.995,
    "flash-attn-4": 1.4,
    "flashinfer-fa3": 1.2,
}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The input of a report."""

    run: Run
    records: list[Record]
    conclusion: Conclusion


def make_case(model: str, phase: Phase, kernel: str, *, size: int = 8192, head_dim: int = 128, batch: int = 1) -> Case:
    """A case of a plausible model; a decode case asks for one query per sequence of a paged cache."""
    lengths = (1, 17, size, 3, 0, size // 2) if phase == "varlen" else (size,) * batch
    queries = (1,) * batch if phase == "decode" else lengths
    shape = f"b{len(lengths)}.q{max(queries)}.k{max(lengths)}" + (".p16" if phase == "decode" else "")
    identity = f"{model}/{phase}/{shape}/bf16/causal/{kernel}"
    return Case(
        id=identity,
        model=model,
        phase=phase,
        shape=shape,
        dtype="bf16",
        mask="causal",
        kernel=kernel,
        layers=32,
        line=7,
        content_hash=hashlib.sha256(identity.encode()).hexdigest(),
        unclaimed=(),
        workload=Workload(
            heads_q=32,
            heads_kv=8,
            head_dim=head_dim,
            head_dim_v=head_dim,
            dtype="bf16",
            mask=Mask(causal=True),
            softcap=0.0,
            sinks=False,
            scale=head_dim**-0.5,
            seqlens_q=queries,
            seqlens_k=lengths,
            page_size=16 if phase == "decode" else 0,
        ),
    )


def launched(name: str, family: str = "", generation: str = "", role: Role = "attention") -> Launch:
    """One launched kernel with a usual geometry of a GPU."""
    geometry = {"block": (384, 1, 1), "shared_bytes": 229_376}
    return make_launch(name, role, family=family, generation=generation, duration_us=301.25, **geometry)


def timed(latency_us: float) -> Timing:
    """A time whose share of the ceiling depends on it, up to a point."""
    roofline_us = min(latency_us, 500.0) * 0.7
    rates = {"flops": 549_755_813_888, "compulsory_bytes": 167_772_160, "exps": 1_073_741_824}
    return make_timing(latency_us, roofline_us=roofline_us, ceiling_share=roofline_us / latency_us, **rates)


def make_finding(check: str, verdict: FindingVerdict = "pass", **values: str | float | bool | None) -> Finding:
    """A finding with a sentence that suits its verdict."""
    detail = (
        "every query sees exactly its keys" if verdict == "pass" else f"row 4097 sees 4096 keys, limit 4097 ({check})"
    )
    return Finding(check=check, verdict=verdict, detail=detail, values=values)


def make_evidence(kernel: str, latency_us: float | None = 300.0) -> Evidence:
    """Evidence of a case in which everything went well."""
    name, family, generation = RAW_NAMES.get(kernel, (kernel, "", ""))
    launches = [launched(name, family, generation)]
    if kernel == "flash-attn-3":
        launches.append(launched("flash::prepare_varlen_num_blocks_kernel(int)", "flash-attention-3", "", "auxiliary"))
    return Evidence(
        findings=(*(make_finding(check) for check in PROBES), make_finding("budget"), make_finding("lse", limit=1e-5)),
        statistics=(make_statistics(), make_statistics("peaked", E=0.71, R=1.9)),
        witness=Witness(state="proven", reason="", expected=("flash_fwd",), launches=tuple(launches), calls=3),
        timing=None if latency_us is None else timed(latency_us),
        first_call_us=1_204_000.0,
        peak_temporary_bytes=4_194_304,
        wall_s=0.08,
        attempt=1,
    )


def substitute(evidence: Evidence, name: str, family: str) -> Substituted:
    """The same evidence, but another kernel was launched."""
    witness = Witness(
        state="substituted",
        reason=f"launched {family}, the card claims another family",
        expected=evidence.witness.expected,
        launches=(launched(name, family),),
        calls=3,
    )
    return Substituted(evidence=replace(evidence, witness=witness))


def judge(case: Case, outcome: Outcome) -> Judgement:
    """A plain verdict: enough to have every verdict on the page, not the policy of the gate."""
    verdict: Verdict = "FAIL"
    reasons: tuple[str, ...] = (f"{outcome.outcome}",)
    match outcome:
        case Measured(evidence=evidence) if evidence.witness.state == "unproven":
            verdict, reasons = "INCONCLUSIVE", (evidence.witness.reason,)
        case Measured(evidence=evidence):
            failed = [finding for finding in evidence.findings if finding.verdict == "fail"]
            verdict, reasons = ("FAIL", tuple(f"{f.check}: {f.detail}" for f in failed)) if failed else ("PASS", ())
        case Refused(reasons=why):
            verdict, reasons = "NOT_REQUIRED", why
        case TimedOut():
            verdict, reasons = "WAIVED", ("known hang, waived until 2027-01-15 by ops",)
        case NotRun(reason=why):
            verdict, reasons = "INCONCLUSIVE", (why,)
        case Substituted(evidence=evidence):
            reasons = (evidence.witness.reason,)
        case Crashed(error=error):
            reasons = (error,)
    return Judgement(case_id=case.id, verdict=verdict, reasons=reasons)


def conclude(records: list[Record]) -> Conclusion:
    """Verdicts and counts that fit the records."""
    judgements = [judge(record.case, record.outcome) for record in records]
    passed: dict[str, list[str]] = {}
    for record, judgement in zip(records, judgements, strict=True):
        passed.setdefault(record.case.cell, []).extend([record.case.kernel] if judgement.verdict == "PASS" else [])
    cells = tuple(
        CellJudgement(
            cell=cell,
            verdict="PASS" if kernels else "FAIL",
            proven_by=tuple(kernels),
            reasons=() if kernels else ("no proven path",),
        )
        for cell, kernels in passed.items()
    )
    verdicts = Counter(judgement.verdict for judgement in judgements)
    open_ = bool(verdicts["INCONCLUSIVE"])
    failed = bool(verdicts["FAIL"]) or not all(passed.values())
    return Conclusion(
        verdict="FAIL" if failed else "INCONCLUSIVE" if open_ else "PASS",
        exit_code=1 if failed else 5 if open_ else 0,
        judgements=tuple(judgements),
        cells=cells,
        counts={
            "verdicts": {verdict: verdicts[verdict] for verdict in VERDICTS},
            "outcomes": dict(Counter(record.outcome.outcome for record in records)),
        },
    )


def make_run() -> Run:
    """A finished run on one GPU."""
    started = datetime(2026, 11, 20, 23, 45, tzinfo=UTC)
    return Run(
        id="20261120T234500Z-1f3a9c",
        matrix="hopper-serving",
        matrix_hash="ab" * 32,
        matrix_source="matrix: hopper-serving\nmodels:\n  - {model: llama-3.1-8b}\n",
        matrix_path="matrices/hopper serving.yaml",
        level="smoke",
        device="cuda",
        select="*/bf16/*",
        kernel="",
        qualify_version="0.1.0",
        check_version=1,
        started_at=started,
        finished_at=started + timedelta(minutes=3),
        state="completed",
        stack=Stack(
            device=Device(
                kind="cuda",
                name="NVIDIA H100 80GB HBM3",
                uuid="GPU-5b1c0a52-77d5-4a3c-8a0e-000000000000",
                compute_capability="9.0",
                units=132,
                memory_bytes=85_029_158_912,
                cache_bytes=52_428_800,
            ),
            components=(
                Component(kind="driver", name="driver", version="580.82.07", digest=""),
                Component(kind="runtime", name="cuda", version="13.0", digest=""),
                Component(kind="distribution", name="torch", version="2.11.0+cu130", digest="cd" * 32),
                Component(kind="runtime", name="cudnn", version="9.19.0", digest=""),
                Component(kind="binary", name="_vllm_fa3_C.abi3.so", version="", digest="ef" * 32),
            ),
            environment={"CUDA_VISIBLE_DEVICES": "0", "PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        ),
        ceilings=Ceilings(
            matmul_flops_per_s={"bf16": 7.9e14, "fp16": 7.7e14},
            copy_bytes_per_s=3.02e12,
            exps_per_s=4.1e12,
            launch_us=2.3,
        ),
    )


def grid(models: tuple[str, ...], sizes: tuple[int, ...], phases: tuple[Phase, ...]) -> list[Record]:
    """A full matrix in which every case of a claimed kernel passes, and flash-attn-4 refuses decode."""
    records = []
    for model in models:
        for phase in phases:
            for size in sizes:
                for kernel in RAW_NAMES:
                    case = make_case(model, phase, kernel, size=size, batch=32 if phase == "decode" else 1)
                    speed = DECODE_SPEED if phase == "decode" else SPEED
                    outcome: Outcome = Measured(evidence=make_evidence(kernel, size / 16 * speed[kernel]))
                    if (kernel, phase) == ("flash-attn-4", "decode"):
                        outcome = Refused(by="plan", reasons=("layout=paged not in claims.layouts (packed)",))
                    records.append(Record(case=case, outcome=outcome))
    return records


def damaged(records: list[Record]) -> list[Record]:
    """One of each thing that can go wrong, on known cases of the first model."""

    def change(kernel: str, phase: Phase, size: int, outcome: Outcome) -> None:
        identity = make_case("llama-3.1-8b.tp1", phase, kernel, size=size, batch=32 if phase == "decode" else 1).id
        index = next(i for i, record in enumerate(records) if record.case.id == identity)
        records[index] = replace(records[index], outcome=outcome)

    usual = make_evidence("flash-attn-3")
    wrong = make_evidence("flash-attn-2")
    change("flash-attn-3", "decode", 1024, substitute(usual, f"void {HOSTILE}(int)", "hostile"))
    change(
        "flash-attn-2",
        "varlen",
        1024,
        Measured(evidence=replace(wrong, findings=(make_finding("needle"), make_finding("census", "fail", row=4097)))),
    )
    change(
        "flash-attn-2",
        "prefill",
        1024,
        Measured(
            evidence=replace(
                wrong,
                statistics=(replace(make_statistics(E=math.nan), measured_class=""), make_statistics("peaked", R=4.2)),
                findings=(
                    make_finding("budget", "fail", E=math.nan),
                    make_finding("budget", inputs="peaked"),
                    make_finding("lse", inputs="normal"),
                    make_finding("lse", inputs="peaked"),
                    replace(make_finding("growth", "note", exponent=1.1), detail="the error of `out` grows"),
                ),
            )
        ),
    )
    unproven = replace(usual.witness, state="unproven", reason="names differ between traced calls")
    change("flashinfer-fa3", "prefill", 8192, Measured(evidence=replace(usual, witness=unproven)))
    change(
        "flashinfer-fa3",
        "decode",
        8192,
        Crashed(stage="call", error="CUDA error: an illegal memory access", log="Traceback …\n  illegal", attempt=2),
    )
    change("flash-attn-4", "varlen", 8192, TimedOut(stage="prepare", limit_s=60.0, attempt=1))
    change("flash-attn-4", "varlen", 1024, NotRun(reason="interrupted"))
    return records


def wide_head(model: str = "wide-head.tp1") -> list[Record]:
    """A shape that every kernel refuses, so nothing proves it."""
    return [
        Record(
            case=make_case(model, "prefill", kernel, head_dim=320),
            outcome=Refused(by="plan", reasons=(f"head_dim=320 > 256 ({kernel} claims ≤ 256)",)),
        )
        for kernel in RAW_NAMES
    ]


def facts_of(records: list[Record]) -> Facts:
    """A run that brought these records."""
    return Facts(run=make_run(), records=records, conclusion=conclude(records))


def everything() -> Facts:
    """Three models, five kernels, and one of each thing that can go wrong."""
    phases: tuple[Phase, ...] = ("prefill", "varlen", "decode")
    records = damaged(grid(("llama-3.1-8b.tp1",), (1024, 8192), phases))
    return facts_of(records + grid(("gemma-2-9b.tp1",), (1024, 4096), ("prefill", "decode")) + wide_head())


def many(cases: int) -> Facts:
    """A large run: about half of its cases are refused, as in a real matrix of models and kernels."""
    kernels = tuple(RAW_NAMES)
    records = []
    for number in range(cases):
        kernel = kernels[number % len(kernels)]
        shape = number // len(kernels)
        phase: Phase = ("prefill", "chunked", "varlen", "decode")[shape % 4]
        case = make_case(f"model-{shape % 8}.tp1", phase, kernel, size=128 + shape)
        outcome: Outcome = Measured(evidence=make_evidence(kernel, 200.0 + number % 91))
        if number % 2:
            outcome = Refused(by="plan", reasons=(f"head_dim=320 > 256 ({kernel} claims ≤ 256)",))
        records.append(Record(case=case, outcome=outcome))
    return facts_of(records)


def signed(state: SignOffState, by: str = "jane", number: int = 7) -> SignedOff:
    """Somebody signed sealed evidence."""
    ended = Revocation(by="joe", reason="wrong artifact", at=NOW + timedelta(hours=1)) if state == "revoked" else None
    return SignedOff(
        signoff=SignOff(
            id=number,
            run_id="20261120T234500Z-1f3a9c",
            sha256="ab12" * 16,
            sealed=True,
            verdict="PASS",
            by=by,
            role="release",
            reason="read the report",
            at=NOW,
            revoked=ended,
            how="command of jane" if state == "unproven" else "token a55b",
        ),
        state=state,
    )


def cell_change(verdict: DuelVerdict, at: float | None, cell: str = CELL, reason: str = "") -> CellChange:
    """A cell with an interval of half a percent."""
    low, high = (None, None) if at is None else (at - 0.005, at + 0.005)
    return CellChange(
        cell=cell,
        phase="decode",
        verdict=verdict,
        evidence="duel",
        basis=DUEL,
        change=at,
        low=low,
        high=high,
        before_us=None if at is None else 100.0,
        reason=reason,
    )


def performance_of(verdict: BudgetVerdict, *cells: CellChange, why_not: str = "") -> Performance:
    """One budget of decode cells that came to a verdict, or the lack of a duel."""
    worst = cells[0] if cells else cell_change("SAME", None)
    use = BudgetUse(
        phase="decode",
        of="cell",
        allowed=0.05,
        verdict=verdict,
        change=worst.change,
        low=worst.low,
        high=worst.high,
        evidence=("duel",),
        cells=() if verdict == "PASS" else cells,
    )
    return Performance(
        accepted="duel",
        duel="" if why_not else DUEL,
        at=None if why_not else NOW,
        against="" if why_not else "old",
        stack_a="" if why_not else "ab" * 32,
        budgets=() if why_not else (use,),
        cells=cells,
        why_not=why_not,
        required=True,
    )
