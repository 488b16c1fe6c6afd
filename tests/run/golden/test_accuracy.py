"""The error budget: correct arithmetic keeps it, and each statistic catches what the others miss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from subjects import make_call
from torch import Tensor

from qualify.facts.accuracy import CLASSES, E_LIMIT, R_LIMIT, class_named
from qualify.run.adapters.interface import AttentionCall
from qualify.run.adapters.tiled_torch import create
from qualify.run.golden.accuracy import Errors, judge
from qualify.run.golden.comparison import spacing
from qualify.run.golden.reference import golden
from qualify.run.golden.result import Golden
from qualify.run.inputs.formats import TORCH_DTYPES
from qualify.run.inputs.tensors import INPUT_KINDS

SHAPES: dict[str, dict[str, Any]] = {
    "prefill": {"seqlens_q": (100,)},
    "decode": {"seqlens_q": (1,) * 4, "seqlens_k": (300, 17, 64, 1), "page_size": 16},
    "window": {"seqlens_q": (100,), "window": (31, 0), "head_dim": 128},
    "softcap": {"seqlens_q": (100,), "softcap": 30.0, "heads_kv": 8},
    "sinks": {"seqlens_q": (100,), "sinks": True},
}


def measure(call: AttentionCall, name: str, **options: int) -> tuple[Golden, Tensor]:
    """The golden result of a call and the portable kernel's output for its rows."""
    found = golden(call, underflow=name == "fp16")
    out = create(options).prepare(call).launch()[0]
    return found, out[found.rows]


def broken(errors: Errors) -> set[str]:
    """Names of the statistics that are over their limit; a NaN is over it."""
    limits = {"E": errors.E <= E_LIMIT, "R": errors.R <= R_LIMIT, "G": errors.G <= errors.G_limit}
    limits["beta"] = abs(errors.beta) <= errors.beta_limit
    return {name for name, kept in limits.items() if not kept}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_correct_arithmetic_stays_within_its_class(kind: str, shape: str, dtype: str) -> None:
    """Two seeds, each with a tiling of its own: the portable kernel keeps every limit of the class of its dtype."""
    for seed in range(2):
        tile = {} if seed % 2 else {"tile_q": 16, "tile_k": 48}
        found, out = measure(make_call(kind=kind, seed=seed, dtype=dtype, **SHAPES[shape]), dtype, **tile)
        errors = judge(found, out, class_named(dtype))
        assert set() == broken(errors), (seed, errors)
        assert errors.within


