"""Class K: limits of an index, a tile, a grid or a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault

LIMIT = 1 << 16


class _Offset32(Simulator):
    """Offsets into the key and value tensors are 32-bit: beyond 2³¹ elements they wrap."""

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        rows = slots // plan.page_size if plan.page_size else slots
        offset = rows * strides[0]
        wrapped = (offset + (1 << 31)) % (1 << 32) - (1 << 31)
        return super().fetch(name, tensor, strides, slots, plan).float() * (offset == wrapped).view(-1, 1, 1)


class _TileOffset32(Simulator):
    """The offset of a tile of keys is 32-bit, but offsets within a tile are not."""

    ROWS = 128

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        rows = super().fetch(name, tensor, strides, slots, plan).float()
        if plan.page_size:
            return rows
        inside = slots // self.ROWS * self.ROWS * strides[0] < 1 << 31
        return rows * inside.view(-1, 1, 1)


class _QueryOffset32(Simulator):
    """Offsets of queries are 32-bit: rows beyond 2^31 elements are read as zeros."""

    def launch(self, call: AttentionCall) -> Any:
        inside = torch.arange(len(call.q)) * call.q.stride(0) < 1 << 31
        if not bool(inside.all()):
            call = replace(call, q=call.q * inside.view(-1, 1, 1))
        return super().launch(call)


class _LateKeys(Simulator):
    """Keys from position 65536 on are not seen, because their index has 16 bits."""

    def in_sequence(self, tile: Tile, key: Tensor) -> Tensor:
        return super().in_sequence(tile, key) & (key < LIMIT)


class _GridLimit(Simulator):
    """The grid has no blocks for sequences from number 65535 on."""

    def attend_sequence(self, call: AttentionCall, plan: CallPlan, index: int, out: Tensor, lse: Tensor) -> None:
        if index < LIMIT - 1:
            super().attend_sequence(call, plan, index, out, lse)


class _WarpEdge(Simulator):
    """The scheduler counts sequences in warps of 32 and leaves out the last sequence of each warp."""

    def attend_sequence(self, call: AttentionCall, plan: CallPlan, index: int, out: Tensor, lse: Tensor) -> None:
        if index % 32 < 31:
            super().attend_sequence(call, plan, index, out, lse)


class _LongContext(Simulator):
    """Several queries over more than 2048 keys take another path, which loses the last tile."""

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        starts = super().tile_starts(tile, low, high)
        return starts[:-1] if tile.seqlen_q > 1 and tile.seqlen_k > 2048 else starts


class _LongPrompt(Simulator):
    """Many queries over more than 1024 keys take another path, which loses the second tile of keys."""

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        starts = super().tile_starts(tile, low, high)
        lost = tile.seqlen_q >= 64 and tile.seqlen_k > 1024
        return [start for at, start in enumerate(starts) if at != 1] if lost else starts


class _LateInBatch(Simulator):
    """In a batch that fits one block, no warp takes the sequences after those of the first two warps."""

    def attend_sequence(self, call: AttentionCall, plan: CallPlan, index: int, out: Tensor, lse: Tensor) -> None:
        if not 64 <= index < plan.batch <= 1024:
            super().attend_sequence(call, plan, index, out, lse)


class _FarWindow(Simulator):
    """With a window, the positions of many queries after more than 1024 keys have too few bits."""

    def positions(self, tile: Tile) -> Tensor:
        far = tile.plan.window[0] > 0 and tile.shift >= 1024 and tile.seqlen_q > 8
        return super().positions(tile) - 256 * far


class _OffsetUnsigned(Simulator):
    """Offsets into the tensors are unsigned 32-bit: beyond 2³² elements they wrap."""

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        rows = slots // plan.page_size if plan.page_size else slots
        inside = rows * strides[0] < 1 << 32
        return super().fetch(name, tensor, strides, slots, plan).float() * inside.view(-1, 1, 1)


class _LongDecode(Simulator):
    """One query over more than 2048 keys loses the second tile of keys."""

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        starts = super().tile_starts(tile, low, high)
        lost = tile.seqlen_q == 1 and tile.seqlen_k > 2048
        return [start for at, start in enumerate(starts) if at != 1] if lost else starts


class _UniformDrafts(Simulator):
    """In a paged call with up to eight queries per sequence, every sequence is taken to have equally many."""

    def positions(self, tile: Tile) -> Tensor:
        plan = tile.plan
        most = max(last - first for first, last in pairwise(plan.bounds_q))
        own = super().positions(tile)
        return own - (most - tile.seqlen_q) if plan.page_size and 1 < most <= 8 else own


class _SecondLong(Simulator):
    """In a paged batch, the second sequence of over 2048 keys loses its last tile of keys."""

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        starts, lengths = super().tile_starts(tile, low, high), tile.plan.lengths_k
        long = [index for index, length in enumerate(lengths) if length > 2048]
        return starts[:-1] if tile.plan.page_size and tile.index in long[1:] else starts


class _LongAmongShort(Simulator):
    """In a batch of more than eight sequences, splits are planned for the mean length, and reach six times as far."""

    def in_sequence(self, tile: Tile, key: Tensor) -> Tensor:
        planned = 6 * sum(tile.plan.lengths_k) // tile.plan.batch
        inside = super().in_sequence(tile, key)
        return inside & (key < planned) if tile.plan.batch > 8 else inside


class _GridTail(Simulator):
    """Of 37 blocks, which are heads of tiles of queries, the last one is lost."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(call)
        tiles = (call.cu_seqlens_q.diff() + self.tile_q - 1) // self.tile_q
        if int(tiles.sum()) * call.q.shape[1] == 37:
            out[-1, -1] = 0.0
        return out, lse


