"""Faults with several queries per sequence on pages, after different contexts: chunked prefill, drafts to verify.

Every fault here computes decode, packed calls, and single sequences that fit one row block correctly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault


def several(plan: CallPlan) -> bool:
    """Whether the call has pages and a sequence with more than one query."""
    return bool(plan.page_size) and len(plan.bounds_q) > 1 and max(lengths_q(plan)) > 1


def lengths_q(plan: CallPlan) -> list[int]:
    """Number of queries of each sequence."""
    return [last - first for first, last in zip(plan.bounds_q, plan.bounds_q[1:], strict=False)]


class _LastRowsLost(Simulator):
    """Query rows after the last whole row block are not computed."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        if several(tile.plan) and tile.start and tile.stop - tile.start < self.tile_q:
            tile_out = torch.zeros_like(tile_out)
        super().write(tile, out, lse, tile_out, tile_lse)


class _LastKeysLost(Simulator):
    """Of a partial last page, the last row block sees at most as many keys as it has rows."""

    def in_sequence(self, tile: Tile, key: Tensor) -> Tensor:
        inside = super().in_sequence(tile, key)
        if not several(tile.plan) or not tile.start or tile.stop < tile.seqlen_q:
            return inside
        whole = tile.seqlen_k // tile.plan.page_size * tile.plan.page_size
        return inside & (key < whole + tile.stop - tile.start)


class _Moved(Simulator):
    """Queries are given wrong positions."""

    def context(self, tile: Tile) -> int:
        """Key position that query 0 is given."""
        return tile.shift

    def positions(self, tile: Tile) -> Tensor:
        own = super().positions(tile)
        return own - tile.shift + self.context(tile) if several(tile.plan) else own

    def key_range(self, tile: Tile) -> tuple[int, int]:
        return (0, tile.seqlen_k) if several(tile.plan) else super().key_range(tile)


class _LastPageFull(_Moved):
    """The length of the context is computed as if the last page were full."""

    def context(self, tile: Tile) -> int:
        size = tile.plan.page_size
        return -(-tile.seqlen_k // size) * size - tile.seqlen_q


class _ContextOfFirst(_Moved):
    """Every sequence gets the context length of the first one."""

    def context(self, tile: Tile) -> int:
        return tile.plan.lengths_k[0] - lengths_q(tile.plan)[0]


class _StaleTail(Simulator):
    """Whatever a last page holds after its keys is multiplied by weights of 0, so NaN there spreads."""

    def clamp(self, positions: Tensor, plan: CallPlan, index: int) -> Tensor:
        if not several(plan):
            return super().clamp(positions, plan, index)
        return positions.clamp(max=-(-plan.lengths_k[index] // plan.page_size) * plan.page_size - 1)

    def clear(self, name: str, rows: Tensor, seqlen_k: int) -> Tensor:
        return rows

    def keys(self, call: AttentionCall, plan: CallPlan, index: int) -> tuple[Tensor, Tensor]:
        k, v = super().keys(call, plan, index)
        if not several(plan):
            v[:, plan.lengths_k[index] :] = 0.0
        return k, v


class _RowOfOwnPages(Simulator):
    """The row stride of the block table is taken to be the sequence's own number of pages."""

    def pages(self, name: str, plan: CallPlan, index: int) -> Tensor:
        own = super().pages(name, plan, index)
        if not several(plan):
            return own
        assert plan.table is not None, "only a paged cache has pages"
        used = -(-plan.lengths_k[index] // plan.page_size)
        row: Tensor = plan.table.flatten()[index * used :][: len(own)]
        return row


class _RowOfBlock(Simulator):
    """The row of the block table is the number of the row block instead of that of the sequence."""

    def pages(self, name: str, plan: CallPlan, index: int) -> Tensor:
        if not several(plan):
            return super().pages(name, plan, index)
        blocks = sum(-(-length // self.tile_q) for length in lengths_q(plan)[:index])
        return super().pages(name, plan, min(blocks, plan.batch - 1))


class _EquallyMany(Simulator):
    """Queries are read as if every sequence had as many as the longest one."""

    def queries(self, call: AttentionCall, plan: CallPlan, index: int) -> Tensor:
        q = super().queries(call, plan, index)
        if not several(plan):
            return q
        whole = call.q.as_strided(call.q.shape, plan.strides[0]).float()
        rows = (index * max(lengths_q(plan)) + torch.arange(q.shape[1])).clamp(max=len(whole) - 1)
        read = whole[rows].transpose(0, 1)
        descale = self.descale("q", call, plan, index)
        return read if descale is None else read * descale


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="paged-last-rows",
        kind="H",
        mirrors="tt-metal#54413",
        does="several queries on pages: those behind the last whole row block are lost",
        make=_LastRowsLost,
    ),
    Fault(
        name="paged-last-keys",
        kind="H",
        mirrors="executorch#20346",
        does="several queries on pages: the last row block sees as many keys of a partial last page as it has rows",
        make=_LastKeysLost,
    ),
    Fault(
        name="paged-whole-pages",
        kind="A",
        mirrors="sparkinfer#3, SageAttention#372",
        does="several queries on pages: the context is counted as if the last page were full",
        make=_LastPageFull,
    ),
    Fault(
        name="paged-first-context",
        kind="A",
        mirrors="vllm#7018, flashinfer#4137",
        does="several queries on pages: the context of the first sequence is taken for all",
        make=_ContextOfFirst,
    ),
    Fault(
        name="paged-stale-tail",
        kind="B",
        mirrors="flashinfer#3716, vllm#48257",
        does="several queries on pages: what lies behind the last key is multiplied by weights of 0",
        make=_StaleTail,
    ),
    Fault(
        name="paged-row-stride",
        kind="H",
        mirrors="vllm#7018",
        does="several queries on pages: rows of the block table are as far apart as a sequence has pages",
        make=_RowOfOwnPages,
    ),
    Fault(
        name="paged-row-of-block",
        kind="H",
        mirrors="ssd#23",
        does="several queries on pages: rows of the block table are counted by row blocks",
        make=_RowOfBlock,
    ),
    Fault(
        name="paged-equal-queries",
        kind="D",
        mirrors="flashinfer#4137",
        does="several queries on pages: each sequence is read as if it had as many as the longest",
        make=_EquallyMany,
    ),
)
"""Faults with several queries per sequence on pages."""
