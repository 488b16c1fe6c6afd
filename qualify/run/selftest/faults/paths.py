"""Classes K, L and M: limits of an index or a grid, another kernel than the claimed one, and errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.run.selftest.planning import Plan, Tile
from qualify.run.selftest.simulator import Simulator
from qualify.run.selftest.specimen import Fault

LIMIT = 1 << 16


class _Offset32(Simulator):
    """Offsets into the key tensors are 32-bit: beyond 2³¹ elements they wrap."""

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: Plan) -> Tensor:
        rows = slots // plan.page_size if plan.page_size else slots
        offset = rows * strides[0]
        wrapped = (offset + (1 << 31)) % (1 << 32) - (1 << 31)
        return super().fetch(name, tensor, strides, slots, plan).float() * (offset == wrapped).view(-1, 1, 1)


class _TileOffset32(Simulator):
    """Offsets of tiles of keys are 32-bit, and those within a tile are not."""

    ROWS = 128

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: Plan) -> Tensor:
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
    """Keys from position 65536 on are not seen: their index has 16 bits."""

    def in_sequence(self, tile: Tile, key: Tensor) -> Tensor:
        return super().in_sequence(tile, key) & (key < LIMIT)


class _GridLimit(Simulator):
    """The grid has no room for sequences from 65535 on."""

    def attend_sequence(self, call: AttentionCall, plan: Plan, index: int, out: Tensor, lse: Tensor) -> None:
        if index < LIMIT - 1:
            super().attend_sequence(call, plan, index, out, lse)


class _WholeMatrix(Simulator):
    """Scores of the whole sequence are held at once, in float64."""

    def attend_tile(self, tile: Tile, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.empty(q.shape[0], tile.seqlen_q, max(1, k.shape[1]), dtype=torch.float64)
        scores[:, tile.start : tile.stop].fill_(0.0)
        return super().attend_tile(tile, q, k, v)


class _MathPath:
    """Plain matrix products and a softmax do the work, and the result is right."""

    def launch(self, call: AttentionCall) -> Any:
        """The contract's result by the math path, one sequence after the other."""
        return _Plain().attend(call)


class _Plain(Simulator):
    """One tile that holds everything, with torch's own softmax."""

    def __init__(self) -> None:
        super().__init__(tile_q=1 << 20, tile_k=1 << 10)

    def attend_split(self, tile: Tile, q: Tensor, k: Tensor, v: Tensor, starts: Sequence[int]) -> tuple[Tensor, Tensor]:
        if not len(starts):
            return super().attend_split(tile, q, k, v, starts)
        scores = self.scores(tile, q, k, 0)
        lse = torch.logsumexp(scores, -1)
        p = torch.softmax(scores, -1).nan_to_num(nan=0.0)
        return torch.matmul(p.to(tile.plan.dtype).float(), v), lse

    def split_count(self, tile: Tile) -> int:
        return 1


class _OtherKernel:
    """Another attention kernel of the same library does the work."""

    def launch(self, call: AttentionCall) -> Any:
        """The contract's result, from the other kernel."""
        return TiledTorch(tile_q=64, tile_k=64).prepare(call).launch()


class _FallbackUnderWindow(Simulator):
    """With a window, another kernel is chosen; without one, the claimed kernel runs."""

    def launch(self, call: AttentionCall) -> Any:
        return super().launch(call) if call.window == (-1, -1) else _OtherKernel().launch(call)


class _SdpaForEqualLengths(Simulator):
    """Plain causal calls go to scaled_dot_product_attention on its math backend."""

    def launch(self, call: AttentionCall) -> Any:
        result = super().launch(call) if self._special(call) else super().attend(call)
        if not self._special(call):
            q, k, v = (tensor[None].transpose(1, 2) for tensor in (call.q, call.k, call.v))
            with sdpa_kernel([SDPBackend.MATH]):
                torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=call.scale, enable_gqa=True)
        return result

    @staticmethod
    def _special(call: AttentionCall) -> bool:
        return call.block_table is not None or call.window != (-1, -1) or len(call.cu_seqlens_q) > 2


class _NotLaunched(Simulator):
    """Nothing is launched in decode: the previous result comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[int, ...], Any] = {}

    def launch(self, call: AttentionCall) -> Any:
        shape = tuple(call.q.shape)
        if call.max_seqlen_q > 1 or shape not in self.kept:
            self.kept[shape] = super().launch(call)
        return self.kept[shape]


class _NoOddGroups(Simulator):
    """A group that is no power of two raises."""

    def make_plan(self, call: AttentionCall) -> Plan:
        plan = super().make_plan(call)
        group = plan.heads_q // plan.heads_kv
        if group & (group - 1):
            raise RuntimeError(f"Unsupported group_size: {group}")
        return plan


class _RefusesSmallDims(Simulator):
    """A head_dim that the card claims is refused."""

    def make_plan(self, call: AttentionCall) -> Plan:
        if call.q.shape[-1] < 64:
            raise LibraryRefusal(f"head_dim {call.q.shape[-1]} < 64 is not supported")
        return super().make_plan(call)


class _WrongShape(Simulator):
    """Query lengths of 0 and 1: the output is reshaped by the batch."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(call)
        batch = len(call.cu_seqlens_q) - 1
        return (
            (out.new_zeros(batch, *out.shape[1:]), lse) if call.max_seqlen_q == 1 and len(out) < batch else (out, lse)
        )


