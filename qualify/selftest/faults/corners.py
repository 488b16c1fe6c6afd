"""Class A and I in corner cases: a window with a side of 0, a row of NaN, a short image over the edge of a tile."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qualify.selftest.planning import Tile
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault

SHORT = 10
"""most positions of a short image"""


class _ZeroIsOpen(Simulator):
    """Without a causal mask, a window side of 0 is taken for an unbounded side."""

    def in_band(self, tile: Tile, distance: Tensor) -> Tensor:
        seen = super().in_band(tile, distance)
        if tile.plan.causal:
            return seen
        left, right = tile.plan.window
        return (seen | (distance < 0) * (left == 0) | (distance > 0) * (right == 0)).bool()

    def key_range(self, tile: Tile) -> tuple[int, int]:
        return (0, tile.seqlen_k) if 0 in tile.plan.window and not tile.plan.causal else super().key_range(tile)


class _MaximumOfTile(Simulator):
    """A query with NaN scores makes its whole tile NaN, because one vote decides whether the tile is rescaled."""

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        new = super().maximum(tile, m, scores)
        return torch.where(new.isnan().any(-1, keepdim=True), math.nan, new)


class _ShortImages(Simulator):
    """Of an image of up to ten tokens, a query sees ahead only those keys that are in its own tile."""

    def seen(self, tile: Tile, first: int, count: int) -> Tensor:
        seen = super().seen(tile, first, count)
        position, key = self.positions(tile).view(-1, 1), torch.arange(first, first + count).view(1, -1)
        plain = self.in_band(tile, key - position) & self.in_sequence(tile, key)
        for sequence, start, end in tile.plan.spans:
            if sequence == tile.index and end - start <= SHORT:
                inside = (position >= start) & (position < end) & (key >= start) & (key < end)
                seen = torch.where(inside & (key >= tile.stop + tile.shift), plain, seen)
        return seen


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="band-zero",
        kind="A",
        mirrors="unsloth#8253, TransformerEngine#1197",
        does="without a causal mask a window's side of 0 means an open one",
        make=_ZeroIsOpen,
    ),
    Fault(
        name="nan-of-tile",
        kind="I",
        mirrors="flash-attention#1395",
        does="a NaN in one query makes NaN of its tile",
        make=_MaximumOfTile,
    ),
    Fault(
        name="short-images",
        kind="A",
        mirrors="vllm#30974",
        does="an image of up to ten tokens is not seen beyond the query's tile",
        make=_ShortImages,
    ),
)
