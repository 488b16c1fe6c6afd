"""Class A: a causal edge or a window that is shifted, coarse or dropped."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault


class _Shifted(Simulator):
    """The causal edge is shifted by some keys."""

    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by

    def key_range(self, tile: Tile) -> tuple[int, int]:
        low, high = super().key_range(tile)
        return low, min(tile.seqlen_k, high + max(0, self.by)) if tile.plan.causal else high

    def in_band(self, tile: Tile, distance: Tensor) -> Tensor:
        plan = tile.plan
        window = super().in_band(replace(tile, plan=replace(plan, causal=False)), distance)
        return window & (distance <= self.by) if plan.causal else window


class _TopLeft(Simulator):
    def positions(self, tile: Tile) -> Tensor:
        return torch.arange(tile.start, tile.stop)

    def key_range(self, tile: Tile) -> tuple[int, int]:
        return 0, tile.seqlen_k


class _OncePerFourRows(Simulator):
    def positions(self, tile: Tile) -> Tensor:
        last = torch.arange(tile.start, tile.stop) // 4 * 4 + 3
        return last.clamp(max=tile.seqlen_q - 1) + tile.shift

    def key_range(self, tile: Tile) -> tuple[int, int]:
        low, high = super().key_range(tile)
        return low, min(tile.seqlen_k, high + 3)


class _LastTileUnmasked(Simulator):
    def seen(self, tile: Tile, first: int, count: int) -> Tensor:
        seen = super().seen(tile, first, count)
        width = self.width(tile.seqlen_k)
        last = (tile.seqlen_k - 1) // width
        if tile.plan.causal and last >= 2 and first // width == last:
            return self.in_sequence(tile, torch.arange(first, first + count).view(1, -1)).expand_as(seen)
        return seen


class _Window(Simulator):
    """The left side of the window is off by some keys."""

    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        left, right = plan.window
        return plan if left < 0 else replace(plan, window=(max(0, left + self.by), right))


class _WindowByTile(Simulator):
    def in_band(self, tile: Tile, distance: Tensor) -> Tensor:
        plan = tile.plan
        return super().in_band(replace(tile, plan=replace(plan, window=(-1, plan.window[1]))), distance)


class _WindowIgnored(Simulator):
    def make_plan(self, call: AttentionCall) -> CallPlan:
        return replace(super().make_plan(call), window=(-1, -1))


class _RightSideIgnored(Simulator):
    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        return replace(plan, window=(plan.window[0], -1))


class _ForwardTilesOnly(Simulator):
    """The loop ends at the causal bound, although the window also covers later keys."""

    def key_range(self, tile: Tile) -> tuple[int, int]:
        low, high = super().key_range(tile)
        width = self.width(tile.seqlen_k)
        return low, min(high, -(-(tile.stop + tile.shift) // width) * width)


class _WindowOfOneUnbounded(Simulator):
    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        left, right = plan.window
        return replace(plan, window=(-1 if left == 0 else left, right))


class _WindowFromTop(Simulator):
    """The window is measured from the query's index, but the causal mask from its position."""

    def key_range(self, tile: Tile) -> tuple[int, int]:
        return 0, tile.seqlen_k

    def in_band(self, tile: Tile, distance: Tensor) -> Tensor:
        left, _ = tile.plan.window
        unwindowed = replace(tile, plan=replace(tile.plan, window=(-1, tile.plan.window[1])))
        seen = super().in_band(unwindowed, distance)
        return seen & (distance + tile.shift >= -left) if left >= 0 else seen


class _OpenBandUnbounded(Simulator):
    """A window that is unbounded on one side is ignored."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        open_side = -1 in plan.window and not plan.causal
        return replace(plan, window=(-1, -1)) if open_side else plan


class _NarrowRows(Simulator):
    """The query's index has eleven bits where the mask uses it."""

    def positions(self, tile: Tile) -> Tensor:
        return torch.arange(tile.start, tile.stop) % 2048 + tile.shift


