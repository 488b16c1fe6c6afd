"""Attention with an online softmax in plain torch: portable, packed and paged, with every mask and feature.

This is the algorithm of the fused kernels, written for readers. It visits keys and values tile by tile, so the score
matrix never exists as a whole. For each row of a tile of queries it keeps the largest score so far ``m``, the sum ``l``
of exp(score - m), and the weighted sum ``acc`` of the values::

    m' = max(m, max_j s_j)                      new maximum
    acc = acc * exp(m - m') + exp(s - m') V     rescale the sum so far, add the tile
    l   = l   * exp(m - m') + sum_j exp(s_j - m')
    out = acc / l,   lse = m + log(l)

The precision also follows the kernels. Scores, ``m``, ``l`` and ``acc`` are float32. The weights are rounded before
they multiply V: to the dtype of V, or to the dtype of the output if V is fp8. ``l`` sums the weights before this
rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qualify.facts.adapters import settle
from qualify.masks import reaches
from qualify.run.adapters.interface import AttentionCall, Prepared

LOWEST = torch.finfo(torch.float32).min
"""stands for the maximum of a row that has seen no key: -inf less -inf would be NaN"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequence:
    """One sequence of a call: its tensors, with query heads grouped by KV head, and its index."""

    index: int
    """index of the sequence in the batch"""
    q: Tensor
    """(heads_kv, group, seqlen_q, head_dim) float32, descaled"""
    k: Tensor
    """(heads_kv, seqlen_k, head_dim) float32, descaled"""
    v: Tensor
    """(heads_kv, seqlen_k, head_dim_v) float32, not descaled: :func:`finish_tile` descales the output"""
    spans: tuple[tuple[int, int], ...]
    """[start, end) ranges of positions that see each other"""


