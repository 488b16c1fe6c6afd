"""Class A: chunks that begin at wrong keys, and images whose tokens do not see each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault


class _ChunksOfBatch(Simulator):
    """Chunks are counted from the first key of the batch."""

    def in_pattern(self, tile: Tile, position: Tensor, key: Tensor) -> Tensor:
        start, chunk = tile.plan.starts_k[tile.index], tile.plan.size
        return (key + start) // chunk == (position + start) // chunk


class _SpansBehindOnly(Simulator):
    """The loop ends at the causal bound, although tokens of an image see later keys."""

    def key_range(self, tile: Tile) -> tuple[int, int]:
        return super().key_range(replace(tile, plan=replace(tile.plan, spans=())))


class _SpansOfAll(Simulator):
    """An image of one sequence is applied to every sequence."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        spans = {(index, start, end) for index in range(plan.batch) for _, start, end in plan.spans}
        return replace(plan, spans=tuple(sorted(spans)))


class _FirstSpanOnly(Simulator):
    """Only the first of several images is applied."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        return replace(plan, spans=plan.spans[:1])


class _ImagesOfPages(Simulator):
    """Images are ignored in paged calls with a window."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        return replace(plan, spans=()) if plan.page_size and plan.window != (-1, -1) else plan


class _CutImage(Simulator):
    """An image that begins in the history and ends among the queries is ignored."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        queries = [last - first for first, last in pairwise(plan.bounds_q)]
        histories = [keys - own for keys, own in zip(plan.lengths_k, queries, strict=True)]
        kept = tuple(span for span in plan.spans if not span[1] < histories[span[0]] < span[2] - 1)
        return replace(plan, spans=kept)


class _ChunksOfDecode(Simulator):
    """In paged decode the chunks of the mask are ignored."""

    def in_pattern(self, tile: Tile, position: Tensor, key: Tensor) -> Tensor:
        seen = super().in_pattern(tile, position, key)
        return torch.ones_like(seen) if tile.seqlen_q == 1 and tile.plan.page_size else seen


FAULTS: tuple[Fault, ...] = (
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
)
"""Faults of chunks and images."""
