"""Class A: packed sequences that get rows, keys or masks of other sequences."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault


class _PaddingDropsCausal(Simulator):
    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        ragged = len(set(plan.lengths_k)) > 1
        return replace(plan, causal=plan.causal and not ragged)


class _HistoryIgnored(Simulator):
    """Several queries after a history do not see the history, only the keys of the same chunk."""

    def in_sequence(self, tile: Tile, key: Tensor) -> Tensor:
        inside = super().in_sequence(tile, key)
        return inside & (key >= tile.shift) if 1 < tile.seqlen_q < tile.seqlen_k else inside


class _RowsByKeyMask(Simulator):
    """Query rows are unpadded by the lengths of the keys, so rows beyond those are lost."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        lost = torch.arange(tile.start, tile.stop) >= max(1, tile.seqlen_k)
        super().write(tile, out, lse, tile_out.masked_fill(lost.view(1, -1, 1), 0.0), tile_lse)


class _SegmentsIgnored(Simulator):
    """Every sequence of a packed batch sees all keys from the start of the batch."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        if plan.page_size:
            return plan
        ends = [start + length for start, length in zip(plan.starts_k, plan.lengths_k, strict=True)]
        return replace(plan, starts_k=(0,) * plan.batch, lengths_k=tuple(ends))


class _WindowDropsSegments(_SegmentsIgnored):
    def make_plan(self, call: AttentionCall) -> CallPlan:
        return super().make_plan(call) if call.window != (-1, -1) else Simulator.make_plan(self, call)


class _DecodeByTotal(Simulator):
    """As many queries as sequences are taken for one query of each, also where one has several and another none."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        return replace(plan, bounds_q=tuple(range(plan.batch + 1))) if len(call.q) == plan.batch else plan


class _BoundaryRow(Simulator):
    """In place of its first key and value, a packed sequence reads the last ones of its neighbour."""

    def slots(self, name: str, plan: CallPlan, index: int, positions: Tensor) -> Tensor:
        slots = super().slots(name, plan, index, positions)
        if plan.page_size or not plan.starts_k[index]:
            return slots
        return torch.where(positions == 0, slots - 1, slots)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="packed-boundary",
        kind="A",
        mirrors="maxtext#4476, NeMo-RL#2105",
        does="the first token of a packed sequence is replaced by its neighbour's last",
        make=_BoundaryRow,
    ),
    Fault(
        name="padding-drops-causal",
        kind="A",
        mirrors="transformers#41966",
        does="causal is switched off when lengths differ within the batch",
        make=_PaddingDropsCausal,
    ),
    Fault(
        name="history-ignored",
        kind="A",
        mirrors="sgl-kernel-xpu#196",
        does="several queries with a prefix in the cache do not see the prefix",
        make=_HistoryIgnored,
    ),
    Fault(
        name="rows-by-key-mask",
        kind="A",
        mirrors="vllm-omni#5865",
        does="cross-attention: query rows past the number of keys come back as 0",
        make=_RowsByKeyMask,
    ),
    Fault(
        name="segments-ignored",
        kind="A",
        mirrors="maxtext#4476, axolotl#3796",
        does="packed documents see all documents before them",
        make=_SegmentsIgnored,
    ),
    Fault(
        name="window-drops-segments",
        kind="A",
        mirrors="transformers#31670",
        does="with a window, sequence boundaries are lost",
        make=_WindowDropsSegments,
    ),
    Fault(
        name="decode-by-total",
        kind="A",
        mirrors="degenerate: as many queries as sequences that are no decode",
        does="as many queries as sequences are taken for one of each",
        make=_DecodeByTotal,
    ),
)
"""Faults of packed sequences."""