def gather_paged(pages: Tensor, block_table: Tensor, length: int) -> Tensor:
    """Keys or values of one sequence as (length, heads_kv, dim), copied from its pages.

    Args:
        pages: (pages, page_size, heads_kv, dim).
        block_table: (max_pages,) page numbers of the sequence.
        length: keys of the sequence.
    """
    used = -(-length // pages.shape[1])
    return pages[block_table[:used]].flatten(0, 1)[:length]


def sequence_of(call: AttentionCall, index: int, bounds_q: list[int], bounds_k: list[int]) -> Sequence:
    """One sequence of a packed or paged call, in float32.

    Args:
        index: index of the sequence in the batch.
        bounds_q: cumulative numbers of queries, from 0 (:func:`bounds_of`).
        bounds_k: cumulative numbers of keys, from 0.
    """
    if call.block_table is None:
        k, v = (tensor[bounds_k[index] : bounds_k[index + 1]] for tensor in (call.k, call.v))
    else:
        length = bounds_k[index + 1] - bounds_k[index]
        k, v = (gather_paged(tensor, call.block_table[index], length) for tensor in (call.k, call.v))
    heads_kv = k.shape[1]
    q = call.q[bounds_q[index] : bounds_q[index + 1]].float().permute(1, 0, 2)
    q = q.view(heads_kv, -1, *q.shape[1:])
    k = k.float().transpose(0, 1)
    if call.q_descale is not None:
        q = q * call.q_descale[index].view(-1, 1, 1, 1)
    if call.k_descale is not None:
        k = k * call.k_descale[index].view(-1, 1, 1)
    spans = [] if call.bidirectional_spans is None else call.bidirectional_spans.tolist()
    return Sequence(
        index=index,
        q=q,
        k=k,
        v=v.float().transpose(0, 1),
        spans=tuple((start, end) for sequence, start, end in spans if sequence == index),
    )


def bounds_of(call: AttentionCall) -> tuple[list[int], list[int]]:
    """Cumulative numbers of queries and of keys, batch + 1 integers each, on the host; both start at 0."""
    bounds_q = call.cu_seqlens_q.tolist()
    if call.cu_seqlens_k is not None:
        return bounds_q, call.cu_seqlens_k.tolist()
    assert call.seqused_k is not None, "a paged call has seqused_k"
    bounds_k = [0]
    for length in call.seqused_k.tolist():
        bounds_k.append(bounds_k[-1] + length)
    return bounds_q, bounds_k


class TiledTorch:
    """The adapter. A tile has ``tile_q`` queries and ``tile_k`` keys."""

    def __init__(self, tile_q: int = 256, tile_k: int = 512) -> None:
        self.bind = partial(bind, tile_q=tile_q, tile_k=tile_k)

    def prepare(self, call: AttentionCall) -> Prepared:
        """Bind the call; the algorithm reads the canonical layout without conversion."""
        return self.bind(call)


def bind(call: AttentionCall, *, tile_q: int, tile_k: int) -> Prepared:
    """Bind the algorithm to a call. It reads the lengths here, outside the timed region.

    Args:
        tile_q: queries of a tile.
        tile_k: keys of a tile.
    """
    bounds = bounds_of(call)

    def launch() -> tuple[Tensor, Tensor]:
        return TILED_ATTENTION.apply(call.q, call.k, call.v, call, *bounds, tile_q, tile_k)  # type: ignore[no-any-return]

    return Prepared(launch=launch, result=lambda native: native)


def forward(
    _context: Any,
    _q: Tensor,
    _k: Tensor,
    _v: Tensor,
    call: AttentionCall,
    bounds_q: list[int],
    bounds_k: list[int],
    tile_q: int,
    tile_k: int,
) -> tuple[Tensor, Tensor]:
    """Run the algorithm as one torch operator. q, k and v are arguments so that the profiler records them."""
    return attend_tiled(call, bounds_q, bounds_k, tile_q=tile_q, tile_k=tile_k)


# The profiler records this operator with its inputs, so a trace proves that the algorithm ran on them. A range of this
# name would not prove it.
TILED_ATTENTION: Any = type("qualify::tiled_attention", (torch.autograd.Function,), {"forward": staticmethod(forward)})


def attend_tiled(
    call: AttentionCall, bounds_q: list[int], bounds_k: list[int], *, tile_q: int, tile_k: int
) -> tuple[Tensor, Tensor]:
    """(out, lse) of all sequences, one tile of queries after another.

    Args:
        bounds_q: cumulative numbers of queries, from 0 (:func:`bounds_of`).
        bounds_k: cumulative numbers of keys, from 0.
        tile_q: queries of a tile.
        tile_k: keys of a tile.

    Returns:
        out (total_q, heads_q, head_dim_v) in ``out_dtype``, and lse (heads_q, total_q) in float32.
    """
    total_q, heads_q, _ = call.q.shape
    out = torch.zeros(total_q, heads_q, call.v.shape[-1], dtype=call.out_dtype, device=call.q.device)
    lse = torch.full((heads_q, total_q), -math.inf, dtype=torch.float32, device=call.q.device)
    with torch.inference_mode():  # small operators take less time; the results are made outside, so anyone may use them
        for index in range(len(bounds_q) - 1):
            first, last = bounds_q[index], bounds_q[index + 1]
            if first == last or bounds_k[index] == bounds_k[index + 1]:
                continue
            sequence = sequence_of(call, index, bounds_q, bounds_k)
            for start in range(0, last - first, tile_q):
                stop = min(start + tile_q, last - first)
                rows = slice(first + start, first + stop)
                tile_out, tile_lse = attend_tile(call, sequence, start, stop, tile_k)
                out[rows] = tile_out.flatten(0, 1).transpose(0, 1)
                lse[:, rows] = tile_lse.flatten(0, 1)
    return out, lse


def attend_tile(call: AttentionCall, sequence: Sequence, start: int, stop: int, tile_k: int) -> tuple[Tensor, Tensor]:
    """(out, lse) of one tile of queries over all keys that any of its rows sees.

    Args:
        start: first query of the tile.
        stop: one past its last query.
        tile_k: keys of a tile.

    Returns:
        out (heads_kv, group, stop - start, head_dim_v) and lse (heads_kv, group, stop - start), float32.
    """
    shape = *sequence.q.shape[:2], stop - start
    # The query heads of a KV head are rows of one product: as a batch, each would get its own copy of the keys.
    q = sequence.q[:, :, start:stop].flatten(1, 2)
    weights = call.out_dtype if call.v.dtype.itemsize == 1 else call.v.dtype
    low, high = keys_of_tile(call, sequence, start, stop)
    so_far: tuple[Tensor, Tensor, Tensor] | None = None
    for first in range(low - low % tile_k, high, tile_k):
        keys = slice(first, min(first + tile_k, sequence.k.shape[1]))
        scores = torch.bmm(q, sequence.k[:, keys].transpose(1, 2)).mul_(call.scale)
        if call.softcap:
            scores = scores.div_(call.softcap).tanh_().mul_(call.softcap)
        seen = seen_in_tile(call, sequence, start, stop, keys)
        if seen is not None:
            scores.view(*shape, -1).masked_fill_(~seen, -math.inf)
        m = scores.amax(-1) if so_far is None else torch.maximum(so_far[0], scores.amax(-1))
        base = m.clamp(min=LOWEST)
        p = scores.sub_(base.unsqueeze(-1)).exp_()
        l, acc = p.sum(-1), torch.bmm(p.to(weights).float(), sequence.v[:, keys])
        if so_far is not None:
            old_m, old_l, old_acc = so_far
            shrink = old_m.sub_(base).exp_()
            l, acc = old_l.mul_(shrink).add_(l), old_acc.mul_(shrink.unsqueeze(-1)).add_(acc)
        so_far = m, l, acc
    if so_far is None:  # no row of the tile sees a key
        return torch.zeros(*shape, sequence.v.shape[-1], device=q.device), torch.full(shape, -math.inf, device=q.device)
    m, l, acc = so_far
    return finish_tile(call, sequence.index, m.view(shape), l.view(shape), acc.view(*shape, -1))


def seen_in_tile(call: AttentionCall, sequence: Sequence, start: int, stop: int, keys: slice) -> Tensor | None:
    """Which keys of a tile each of its rows sees, (stop - start, keys) bool; None where every row sees every key."""
    mask, seqlen_q, seqlen_k = call.mask, sequence.q.shape[2], sequence.k.shape[1]
    if mask.step == 1 and (
        mask.key_range(stop - 1, seqlen_q, seqlen_k)[0] <= keys.start
        and keys.stop <= mask.key_range(start, seqlen_q, seqlen_k)[1]
    ):
        return None
    i = torch.arange(start, stop, device=sequence.q.device).view(-1, 1)
    j = torch.arange(keys.start, keys.stop, device=sequence.q.device).view(1, -1)
    seen: Tensor = reaches(mask, i, j, seqlen_q, seqlen_k)  # the sequence has every key of a tile
    for begin, end in sequence.spans:
        position = i + (seqlen_k - seqlen_q)
        seen = seen | ((position >= begin) & (position < end) & (j >= begin) & (j < end))
    return seen


def keys_of_tile(call: AttentionCall, sequence: Sequence, start: int, stop: int) -> tuple[int, int]:
    """The first key that a row of the tile may see, and one past the last such key."""
    seqlen_q, seqlen_k = sequence.q.shape[2], sequence.k.shape[1]
    if sequence.spans:
        return 0, seqlen_k
    return call.mask.tile_range(start, stop, seqlen_q, seqlen_k)


def finish_tile(call: AttentionCall, index: int, m: Tensor, l: Tensor, acc: Tensor) -> tuple[Tensor, Tensor]:
    """Add the sink to the denominator, divide by it and descale; a row that sees no key gives out 0 and lse -inf.

    Args:
        index: index of the sequence in the batch.
        m: (heads_kv, group, rows) largest score of each row.
        l: (heads_kv, group, rows) sum of exp(score - m).
        acc: (heads_kv, group, rows, head_dim_v) weighted sum of the values.

    Returns:
        out in the shape of ``acc``, and lse in the shape of ``m``, float32.
    """
    empty = l == 0
    if call.sinks is not None:
        sink = call.sinks.float().view(m.shape[0], m.shape[1], 1)
        base = torch.maximum(m, sink)
        shrink = torch.exp(m - base)
        l = l * shrink + torch.exp(sink - base)
        acc = acc * shrink.unsqueeze(-1)
        m = base
    out = acc / l.unsqueeze(-1)
    if call.v_descale is not None:
        out = out * call.v_descale[index].view(-1, 1, 1, 1)
    lse = (m + torch.log(l)).masked_fill_(empty, -math.inf)
    return out.masked_fill_(empty.unsqueeze(-1), 0.0), lse


def create(options: dict[str, Any]) -> TiledTorch:
    """The adapter of a card; its options are ``tile_q`` and ``tile_k``.

    Raises:
        ValueError: unknown option or value.
    """
    return TiledTorch(**settle("tiled_torch", options))