class _HiddenScore(Simulator):
    """A hidden key gets the score -1e4 instead of -inf. This shows only where all other scores of a row are lower."""

    def mask(self, tile: Tile, scores: Tensor, seen: Tensor) -> Tensor:
        inside = self.in_sequence(tile, torch.arange(scores.shape[-1]).view(1, -1))
        return torch.where(seen, scores, torch.where(inside, -1e4, -torch.inf))


class _NarrowWindow(Simulator):
    """The left side of a window is stored in 16 bits."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        left, right = plan.window
        return replace(plan, window=(left % (1 << 16), right)) if left >= 0 else plan


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="causal-plus-1",
        kind="A",
        mirrors="pytorch#195910, tt-metal#41215",
        does="the causal right edge sees one future key",
        make=partial(_Shifted, 1),
    ),
    Fault(
        name="causal-minus-1",
        kind="A",
        mirrors="flash-attention#282",
        does="the diagonal key is dropped",
        make=partial(_Shifted, -1),
    ),
    Fault(
        name="topleft",
        kind="A",
        mirrors="flash-attention#282, pytorch#110144, sparkinfer#3",
        does="the mask is aligned top left instead of bottom right",
        make=_TopLeft,
    ),
    Fault(
        name="causal4",
        kind="A",
        mirrors="pytorch#195910",
        does="the mask is evaluated once for four query rows",
        make=_OncePerFourRows,
    ),
    Fault(
        name="causal-off-long",
        kind="A",
        mirrors="flash-attention#2528",
        does="the last KV tile is not masked when there are three or more",
        make=_LastTileUnmasked,
    ),
    Fault(
        name="window-plus-1",
        kind="A",
        mirrors="transformers#29623, flashinfer#5327",
        does="the window sees one key more on the left",
        make=partial(_Window, 1),
    ),
    Fault(
        name="window-minus-1",
        kind="A",
        mirrors="sglang#32087",
        does="the window loses its oldest key",
        make=partial(_Window, -1),
    ),
    Fault(
        name="window-tile",
        kind="A",
        mirrors="sglang#31501",
        does="the window is applied at the granularity of tiles",
        make=_WindowByTile,
    ),
    Fault(
        name="window-ignored",
        kind="A",
        mirrors="unsloth#8253, stable-audio-3#21",
        does="the window is ignored",
        make=_WindowIgnored,
    ),
    Fault(
        name="window-left-only",
        kind="A",
        mirrors="TransformerEngine#1197, vllm#30974",
        does="the right half of a symmetric window is ignored",
        make=_RightSideIgnored,
    ),
    Fault(
        name="forward-tiles-only",
        kind="A",
        mirrors="vllm#30974",
        does="KV tiles are selected causally although the mask looks forward",
        make=_ForwardTilesOnly,
    ),
    Fault(
        name="window-zero-unbounded",
        kind="A",
        mirrors="unsloth#8253",
        does="a window of 0 keys to the left means no window",
        make=_WindowOfOneUnbounded,
    ),
    Fault(
        name="window-from-top",
        kind="A",
        mirrors="ROCm/flash-attention#158, PR#185",
        does="the window is aligned top left, the causal mask bottom right",
        make=_WindowFromTop,
    ),
    Fault(
        name="open-band",
        kind="A",
        mirrors="TransformerEngine#1197, unsloth#8253",
        does="a band with one open side is taken for none",
        make=_OpenBandUnbounded,
    ),
    Fault(
        name="queries-2048",
        kind="A",
        mirrors="pytorch#162588, NATTEN#347",
        does="queries from number 2048 on meet the mask as if they were the first",
        make=_NarrowRows,
    ),
    Fault(
        name="hidden-score",
        kind="A",
        mirrors="pytorch#103749, flash-attention#442",
        does="a hidden key scores -1e4 instead of -inf",
        make=_HiddenScore,
    ),
    Fault(
        name="narrow-window",
        kind="A",
        mirrors="sglang#31501",
        does="the left side of a window has 16 bits",
        make=_NarrowWindow,
    ),
)
"""Faults of masks."""
