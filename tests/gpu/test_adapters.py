"""Every CUDA kernel that is installed, against attention in float64, on small shapes.

What a card claims must run and be right; what its library has no word for must be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pytest
import torch
from builders import CAUSAL, make_mask
from torch import Tensor

from qualify.cards.kernel import KernelCard
from qualify.cards.load import load_kernels
from qualify.masks import Mask
from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal

pytestmark = pytest.mark.gpu

HEADS_Q, HEADS_KV, HEAD_DIM = 8, 2, 128
CARDS = {name: loaded.card for name, loaded in load_kernels().items() if loaded.card.requires.device != "cpu"}
SINKS = tuple(0.25 * head for head in range(HEADS_Q))
"""exact in bf16, the only dtype in which FlashAttention-3 takes them"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """One small call and the features that a card must claim to serve it."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    page_size: int = 0
    mask: Mask = CAUSAL
    parameters: dict[str, Any] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()


SHAPES = {
    "prefill": Shape(q=(160, 160), k=(160, 160)),
    "prefill, every head its own keys": Shape(q=(160, 160), k=(160, 160), parameters={"heads_kv": HEADS_Q}),
    "full": Shape(q=(96, 96), k=(160, 160), mask=make_mask(causal=False)),
    "chunked": Shape(q=(64, 64), k=(200, 200)),
    "varlen": Shape(q=(3, 130, 64), k=(3, 130, 64), needs=frozenset({"ragged"})),
    "varlen with empty ones": Shape(q=(0, 130, 9, 5), k=(7, 130, 0, 40), needs=frozenset({"ragged", "empty"})),
    "decode": Shape(q=(1, 1, 1), k=(33, 500, 1), needs=frozenset({"ragged"})),
    "paged decode": Shape(q=(1, 1, 1), k=(33, 500, 1), page_size=16, needs=frozenset({"ragged"})),
    "paged decode, large pages": Shape(q=(1, 1, 1), k=(33, 500, 1), page_size=256, needs=frozenset({"ragged"})),
    "paged chunk": Shape(q=(64, 64), k=(500, 500), page_size=256),
    "window": Shape(q=(160, 160), k=(160, 160), mask=make_mask(window=(31, 0))),
    "softcap": Shape(q=(160, 160), k=(160, 160), parameters={"softcap": 4.0}, needs=frozenset({"softcap"})),
    "sinks": Shape(q=(160, 160), k=(160, 160), parameters={"sinks": SINKS}, needs=frozenset({"sinks"})),
}


