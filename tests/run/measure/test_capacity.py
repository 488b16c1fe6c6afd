"""A launch that could not have done the work proves nothing; one that could is never doubted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import CEILINGS, make_launch, make_workload
from subjects import make_call, traces
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from qualify.cards.load import load_kernels
from qualify.facts.outcome import Launch
from qualify.facts.stack import Ceilings
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.adapters.registry import create_adapter
from qualify.run.measure.capacity import Need, need_of
from qualify.run.measure.tracing import Trace
from qualify.run.measure.witness import decide

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
ATEN = "^aten::(?!_scaled_dot_product)"
FA3 = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<K> > >"
GEMM, SOFTMAX = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n", "void softmax_warp_forward<float>"
H100 = Ceilings(
    matmul_flops_per_s={"bf16": 7e14, "fp16": 7e14, "fp32": 5e13, "fp8_e4m3": 1.2e15},
    copy_bytes_per_s=2.9e12,
    exps_per_s=4e12,
    launch_us=2.5,
)
PREFILL = make_workload(heads_q=32, heads_kv=8, head_dim=128, seqlens_q=(4096,))
DECODE = make_workload(heads_q=32, heads_kv=8, head_dim=128, seqlens_q=(1,) * 32, seqlens_k=(8192,) * 32)


def flash(call: AttentionCall, rows: int | None = None) -> torch.Tensor:
    """PyTorch's fused operator on a call of one sequence, or on its first rows only."""
    q, k, v = (tensor[:rows].transpose(0, 1)[None] for tensor in (call.q, call.k, call.v))
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def products(call: AttentionCall) -> torch.Tensor:
    """The same by einsum."""
    q, k, v = (tensor.float() for tensor in (call.q, call.k, call.v))
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * call.scale
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def on_cpu(launch: Callable[[], Any], **workload: Any) -> tuple[str, str]:
    """State and reason for a real call on the CPU."""
    (found,) = traces([launch])
    seen = decide(found, [FLASH], [ATEN], need=need_of(make_workload(**workload), CEILINGS, 2))
    return seen.state, seen.reason


def test_a_dummy_call_beside_the_products_proves_nothing() -> None:
    """The operator is real, and took one row where the call has seventy."""
    call = make_call()

    def launch() -> torch.Tensor:
        flash(call, rows=1)
        return products(call)

    state, reason = on_cpu(launch)
    assert ("unproven", f"{FLASH} took 768 elements, and the call's queries, keys and values are 53,760") == (
        state,
        reason,
    )


def test_the_fused_operator_that_did_the_call_is_proven() -> None:
    """At once, and in pieces: what counts is the sum."""
    call = make_call()
    assert ("proven", "") == on_cpu(lambda: flash(call))
    pieces = make_call(seqlens_q=(70, 70))

    def launch() -> None:
        for half in (slice(0, 70), slice(70, 140)):
            q, k, v = (tensor[half] for tensor in (pieces.q, pieces.k, pieces.v))
            flash(replace(pieces, q=q, k=k, v=v))

    assert ("proven", "") == on_cpu(launch, seqlens_q=(70, 70))


WORKLOADS: tuple[dict[str, Any], ...] = (
    {},
    {"seqlens_q": (70, 3, 41)},
    {"seqlens_q": (1,) * 4, "seqlens_k": (300, 7, 64, 1)},
    {"seqlens_q": (9, 0, 5), "seqlens_k": (40, 0, 5)},
    {"seqlens_q": (0,), "seqlens_k": (0,)},
    {"seqlens_q": (40,), "seqlens_k": (10,)},
    {"seqlens_q": (300,), "window": (16, 0)},
    {"seqlens_q": (300,), "window": (3, 3), "causal": False},
    {"seqlens_q": (200,), "chunk": 64},
    {"seqlens_q": (70,), "causal": False},
    {"dtype": "fp32", "heads_q": 8, "heads_kv": 1},
    {"seqlens_q": (5, 1), "seqlens_k": (64, 33), "page_size": 16},
)


@pytest.mark.parametrize("kernel", ["torch-cpu-flash", "torch-cpu-math", "tiled-torch"])
def test_no_shipped_kernel_of_a_cpu_is_doubted(kernel: str) -> None:
    """Ragged, empty, paged, windows, chunks, more queries than keys: each call that it takes is proven."""
    card = load_kernels()[kernel].card
    adapter, taken = create_adapter(card), []
    for changes in WORKLOADS:
        try:
            prepared = adapter.prepare(make_call(**changes))
        except LibraryRefusal:
            continue
        (found,) = traces([prepared.launch])
        rules, need = card.witness, need_of(make_workload(**changes), CEILINGS, 2)
        seen = decide(found, rules.must_match, rules.may_match, need=need)
        unwitnessed = found.defect or not any(make_workload(**changes).seqlens_q)
        assert unwitnessed or ("proven", "") == (seen.state, seen.reason), changes
        taken.append(changes)
    assert len(taken) >= 8


def test_operators_whose_tensors_cannot_be_counted_are_not_doubted() -> None:
    """An operator may take a list of tensors, whose shapes the profiler does not record."""
    launch = make_launch("library::attention", grid=None, block=None)
    seen = Trace(calls=((launch,),) * 3, defect="", peak_bytes=None, inputs={"library::attention": None})
    need = need_of(make_workload(), CEILINGS, 2)
    assert "proven" == decide(seen, ["library::attention"], [], need=need).state


