"""Class A: a mask that is shifted, coarse or dropped, and packing that leaks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault


class _Shifted(Simulator):
    """The causal edge stands some keys off."""

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


class _PaddingDropsCausal(Simulator):
    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        ragged = len(set(plan.lengths_k)) > 1
        return replace(plan, causal=plan.causal and not ragged)


class _HistoryIgnored(Simulator):
    """Several queries with a history see only the keys that came with them."""

    def in_sequence(self, tile: Tile, key: Tensor) -> Tensor:
        inside = super().in_sequence(tile, key)
        return inside & (key >= tile.shift) if 1 < tile.seqlen_q < tile.seqlen_k else inside


class _RowsByKeyMask(Simulator):
    """The query's rows are unpadded with the key's lengths."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        lost = torch.arange(tile.start, tile.stop) >= max(1, tile.seqlen_k)
        super().write(tile, out, lse, tile_out.masked_fill(lost.view(1, -1, 1), 0.0), tile_lse)


class _SegmentsIgnored(Simulator):
    """Every sequence of a packed batch begins where the first one did."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        if plan.page_size:
            return plan
        ends = [start + length for start, length in zip(plan.starts_k, plan.lengths_k, strict=True)]
        return replace(plan, starts_k=(0,) * plan.batch, lengths_k=tuple(ends))


class _WindowDropsSegments(_SegmentsIgnored):
    def make_plan(self, call: AttentionCall) -> CallPlan:
        return super().make_plan(call) if call.window != (-1, -1) else Simulator.make_plan(self, call)


class _BoundaryRow(Simulator):
    """The first key and value of a packed sequence are its neighbour's last."""

    def slots(self, name: str, plan: CallPlan, index: int, positions: Tensor) -> Tensor:
        slots = super().slots(name, plan, index, positions)
        if plan.page_size or not plan.starts_k[index]:
            return slots
        return torch.where(positions == 0, slots - 1, slots)


class _ForwardTilesOnly(Simulator):
    """The loop ends at the causal bound although the window looks to the right."""

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
    """The window is measured from the query's index, the causal mask from its position."""

    def key_range(self, tile: Tile) -> tuple[int, int]:
        return 0, tile.seqlen_k

    def in_band(self, tile: Tile, distance: Tensor) -> Tensor:
        left, _ = tile.plan.window
        unwindowed = replace(tile, plan=replace(tile.plan, window=(-1, tile.plan.window[1])))
        seen = super().in_band(unwindowed, distance)
        return seen & (distance + tile.shift >= -left) if left >= 0 else seen


class _ChunksOfBatch(Simulator):
    """Chunks are counted from the first key of the batch."""

    def in_pattern(self, tile: Tile, position: Tensor, key: Tensor) -> Tensor:
        start, chunk = tile.plan.starts_k[tile.index], tile.plan.size
        return (key + start) // chunk == (position + start) // chunk


class _SpansBehindOnly(Simulator):
    """The loop ends at the causal bound although an image looks ahead."""

    def key_range(self, tile: Tile) -> tuple[int, int]:
        return super().key_range(replace(tile, plan=replace(tile.plan, spans=())))


class _OpenBandUnbounded(Simulator):
    """A band that is open on one side is taken for no band."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        open_side = -1 in plan.window and not plan.causal
        return replace(plan, window=(-1, -1)) if open_side else plan


class _NarrowRows(Simulator):
    """The index of a query that meets the mask has eleven bits."""

    def positions(self, tile: Tile) -> Tensor:
        return torch.arange(tile.start, tile.stop) % 2048 + tile.shift


class _SpansOfAll(Simulator):
    """An image of one sequence counts in every sequence."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        spans = {(index, start, end) for index in range(plan.batch) for _, start, end in plan.spans}
        return replace(plan, spans=tuple(sorted(spans)))


class _FirstSpanOnly(Simulator):
    """Only the first of several images counts."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        return replace(plan, spans=plan.spans[:1])


class _ImagesOfPages(Simulator):
    """Images are ignored where a windowed call reads pages."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        return replace(plan, spans=()) if plan.page_size and plan.window != (-1, -1) else plan


class _HiddenScore(Simulator):
    """A hidden key scores -1e4: it shows only where all other scores of a row are lower."""

    def mask(self, tile: Tile, scores: Tensor, seen: Tensor) -> Tensor:
        inside = self.in_sequence(tile, torch.arange(scores.shape[-1]).view(1, -1))
        return torch.where(seen, scores, torch.where(inside, -1e4, -torch.inf))


class _CutImage(Simulator):
    """An image that begins in the history and ends among the queries is ignored."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        queries = [last - first for first, last in pairwise(plan.bounds_q)]
        histories = [keys - own for keys, own in zip(plan.lengths_k, queries, strict=True)]
        kept = tuple(span for span in plan.spans if not span[1] < histories[span[0]] < span[2] - 1)
        return replace(plan, spans=kept)


class _ChunksOfDecode(Simulator):
    """One query on pages ignores the chunks within a tile of keys."""

    def in_pattern(self, tile: Tile, position: Tensor, key: Tensor) -> Tensor:
        seen = super().in_pattern(tile, position, key)
        return torch.ones_like(seen) if tile.seqlen_q == 1 and tile.plan.page_size else seen


class _NarrowWindow(Simulator):
    """The left side of a window has 16 bits."""

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
        name="chunks-of-batch",
        kind="A",
        mirrors="maxtext#4476",
        does="chunks are counted from the first key of the batch",
        make=_ChunksOfBatch,
    ),
    Fault(
        name="spans-behind-only",
        kind="A",
        mirrors="vllm#30974",
        does="KV tiles are selected causally although an image's tokens see each other",
        make=_SpansBehindOnly,
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
        name="spans-of-all",
        kind="A",
        mirrors="vllm#30974",
        does="an image of one sequence counts in every sequence",
        make=_SpansOfAll,
    ),
    Fault(
        name="first-span-only",
        kind="A",
        mirrors="vllm#30974",
        does="of several images only the first one counts",
        make=_FirstSpanOnly,
    ),
    Fault(
        name="paged-images",
        kind="A",
        mirrors="vllm#30974",
        does="images are ignored where a call with a window reads pages",
        make=_ImagesOfPages,
    ),
    Fault(
        name="hidden-score",
        kind="A",
        mirrors="pytorch#103749, flash-attention#442",
        does="a hidden key scores -1e4 instead of -inf",
        make=_HiddenScore,
    ),
    Fault(
        name="cut-image",
        kind="A",
        mirrors="vllm#30974",
        does="an image that a chunk of the prompt cuts is ignored",
        make=_CutImage,
    ),
    Fault(
        name="decode-chunks",
        kind="A",
        mirrors="sglang#31501",
        does="one query on pages sees past its chunk within a tile",
        make=_ChunksOfDecode,
    ),
    Fault(
        name="narrow-window",
        kind="A",
        mirrors="sglang#31501",
        does="the left side of a window has 16 bits",
        make=_NarrowWindow,
    ),
)
"""Masks."""
