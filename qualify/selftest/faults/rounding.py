"""Class I: losses of digits or of exponent range that the accuracy class does not allow."""

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
    """P is truncated to its dtype instead of rounded."""

    def round_p(self, tile: Tile, p: Tensor) -> Tensor:
        return _cut(p, tile.plan.dtype)


def _cut(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Float32 values, truncated to the bits that a dtype has."""
    bits = FORMATS["fp32"].bits - FORMATS[format_of(dtype)].bits
    return ((values.view(torch.int32) >> bits) << bits).view(torch.float32)


class _PInFp8(Simulator):
    def round_p(self, tile: Tile, p: Tensor) -> Tensor:
        return p.to(torch.float8_e4m3fn).float()


class _CoarseExp(Simulator):
    """exp2 uses a polynomial of degree two: off by up to 0.3 %."""

    def exp(self, x: Tensor) -> Tensor:
        exponent = x / math.log(2)
        whole = exponent.floor().clamp(min=-126)
        part = torch.where(exponent == -math.inf, 0.0, exponent - whole).clamp(0, 1)
        value = (1 + part * (0.656 + 0.344 * part)) * torch.exp2(whole)
        return torch.where(exponent < -126, 0.0, value)


class _ValuesInFp16(Simulator):
    """V, in fp8 its quantised numbers, passes through fp16."""

    def keys(self, call: AttentionCall, plan: CallPlan, index: int) -> tuple[Tensor, Tensor]:
        k, v = super().keys(call, plan, index)
        return k, v.half().float()


class _OutputTruncated(Simulator):
    """The output is truncated to its dtype instead of rounded."""

    def write(self, tile: Tile, out: Tensor, lse: Tensor, tile_out: Tensor, tile_lse: Tensor) -> None:
        super().write(tile, out, lse, _cut(tile_out.contiguous(), out.dtype), tile_lse)


class _WideThroughFp16(Simulator):
    """Queries, keys or values in bf16 pass through fp16, whose exponent has only five bits."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def queries(self, call: AttentionCall, plan: CallPlan, index: int) -> Tensor:
        q = super().queries(call, plan, index)
        return q.half().float() if "q" in self.names and call.q.dtype == torch.bfloat16 else q

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        rows = super().fetch(name, tensor, strides, slots, plan)
        return rows.half() if name in self.names and rows.dtype == torch.bfloat16 else rows


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
)
"""Faults of rounding."""