def split_attention(call: AttentionCall, parts: int) -> Tensor:
    """Exact bf16 split-KV whose parts are rounded to bf16 before they are merged; one sequence, without a mask."""
    q, k, v = (tensor.double() for tensor in (call.q, call.k, call.v))
    k, v = (tensor.repeat_interleave(q.shape[1] // tensor.shape[1], 1).transpose(0, 1) for tensor in (k, v))
    scores = q.transpose(0, 1) @ k.transpose(1, 2) * call.scale
    outs, lses = [], []
    for keys in torch.arange(scores.shape[-1]).chunk(parts):
        largest = scores[:, :, keys].amax(-1, keepdim=True)
        weights = (scores[:, :, keys] - largest).exp()
        lses.append(largest + weights.sum(-1, keepdim=True).log())
        outs.append(weights.to(torch.bfloat16).double() @ v[:, keys] / weights.sum(-1, keepdim=True))
    shares = torch.stack(lses).softmax(0)
    return (shares * torch.stack(outs).bfloat16().double()).sum(0).transpose(0, 1).bfloat16()


@pytest.mark.parametrize("kind", ["normal", "peaked", "peaked8", "outliers"])
def test_rounded_parts_of_split_keys_need_the_claim(kind: Any) -> None:
    """With the claim they stay as far from the limits as a kernel that rounds once; without it they come closer."""
    call = make_call(kind=kind, seed=1, seqlens_q=(128,), seqlens_k=(2048,), causal=False, head_dim=128)
    found, declared = golden(call), class_named("bf16")
    out = split_attention(call, 4)[found.rows]
    claimed, plain = judge(found, out, replace(declared, rounded_parts=True)), judge(found, out, declared)
    assert claimed.E < 0.6 < 1.2 * plain.E
    assert claimed.G < 0.8 * plain.G
    assert claimed.within


def test_the_claim_of_rounded_parts_hides_no_fault() -> None:
    """One of 512 keys that is left out is still over the limits."""
    call = make_call(seed=1, seqlens_q=(128,), seqlens_k=(512,), causal=False, head_dim=128)
    found, claimed = golden(call), replace(class_named("bf16"), rounded_parts=True)
    shorter = replace(call, k=call.k[1:], v=call.v[1:])
    assert not judge(found, split_attention(shorter, 4)[found.rows], claimed).within


@pytest.mark.parametrize(("bias", "kept"), [(1.04e-4, True), (2e-4, False)])
def test_tensor_cores_that_cut_their_sums_may_lose_a_little(bias: float, kept: bool) -> None:
    """16,384 keys, values of one sign: what an H100 loses is granted in fp16, and not twice that."""
    call = make_call(kind="same_sign", dtype="fp16", seqlens_q=(1,), seqlens_k=(16384,), head_dim=128)
    found = golden(call, underflow=True)
    out = (found.out * (1 - bias)).half()
    assert kept == ("beta" not in broken(judge(found, out, class_named("fp16"))))


def unsplit_attention(call: AttentionCall) -> Tensor:
    """One query in fp16, all keys in one sum, as tensor cores add it.

    A step adds eight products. It cuts each of them to 27 bits of the largest summand, and the sum to 24.
    """
    q, k, v = (tensor.double() for tensor in (call.q, call.k, call.v))
    scores = (q.transpose(0, 1) @ k.transpose(0, 1).transpose(1, 2) * call.scale)[:, 0]
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    products = (weights.half().double().T.unsqueeze(-1) * v).unflatten(0, (-1, 8))
    total = torch.zeros_like(products[0, 0])
    for added in products:
        _, exponent = torch.frexp(torch.maximum(total.abs(), added.abs().amax(0)))
        unit = torch.exp2(exponent.double() - 27)
        exact = total + ((added / unit).trunc() * unit).sum(0)
        near = exact.float()
        total = torch.where(near.abs() > exact.abs(), near.nextafter(torch.zeros_like(near)), near).double()
    return (total / weights.sum(-1, keepdim=True)).unsqueeze(0).half()


def test_a_correct_kernel_that_splits_no_keys_passes_however_many_there_are() -> None:
    """131,136 keys in fp16: what tensor cores cut grows with the keys, the rounding of the output does not."""
    call = make_call(kind="offset", dtype="fp16", seqlens_q=(1,), seqlens_k=(131136,), heads_q=1, heads_kv=1)
    call = replace(call, q=call.q / 4)
    found = golden(call, underflow=True)
    errors = judge(found, unsplit_attention(call)[found.rows], class_named("fp16"))
    assert set() == broken(errors), errors
    assert errors.beta == pytest.approx(-8e-4, rel=0.2)  # an H100 loses 8e-4 of such rows


@pytest.mark.parametrize("keys", [16384, 65600, 131136])
def test_what_is_granted_to_long_sums_hides_no_sum_in_fewer_bits(keys: int) -> None:
    """Three bits fewer lose eight times as much: that fails at every length."""
    call = make_call(kind="offset", dtype="fp16", seqlens_q=(1,), seqlens_k=(keys,), heads_q=1, heads_kv=1)
    found = golden(call, underflow=True)
    out = (found.out * (1 - 8 * keys * 2.0**-24 / 12)).half()
    assert not judge(found, out, class_named("fp16")).within


def test_copies_of_one_value_are_one_sample() -> None:
    """With one key every head of a group, and every query, rounds the same numbers: β is no better known for them."""
    limits = []
    for heads, queries in ((1, 1), (8, 25)):
        lengths = {"seqlens_q": (queries,), "seqlens_k": (1,), "causal": False}
        call = make_call(dtype="fp16", heads_q=heads, heads_kv=1, **lengths)
        found = golden(call, underflow=True)
        limits.append(judge(found, found.out.half(), class_named("fp16")).beta_limit)
    assert limits[0] == pytest.approx(limits[1], rel=0.5)


@pytest.fixture(params=["bf16", "fp16", "fp32"])
def measured(request: pytest.FixtureRequest) -> tuple[str, Golden, Tensor]:
    """(class, golden result, correct output before any edit, float64) of 100 queries that see 300 keys and more."""
    name: str = request.param
    found, out = measure(make_call(dtype=name, seqlens_q=(100,), seqlens_k=(400,)), name)
    return name, found, out.double()


def deviations(name: str, found: Golden) -> tuple[Tensor, Tensor]:
    """σ of each element and of each row (n, heads_q, 1), from the formulas of docs/numerics.md."""
    scores = 2.0**-24 * (found.score_bound + found.keys.double().sqrt()[:, None]).unsqueeze(-1)
    variance = (class_named(name).roundoff / 2 + scores) ** 2 * found.Q
    variance = variance + spacing(found.out.abs(), TORCH_DTYPES[name]) ** 2 / 12
    variance = variance + (2.0**-25 * found.keys.double().sqrt().view(-1, 1, 1) * found.A) ** 2
    return variance.sqrt(), variance.mean(-1, keepdim=True).sqrt()


def signs(*shape: int) -> Tensor:
    """Plus and minus one at random."""
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1


def judged(measured: tuple[str, Golden, Tensor], out: Tensor) -> Errors:
    """The edited output, rounded to the dtype again."""
    name, found, _ = measured
    return judge(found, out.to(TORCH_DTYPES[name]), class_named(name))


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_one_wrong_element_is_caught_by_e_only(name: str) -> None:
    """An error of 12 σ in one of 50,000 elements; its place is named."""
    found, out = measure(make_call(dtype=name, seqlens_q=(100,), seqlens_k=(400,)), name)
    element, row = deviations(name, found)
    wrong = out.double()
    wrong[77, 3, 11] = found.out[77, 3, 11] + 12 * max(float(element[77, 3, 11]), float(row[77, 3]))
    errors = judge(found, wrong.to(out.dtype), class_named(name))
    assert {"E"} == broken(errors)
    assert ((77, 3, 11), 1) == (errors.worst, errors.over)


def test_one_wrong_element_in_fp16_must_exceed_the_underflow_term() -> None:
    """The worst element's limit grows by what underflowing weights may cost, and no further."""
    found, out = measure(make_call(dtype="fp16", seqlens_q=(100,), seqlens_k=(400,)), "fp16")
    kind = class_named("fp16")
    assert found.U is not None
    element, row = deviations("fp16", found)
    term = kind.underflow * torch.exp(found.row_max - found.lse).unsqueeze(-1) * found.U
    limit = 9 * torch.maximum(element, row) + 1.25 * term
    wrong = out.double()
    wrong[77, 3, 11] = found.out[77, 3, 11] + 1.1 * limit[77, 3, 11]
    errors = judge(found, wrong.half(), kind)
    assert "E" in broken(errors)
    assert ((77, 3, 11), 1) == (errors.worst, errors.over)
    wrong[77, 3, 11] = found.out[77, 3, 11] + 0.9 * limit[77, 3, 11]
    assert "E" not in broken(judge(found, wrong.half(), kind))
    assert "E" in broken(judge(found, wrong.half(), class_named("fp32")))


def test_one_wrong_row_is_caught_by_r_only(measured: tuple[str, Golden, Tensor]) -> None:
    """Every element of one row is off by four σ, which none of them may show alone; the row is named."""
    name, found, out = measured
    size = deviations(name, found)[1][50, 2]
    out[50, 2] = found.out[50, 2] + 4 * size * signs(64)
    errors = judged(measured, out)
    assert {"R"} == broken(errors)
    assert (50, 2) == errors.worst_row


def test_a_little_wrong_everywhere_is_caught_by_g_only(measured: tuple[str, Golden, Tensor]) -> None:
    """Every element off by two σ, signs at random: no element and no row stands out."""
    name, found, _ = measured
    errors = judged(measured, found.out + 2 * deviations(name, found)[1] * signs(*found.out.shape))
    assert {"G"} == broken(errors)


def test_a_small_gain_is_caught_by_beta_only() -> None:
    """0.15 % too large everywhere is less than the rounding of bf16, and still a bias."""
    found, out = measure(make_call(dtype="bf16", seqlens_q=(400,), kind="offset"), "bf16")
    errors = judge(found, (found.out * 1.0015).bfloat16(), class_named("bf16"))
    assert {"beta"} == broken(errors)
    assert errors.beta > 0
    lower = judge(found, (found.out * 0.9985).bfloat16(), class_named("bf16"))
    assert {"beta"} == broken(lower)
    assert lower.beta < 0
    assert set() == broken(judge(found, out, class_named("bf16")))


@pytest.mark.parametrize("gain", [1.003, 0.997])
@pytest.mark.parametrize("kind", INPUT_KINDS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_gain_of_three_per_mille_is_always_caught(dtype: str, kind: str, gain: float) -> None:
    """On every kind of inputs, at least by β."""
    found, out = measure(make_call(dtype=dtype, kind=kind), dtype)
    assert "beta" in broken(judge(found, (out.double() * gain).to(out.dtype), class_named(dtype)))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_one_percent_noise_everywhere_is_caught(dtype: str) -> None:
    """A random relative error of 1 % in every element, without a bias."""
    found, out = measure(make_call(dtype=dtype, kind="offset"), dtype)
    noise = torch.randn(out.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert "G" in broken(judge(found, (out.double() * (1 + 0.01 * noise)).to(out.dtype), class_named(dtype)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_passes(measured: tuple[str, Golden, Tensor], value: float) -> None:
    """One NaN or infinity among 50,000 elements, in the output or in the golden result."""
    name, found, out = measured
    wrong = out.clone()
    wrong[5, 1, 7] = value
    assert not judged(measured, wrong).within
    assert (5, 1, 7) == judged(measured, wrong).worst
    exact = found.out.clone()
    exact[5, 1, 7] = value
    assert not judge(replace(found, out=exact), out.to(TORCH_DTYPES[name]), class_named(name)).within


def test_all_zeros_do_not_pass(measured: tuple[str, Golden, Tensor]) -> None:
    """A kernel that writes nothing but zeros is far outside."""
    assert {"E", "R", "G", "beta"} == broken(judged(measured, torch.zeros_like(measured[2])))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("fp32", ["fp32", "fp16", "bf16", "fp8kv", "lowp_scores", "fp8"]),
        ("fp16", ["fp16", "bf16", "fp8kv", "lowp_scores", "fp8"]),
        ("bf16", ["bf16", "fp8kv", "lowp_scores", "fp8"]),
    ],
)
def test_an_output_keeps_its_own_class_and_all_wider_ones(dtype: str, expected: list[str]) -> None:
    """The classes stand in order, tightest first, and tell the dtypes apart."""
    call = make_call(dtype=dtype)
    found = golden(call, underflow=True, scores=True)
    out = create({}).prepare(call).launch()[0][found.rows]
    assert expected == [known.name for known in CLASSES if judge(found, out, known).within]


def rounded_to_bf16_inside(call: AttentionCall) -> Tensor:
    """An fp16 kernel that rounds its weights to bf16: a mistake of one template argument."""
    wide = replace(call, v=call.v.bfloat16())
    return create({}).prepare(wide).launch()[0]


def test_weights_rounded_too_coarsely_are_measured_as_what_they_are() -> None:
    """fp16 in and out with bf16 weights breaks the class fp16 and keeps bf16."""
    call = make_call(dtype="fp16", seqlens_q=(200,))
    representable = replace(call, v=call.v.bfloat16().half())
    found = golden(representable, underflow=True)
    out = rounded_to_bf16_inside(representable)[found.rows]
    assert not judge(found, out, class_named("fp16")).within
    assert judge(found, out, class_named("bf16")).within


def flushed(call: AttentionCall) -> Tensor:
    """fp16 weights relative to the row's largest, flushed below the smallest normal number, as some kernels do."""
    scores = torch.einsum("qhd,khd->hqk", call.q.double(), call.k.double()) * call.scale
    n = scores.shape[-1]
    scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    half = p.half().double()
    half[half < 2.0**-14] = 0
    out = torch.einsum("hqk,khd->qhd", half, call.v.double()) / p.sum(-1).T.unsqueeze(-1)
    return out.to(call.out_dtype)


def test_underflow_term_counts_where_fp16_weights_underflow() -> None:
    """With outliers, weights fall below fp16's range: E without the term exceeds E, and only E keeps the limit."""
    values = []
    for seed in range(6):
        call = make_call(dtype="fp16", kind="outliers", seed=seed, seqlens_q=(256,), heads_q=4, heads_kv=4)
        found = golden(call, underflow=True)
        out = flushed(call)[found.rows]
        errors = judge(found, out, class_named("fp16"))
        assert set() == broken(errors), seed
        values.append((errors.E, errors.E_without_underflow))
    assert all(bare >= whole for whole, bare in values)
    assert max(bare for _, bare in values) > 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@settings(deadline=None, max_examples=200)
@given(value=st.floats(-60000, 60000))
def test_spacing_is_the_distance_to_the_next_number(dtype: torch.dtype, value: float) -> None:
    """From every representable value away from zero, in the range of normal and subnormal numbers."""
    at = torch.tensor(value).to(dtype)
    beyond = torch.nextafter(at.abs(), torch.tensor(math.inf, dtype=dtype))
    expected = beyond.double() - at.abs().double()
    assert float(expected) == float(spacing(at.abs().double(), dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_spacing_of_every_positive_number(dtype: torch.dtype) -> None:
    """All sixteen-bit patterns of finite positive numbers, up to the last but one."""
    largest = torch.tensor(torch.finfo(dtype).max, dtype=dtype).view(torch.int16)
    values = torch.arange(int(largest), dtype=torch.int16).view(dtype)
    beyond = (torch.arange(int(largest), dtype=torch.int16) + 1).view(dtype)
    assert torch.equal(beyond.double() - values.double(), spacing(values.double(), dtype))


def test_an_unknown_class_is_an_error() -> None:
    """Cards are checked before, so this is a mistake in the code."""
    with pytest.raises(KeyError):
        class_named("fp64")


def cut_(values: Tensor, bits: int = 13) -> Tensor:
    """In place, towards zero, to a multiple of 2^-bits of the power of two at the largest of the last dimension."""
    least, most = values.aminmax(dim=-1, keepdim=True)
    step = torch.exp2(torch.frexp(torch.maximum(most, -least))[1] - 1.0 - bits)
    return values.div_(step).trunc_().mul_(step)


def short_accumulator(call: AttentionCall, steps: int = 32) -> Tensor:
    """One causal sequence in fp8 as Hopper's tensor cores compute q·k: a step's products are cut at its largest."""
    q, k, v = (tensor.float() for tensor in (call.q, call.k, call.v))
    group = q.shape[1] // k.shape[1]
    assert call.q_descale is not None
    assert call.k_descale is not None
    assert call.v_descale is not None
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    products = q.transpose(0, 1).unsqueeze(2) * k.transpose(0, 1).unsqueeze(1)
    products = products.unflatten(-1, (-1, steps))
    scores = cut_(products).sum((-1, -2))
    factors = (call.q_descale[0] * call.k_descale[0]).repeat_interleave(group) * call.scale
    scores = (scores * factors.view(-1, 1, 1)).masked_fill(
        torch.ones_like(scores[0], dtype=torch.bool).triu(1), -math.inf
    )
    p = (scores - scores.amax(-1, keepdim=True)).exp()
    rounded = (p * 256).to(torch.float8_e4m3fn).float() / 256
    out = (
        rounded
        @ v.transpose(0, 1)
        * call.v_descale[0].repeat_interleave(group).view(-1, 1, 1)
        / p.sum(-1, keepdim=True)
    )
    return out.transpose(0, 1).to(call.out_dtype)


@pytest.mark.parametrize("kind", INPUT_KINDS)
def test_products_cut_by_the_tensor_cores_are_within_fp8(kind: str) -> None:
    """Without the class's term for them logits near +400 are not."""
    declared = replace(class_named("fp8"), underflow=class_named("fp8").underflow / 256)
    for seed in range(4):
        call = make_call(dtype="fp8_e4m3", heads_q=2, heads_kv=1, head_dim=128, seqlens_q=(100,), kind=kind, seed=seed)
        found, out = golden(call, underflow=True), short_accumulator(call)
        assert judge(found, out[found.rows], declared).within, seed
        if kind == "positive":
            assert not judge(found, out[found.rows], replace(declared, product=0.0)).within
