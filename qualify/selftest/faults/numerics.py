"""Class I: arithmetic that rounds, overflows or saturates where the accuracy class does not allow it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from qualify.facts.dtypes import FORMATS
from qualify.run.adapters.interface import AttentionCall
from qualify.run.inputs.formats import format_of
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Partial, Simulator
from qualify.selftest.specimen import Fault

LAZY = 12.0
"""by how much the maximum may grow before the accumulator is rescaled, natural logarithm"""
SATURATED = FORMATS["fp8_e4m3"].largest


class _RoundedScores(Simulator):
    """q·k is rounded before it is scaled."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def product(self, q: Tensor, k: Tensor) -> Tensor:
        return super().product(q, k).to(self.dtype).float()


class _RoundedAccumulator(Simulator):
    """The accumulator is kept in 16 bits between tiles."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def accumulate(self, tile: Tile, first: int, acc: Tensor, shrink: Tensor, p: Tensor, v: Tensor) -> Tensor:
        return super().accumulate(tile, first, acc, shrink, p, v).to(self.dtype).float()


class _RoundedSum(Simulator):
    """The row sum is kept in bf16 between tiles."""

    def sum_rows(self, tile: Tile, l: Tensor, p: Tensor) -> Tensor:
        return super().sum_rows(tile, l, p).bfloat16().float()


class _RoundedBefore(Simulator):
    """P is rounded before the row sum."""

    def sum_rows(self, tile: Tile, l: Tensor, p: Tensor) -> Tensor:
        return l + self.round_p(tile, p).sum(-1)


class _PartialsInOutDtype(Simulator):
    """Partial results of splits are stored in the output's dtype."""

    def store(self, tile: Tile, number: int, starts: Sequence[int], partial: Partial) -> Partial:
        out, lse = partial
        return (out.to(tile.plan.out_dtype).float() if self.split_count(tile) > 1 else out), lse


class _Truncated(Simulator):
    """P is cut off instead of rounded."""

    def round_p(self, tile: Tile, p: Tensor) -> Tensor:
        return _cut(p, tile.plan.dtype)


