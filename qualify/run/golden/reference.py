"""The golden result: attention in fp64, block by block, on exactly the inputs that the kernel read.

It is never rounded to the kernel's dtype. No S × S score matrix exists at any time, because query rows are computed in
blocks within a memory budget. Beside the output it holds what the error budget needs (docs/numerics.md): ``A = P|V|``,
``Q = (P∘P)(V∘V)``, ``U = Σ_visible |v|``, the LSE, the largest score of each row, and the effect of rounded scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor

from qualify.facts.devices import Scale
from qualify.masks import reaches
from qualify.run.adapters.interface import AttentionCall
from qualify.run.golden.result import NUMBERS, Golden
from qualify.run.golden.rows import ROW_LIMIT, BlockRows, RowBucket, make_buckets
from qualify.run.machine.device import processor_of

BLOCK_BYTES: dict[Scale, int] = {"small": 64 << 20, "large": 1 << 30}
"""most bytes of one block of scores"""
CACHES = 4
"""the keys and values of a block's sequences may take so many times the bytes of a block of scores"""


class GoldenOf(Protocol):
    """:func:`golden`, or a callable that reuses its results."""

    def __call__(
        self,
        call: AttentionCall,
        *,
        dtype: torch.dtype = ...,
        underflow: bool = ...,
        scores: bool = ...,
        row_limit: int = ...,
    ) -> Golden:
        """The golden result of a call."""
        ...