class _WrongDtype(Simulator):
    """The output stays float32 where V is fp16."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(call)
        return (out.float() if call.out_dtype == torch.float16 else out), lse


class _WarpEdge(Simulator):
    """The scheduler counts sequences in warps, and leaves out the last one of each."""

    def attend_sequence(self, call: AttentionCall, plan: Plan, index: int, out: Tensor, lse: Tensor) -> None:
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
    """Of a batch that fits one block the sequences after the first two warps' are taken by nobody."""

    def attend_sequence(self, call: AttentionCall, plan: Plan, index: int, out: Tensor, lse: Tensor) -> None:
        if not 64 <= index < plan.batch <= 1024:
            super().attend_sequence(call, plan, index, out, lse)


class _FarWindow(Simulator):
    """With a window, the position of one of many queries after more than 1024 keys has too few bits."""

    def positions(self, tile: Tile) -> Tensor:
        far = tile.plan.window[0] > 0 and tile.shift >= 1024 and tile.seqlen_q > 8
        return super().positions(tile) - 256 * far


class _OffsetUnsigned(Simulator):
    """Offsets into the tensors are unsigned 32-bit: beyond 2³² elements they wrap."""

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: Plan) -> Tensor:
        rows = slots // plan.page_size if plan.page_size else slots
        inside = rows * strides[0] < 1 << 32
        return super().fetch(name, tensor, strides, slots, plan).float() * inside.view(-1, 1, 1)


class _LongDecode(Simulator):
    """One query over more than 2048 keys loses the second tile of keys."""

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        starts = super().tile_starts(tile, low, high)
        lost = tile.seqlen_q == 1 and tile.seqlen_k > 2048
        return [start for at, start in enumerate(starts) if at != 1] if lost else starts


class _EmptyGrid(Simulator):
    """A grid of no blocks cannot be launched."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        if not len(call.q):
            raise RuntimeError("CUDA error: invalid configuration argument")
        return super().attend(call)


class _EarlyReturn(Simulator):
    """A call in which no sequence has keys returns at once, with an LSE of +inf."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(call)
        return out, lse if call.max_seqlen_k else torch.full_like(lse, torch.inf)


class _UniformDrafts(Simulator):
    """Up to eight queries on pages are taken to be as many in every sequence."""

    def positions(self, tile: Tile) -> Tensor:
        plan = tile.plan
        most = max(last - first for first, last in pairwise(plan.bounds_q))
        own = super().positions(tile)
        return own - (most - tile.seqlen_q) if plan.page_size and 1 < most <= 8 else own


class _SecondLong(Simulator):
    """Of the sequences of over 2048 keys in a paged batch the second loses its last tile of keys."""

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        starts, lengths = super().tile_starts(tile, low, high), tile.plan.lengths_k
        long = [index for index, length in enumerate(lengths) if length > 2048]
        return starts[:-1] if tile.plan.page_size and tile.index in long[1:] else starts


class _SchedulerWarp(Simulator):
    """From sequence 31 on only the first tile of a sequence's queries is right."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        lost = tile.index >= 31 and tile.start > 0
        super().write(tile, out, lse, tile_out * 0.5 if lost else tile_out, tile_lse)


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
        name="score-matrix",
        kind="L",
        mirrors="nanochat#826, pytorch#133206, Depth-Anything-3#268",
        does="a score matrix of the whole sequence is allocated",
        make=_WholeMatrix,
    ),
    Fault(
        name="math-path",
        kind="L",
        mirrors="transformers#46960, transformers#48633, pytorch#181528",
        does="matrix products and a softmax do the work; the result is right",
        make=_MathPath,
    ),
    Fault(
        name="other-kernel",
        kind="L",
        mirrors="vllm#54225, vllm#46002",
        does="another attention kernel does the work; the result is right",
        make=_OtherKernel,
    ),
    Fault(
        name="fallback-window",
        kind="L",
        mirrors="stable-audio-3#21, vllm#54225",
        does="with a window, another attention kernel does the work",
        make=_FallbackUnderWindow,
    ),
    Fault(
        name="sdpa-inside",
        kind="L",
        mirrors="ModernBERT#40, transformers#45636",
        does="plain calls go to scaled_dot_product_attention's math backend",
        make=_SdpaForEqualLengths,
    ),
    Fault(
        name="not-launched",
        kind="J",
        mirrors="vLLM-2080Ti-Definitive#183",
        does="in decode the first result of a shape is returned again",
        make=_NotLaunched,
    ),
    Fault(
        name="odd-groups",
        kind="M",
        mirrors="flashinfer#996, flashinfer#2986",
        does="a GQA ratio that is no power of two raises",
        make=_NoOddGroups,
    ),
    Fault(
        name="small-dims-refused",
        kind="M",
        mirrors="pytorch#127523, transformers#47926",
        does="a head_dim that the card claims is refused",
        make=_RefusesSmallDims,
    ),
    Fault(
        name="decode-reshape",
        kind="C",
        mirrors="flash-attention#1537, flash-attention#1619",
        does="fewer queries than sequences: the output has a row for each sequence",
        make=_WrongShape,
    ),
    Fault(
        name="out-float",
        kind="M",
        mirrors="flash-attention#2484",
        does="fp16 calls return float32",
        make=_WrongDtype,
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
        name="empty-grid",
        kind="C",
        mirrors="flash-attention#1619, flash-attention#2568",
        does="a call without any query fails to launch",
        make=_EmptyGrid,
    ),
    Fault(
        name="early-return",
        kind="C",
        mirrors="vllm#15492",
        does="a call without any key gives an LSE of +inf",
        make=_EarlyReturn,
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
)
"""Limits, paths and errors."""
