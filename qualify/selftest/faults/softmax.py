"""Class I: maxima, weights and scores that overflow, saturate, or are mistaken for masked ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qualify.facts.dtypes import FORMATS
from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import Tile
from qualify.selftest.simulator import Partial, Simulator
from qualify.selftest.specimen import Fault

LAZY = 12.0
"""growth of the row maximum (natural logarithm) up to which the accumulator is not rescaled"""
SATURATED = FORMATS["fp8_e4m3"].largest


class _LazyClamped(Simulator):
    """The used maximum may lag behind the true one, and P saturates."""

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
    """The weight is exp(score), without subtracting the row maximum."""

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        return torch.where(super().maximum(tile, m, scores) == -math.inf, -math.inf, 0.0)


class _ScoreFloor(Simulator):
    """Scores below a fixed bound are treated as masked."""

    def mask(self, tile: Tile, scores: Tensor, seen: Tensor) -> Tensor:
        masked = super().mask(tile, scores, seen)
        return masked.masked_fill(masked < -100, -math.inf)


class _HalfTileLost(Simulator):
    """Where a step of 128 keys has only 64 left, the padded half gets scores of 0 instead of -inf."""

    def normalise(self, tile: Tile, m: Tensor, l: Tensor, acc: Tensor) -> Partial:
        if tile.seqlen_k % 128 != 64:
            return super().normalise(tile, m, l, acc)
        padded = torch.exp(-m.clamp(min=-80)) * 64 * (l > 0)
        return super().normalise(tile, m, l + padded, acc)


class _GroupMaximum(Simulator):
    """The heads of a group, which are packed into one tile, share one row maximum."""

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        own = super().maximum(tile, m, scores).view(tile.plan.heads_kv, -1, m.shape[-1])
        return own.amax(1, keepdim=True).expand(own.shape).reshape(m.shape)


class _NanIsMasked(Simulator):
    """A NaN score is treated as masked."""

    def mask(self, tile: Tile, scores: Tensor, seen: Tensor) -> Tensor:
        return super().mask(tile, scores, seen & ~scores.isnan())


class _FirstMaximum(Simulator):
    """The row maximum starts at -1e4 instead of -inf."""

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        new = super().maximum(tile, m, scores)
        return torch.where(new == -math.inf, new, new.clamp(min=-1e4))


class _ScoreCeiling(Simulator):
    """Scores above a fixed bound are clamped to it."""

    def cap(self, tile: Tile, scores: Tensor) -> Tensor:
        return super().cap(tile, scores).clamp(max=500.0)


class _NanInWholeTiles(Simulator):
    """In tiles that need no mask, a NaN score is treated as masked."""

    def mask(self, tile: Tile, scores: Tensor, seen: Tensor) -> Tensor:
        masked = super().mask(tile, scores, seen)
        return masked.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf) if bool(seen.all()) else masked


class _SinkOfNothing(Simulator):
    """With sinks, rows that see no key return an LSE of 1e4."""

    def add_sinks(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        out, whole = super().add_sinks(call, tile, out, lse)
        return out, whole if call.sinks is None else whole.masked_fill(whole == -math.inf, 1e4)


class _SharedMaxima(Simulator):
    """In decode in bf16 and fp32, heads h and h + 2 of a group share the row maximum."""

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        new = super().maximum(tile, m, scores)
        group = len(new) // tile.plan.heads_kv
        if tile.seqlen_q > 1 or group % 4 or tile.plan.dtype not in {torch.bfloat16, torch.float32}:
            return new
        pairs = new.view(-1, 2, 2, new.shape[1])
        return pairs.amax(1, keepdim=True).expand_as(pairs).reshape(new.shape)


class _TanhByExp(Simulator):
    """tanh(x) is computed as (e^2x - 1) / (e^2x + 1), which is NaN for scores of 44 times the softcap and more."""

    def cap(self, tile: Tile, scores: Tensor) -> Tensor:
        softcap = tile.plan.softcap
        if not softcap:
            return scores
        power = torch.exp(2 * scores / softcap)
        return softcap * (power - 1) / (power + 1)


class _SinkOverflow(Simulator):
    """exp(sink - maximum) overflows where the sink is 88 above the maximum, and the LSE becomes infinite."""

    def add_sinks(self, call: AttentionCall, tile: Tile, out: Tensor, lse: Tensor) -> Partial:
        out, whole = super().add_sinks(call, tile, out, lse)
        if call.sinks is None:
            return out, whole
        far = (self.sink(call, tile, lse) - lse > 88) & (lse != -math.inf)
        return out, whole.masked_fill(far, math.inf)


class _SaturatedWeights(Simulator):
    """In fp8, where a sequence has a multiple of 128 keys, the maximum lags behind and weights saturate."""

    def lags(self, tile: Tile) -> bool:
        """Whether the maximum lags behind for this tile's sequence."""
        return tile.plan.dtype.itemsize == 1 and tile.seqlen_k % 128 == 0

    def maximum(self, tile: Tile, m: Tensor, scores: Tensor) -> Tensor:
        new = super().maximum(tile, m, scores)
        return torch.where((new > m + 10.0) | (m == -math.inf), new, m) if self.lags(tile) else new

    def round_p(self, tile: Tile, p: Tensor) -> Tensor:
        return super().round_p(tile, p.clamp(max=448.0) if self.lags(tile) else p)


FAULTS: tuple[Fault, ...] = (
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
"""Faults of the online softmax."""
