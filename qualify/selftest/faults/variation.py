"""Class O: results that vary from call to call, or with the batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import Tile
from qualify.selftest.simulator import DECODE_SPLITS, Partial, Simulator
from qualify.selftest.specimen import Fault


class _Race(Simulator):
    """Every n-th tile is lost."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every
        self.tiles = 0

    def step(
        self, tile: Tile, first: int, scores: Tensor, v: Tensor, state: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.tiles += 1
        return state if self.tiles % self.every == 0 else super().step(tile, first, scores, v, state)


class _RandomRace(_Race):
    """One tile in twenty is lost, at random."""

    def __init__(self) -> None:
        super().__init__(1 << 62)
        self.generator = torch.Generator().manual_seed(0)

    def step(
        self, tile: Tile, first: int, scores: Tensor, v: Tensor, state: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        lost = float(torch.rand(1, generator=self.generator)) < 0.05
        return state if lost else super().step(tile, first, scores, v, state)


class _OrderVaries(Simulator):
    """Splits are merged in the order in which they end, which changes from call to call."""

    def merge(self, tile: Tile, partials: Sequence[Partial]) -> Partial:
        turn = self.calls % len(partials)
        return super().merge(tile, [*partials[turn:], *partials[:turn]])

    def split_count(self, tile: Tile) -> int:
        return DECODE_SPLITS


class _CrossTalk(Simulator):
    """In every third call with a batch of three or more, the last sequence gets its neighbour's row."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(call)
        if self.calls % 3 == 0 and len(call.cu_seqlens_q) > 3 and len(out) > 1:
            out[-1] = out[-2]
        return out, lse


class _SplitByBatch(Simulator):
    """The number of KV splits depends on the number of sequences."""

    def split_count(self, tile: Tile) -> int:
        return max(1, DECODE_SPLITS // tile.plan.batch) if tile.seqlen_q == 1 else 1 + tile.plan.batch % 2


class _OrderByBatch(Simulator):
    """From three sequences on, tiles are visited backwards."""

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        starts = super().tile_starts(tile, low, high)
        return starts[::-1] if tile.plan.batch >= 3 else starts


class _OrderOfMany(Simulator):
    """From 32 sequences on, tiles of keys are visited backwards."""

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        starts = super().tile_starts(tile, low, high)
        return starts[::-1] if tile.plan.batch >= 32 else starts


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="race",
        kind="O",
        mirrors="aiter#4350, tt-metal#50512, ninfer-3090#49",
        does="one tile in twenty is lost at random",
        make=_RandomRace,
    ),
    Fault(
        name="race-rare",
        kind="O",
        mirrors="flash-attention#1344, ninfer-3090#49",
        does="every 211th tile is lost",
        make=partial(_Race, 211),
    ),
    Fault(
        name="cross-talk",
        kind="O",
        mirrors="tt-metal#50512, flashinfer#1046",
        does="every third call, the last of three or more sequences gets its neighbour's row",
        make=_CrossTalk,
    ),
    Fault(
        name="merge-order",
        kind="O",
        mirrors="FlashMLA#212, aiter#4350",
        does="splits are merged in an order that changes from call to call",
        make=_OrderVaries,
    ),
    Fault(
        name="split-by-batch",
        kind="O",
        mirrors="flash-attention#1897, flashinfer#2424",
        does="the number of splits depends on the batch",
        make=_SplitByBatch,
    ),
    Fault(
        name="order-by-batch",
        kind="O",
        mirrors="pegainfer#613, flashinfer#1675",
        does="from three sequences on, another path is taken",
        make=_OrderByBatch,
    ),
    Fault(
        name="order-of-many",
        kind="O",
        mirrors="pegainfer#613",
        does="from 32 sequences on, tiles are visited backwards",
        make=_OrderOfMany,
    ),
)
"""Faults that vary."""