class _NineteenTiles(Simulator):
    """Of 19 tiles of keys, the last one is lost."""

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        starts = super().tile_starts(tile, low, high)
        return starts[:-1] if len(starts) == 19 else starts


class _SchedulerWarp(Simulator):
    """From sequence 31 on, only the first tile of queries is right."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        lost = tile.index >= 31 and tile.start > 0
        super().write(tile, out, lse, tile_out * 0.5 if lost else tile_out, tile_lse)


class _AfterPrompt(Simulator):
    """A single query behind a prompt of more than one tile loses its last tile of keys."""

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        starts = super().tile_starts(tile, low, high)
        longest = max((last - first for first, last in pairwise(tile.plan.bounds_q[: tile.index + 1])), default=0)
        return starts[:-1] if tile.seqlen_q == 1 and longest > 64 else starts


class _AfterSingles(Simulator):
    """The third tile of a prompt that stands behind four single queries takes the positions of the second."""

    def positions(self, tile: Tile) -> Tensor:
        lengths = [last - first for first, last in pairwise(tile.plan.bounds_q)]
        wrong = tile.start >= 128 and lengths[: tile.index].count(1) >= 4
        return super().positions(tile) - 64 * wrong


class _WindowOfMany(Simulator):
    """In decode with a window, queries from sequence 64 on see only their own position."""

    def in_band(self, tile: Tile, distance: Tensor) -> Tensor:
        lost = tile.index >= 64 and tile.seqlen_q == 1 and tile.plan.window[0] >= 0
        return super().in_band(tile, distance) & ((distance >= 0) | (not lost))


class _SinksOfMany(Simulator):
    """From sequence 64 on, all heads use the first head's sink."""

    def sink(self, call: AttentionCall, tile: Tile, lse: Tensor) -> Tensor:
        sink = super().sink(call, tile, lse)
        return sink[:1].expand_as(sink) if tile.index >= 64 else sink


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="offset-int32",
        kind="K",
        mirrors="flash-attention#772, vllm#50427, flash-attention#2611",
        does="offsets into the cache are 32-bit and wrap at 2^31 elements",
        make=_Offset32,
    ),
    Fault(
        name="keys-65536",
        kind="K",
        mirrors="pytorch#162588",
        does="keys from position 65536 on are not seen",
        make=_LateKeys,
    ),
    Fault(
        name="batch-65535",
        kind="K",
        mirrors="pytorch#142228, pytorch#146704",
        does="sequences from number 65535 on are not computed",
        make=_GridLimit,
    ),
    Fault(
        name="warp-edge",
        kind="K",
        mirrors="pegainfer#613",
        does="every 32nd sequence of a batch is not computed",
        make=_WarpEdge,
    ),
    Fault(
        name="long-context",
        kind="K",
        mirrors="local-inference-lab/vllm#17, flash-attention#1417",
        does="several queries over more than 2048 keys lose the last tile",
        make=_LongContext,
    ),
    Fault(
        name="long-prompt",
        kind="K",
        mirrors="flash-attention#1417",
        does="64 queries or more over more than 1024 keys lose a tile",
        make=_LongPrompt,
    ),
    Fault(
        name="warps-of-two",
        kind="K",
        mirrors="pegainfer#613",
        does="sequences from number 64 on are not computed in batches of up to 1024",
        make=_LateInBatch,
    ),
    Fault(
        name="far-window",
        kind="A",
        mirrors="sglang#31501",
        does="with a window, many queries after more than 1024 keys stand elsewhere",
        make=_FarWindow,
    ),
    Fault(
        name="offset-uint32",
        kind="K",
        mirrors="flash-attention#772, vllm#50427",
        does="offsets are unsigned 32-bit and wrap at 2^32 elements",
        make=_OffsetUnsigned,
    ),
    Fault(
        name="long-decode",
        kind="K",
        mirrors="aiter#4350, flash-attention#1417",
        does="one query over more than 2048 keys loses a tile",
        make=_LongDecode,
    ),
    Fault(
        name="uniform-drafts",
        kind="K",
        mirrors="flashinfer#4365",
        does="drafts of unequal lengths are taken for equal ones",
        make=_UniformDrafts,
    ),
    Fault(
        name="second-long",
        kind="K",
        mirrors="aiter#4350",
        does="the second sequence of over 2048 keys in a batch loses its last tile",
        make=_SecondLong,
    ),
    Fault(
        name="skewed-batch",
        kind="K",
        mirrors="degenerate: a long sequence among short ones",
        does="over eight sequences: keys beyond six times their mean are lost",
        make=_LongAmongShort,
    ),
    Fault(
        name="grid-tail",
        kind="K",
        mirrors="size_limits: every number of sequences and of heads",
        does="of 37 blocks of work the last one is lost",
        make=_GridTail,
    ),
    Fault(
        name="tiles-of-19",
        kind="K",
        mirrors="size_limits: every number of tiles",
        does="of 19 tiles of keys the last one is lost",
        make=_NineteenTiles,
    ),
    Fault(
        name="scheduler-warp",
        kind="K",
        mirrors="pegainfer#613",
        does="from sequence 31 on only the first tile of queries is right",
        make=_SchedulerWarp,
    ),
    Fault(
        name="tile-offset-int32",
        kind="K",
        mirrors="flash-attention#772, flash-attention#2611",
        does="offsets of tiles of 128 keys wrap at 2^31 elements, offsets within a tile do not",
        make=_TileOffset32,
    ),
    Fault(
        name="query-offset-int32",
        kind="K",
        mirrors="flash-attention#772, vllm#50427",
        does="offsets of queries wrap at 2^31 elements",
        make=_QueryOffset32,
    ),
    Fault(
        name="after-prompt",
        kind="K",
        mirrors="flash-attention#2528, vllm#7176",
        does="a single query behind a prompt of more than one tile loses a tile of keys",
        make=_AfterPrompt,
    ),
    Fault(
        name="after-singles",
        kind="K",
        mirrors="vllm#7176",
        does="the third tile of a prompt behind four single queries has the positions of the second",
        make=_AfterSingles,
    ),
    Fault(
        name="window-of-many",
        kind="K",
        mirrors="pegainfer#613",
        does="one query under a window, from sequence 64 on: it sees its own key alone",
        make=_WindowOfMany,
    ),
    Fault(
        name="sinks-of-many",
        kind="K",
        mirrors="modular#6591, pegainfer#613",
        does="from sequence 64 on all heads have the first one's sink",
        make=_SinksOfMany,
    ),
)
