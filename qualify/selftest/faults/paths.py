"""Classes L and M: another kernel than the claimed one does the work, and calls that raise or return nonsense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.adapters.tiled_torch import TiledTorch
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault


class _WholeMatrix(Simulator):
    """Scores of the whole sequence are held at once, in float64."""

    def attend_tile(self, tile: Tile, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.empty(q.shape[0], tile.seqlen_q, max(1, k.shape[1]), dtype=torch.float64)
        scores[:, tile.start : tile.stop].fill_(0.0)
        return super().attend_tile(tile, q, k, v)


class _MathPath:
    """The math path (plain matrix products and a softmax) does the work; the result is right."""

    def launch(self, call: AttentionCall) -> Any:
        """The result of the call contract, computed by the math path, one sequence after the other."""
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
        """The result of the call contract, computed by the other kernel."""
        return TiledTorch(tile_q=64, tile_k=64).prepare(call).launch()


class _FallbackUnderWindow(Simulator):
    """With a window, another kernel runs; without one, the claimed kernel."""

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
    """In decode nothing is launched, and the previous result is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[int, ...], Any] = {}

    def launch(self, call: AttentionCall) -> Any:
        shape = tuple(call.q.shape)
        if call.max_seqlen_q > 1 or shape not in self.kept:
            self.kept[shape] = super().launch(call)
        return self.kept[shape]


class _NoOddGroups(Simulator):
    """A group size that is no power of two raises an error."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        group = plan.heads_q // plan.heads_kv
        if group & (group - 1):
            raise RuntimeError(f"Unsupported group_size: {group}")
        return plan


class _RefusesSmallDims(Simulator):
    """A head_dim below 64, which the card claims, is refused."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        if call.q.shape[-1] < 64:
            raise LibraryRefusal(f"head_dim {call.q.shape[-1]} < 64 is not supported")
        return super().make_plan(call)


class _WrongShape(Simulator):
    """With query lengths of 0 and 1, the output has one row for each sequence instead of one for each query."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(call)
        batch = len(call.cu_seqlens_q) - 1
        return (
            (out.new_zeros(batch, *out.shape[1:]), lse) if call.max_seqlen_q == 1 and len(out) < batch else (out, lse)
        )


class _WrongDtype(Simulator):
    """The output stays float32 where it must be fp16."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(call)
        return (out.float() if call.out_dtype == torch.float16 else out), lse


class _EmptyGrid(Simulator):
    """A call without queries raises, because a grid without blocks cannot be launched."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        if not len(call.q):
            raise RuntimeError("CUDA error: invalid configuration argument")
        return super().attend(call)


class _EarlyReturn(Simulator):
    """A call in which no sequence has keys returns at once, with an LSE of +inf."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(call)
        return out, lse if call.max_seqlen_k else torch.full_like(lse, torch.inf)


FAULTS: tuple[Fault, ...] = (
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
)
"""Faults of paths, and errors."""