def on_gpu(need: Need, *launches: Launch, must: str = "FlashAttnFwdSm90", may: str = "prepare_") -> tuple[str, str]:
    """State and reason for the launches of a trace of a GPU."""
    seen = decide(Trace(calls=(launches,) * 3, defect="", peak_bytes=None), [must], [may], need=need)
    return seen.state, seen.reason


def attention(duration_us: float, *grid: int) -> Launch:
    """A launch of FlashAttention-3."""
    return make_launch(FA3, duration_us=duration_us, grid=grid, family="flash-attention-3")


@pytest.mark.parametrize(
    ("workload", "launch"),
    [
        (PREFILL, attention(240.0, 132, 1, 1)),
        (PREFILL, attention(60.0, 132, 1, 1)),
        (DECODE, attention(390.0, 132, 1, 1)),
        (DECODE, attention(130.0, 1, 8, 4)),
        (make_workload(), attention(2.2, 1, 8, 1)),
        (make_workload(seqlens_q=(1,), seqlens_k=(512,)), attention(3.0, 1, 1, 1)),
        (make_workload(seqlens_q=(0,), seqlens_k=(0,)), attention(1.0, 1, 1, 1)),
        (replace(PREFILL, dtype="fp32"), attention(1900.0, 1056, 1, 1)),
    ],
)
def test_a_kernel_that_could_have_done_the_call_is_proven(workload: Any, launch: Launch) -> None:
    """Also four times faster than the card can be, which is the business of the check ``timing``."""
    assert ("proven", "") == on_gpu(need_of(workload, H100, 132), launch)


def test_a_tiny_launch_cannot_have_done_the_flops() -> None:
    """One block for 2 µs where the call needs 137 GFLOPs: the numbers are in the reason."""
    state, reason = on_gpu(need_of(PREFILL, H100, 132), attention(2.0, 1, 1, 1))
    assert "unproven" == state
    assert reason == (
        f"{FA3} cannot have done the call: 2.0 µs on 0.8% of 132 multiprocessors, "
        "8 times the measured ceiling allow 8.5e+07 FLOPs, the call needs 1.4e+11"
    )


def test_a_grid_that_cannot_fill_the_card_counts_as_such() -> None:
    """The same time on the whole card would do."""
    need = need_of(PREFILL, H100, 132)
    assert "proven" == on_gpu(need, attention(240.0, 132, 1, 1))[0]
    assert "unproven" == on_gpu(need, attention(240.0, 4, 1, 1))[0]
    assert "proven" == on_gpu(need, replace(attention(240.0, 132, 1, 1), grid=None))[0]


def test_a_launch_that_cannot_have_read_the_cache_proves_nothing() -> None:
    """Decode: 1.1 GB of keys and values, few FLOPs."""
    state, reason = on_gpu(need_of(DECODE, H100, 132), attention(20.0, 132, 1, 1))
    assert "unproven" == state
    assert reason.endswith("20.0 µs, 8 times the measured ceiling allow 4.6e+08 bytes, the call needs 1.1e+09")


def test_a_ceiling_that_was_not_measured_limits_nothing() -> None:
    """As in the selftest, which times nothing."""
    none = Ceilings(matmul_flops_per_s={}, copy_bytes_per_s=0.0, exps_per_s=0.0, launch_us=0.0)
    assert "proven" == on_gpu(need_of(DECODE, none, 132), attention(2.0, 1, 1, 1))[0]


def test_what_the_card_names_beside_counts_as_work() -> None:
    """A split kernel is all of its launches."""
    need = need_of(PREFILL, H100, 132)
    beside = make_launch("prepare_everything", "auxiliary", duration_us=200.0)
    assert "proven" == on_gpu(need, attention(2.0, 1, 1, 1), beside)[0]
    assert "unproven" == on_gpu(need, attention(2.0, 1, 1, 1), replace(beside, name="Memcpy DtoD"))[0]


def test_products_that_the_card_does_not_name_are_foreign_work() -> None:
    """On a GPU: a call too small for any ceiling, and matrix products and a softmax beside the kernel."""
    need = need_of(make_workload(), H100, 132)
    launches = (attention(2.2, 1, 1, 1), make_launch(GEMM, "gemm"), make_launch(SOFTMAX, "softmax"))
    state, reason = on_gpu(need, *launches)
    assert ("unproven", f"kernels that the card does not name took 90% of the time: {GEMM}, {SOFTMAX}") == (
        state,
        reason,
    )
    assert "proven" == on_gpu(need, *launches, may="gemm|softmax")[0]
    assert "proven" == on_gpu(need, attention(100.0, 1, 1, 1), make_launch(GEMM, "gemm", duration_us=4.0))[0]


def test_without_a_need_only_names_are_compared() -> None:
    """The negative control and trials of repro know no workload."""
    seen = Trace(calls=((attention(2.0, 1, 1, 1),),) * 3, defect="", peak_bytes=None)
    assert "proven" == decide(seen, ["FlashAttnFwdSm90"], []).state
