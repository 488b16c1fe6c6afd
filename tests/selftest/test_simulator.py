"""The simulated kernel is right, and every planted fault makes a difference."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from builders import alter
from subjects import traces
from torch.profiler import profile

from qualify.facts.case import Workload
from qualify.facts.selftest import CLASSES
from qualify.masks import parse
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.golden.reference import golden
from qualify.run.inputs.tensors import make_inputs
from qualify.selftest.correct import VARIANTS
from qualify.selftest.faults.registry import FAULTS
from qualify.selftest.simulator import RANGE, Simulator
from qualify.selftest.workloads import SHAPES

CPU = torch.device("cpu")
TOLERANCE = 3e-6
FAMILIAR = [
    fault
    for fault in FAULTS
    if not fault.equivalent
    and fault.name not in {"keys-65536", "batch-65535", "blocks-in-bf16", "order-of-long", "plans-64", "short-images"}
]
"""faults that a small call, or a few of them, can show; the others need many keys, sequences or shapes, or an image"""
RESULT_IS_RIGHT = {"math-path", "other-kernel", "fallback-window", "sdpa-inside", "score-matrix"}
"""class L: another way to the right result"""
OF_SURROUNDINGS = {"other-mode", "other-thread", "other-count", "keeps-keys", "nan-of-tile"}
"""right in one process that gives numbers: the checks' own tests have such kernels"""


def make_call(workload: Workload, kind: Any = "normal") -> AttentionCall:
    """Float32 inputs for the workload."""
    return make_inputs(replace(workload, dtype="fp32"), kind=kind, seed=3, device=CPU).call