@contextmanager
def exact_matmul() -> Iterator[None]:
    """Within, float32 products are IEEE products, whatever a library has set: no TF32 and no bf16."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def bounds_of(call: AttentionCall) -> tuple[list[int], list[int]]:
    """Cumulative lengths of queries and of keys, packed or paged: batch + 1 of each, the first is 0."""
    lengths = call.cu_seqlens_k if call.cu_seqlens_k is not None else call.seqused_k
    assert lengths is not None, "a paged call has seqused_k"
    both: list[int] = torch.cat([call.cu_seqlens_q, lengths]).tolist()  # one wait for both
    queries, keys = both[: len(call.cu_seqlens_q)], both[len(call.cu_seqlens_q) :]
    return queries, keys if call.cu_seqlens_k is not None else [0, *accumulate(keys)]


def golden(
    call: AttentionCall,
    *,
    dtype: torch.dtype = torch.float64,
    underflow: bool = False,
    scores: bool = False,
    row_limit: int = ROW_LIMIT,
) -> Golden:
    """The golden result of a call.

    Args:
        dtype: float64, or float32 for the cheaper reference (IEEE products either way).
        underflow: whether to return ``U`` (one product more).
        scores: whether to return ``S`` and ``T`` (three products more).
        row_limit: a sequence with more queries than this is computed for a sample of its rows (:func:`select_rows`).
    """
    buckets = make_buckets(*bounds_of(call), row_limit, call.q.device)
    result = _unfilled(call, sum(bucket.real for bucket in buckets), dtype, underflow=underflow, scores=scores)
    at = 0
    with exact_matmul(), torch.inference_mode():  # without autograd, small operators take less time
        for bucket in buckets:
            at = _fill_bucket(result, at, call, bucket, dtype)
    return result


def _unfilled(call: AttentionCall, count: int, dtype: torch.dtype, *, underflow: bool, scores: bool) -> Golden:
    """A golden result of ``count`` rows, to be filled."""
    device, heads_q, dim_v = call.q.device, call.q.shape[1], call.v.shape[-1]

    def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(count, *shape, dtype=dtype, device=device)

    return Golden(
        rows=empty(dtype=torch.int64),
        sequence=empty(dtype=torch.int64),
        out=empty(heads_q, dim_v),
        A=empty(heads_q, dim_v),
        Q=empty(heads_q, dim_v),
        U=empty(heads_q, dim_v) if underflow else None,
        S=empty(heads_q, dim_v) if scores else None,
        T=empty(heads_q, dim_v) if scores else None,
        numbers=empty(NUMBERS, heads_q),
        keys=empty(dtype=torch.int64),
        sequences=len(call.cu_seqlens_q) - 1,
    )


def _fill_bucket(result: Golden, at: int, call: AttentionCall, bucket: RowBucket, dtype: torch.dtype) -> int:
    """Compute all blocks of a bucket into ``result`` from row ``at`` on; returns the next free row."""
    heads_q, seqlen_k = call.q.shape[1], bucket.seqlen_k
    budget = BLOCK_BYTES[processor_of(call.q.device.type).scale]
    row_bytes = max(1, heads_q * max(seqlen_k, call.v.shape[-1]) * dtype.itemsize)
    rows_per_block = max(1, min(len(bucket.rows), budget // row_bytes))
    # Keys and values are converted to this precision too, and a few tensors of the values' size are needed.
    cache_bytes = max(1, seqlen_k * call.k.shape[-2] * (call.q.shape[-1] + call.v.shape[-1]) * dtype.itemsize)
    members_per_block = max(1, min(budget // (row_bytes * rows_per_block), CACHES * budget // cache_bytes))
    for first in range(0, len(bucket.lengths_q), members_per_block):
        members = slice(first, first + members_per_block)
        k, v = _keys_values(call, bucket.part(members, slice(None)), dtype)
        for begin in range(0, len(bucket.rows), rows_per_block):
            block = bucket.part(members, slice(begin, begin + rows_per_block))
            place = slice(at, at + block.real)
            index, owner = block.place("first_q")[:, None] + block.rows, block.place("sequence")[:, None]
            rows = BlockRows(shape=(*index.shape, k.shape[1], heads_q // k.shape[1]), kept=None)
            if block.real < index.numel():
                real = block.rows < block.place("length_q")[:, None]
                index = index * real
                rows = replace(rows, kept=real.flatten().nonzero().squeeze(-1))
            for into, numbers in ((result.rows, index), (result.sequence, owner)):
                rows.store_rows(into[place], numbers)
            if seqlen_k:
                _fill_block(result, place, call, block, index, rows, k, v)
            else:
                _fill_unseen(result, place)
            at = place.stop
    return at


def _fill_unseen(result: Golden, place: slice) -> None:
    """What rows give that see no key, because their sequence has none."""
    for name, values in result.tensors.items():
        if name not in {"rows", "sequence"}:
            values[place].fill_(0)
    result.numbers[place, 1:3].fill_(-math.inf)  # the LSE, and the largest score


def _keys_values(call: AttentionCall, bucket: RowBucket, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of a bucket's sequences: (members, heads_kv, seqlen_k, dim), dequantised.

    A shorter sequence is padded with its last key and value.
    """
    members = bucket.place("sequence")
    offsets = torch.arange(bucket.seqlen_k, device=call.k.device).expand(len(members), -1)
    if not bucket.even:
        offsets = offsets.minimum(bucket.place("length_k")[:, None] - 1)
    if call.block_table is None:
        index = bucket.place("first_k")[:, None] + offsets
        k, v = call.k[index], call.v[index]
    else:
        page_size = call.k.shape[1]
        pages = call.block_table[members].long().gather(1, offsets // page_size)
        offsets = offsets % page_size
        k, v = call.k[pages, offsets], call.v[pages, offsets]
    k, v = k.to(dtype).transpose(1, 2), v.to(dtype).transpose(1, 2)
    if call.k_descale is not None:
        k = k * call.k_descale[members].to(dtype)[..., None, None]
    if call.v_descale is not None:
        v = v * call.v_descale[members].to(dtype)[..., None, None]
    return k, v


def _seen(call: AttentionCall, bucket: RowBucket) -> Tensor:
    """Visibility of keys: (1 or members, rows, seqlen_k) bool."""
    i = bucket.rows.view(1, -1, 1)
    j = torch.arange(bucket.seqlen_k, device=call.q.device).view(1, 1, -1)
    queries: Any
    keys: Any
    if bucket.even:  # then no key is padding, and numbers that the host knows need no operators
        queries, keys = bucket.lengths_q[0], bucket.lengths_k[0]
        reached = reaches(call.mask, i, j, queries, keys)
        seen: Tensor = torch.ones_like(j, dtype=torch.bool) if reached is True else reached
    else:
        queries, keys = (bucket.place(name).view(-1, 1, 1) for name in ("length_q", "length_k"))
        seen = call.mask.visible(i, j, queries, keys)
    seen = seen.expand(-1, len(bucket.rows), -1)
    if call.bidirectional_spans is None:
        return seen
    members = bucket.place("sequence").tolist()
    seen = seen.expand(len(members), -1, -1).clone()
    positions = (i + (keys - queries)).expand(len(members), -1, 1)
    for sequence, begin, end in call.bidirectional_spans.tolist():
        if sequence in members:
            at = members.index(sequence)
            inside = (positions[at] >= begin) & (positions[at] < end)
            seen[at] |= inside & (j[0] >= begin) & (j[0] < end)
    return seen


def _fill_block(
    result: Golden,
    place: slice,
    call: AttentionCall,
    bucket: RowBucket,
    index: Tensor,
    rows: BlockRows,
    k: Tensor,
    v: Tensor,
) -> None:
    """Exact attention of a bucket's rows.

    Args:
        place: rows of ``result`` that are filled.
        index: (members, rows) index of each row into the packed queries; any for padding.
        rows: their order in the result.
        k: (members, heads_kv, seqlen_k, head_dim).
        v: (members, heads_kv, seqlen_k, head_dim_v).
    """
    q = _queries(call, bucket, index, k)
    scores, seen = _scores(call, bucket, q, k)
    lse, row_max = _normalisers(call, scores)
    base = lse.clamp(min=torch.finfo(lse.dtype).min)  # where no key is seen, scores of -inf stay so
    p = _products(scores.sub(base.unsqueeze(-1)).exp_().flatten(2, 3))
    values = _products(v)
    magnitudes = values.abs()
    out = torch.bmm(p, values)
    rows.store(result.out[place], out)
    rows.store(result.A[place], torch.bmm(p, magnitudes))
    rows.store(result.Q[place], torch.bmm(p.square(), values.square()))
    if result.U is not None:
        weights = seen.expand(*scores.shape[:3], -1, -1).flatten(2, 3).to(k.dtype)
        rows.store(result.U[place], torch.bmm(_products(weights), magnitudes))
    along = torch.bmm(out, _products(v.transpose(-1, -2))).mul_(p).square_().sum(-1)
    if result.S is not None and result.T is not None:
        worst, power = _rounded_scores(p, scores.view_as(p), out, values, magnitudes)
        rows.store(result.S[place], worst)
        rows.store(result.T[place], power)
    numbers = [along.view_as(lse), lse, row_max, *_bounds(q, k, magnitudes, call.scale)]
    rows.store_numbers(result.numbers[place], torch.stack(numbers))
    rows.store_rows(result.keys[place], seen.sum(-1).flatten(1))


def _products(tensor: Tensor) -> Tensor:
    """(members, heads_kv, …) to (members * heads_kv, …): one batch of matrices.

    ``torch.matmul`` does the same with each of its operands, so the values, which take part in several products, would
    be copied for each.
    """
    return tensor.flatten(0, 1)


def _scores(call: AttentionCall, bucket: RowBucket, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (members, heads_kv, group, rows, seqlen_k), -inf where a key is hidden, and which keys are seen.

    Args:
        q: (members, heads_kv, group, rows, head_dim).
        k: (members, heads_kv, seqlen_k, head_dim).
    """
    scores = torch.matmul(q.flatten(2, 3), k.transpose(-1, -2)).view(*q.shape[:4], -1).mul_(call.scale)
    if call.softcap:
        scores.div_(call.softcap).tanh_().mul_(call.softcap)
    seen = _seen(call, bucket)[:, None, None]
    return scores.masked_fill_(~seen, -math.inf), seen


def _normalisers(call: AttentionCall, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exp and largest score of each row, (members, heads_kv, group, rows); -inf for rows without a key."""
    row_max, lse = scores.amax(-1), torch.logsumexp(scores, -1)
    if call.sinks is not None:
        sink = call.sinks.to(scores.dtype).view(1, *scores.shape[1:3], 1)
        unseen = row_max == -math.inf
        lse = torch.logaddexp(lse, sink).masked_fill_(unseen, -math.inf)
        row_max = torch.maximum(row_max, sink).masked_fill_(unseen, -math.inf)
    return lse, row_max


def _queries(call: AttentionCall, bucket: RowBucket, index: Tensor, k: Tensor) -> Tensor:
    """A bucket's queries, descaled, in the precision of its keys: (members, heads_kv, group, rows, head_dim)."""
    n, heads_kv = k.shape[:2]
    q = call.q[index].to(k.dtype).view(n, len(bucket.rows), heads_kv, -1, call.q.shape[-1])
    q = q.permute(0, 2, 3, 1, 4)
    if call.q_descale is None:
        return q
    return q * call.q_descale[bucket.place("sequence")].to(k.dtype).view(n, heads_kv, 1, 1, 1)


def _bounds(q: Tensor, k: Tensor, magnitudes: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """``score_bound``, ``product_bound`` and ``value_bound``, each (n, heads_kv, group, rows).

    Args:
        magnitudes: (n * heads_kv, seqlen_k, head_dim_v) of the values.
    """
    longest_key = k.norm(dim=-1).amax(-1)[..., None, None]
    # On a CPU, vector_norm(..., inf) takes eight times as long as this.
    largest_q = q.abs().amax(-1)
    largest_k = k.abs().amax((-1, -2))[..., None, None]
    largest_v = magnitudes.amax((-1, -2)).view_as(largest_k)
    products = largest_q * largest_k * abs(scale) * q.shape[-1] ** 0.5
    return q.norm(dim=-1) * longest_key * abs(scale), products, largest_v.expand_as(largest_q)


def _rounded_scores(p: Tensor, scores: Tensor, out: Tensor, v: Tensor, magnitudes: Tensor) -> tuple[Tensor, Tensor]:
    """Effect on the output of a relative error of 1 in every score: (worst, mean square), in the shape of ``out``.

    Args:
        p: (n * heads_kv, rows, seqlen_k) weights.
        scores: the same shape, -inf where a key is hidden.
        out: (n * heads_kv, rows, head_dim_v).
        v: (n * heads_kv, seqlen_k, head_dim_v).
        magnitudes: ``|v|``.
    """
    weighted = scores.abs().masked_fill_(p == 0, 0.0).mul_(p)
    worst = torch.bmm(weighted, magnitudes) + out.abs() * weighted.sum(-1, keepdim=True)
    square = weighted.square()
    power = torch.bmm(square, v.square()) - 2 * out * torch.bmm(square, v)
    return worst, power.add_(out.square().mul_(square.sum(-1, keepdim=True))).clamp_(min=0)