def paged(keys: Tensor, lengths: tuple[int, ...], page_size: int) -> tuple[Tensor, Tensor]:
    """The keys of each sequence in shuffled pages, and the block table; what is unused holds 1e4."""
    needed = [-(-length // page_size) for length in lengths]
    pool = torch.full((sum(needed) + 2, page_size, *keys.shape[1:]), 1e4, dtype=keys.dtype, device=keys.device)
    numbers = iter(torch.randperm(sum(needed), generator=torch.Generator().manual_seed(1)).add(1).tolist())
    table = torch.zeros(len(lengths), max(needed), dtype=torch.int32)
    start = 0
    for row, length in enumerate(lengths):
        for column in range(needed[row]):
            part = keys[start + column * page_size : start + min(length, (column + 1) * page_size)]
            page = next(numbers)
            table[row, column] = page
            pool[page, : len(part)] = part
        start += length
    return pool, table.to(keys.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A call and its keys and values in packed form, which the reference reads."""

    call: AttentionCall
    k: Tensor
    v: Tensor
    lengths_k: tuple[int, ...]


def make_problem(shape: Shape, dtype: torch.dtype) -> Problem:
    """Random inputs on the first GPU."""
    device = torch.device("cuda", 0)
    generator = torch.Generator(device).manual_seed(0)
    parameters = dict(shape.parameters)
    heads_kv = parameters.pop("heads_kv", HEADS_KV)
    sinks = parameters.pop("sinks", None)

    def draw(total: int, heads: int) -> Tensor:
        return torch.randn(total, heads, HEAD_DIM, generator=generator, device=device).to(dtype)

    def int32(values: list[int] | tuple[int, ...]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    q, k, v = draw(sum(shape.q), HEADS_Q), draw(sum(shape.k), heads_kv), draw(sum(shape.k), heads_kv)
    (k_used, table), (v_used, _) = ((k, None), (v, None))
    if shape.page_size:
        (k_used, table), (v_used, _) = (paged(tensor, shape.k, shape.page_size) for tensor in (k, v))
    call = AttentionCall(
        q=q,
        k=k_used,
        v=v_used,
        cu_seqlens_q=int32([0, *accumulate(shape.q)]),
        cu_seqlens_k=None if shape.page_size else int32([0, *accumulate(shape.k)]),
        seqused_k=int32(shape.k) if shape.page_size else None,
        block_table=table,
        max_seqlen_q=max(shape.q),
        max_seqlen_k=max(shape.k),
        scale=0.1,
        mask=shape.mask,
        sinks=None if sinks is None else torch.tensor(sinks, device=device),
        out_dtype=dtype,
        **parameters,
    )
    return Problem(call=call, k=k, v=v, lengths_k=shape.k)


def reference(problem: Problem) -> tuple[Tensor, Tensor]:
    """(out, lse) in float64, one sequence at a time; rows without a key give 0 and -inf."""
    call, outs, lses, start_k = problem.call, [], [], 0
    bounds = call.cu_seqlens_q.tolist()
    group = call.q.shape[1] // problem.k.shape[1]
    for start_q, end_q, length_k in zip(bounds, bounds[1:], problem.lengths_k, strict=False):
        q = call.q[start_q:end_q].double().transpose(0, 1)
        k, v = (
            tensor[start_k : start_k + length_k].double().transpose(0, 1).repeat_interleave(group, 0)
            for tensor in (problem.k, problem.v)
        )
        start_k += length_k
        scores = q @ k.transpose(1, 2) * call.scale
        if call.softcap:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        i = torch.arange(q.shape[1], device=q.device)[:, None]
        j = torch.arange(length_k, device=q.device)[None, :]
        seen = call.mask.visible(i, j, q.shape[1], length_k)
        scores = scores.masked_fill(~seen, -torch.inf)
        if call.sinks is not None:
            sink = call.sinks.double()[:, None, None].expand(-1, q.shape[1], 1)
            scores, v = torch.cat([scores, sink], 2), torch.cat([v, v.new_zeros(v.shape[0], 1, v.shape[2])], 1)
        lse = scores.logsumexp(2)
        weights = (scores - lse[..., None]).exp().nan_to_num(0.0)
        outs.append((weights @ v).transpose(0, 1))
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses, 1)


def claimed(card: KernelCard, shape: Shape) -> bool:
    """Whether the card claims every property of the shape; those of latent attention have tests of their own."""
    claims = card.claims
    if claims.head_dim_v == "latent":
        return False
    needs = set(shape.needs)
    if shape.parameters.get("heads_kv", HEADS_KV) != HEADS_Q:
        needs.add("gqa")
    if shape.page_size:
        page = claims.page_size
        if "paged" not in claims.layouts or (page and shape.page_size % page.multiple_of):
            return False
    aligned = claims.alignment == "bottom_right" or shape.q == shape.k or not shape.mask.causal
    return needs <= set(claims.features) and shape.mask.kind in claims.masks and aligned


# Each dtype is one more compilation for the JIT libraries, so float16 has one shape.
@pytest.mark.parametrize(
    ("shape", "dtype"), [*((shape, torch.bfloat16) for shape in SHAPES), ("prefill", torch.float16)], ids=str
)
@pytest.mark.parametrize("kernel", CARDS)
def test_a_claimed_call_equals_attention_in_float64(
    kernel: str, shape: str, dtype: torch.dtype, adapter_of: Callable[[KernelCard], Adapter]
) -> None:
    """Out within a few steps of the dtype, LSE within the card's accuracy, twice the same bits."""
    card = CARDS[kernel]
    if not claimed(card, SHAPES[shape]):
        pytest.skip(f"{kernel} does not claim it")
    adapter = adapter_of(card)
    problem = make_problem(SHAPES[shape], dtype)
    expected, expected_lse = reference(problem)
    prepared = adapter.prepare(problem.call)
    out, lse = prepared.result(prepared.launch())
    again, _ = prepared.result(prepared.launch())
    seen = expected_lse.isfinite()
    assert (expected.shape, dtype) == (out.shape, out.dtype)
    torch.testing.assert_close(out.double()[seen.T], expected[seen.T], rtol=2e-2, atol=1e-2)
    assert torch.equal(out[seen.T], again[seen.T])
    if card.claims.empty_row.out == "0":
        assert not out[~seen.T].any()
    assert ("lse" in card.claims.features) == (lse is not None)
    if lse is not None:
        assert (expected_lse.shape, torch.float32) == (lse.shape, lse.dtype)
        error = (lse.double() - expected_lse)[seen].abs() / expected_lse[seen].abs().clamp(min=1.0)
        assert error.max().item() <= 2 * card.claims.lse.rel
        if card.claims.empty_row.lse != "any":
            assert {float(card.claims.empty_row.lse)} >= set(lse[~seen].tolist())


REFUSED = {
    "softcap": {"torch-sdpa", "torch-sdpa-flash", "torch-sdpa-efficient", "torch-sdpa-cudnn", "torch-sdpa-math"},
    "sinks": set(CARDS)
    - {"flash-attn-3", "flash-attn-3-fp8", "flash-attn-4", "tiled-torch", "vllm-triton", "vllm-triton-fp8"},
    "paged decode": {name for name in CARDS if name.startswith("torch-")} | {"flash-attn-2", "flex-attention"},
    "window": {"torch-sdpa-flash", "torch-sdpa-is-causal"},
    "varlen": {"torch-sdpa-flash", "torch-sdpa-is-causal"},
    "prefill": {"torch-sdpa-efficient"},
}


@pytest.mark.parametrize(("shape", "kernel"), [(shape, name) for shape in REFUSED for name in sorted(REFUSED[shape])])
def test_what_a_library_has_no_word_for_is_refused(
    shape: str, kernel: str, adapter_of: Callable[[KernelCard], Adapter]
) -> None:
    """A refusal with its reason, never a silent answer to another question."""
    adapter = adapter_of(CARDS[kernel])
    with pytest.raises(LibraryRefusal):
        adapter.prepare(make_problem(SHAPES[shape], torch.bfloat16).call)


def test_pytorch_says_why_flash_takes_no_mask(adapter_of: Callable[[KernelCard], Adapter]) -> None:
    """The reasons that PyTorch warns about once are in every refusal."""
    adapter = adapter_of(CARDS["torch-sdpa-flash"])
    for _ in range(2):
        with pytest.raises(LibraryRefusal, match="attn_mask"):
            adapter.prepare(make_problem(SHAPES["window"], torch.bfloat16).call)
