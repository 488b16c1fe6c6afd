"""Classes C and G: rows, sequences and splits without keys, and partial results that are merged wrongly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Partial, Simulator
from qualify.selftest.specimen import Fault


class _EmptyUnwritten(Simulator):
    def attend_sequence(self, call: AttentionCall, plan: CallPlan, index: int, out: Tensor, lse: Tensor) -> None:
        if plan.lengths_k[index]:
            super().attend_sequence(call, plan, index, out, lse)
            return
        rows = slice(plan.bounds_q[index], plan.bounds_q[index + 1])
        out[rows], lse[:, rows] = 0.25, 0.25


class _EmptyUniform(Simulator):
    """A row without visible keys returns the mean of all values."""

    def attend_tile(self, tile: Tile, q: Tensor, k: Tensor, v: Tensor) -> Partial:
        out, lse = super().attend_tile(tile, q, k, v)
        empty = (lse == -math.inf).unsqueeze(-1)
        if not tile.seqlen_k or not bool(empty.any()):
            return out, lse
        return torch.where(empty, v[:, : tile.seqlen_k].mean(1, keepdim=True), out), lse


class _EmptyLse(Simulator):
    """A row without visible keys returns a wrong LSE."""

    value = math.inf

    def normalise(self, tile: Tile, m: Tensor, l: Tensor, acc: Tensor) -> Partial:
        out, lse = super().normalise(tile, m, l, acc)
        whole = self.split_count(tile) == 1
        return out, torch.where((lse == -math.inf) & whole, self.value, lse)

    def merge(self, tile: Tile, partials: Sequence[Partial]) -> Partial:
        out, lse = super().merge(tile, partials)
        return out, torch.where(lse == -math.inf, self.value, lse)

    def add_sinks(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        given, whole = super().add_sinks(call, tile, out, torch.where(lse == self.value, -math.inf, lse))
        return given, torch.where(whole == -math.inf, self.value, whole)


class _EmptyLseFinite(_EmptyLse):
    value = -1e4


class _EmptyShiftsTable(Simulator):
    """The row of the block table is counted without the sequences that have no keys."""

    def pages(self, name: str, plan: CallPlan, index: int) -> Tensor:
        return super().pages(name, plan, sum(length > 0 for length in plan.lengths_k[:index]))


class _DecodeByBatch(Simulator):
    """With at most one query per sequence, query b is taken to belong to sequence b."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        lengths = [end - start for start, end in zip(tile.plan.bounds_q[:-1], tile.plan.bounds_q[1:], strict=True)]
        if max(lengths) > 1:
            super().write(tile, out, lse, tile_out, tile_lse)
            return
        row = tile.index % len(out)
        out[row], lse[:, row] = tile_out[:, 0].to(out.dtype), tile_lse[:, 0]


class _MergeEqual(Simulator):
    """All splits that saw a key get the same weight."""

    def merge(self, tile: Tile, partials: Sequence[Partial]) -> Partial:
        seen = [(lse > -math.inf).float() for _, lse in partials]
        total = torch.stack(seen).sum(0).clamp(min=1).unsqueeze(-1)
        out = torch.stack([out * weight.unsqueeze(-1) for (out, _), weight in zip(partials, seen, strict=True)])
        return out.sum(0) / total, super().merge(tile, partials)[1]


class _MergeNan(Simulator):
    """Merging empty splits computes exp(-inf - -inf), which is NaN."""

    def merge(self, tile: Tile, partials: Sequence[Partial]) -> Partial:
        outs, lses = torch.stack([out for out, _ in partials]), torch.stack([lse for _, lse in partials])
        weights = torch.exp(lses - lses.amax(0))
        out = (outs * weights.unsqueeze(-1)).sum(0) / weights.sum(0).unsqueeze(-1)
        return out, lses.amax(0) + torch.log(weights.sum(0))


class _MergeByMaximum(Simulator):
    """The merged LSE is the largest LSE of the splits."""

    def merge(self, tile: Tile, partials: Sequence[Partial]) -> Partial:
        return super().merge(tile, partials)[0], torch.stack([lse for _, lse in partials]).amax(0)


class _MergeFirstTwo(Simulator):
    """The merge reads only the first two splits."""

    def merge(self, tile: Tile, partials: Sequence[Partial]) -> Partial:
        return super().merge(tile, partials[:2])


class _EmptySplitFinite(Simulator):
    """A split without tiles returns leftover numbers and an LSE of 0."""

    def store(self, tile: Tile, number: int, starts: Sequence[int], partial: Partial) -> Partial:
        if len(starts) or not number:
            return partial
        return torch.ones_like(partial[0]), torch.zeros_like(partial[1])


class _StaleWorkspace(Simulator):
    """A split without tiles leaves the previous call's result in the workspace."""

    def __init__(self) -> None:
        super().__init__()
        self.workspace: dict[tuple[int, ...], Partial] = {}

    def store(self, tile: Tile, number: int, starts: Sequence[int], partial: Partial) -> Partial:
        place = (number, *partial[0].shape)
        if not len(starts) and number and place in self.workspace:
            return self.workspace[place]
        self.workspace[place] = partial
        return partial