def _cut(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Float32 values without the bits that a dtype has no room for."""
    bits = FORMATS["fp32"].bits - FORMATS[format_of(dtype)].bits
    return ((values.view(torch.int32) >> bits) << bits).view(torch.float32)


class _PInFp8(Simulator):
    def round_p(self, tile: Tile, p: Tensor) -> Tensor:
        return p.to(torch.float8_e4m3fn).float()


class _LazyClamped(Simulator):
    """The maximum is left behind up to a threshold, and P saturates."""

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        new = super().maximum(tile, m, scores)
        return torch.where(new > m + LAZY, new, torch.where(m == -math.inf, new, m))

    def exp(self, x: Tensor) -> Tensor:
        return super().exp(x).clamp(max=SATURATED)


class _LastNotRescaled(Simulator):
    """The accumulator is not rescaled in the last tile."""

    def accumulate(self, tile: Tile, first: int, acc: Tensor, shrink: Tensor, p: Tensor, v: Tensor) -> Tensor:
        last = first + self.width(tile.seqlen_k) >= tile.seqlen_k and first > 0
        return super().accumulate(tile, first, acc, torch.ones_like(shrink) if last else shrink, p, v)


class _NoMaximum(Simulator):
    """exp(score) without subtracting the maximum."""

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        return torch.where(super().maximum(tile, m, scores) == -math.inf, -math.inf, 0.0)


class _CoarseExp(Simulator):
    """A polynomial of degree two for the fraction of exp2: off by up to 0.3 %."""

    def exp(self, x: Tensor) -> Tensor:
        exponent = x / math.log(2)
        whole = exponent.floor().clamp(min=-126)
        part = torch.where(exponent == -math.inf, 0.0, exponent - whole).clamp(0, 1)
        value = (1 + part * (0.656 + 0.344 * part)) * torch.exp2(whole)
        return torch.where(exponent < -126, 0.0, value)


class _ValuesInFp16(Simulator):
    """V, or what the caller quantised, goes through fp16 on its way."""

    def keys(self, call: AttentionCall, plan: CallPlan, index: int) -> tuple[Tensor, Tensor]:
        k, v = super().keys(call, plan, index)
        return k, v.half().float()


class _OutputTruncated(Simulator):
    """The output is cut off to its dtype instead of rounded."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        super().write(tile, out, lse, _cut(tile_out.contiguous(), out.dtype), tile_lse)


class _ScoreFloor(Simulator):
    """Scores below a fixed bound are taken for masked."""

    def mask(self, tile: Tile, scores: Tensor, seen: Tensor) -> Tensor:
        masked = super().mask(tile, scores, seen)
        return masked.masked_fill(masked < -100, -math.inf)


class _HalfTileLost(Simulator):
    """Where 64 keys remain of a step of 128, the padded half scores 0 instead of -inf."""

    def normalise(self, tile: Tile, m: Tensor, l: Tensor, acc: Tensor) -> Partial:
        if tile.seqlen_k % 128 != 64:
            return super().normalise(tile, m, l, acc)
        padded = torch.exp(-m.clamp(min=-80)) * 64 * (l > 0)
        return super().normalise(tile, m, l + padded, acc)


class _GroupMaximum(Simulator):
    """The heads of a group, packed into one tile, share a maximum."""

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        own = super().maximum(tile, m, scores).view(tile.plan.heads_kv, -1, m.shape[-1])
        return own.amax(1, keepdim=True).expand(own.shape).reshape(m.shape)


class _NanIsMasked(Simulator):
    """A score that is NaN is taken for a masked one."""

    def mask(self, tile: Tile, scores: Tensor, seen: Tensor) -> Tensor:
        return super().mask(tile, scores, seen & ~scores.isnan())


class _WideThroughFp16(Simulator):
    """Queries, keys or values in bf16 go through fp16 on their way, whose exponents have five bits."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def queries(self, call: AttentionCall, plan: CallPlan, index: int) -> Tensor:
        q = super().queries(call, plan, index)
        return q.half().float() if "q" in self.names and call.q.dtype == torch.bfloat16 else q

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        rows = super().fetch(name, tensor, strides, slots, plan)
        return rows.half() if name in self.names and rows.dtype == torch.bfloat16 else rows


class _FirstMaximum(Simulator):
    """The row maximum begins at -1e4."""

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        new = super().maximum(tile, m, scores)
        return torch.where(new == -math.inf, new, new.clamp(min=-1e4))


class _ScoreCeiling(Simulator):
    """Scores above a fixed bound are cut off."""

    def cap(self, tile: Tile, scores: Tensor) -> Tensor:
        return super().cap(tile, scores).clamp(max=500.0)


class _NanInWholeTiles(Simulator):
    """Where a tile needs no mask, a score that is NaN is taken for masked."""

    def mask(self, tile: Tile, scores: Tensor, seen: Tensor) -> Tensor:
        masked = super().mask(tile, scores, seen)
        return masked.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf) if bool(seen.all()) else masked


class _SinkOfNothing(Simulator):
    """With sinks, rows that see no key have an LSE of 1e4."""

    def add_sinks(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        out, whole = super().add_sinks(call, tile, out, lse)
        return out, whole if call.sinks is None else whole.masked_fill(whole == -math.inf, 1e4)


class _SharedMaxima(Simulator):
    """In bf16 and fp32 a decode's heads h and h + 2 of a group share the row maximum."""

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        new = super().maximum(tile, m, scores)
        group = len(new) // tile.plan.heads_kv
        if tile.seqlen_q > 1 or group % 4 or tile.plan.dtype not in {torch.bfloat16, torch.float32}:
            return new
        pairs = new.view(-1, 2, 2, new.shape[1])
        return pairs.amax(1, keepdim=True).expand_as(pairs).reshape(new.shape)


class _TanhByExp(Simulator):
    """tanh is (e^2x - 1) / (e^2x + 1): NaN from a score of 44 times the softcap on."""

    def cap(self, tile: Tile, scores: Tensor) -> Tensor:
        softcap = tile.plan.softcap
        if not softcap:
            return scores
        power = torch.exp(2 * scores / softcap)
        return softcap * (power - 1) / (power + 1)


class _SinkOverflow(Simulator):
    """exp(sink - maximum) overflows where the sink stands 88 above it: the LSE is infinite."""

    def add_sinks(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        out, whole = super().add_sinks(call, tile, out, lse)
        if call.sinks is None:
            return out, whole
        far = (self.sink(call, tile, lse) - lse > 88) & (lse != -math.inf)
        return out, whole.masked_fill(far, math.inf)


class _SaturatedWeights(Simulator):
    """fp8: where a sequence has a multiple of 128 keys the maximum lags behind, and weights saturate."""

    def lags(self, tile: Tile) -> bool:
        """Whether a tile's sequence takes that path."""
        return tile.plan.dtype.itemsize == 1 and tile.seqlen_k % 128 == 0

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        new = super().maximum(tile, m, scores)
        return torch.where((new > m + 10.0) | (m == -math.inf), new, m) if self.lags(tile) else new

    def round_p(self, tile: Tile, p: Tensor) -> Tensor:
        return super().round_p(tile, p.clamp(max=448.0) if self.lags(tile) else p)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="qk-fp16",
        kind="I",
        mirrors="metal-flash-attention#8, ultralytics#24990, mlc-llm#1638",
        does="q·k is rounded to fp16 before it is scaled",
        make=partial(_RoundedScores, torch.float16),
    ),
    Fault(
        name="qk-bf16",
        kind="I",
        mirrors="flash-attention#2372, flash-attention#2151",
        does="q·k is rounded to bf16 before it is scaled",
        make=partial(_RoundedScores, torch.bfloat16),
    ),
    Fault(
        name="acc-bf16",
        kind="I",
        mirrors="tt-metal#50564",
        does="the accumulator is kept in bf16",
        make=partial(_RoundedAccumulator, torch.bfloat16),
    ),
    Fault(
        name="acc-fp16",
        kind="I",
        mirrors="ik_llama.cpp#1196",
        does="the accumulator is kept in fp16",
        make=partial(_RoundedAccumulator, torch.float16),
    ),
    Fault(
        name="p-trunc",
        kind="I",
        mirrors="ROCm/flash-attention#78",
        does="P is truncated instead of rounded",
        make=_Truncated,
    ),
    Fault(
        name="p-fp8",
        kind="I",
        mirrors="flash-attention#1848",
        does="P is rounded to e4m3",
        make=_PInFp8,
    ),
    Fault(
        name="lazy-rescale",
        kind="I",
        mirrors="flash-attention#2577",
        does="the maximum lags behind and P saturates at 448",
        make=_LazyClamped,
    ),
    Fault(
        name="no-rescale-last",
        kind="I",
        mirrors="NNkernels.jl#16",
        does="the accumulator is not rescaled in the last tile",
        make=_LastNotRescaled,
    ),
    Fault(
        name="no-max",
        kind="I",
        mirrors="pytorch#121558",
        does="the maximum is not subtracted: large logits overflow",
        make=_NoMaximum,
    ),
    Fault(
        name="exp-coarse",
        kind="I",
        mirrors="flash-attention#2151",
        does="exp is a polynomial that is off by up to 0.3 %",
        make=_CoarseExp,
    ),
    Fault(
        name="l-bf16",
        kind="I",
        mirrors="flash-attention#2372",
        does="the row sum is kept in bf16 between tiles",
        make=_RoundedSum,
    ),
    Fault(
        name="v-fp16",
        kind="I",
        mirrors="vllm#34759, flashinfer#4976",
        does="V is converted to fp16: the range of bf16 and the bits of fp32 are lost",
        make=_ValuesInFp16,
    ),
    Fault(
        name="out-trunc",
        kind="I",
        mirrors="ROCm/flash-attention#78",
        does="the output is truncated instead of rounded",
        make=_OutputTruncated,
    ),
    Fault(
        name="score-floor",
        kind="I",
        mirrors="flash-attention#442",
        does="scores below -100 are taken for masked",
        make=_ScoreFloor,
    ),
    Fault(
        name="half-tile",
        kind="I",
        mirrors="pytorch#196678, cudnn-frontend#160",
        does="with S mod 128 = 64, the padded half tile scores 0 instead of -inf",
        make=_HalfTileLost,
    ),
    Fault(
        name="p-bf16-rowsum",
        kind="I",
        mirrors="a design choice; flashinfer's LSE",
        does="P is rounded before the row sum, and the LSE claimed to 1e-5 (its output alone is as good as any)",
        make=_RoundedBefore,
    ),
    Fault(
        name="partial-bf16",
        kind="I",
        mirrors="ring-flash-attention#22, sgl-flash-attn#43",
        does="partial results of splits are stored in the output's dtype",
        make=_PartialsInOutDtype,
        equivalent=(
            "Each of the s partial results is rounded once with the output's unit roundoff u_O, and the merge weighs "
            "them with weights that sum to 1: the added error is at most u_O·Σw|o_s| ≤ u_O·A, and B = u_P·A + u_O·|o| "
            "with u_P = u_O already allows it; the rms grows by a factor of 1.13 to 1.31 at most, under the limit of "
            "1.6 that correct kernels need (FlashInfer stores its partials so). The correct variant partials-rounded "
            "is the same kernel."
        ),
    ),
    Fault(
        name="group-max",
        kind="I",
        mirrors="pytorch#121558",
        does="the heads of a group share one maximum: the weights of a quiet head vanish",
        make=_GroupMaximum,
    ),
    Fault(
        name="nan-masked",
        kind="I",
        mirrors="pytorch#141128",
        does="a score that is NaN is taken for masked",
        make=_NanIsMasked,
    ),
    Fault(
        name="qk-through-fp16",
        kind="I",
        mirrors="vllm#34759",
        does="queries and keys in bf16 go through fp16: what exceeds its range is lost",
        make=partial(_WideThroughFp16, "q", "k"),
    ),
    Fault(
        name="v-through-fp16",
        kind="I",
        mirrors="vllm#34759",
        does="values in bf16, and only those, go through fp16",
        make=partial(_WideThroughFp16, "v"),
    ),
    Fault(
        name="first-maximum",
        kind="I",
        mirrors="pytorch#196678; census: every score far below zero",
        does="the row maximum begins at -1e4",
        make=_FirstMaximum,
    ),
    Fault(
        name="score-ceiling",
        kind="I",
        mirrors="needle: scores over a thousand",
        does="scores above 500 are cut off",
        make=_ScoreCeiling,
    ),
    Fault(
        name="nan-whole-tiles",
        kind="I",
        mirrors="pytorch#141128",
        does="a NaN score is taken for masked in tiles that need no mask",
        make=_NanInWholeTiles,
    ),
    Fault(
        name="sink-of-nothing",
        kind="C",
        mirrors="vllm#49294, vllm#15492",
        does="with sinks, the LSE of rows that see no key is 1e4",
        make=_SinkOfNothing,
    ),
    Fault(
        name="shared-maxima",
        kind="I",
        mirrors="flash-attention#2577",
        does="in decode two heads of a group share the row maximum",
        make=_SharedMaxima,
    ),
    Fault(
        name="tanh-by-exp",
        kind="I",
        mirrors="ggml-org/llama.cpp#29034",
        does="tanh of the softcap is NaN far from 0",
        make=_TanhByExp,
    ),
    Fault(
        name="sink-overflow",
        kind="I",
        mirrors="parameters: sinks above all scores",
        does="a sink 88 above all scores gives an infinite LSE",
        make=_SinkOverflow,
    ),
    Fault(
        name="fp8-saturates",
        kind="I",
        mirrors="flash-attention#2577",
        does="fp8 and a multiple of 128 keys: the maximum lags behind by up to 10, and weights saturate at 448",
        make=_SaturatedWeights,
    ),
)
"""Arithmetic."""