def in_order(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """The golden out and lse, in the order of the packed queries."""
    exact = golden(call)
    order = torch.argsort(exact.rows)
    return exact.out[order], exact.lse[order].T


@cache
def asked_and_right(number: int) -> tuple[AttentionCall, torch.Tensor, torch.Tensor]:
    """A call of the matrix, and its golden out and lse, made once for all kernels."""
    call = make_call(SHAPES[number][1])
    return call, *in_order(call)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_correct_kernels_equal_the_golden_result(variant, number):
    """In float32, where nothing is rounded to 16 bits, every correct kernel agrees with the golden result."""
    call, expected_out, expected_lse = asked_and_right(number)
    out, lse = variant.make().launch(call)
    assert torch.allclose(expected_out, out.double(), atol=TOLERANCE, rtol=0)
    assert torch.equal(expected_lse == -math.inf, lse == -math.inf)
    seen = (lse > -math.inf) & (variant.lse_rel is not None)
    assert torch.allclose(expected_lse[seen], lse.double()[seen], atol=TOLERANCE, rtol=TOLERANCE)


def test_a_profiler_sees_the_kernel_and_nothing_within():
    """As it sees any kernel; the memory that a call takes it sees too, and after it operators again."""
    call = make_call(SHAPES[0][1])
    (seen,) = traces([lambda: Simulator().launch(call)])
    assert "" == seen.defect
    assert [[RANGE]] * 3 == [[launch.name for launch in launches] for launches in seen.calls]
    assert (seen.peak_bytes or 0) > call.q.numel() * call.q.element_size()
    with profile() as session:
        torch.sin(call.q)
    assert "aten::sin" in {event.name for event in session.events()}


def test_descales_and_spans_equal_the_golden_result():
    """What the matrix has no workload for: unequal descales, and keys that see each other."""
    call = make_call(SHAPES[2][1])
    batch, heads = len(call.cu_seqlens_q) - 1, call.k.shape[1]
    factors = 0.5 + torch.rand(3, batch, heads, generator=torch.Generator().manual_seed(1))
    spans = torch.tensor([[2, 10, 50], [5, 0, 33]], dtype=torch.int32)
    call = replace(call, q_descale=factors[0], k_descale=factors[1], v_descale=factors[2], bidirectional_spans=spans)
    out, lse = Simulator().launch(call)
    expected_out, expected_lse = in_order(call)
    assert torch.allclose(expected_out, out.double(), atol=TOLERANCE, rtol=0)
    assert torch.allclose(expected_lse, lse.double(), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("lengths", [((90, 33), (140, 33)), ((1, 1), (200, 77)), ((9, 70), (4, 70))], ids=str)
@pytest.mark.parametrize("mask", ["dilated31x2", "causal.dilated3", "full.dilated4"])
def test_dilated_masks_equal_the_golden_result(mask, lengths):
    """No workload of the battery has one."""
    seqlens_q, seqlens_k = lengths
    call = make_call(replace(SHAPES[0][1], seqlens_q=seqlens_q, seqlens_k=seqlens_k, mask=parse(mask)))
    out, lse = Simulator().launch(call)
    expected_out, expected_lse = in_order(call)
    assert torch.allclose(expected_out, out.double(), atol=TOLERANCE, rtol=0)
    assert torch.equal(expected_lse == -math.inf, lse == -math.inf)
    seen = lse > -math.inf
    assert torch.allclose(expected_lse[seen], lse.double()[seen], atol=TOLERANCE, rtol=TOLERANCE)


def trials() -> list[list[AttentionCall]]:
    """Calls, in groups that one kernel gets one after another."""
    groups = []
    for _, workload in SHAPES:
        if workload.kv_format == "fp8_e4m3":  # has no arithmetic; its descales are tried with other dtypes
            if workload.q_format != "fp8_e4m3":
                groups.append([make_inputs(workload, kind="normal", seed=1, device=CPU, descaled=True).call])
            continue
        call = make_inputs(workload, kind="normal", seed=1, device=CPU).call
        batch, heads = len(call.cu_seqlens_q) - 1, call.k.shape[-2]
        factors = 0.5 + torch.rand(3, batch, heads, generator=torch.Generator().manual_seed(1))
        strided = replace(call, q=spread(call.q), k=spread(call.k), v=spread(spread(call.v)))
        groups += [
            [call, strided, alter(call, causal=not call.causal, window=(7, 3)), call],
            [replace(call, q_descale=factors[0], k_descale=factors[1], v_descale=factors[2])],
            [replace(call, scale=call.scale / 2, softcap=2.0), call, call],
            [replace(call, k=call.k * 40), replace(call, v=call.v * 1e5), call],
            [replace(call, k=dirty(call.k), v=dirty(call.v))],
            [expanded(call), slack(call)],
            [replace(call, q=call.q + 1, k=-call.k.abs() * 12), replace(call, k=rising(call.k) * 8)],
        ]
    return groups


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with a gap after every head."""
    wide = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] + 8, dtype=tensor.dtype)
    wide[..., : tensor.shape[-1]] = tensor
    return wide[..., : tensor.shape[-1]]


def expanded(call: AttentionCall) -> AttentionCall:
    """All heads of K and V are one, by a stride of 0."""
    return replace(call, k=call.k[..., :1, :].expand_as(call.k), v=call.v[..., :1, :].expand_as(call.v))


def slack(call: AttentionCall) -> AttentionCall:
    """A block table that is wider than needed."""
    if call.block_table is None:
        return call
    return replace(call, block_table=torch.cat([call.block_table, torch.zeros_like(call.block_table)], 1))


def dirty(tensor: torch.Tensor) -> torch.Tensor:
    """The same values between guard bands of NaN; all free slots of a cache NaN."""
    if tensor.dim() == 4:
        return tensor
    whole = torch.full((len(tensor) + 128, *tensor.shape[1:]), math.nan, dtype=tensor.dtype)
    whole[64:-64] = tensor
    return whole[64:-64]


def rising(tensor: torch.Tensor) -> torch.Tensor:
    """Values that grow along the first axis."""
    return tensor * torch.linspace(0, 1, len(tensor)).view(-1, *[1] * (tensor.dim() - 1)).to(tensor.dtype)


def results(kernel: Any, calls: list[AttentionCall]) -> list[Any]:
    """What a kernel returns for calls one after another; an error counts as what it returned."""
    found = []
    for call in calls:
        torch.full((*call.q.shape[:2], call.v.shape[-1]), math.nan, dtype=call.out_dtype)
        before = call.q.untyped_storage().nbytes()
        try:
            found.append((*kernel.launch(call), before, storage(call.q), storage(call.k)))
        except (RuntimeError, IndexError, ValueError, LibraryRefusal) as error:
            found.append(str(error))
    return found


def storage(tensor: torch.Tensor) -> torch.Tensor:
    """Everything in the tensor's allocation."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.as_strided((size,), (1,), 0).clone()


def same(a: Any, b: Any) -> bool:
    """Whether two results are the same bits, NaN included."""
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return all(
        x == y if isinstance(x, int) else x.shape == y.shape and x.dtype == y.dtype and torch.equal(bits(x), bits(y))
        for x, y in zip(a, b, strict=True)
    )


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as integers."""
    return tensor.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


@pytest.fixture(scope="module")
def expected() -> list[tuple[list[AttentionCall], list[Any]]]:
    """Groups of calls, and what the kernel without a fault returns."""
    return [(calls, results(Simulator(), calls)) for calls in trials()]


def test_without_a_fault_nothing_changes(expected):
    """The correct kernel gives the same bits again, so a difference is the fault's."""
    for calls, right in expected:
        assert all(same(a, b) for a, b in zip(results(Simulator(), calls), right, strict=True))


@pytest.mark.parametrize(
    "fault",
    [fault for fault in FAMILIAR if fault.name not in RESULT_IS_RIGHT | OF_SURROUNDINGS | {"offset-int32"}],
    ids=lambda f: f.name,
)
def test_every_fault_changes_something(fault, expected):
    """On some call, the faulty kernel returns or leaves behind other bits than the correct one."""
    for calls, right in expected:
        copies = [replace(call, q=call.q.clone() if call.q.is_contiguous() else call.q) for call in calls]
        wrong = results(fault.make(), calls if "past-end" in fault.name else copies)
        if any(not same(a, b) for a, b in zip(wrong, right, strict=True)):
            return
    pytest.fail(f"{fault.name} gave the same bits on every call")


@pytest.mark.parametrize("name", sorted(RESULT_IS_RIGHT))
def test_a_silent_fallback_gives_the_right_result(name):
    """A fault of class L can be found only by what ran."""
    fault = next(fault for fault in FAULTS if fault.name == name)
    for number in range(len(SHAPES)):
        call, expected_out, _ = asked_and_right(number)
        out, _ = fault.make().launch(call)
        assert torch.allclose(expected_out, out.double(), atol=TOLERANCE, rtol=0)


def test_names_are_unique_and_classes_covered():
    """Every specimen has a name of its own; every class that the selftest knows has a fault."""
    names = [known.name for known in (*FAULTS, *VARIANTS)]
    assert len(names) == len(set(names))
    assert set(CLASSES) == {fault.kind for fault in FAULTS}