class _LseBaseTwo(Simulator):
    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        super().write(tile, out, lse, tile_out, tile_lse / math.log(2))


class _LseTransposed(Simulator):
    """The LSE is stored with heads and rows exchanged."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(call)
        return out, lse.T.contiguous().view(lse.shape)


class _UnwrittenRows(Simulator):
    """The last, partial tile of queries is not written."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        if not tile.start or tile.stop - tile.start == self.tile_q:
            super().write(tile, out, lse, tile_out, tile_lse)


class _UnwrittenLse(_UnwrittenRows):
    """The last, partial tile of queries is written without its LSE."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        super().write(tile, out, lse, tile_out, tile_lse)
        elsewhere = torch.empty_like(lse)
        Simulator.write(self, tile, out, elsewhere, tile_out, tile_lse)
        elsewhere.fill_(math.nan)  # otherwise the next call's LSE may get this memory, with the right values in it


class _LseByWidth(Simulator):
    """The number of splits follows from the width of the block table, and the LSE counts splits that do not exist."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        plan = tile.plan
        if plan.table is not None:
            needed = -(-max(plan.lengths_k) // plan.page_size)
            tile_lse = tile_lse + math.log(plan.table.shape[1] / needed)
        super().write(tile, out, lse, tile_out, tile_lse)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="empty-garbage",
        kind="C",
        mirrors="flashinfer#363, flash-attention#1155",
        does="a sequence without keys leaves garbage",
        make=_EmptyUnwritten,
    ),
    Fault(
        name="empty-uniform",
        kind="C",
        mirrors="pytorch#109517, pytorch#103749",
        does="a row without visible keys returns the mean of V",
        make=_EmptyUniform,
    ),
    Fault(
        name="empty-lse-inf",
        kind="C",
        mirrors="vllm#15492",
        does="a row without visible keys has LSE +inf",
        make=_EmptyLse,
    ),
    Fault(
        name="empty-lse-finite",
        kind="C",
        mirrors="vllm#49294",
        does="a row without visible keys has a finite LSE",
        make=_EmptyLseFinite,
    ),
    Fault(
        name="empty-shifts-table",
        kind="C",
        mirrors="vllm#7176, FlashMLA#11",
        does="a sequence without keys shifts the page tables of those after it",
        make=_EmptyShiftsTable,
    ),
    Fault(
        name="decode-by-batch",
        kind="C",
        mirrors="flash-attention#1537, flash-attention#1619",
        does="with query lengths 0 and 1, query b is taken for sequence b's",
        make=_DecodeByBatch,
    ),
    Fault(
        name="empty-split-finite",
        kind="C",
        mirrors="vllm#47188, vllm#49294",
        does="a split without tiles returns scratch and a finite LSE",
        make=_EmptySplitFinite,
    ),
    Fault(
        name="merge-nan",
        kind="C",
        mirrors="vllm#39148, vllm#27491, flashinfer#4051",
        does="merging two empty splits gives NaN",
        make=_MergeNan,
    ),
    Fault(
        name="unwritten-rows",
        kind="B",
        mirrors="flash-attention#1661, flash-linear-attention#1029",
        does="the last, partial tile of queries is not written",
        make=_UnwrittenRows,
    ),
    Fault(
        name="unwritten-lse",
        kind="B",
        mirrors="tilelang#2461",
        does="the LSE of the last, partial tile of queries is not written",
        make=_UnwrittenLse,
    ),
    Fault(
        name="lse-by-width",
        kind="G",
        mirrors="page_permutation: a wider block table",
        does="the LSE grows with the width of the block table",
        make=_LseByWidth,
    ),
    Fault(
        name="lse-log2",
        kind="G",
        mirrors="pytorch#181645",
        does="the LSE is in base 2",
        make=_LseBaseTwo,
    ),
    Fault(
        name="lse-transposed",
        kind="G",
        mirrors="vllm#21996, vllm#22003",
        does="the LSE is written with heads and rows exchanged",
        make=_LseTransposed,
    ),
    Fault(
        name="merge-equal",
        kind="G",
        mirrors="local-inference-lab/vllm#17, vllm#21996",
        does="splits are merged without their LSE",
        make=_MergeEqual,
    ),
    Fault(
        name="merge-max",
        kind="G",
        mirrors="flashinfer#1055",
        does="the merged LSE is the largest of the splits'",
        make=_MergeByMaximum,
    ),
    Fault(
        name="merge-two",
        kind="G",
        mirrors="flashinfer#1055, aiter#4350",
        does="only the first two splits are merged",
        make=_MergeFirstTwo,
    ),
    Fault(
        name="stale-workspace",
        kind="J",
        mirrors="flashinfer#1584, flashinfer#3465, vllm#47188",
        does="a split without tiles keeps the previous call's partial result",
        make=_StaleWorkspace,
    ),
)
"""Faults of degenerate rows, of splits and of the LSE."""
