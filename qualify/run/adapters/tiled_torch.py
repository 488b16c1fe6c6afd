"""Attention with an online softmax, in plain torch: portable, packed and paged, every mask and feature.

This is the algorithm of the fused kernels, written to be read. Keys and values are visited tile by tile
and the score matrix never exists as a whole. For a tile of queries it keeps, per row, the largest score
so far ``m``, the sum ``l`` of exp(score - m), and the weighted sum ``acc`` of the values::

    m' = max(m, max_j s_j)                      new maximum
    acc = acc * exp(m - m') + exp(s - m') V     rescale what was gathered, add the tile
    l   = l   * exp(m - m') + sum_j exp(s_j - m')
    out = acc / l,   lse = m + log(l)

The precision mirrors the kernels too. Scores, ``m``, ``l`` and ``acc`` are float32. The weights are rounded to the
dtype of V before they multiply it (where V is fp8, to the dtype of the output). The row sum is taken before that
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
from qualify.run.adapters.interface import AttentionCall, Prepared


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequence:
    """One sequence of a call: its tensors by head group, and its place in the batch."""

    index: int
    q: Tensor
    """(heads_kv, group, seqlen_q, head_dim) float32, descaled"""
    k: Tensor
    """(heads_kv, seqlen_k, head_dim) float32, descaled"""
    v: Tensor
    """(heads_kv, seqlen_k, head_dim_v) float32, as stored"""
    spans: tuple[tuple[int, int], ...]
    """[start, end) ranges of key positions that see each other"""


def gather_paged(pages: Tensor, block_table: Tensor, length: int) -> Tensor:
    """Keys or values of one sequence, (length, heads_kv, dim), from (pages, page_size, heads_kv, dim)."""
    used = -(-length // pages.shape[1])
    return pages[block_table[:used].long()].flatten(0, 1)[:length]


def sequence_of(call: AttentionCall, index: int, bounds_q: list[int], bounds_k: list[int]) -> Sequence:
    """Cut sequence ``index`` out of the packed or paged tensors."""
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
    """Cumulative lengths of queries and keys as host integers."""
    bounds_q = call.cu_seqlens_q.tolist()
    if call.cu_seqlens_k is not None:
        return bounds_q, call.cu_seqlens_k.tolist()
    assert call.seqused_k is not None, "a paged call has seqused_k"
    bounds_k = [0]
    for length in call.seqused_k.tolist():
        bounds_k.append(bounds_k[-1] + length)
    return bounds_q, bounds_k


class TiledTorch:
    """The adapter; ``tile_q`` and ``tile_k`` are the tile edges in rows."""

    def __init__(self, tile_q: int = 256, tile_k: int = 512) -> None:
        self.bind = partial(bind, tile_q=tile_q, tile_k=tile_k)

    def prepare(self, call: AttentionCall) -> Prepared:
        """Nothing to convert: the canonical layout is read as it is."""
        return self.bind(call)


def bind(call: AttentionCall, *, tile_q: int, tile_k: int) -> Prepared:
    """The algorithm on a call; the lengths are read beforehand."""
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
    """What torch runs as one operator; the tensors are there for whoever asks what it took."""
    return attend_tiled(call, bounds_q, bounds_k, tile_q=tile_q, tile_k=tile_k)


# An operator that the profiler records with its inputs. A mere range of this name would prove nothing.
TILED_ATTENTION: Any = type("qualify::tiled_attention", (torch.autograd.Function,), {"forward": staticmethod(forward)})


def attend_tiled(
    call: AttentionCall, bounds_q: list[int], bounds_k: list[int], *, tile_q: int, tile_k: int
) -> tuple[Tensor, Tensor]:
    """Out and LSE of all sequences, one tile of queries after another."""
    total_q, heads_q, _ = call.q.shape
    out = torch.zeros(total_q, heads_q, call.v.shape[-1], dtype=call.out_dtype, device=call.q.device)
    lse = torch.full((heads_q, total_q), -math.inf, dtype=torch.float32, device=call.q.device)
    for index in range(len(bounds_q) - 1):
        first, last = bounds_q[index], bounds_q[index + 1]
        if first == last or bounds_k[index] == bounds_k[index + 1]:
            continue
        sequence = sequence_of(call, index, bounds_q, bounds_k)
        for start in range(0, last - first, tile_q):
            stop = min(start + tile_q, last - first)
            rows = slice(first + start, first + stop)
            tile_out, tile_lse = attend_tile(call, sequence, start, stop, tile_k)
            out[rows] = tile_out.flatten(0, 1).transpose(0, 1).to(call.out_dtype)
            lse[:, rows] = tile_lse.flatten(0, 1)
    return out, lse


def attend_tile(call: AttentionCall, sequence: Sequence, start: int, stop: int, tile_k: int) -> tuple[Tensor, Tensor]:
    """One tile of queries against all keys that any of its rows sees."""
    seqlen_q, seqlen_k = sequence.q.shape[2], sequence.k.shape[1]
    q = sequence.q[:, :, start:stop]
    shape = q.shape[:3]
    m = torch.full(shape, -math.inf, device=q.device)
    l = torch.zeros(shape, device=q.device)
    acc = torch.zeros(*shape, sequence.v.shape[-1], device=q.device)
    weights = call.out_dtype if call.v.dtype.itemsize == 1 else call.v.dtype
    low, high = keys_of_tile(call, sequence, start, stop)
    for first in range(low - low % tile_k, high, tile_k):
        keys = slice(first, min(first + tile_k, seqlen_k))
        scores = torch.matmul(q, sequence.k[:, None, keys].transpose(-1, -2)) * call.scale
        if call.softcap:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        i = torch.arange(start, stop, device=q.device).view(-1, 1)
        j = torch.arange(keys.start, keys.stop, device=q.device).view(1, -1)
        seen = call.mask.visible(i, j, seqlen_q, seqlen_k)
        for begin, end in sequence.spans:
            position = i + (seqlen_k - seqlen_q)
            seen = seen | ((position >= begin) & (position < end) & (j >= begin) & (j < end))
        scores = scores.masked_fill(~seen, -math.inf)
        new_m = torch.maximum(m, scores.amax(-1))
        base = torch.where(new_m == -math.inf, 0.0, new_m)
        p = torch.exp(scores - base.unsqueeze(-1))
        shrink = torch.exp(m - base)
        weighted = torch.matmul(p.to(weights).float(), sequence.v[:, None, keys])
        acc = acc * shrink.unsqueeze(-1) + weighted
        l = l * shrink + p.sum(-1)
        m = new_m
    return finish_tile(call, sequence.index, m, l, acc)


def keys_of_tile(call: AttentionCall, sequence: Sequence, start: int, stop: int) -> tuple[int, int]:
    """First and one past the last key that a row of the tile may see."""
    seqlen_q, seqlen_k = sequence.q.shape[2], sequence.k.shape[1]
    if sequence.spans:
        return 0, seqlen_k
    return call.mask.tile_range(start, stop, seqlen_q, seqlen_k)


def finish_tile(call: AttentionCall, index: int, m: Tensor, l: Tensor, acc: Tensor) -> tuple[Tensor, Tensor]:
    """Add the sink to the denominator, divide, and leave rows without keys at 0 and -inf."""
    empty = l == 0
    if call.sinks is not None:
        sink = call.sinks.float().view(m.shape[0], m.shape[1], 1)
        base = torch.maximum(m, sink)
        shrink = torch.exp(m - base)
        l = l * shrink + torch.exp(sink - base)
        acc = acc * shrink.unsqueeze(-1)
        m = base
    out = acc / torch.where(empty, 1.0, l).unsqueeze(-1)
    if call.v_descale is not None:
        out = out * call.v_descale[index].view(-1, 1, 1, 1)
    lse = torch.where(empty, -math.inf, m + torch.log(l))
    return torch.where(empty.unsqueeze(-1), 0.0, out), lse


def create(options: dict[str, Any]) -> TiledTorch:
    """The adapter for a card; options ``tile_q`` and ``tile_k``. Raises ValueError for others."""
    return TiledTorch(**settle("tiled_torch", options))
