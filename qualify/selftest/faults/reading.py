"""Class B: keys that are lost, and bytes outside the sequence that are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault


class _TailDropped(Simulator):
    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        width = self.width(tile.seqlen_k)
        return [start for start in super().tile_starts(tile, low, high) if start + width <= tile.seqlen_k]


class _TailOfOneDropped(Simulator):
    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        return [start for start in super().tile_starts(tile, low, high) if start + 1 != tile.seqlen_k]


class _Phantom(Simulator):
    """Lanes beyond the last key hold zeros, but are counted as keys."""

    def in_sequence(self, tile: Tile, key: Tensor) -> Tensor:
        return torch.ones_like(key, dtype=torch.bool)


class _ReadsPast(Simulator):
    """Keys beyond the end of the sequence are seen, up to the end of the tile or of the last page."""

    def clamp(self, positions: Tensor, plan: CallPlan, index: int) -> Tensor:
        return positions.clamp(max=self._last(plan, index))

    def _last(self, plan: CallPlan, index: int) -> int:
        size = plan.page_size or self.width(plan.lengths_k[index])
        return -(-plan.lengths_k[index] // size) * size - 1

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        if plan.page_size:
            return super().fetch(name, tensor, strides, slots, plan)
        beyond = (tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()) // strides[0]
        return tensor.as_strided((beyond, *tensor.shape[1:]), strides)[slots.clamp(max=beyond - 1)]

    def clear(self, name: str, rows: Tensor, seqlen_k: int) -> Tensor:
        return rows

    def in_sequence(self, tile: Tile, key: Tensor) -> Tensor:
        return key <= self._last(tile.plan, tile.index)


class _DecodeReadsPast(_ReadsPast):
    """Keys beyond the end are seen only by up to eight queries."""

    def in_sequence(self, tile: Tile, key: Tensor) -> Tensor:
        return super().in_sequence(tile, key) if tile.seqlen_q <= 8 else key < tile.seqlen_k


class _ShortBlock(_ReadsPast):
    """A sequence shorter than one tile sees the whole tile."""

    def in_sequence(self, tile: Tile, key: Tensor) -> Tensor:
        return super().in_sequence(tile, key) if tile.seqlen_k < self.tile_k else key < tile.seqlen_k


class _DirtyValues(_ReadsPast):
    """Keys beyond the end are masked, but their values are not cleared: 0 · NaN is NaN."""

    def in_sequence(self, tile: Tile, key: Tensor) -> Tensor:
        return key < tile.seqlen_k


class _NullPageValues(_DirtyValues):
    """Lanes beyond the end read the null page, and their values are not cleared."""

    def slots(self, name: str, plan: CallPlan, index: int, positions: Tensor) -> Tensor:
        slots = super().slots(name, plan, index, positions)
        return torch.where(positions < plan.lengths_k[index], slots, 0) if plan.page_size else slots

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        return super().fetch(name, tensor, strides, slots if plan.page_size else slots.clamp(max=len(tensor) - 1), plan)

    def clear(self, name: str, rows: Tensor, seqlen_k: int) -> Tensor:
        return rows


class _ValueStride(Simulator):
    """Rows of V are taken to be as long as rows of K."""

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        if name == "k" or plan.head_dim_v >= plan.head_dim or plan.page_size:
            return super().fetch(name, tensor, strides, slots, plan)
        whole = int(tensor.untyped_storage().nbytes()) // tensor.element_size() - int(tensor.storage_offset())
        flat = tensor.as_strided((whole,), (1,))
        heads = torch.arange(plan.heads_kv).view(1, -1, 1) * plan.head_dim
        at = slots.view(-1, 1, 1) * plan.heads_kv * plan.head_dim + heads + torch.arange(plan.head_dim_v)
        return flat[at % whole]


class _LengthsOfQueries(Simulator):
    """Where a packed call has as many keys as queries, key lengths are taken to be the query lengths."""

    def key_lengths(self, call: AttentionCall) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if call.cu_seqlens_k is None or call.cu_seqlens_k[-1] != call.cu_seqlens_q[-1]:
            return super().key_lengths(call)
        return super().key_lengths(replace(call, cu_seqlens_k=call.cu_seqlens_q))


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="drop-tail",
        kind="B",
        mirrors="pytorch#169222",
        does="the last partial KV tile is dropped",
        make=_TailDropped,
    ),
    Fault(
        name="drop-tail-of-one",
        kind="B",
        mirrors="pytorch#191937",
        does="the last KV tile is dropped when it holds one key",
        make=_TailOfOneDropped,
    ),
    Fault(
        name="phantom",
        kind="B",
        mirrors="flashinfer#3716",
        does="zero-padded lanes of the last tile enter the denominator",
        make=_Phantom,
    ),
    Fault(
        name="read-past",
        kind="B",
        mirrors="vllm#47305, tt-metal#41215",
        does="keys are read and seen to the end of the last page or tile",
        make=_ReadsPast,
    ),
    Fault(
        name="decode-reads-past",
        kind="B",
        mirrors="pytorch#169222, gpt-fast#233",
        does="with up to eight queries, keys are seen to the end of the last page or tile",
        make=_DecodeReadsPast,
    ),
    Fault(
        name="short-block",
        kind="B",
        mirrors="pytorch#159247",
        does="a sequence shorter than a tile sees the whole tile",
        make=_ShortBlock,
    ),
    Fault(
        name="nan-v",
        kind="B",
        mirrors="flash-attention#1745, flash-attention#2374, vllm#57158",
        does="values past the end are not cleared: 0 · NaN",
        make=_DirtyValues,
    ),
    Fault(
        name="null-page",
        kind="B",
        mirrors="vllm#57158, sglang#32477",
        does="lanes past the end read the null page, and 0 · NaN enters",
        make=_NullPageValues,
    ),
    Fault(
        name="lengths-of-queries",
        kind="B",
        mirrors="degenerate: equal totals, unequal lengths",
        does="with as many keys as queries, keys get the bounds of the queries",
        make=_LengthsOfQueries,
    ),
    Fault(
        name="v-stride-of-k",
        kind="B",
        mirrors="flash-attention#2368, flashinfer#4976",
        does="rows of V are strided by head_dim where head_dim_v is smaller",
        make=_ValueStride,
    ),
)
"""Faults in reading keys and values."""
