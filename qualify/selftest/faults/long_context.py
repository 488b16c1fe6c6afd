"""Classes I and O with very many keys: faults that a short sequence hides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from qualify.selftest.planning import Tile
from qualify.selftest.simulator import DECODE_SPLITS, Partial, Simulator
from qualify.selftest.specimen import Fault

BLOCK = 4096


class _BlocksInBf16(Simulator):
    """Every 4,096 keys the accumulator is stored in bf16."""

    def accumulate(self, tile: Tile, first: int, acc: Tensor, shrink: Tensor, p: Tensor, v: Tensor) -> Tensor:
        acc = super().accumulate(tile, first, acc, shrink, p, v)
        return acc if (first + v.shape[1]) % BLOCK else acc.bfloat16().float()


class _OrderOfLong(Simulator):
    """Within a range, keys are split, and the splits are merged in the order in which they end."""

    def __init__(self, lengths: range) -> None:
        super().__init__()
        self.lengths = lengths

    def split_count(self, tile: Tile) -> int:
        return DECODE_SPLITS if tile.seqlen_k in self.lengths else super().split_count(tile)

    def merge(self, tile: Tile, partials: Sequence[Partial]) -> Partial:
        turn = self.calls % len(partials) if tile.seqlen_k in self.lengths else 0
        return super().merge(tile, [*partials[turn:], *partials[:turn]])


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="blocks-in-bf16",
        kind="I",
        mirrors="flash-attention#1417, aiter#4350",
        does="the accumulator is rounded to bf16 every 4,096 keys",
        make=_BlocksInBf16,
    ),
    Fault(
        name="order-of-long",
        kind="O",
        mirrors="FlashMLA#212, aiter#4350",
        does="from 16,384 keys on splits are merged in an order that changes from call to call",
        make=partial(_OrderOfLong, range(1 << 14, 1 << 32)),
    ),
    Fault(
        name="order-of-some",
        kind="O",
        mirrors="FlashMLA#212, aiter#4350",
        does="from 1,024 to 4,095 keys splits are merged in an order that changes from call to call",
        make=partial(_OrderOfLong, range(1 << 10, 1 << 12)),
    ),
)
