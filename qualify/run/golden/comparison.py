"""An output against its golden result, by element and by row: first what no accuracy class changes, then in one class.

What no class changes is computed once, however many classes are asked. Terms that a class does not have are left out,
because each operator on a small tensor costs a GPU's host as much as one on a large tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qualify.facts.accuracy import E_LIMIT, R_LIMIT, AccuracyClass
from qualify.facts.dtypes import FORMATS
from qualify.run.golden.result import Golden
from qualify.run.inputs.formats import format_of

FP32_ROUNDOFF = 2.0**-24
"""Error of a score in float32, relative to its largest products. An absolute error of a score is a relative error of
its weight."""
FLUSHED = 2.0**-126
"""Smallest normal number of float32. GPUs' exponentials and products return 0 below it. Where a sink is 90 above the
scores of a row, all its weights are below it. Without this term, at outputs of 1e-39, vLLM's Triton kernel on
gpt-oss-20b in bf16 on an H100 with rising logits had E up to 11.9 and R up to 10.8, and FlashAttention-3 and -4 had E
up to 4.1 (``qualify run hopper --level full --kernel vllm-triton --select 'gpt-oss*bf16*'``)."""
ACCUMULATED = 16
"""A tensor core truncates sums instead of rounding them, so a sum may lose 2^-24 of its value for each so many keys
(Fasi et al. 2021, PeerJ Computer Science 7:e330). On an H100 in fp16, with values of one sign, the loss grows with the
number of keys: FlashInfer's fa3 and FlashAttention-4 lose 1.04e-4 of a sum over 16,384 keys, and FlashAttention-2 loses
8e-4 over 131,136 keys."""


def golden_rows(golden: Golden, rows: Tensor | slice) -> Golden:
    """The golden result limited to rows, which an index, a slice or a mask selects."""
    kept: dict[str, Any] = {name: part[rows] for name, part in golden.tensors.items()}
    return replace(golden, **kept)


def spacing(sizes: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance between neighbouring numbers of ``dtype`` at each size, which is not negative: its ulp."""
    known = FORMATS[format_of(dtype)]
    # Below the smallest normal number all steps are equal. An exact 0, which frexp gives the exponent of 1/2, is there.
    _, exponent = torch.frexp(sizes.clamp(min=known.smallest_normal))
    return torch.sub(exponent, known.bits, out=torch.empty_like(sizes)).exp2_()


def ratio(error: Tensor, limit: Tensor) -> Tensor:
    """Error / limit, with 0 / 0 = 0: an exact result needs no budget."""
    return (error / limit).masked_fill_(error == 0, 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Deviations:
    """An output against the golden result, in what no accuracy class changes."""

    golden: Golden
    dtype: torch.dtype
    """of the output"""
    error: Tensor
    """(n, heads_q, head_dim_v)"""
    size: Tensor
    """same shape, |o|"""
    step: Tensor
    """same shape, ulp of the output's type"""
    keys: Tensor
    """(n, 1), in the precision of the golden result"""
    added: Tensor
    """(n, 1), standard deviation of a sum over the keys in float32, relative to a score"""
    weight: Tensor
    """(n, heads_q) a row's largest weight, or the sink's where that is larger: a kernel may scale it to 1"""
    flushed: Tensor
    """(n, heads_q), loss of the output where all weights, and the output itself, are flushed to 0"""
    power: Tensor
    """(n, heads_q), Σ o²"""
    rms: Tensor
    """(n, heads_q), of the error"""

    def first(self, count: int) -> Deviations:
        """The same for the first rows."""
        some = slice(count)
        return replace(
            self,
            golden=golden_rows(self.golden, some),
            error=self.error[some],
            size=self.size[some],
            step=self.step[some],
            keys=self.keys[some],
            added=self.added[some],
            weight=self.weight[some],
            flushed=self.flushed[some],
            power=self.power[some],
            rms=self.rms[some],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class InClass:
    """The same in one accuracy class."""

    products: Tensor
    """(n, heads_q), standard deviation of the scores as far as it comes from products"""
    weights: Tensor
    """(n, heads_q), variance of the weights, relative to their squares"""
    parts: Tensor | None
    """(n, heads_q, head_dim_v), variance from rounding the outputs of parts of the keys; None = 0"""
    element: Tensor
    """(n, heads_q, head_dim_v), E of every element"""
    strict: Tensor
    """same shape, E without the class's underflow term"""
    row: Tensor
    """(n, heads_q), R of every row"""
    typical: Tensor
    """(n, heads_q), σ_row²"""


@torch.inference_mode()
def compared(golden: Golden, out: Tensor) -> Deviations:
    """Compare an output with the golden result.

    Args:
        golden: golden result of n rows that all see at least one key; with ``S`` and ``T`` for classes that round
            scores.
        out: (n, heads_q, head_dim_v) the kernel's output for those rows, in its own dtype.
    """
    exact = golden.out
    error, size = out.to(exact.dtype) - exact, exact.abs()
    keys = golden.keys.to(exact.dtype)[:, None]
    weight = torch.exp(golden.row_max - golden.lse)
    return Deviations(
        golden=golden,
        dtype=out.dtype,
        error=error,
        size=size,
        step=spacing(size, out.dtype),
        keys=keys,
        added=FP32_ROUNDOFF * keys.sqrt(),
        weight=weight,
        flushed=FLUSHED * (1 + keys * weight * golden.value_bound),
        power=exact.square().sum(-1),
        rms=error.square().mean(-1).sqrt(),
    )


@torch.inference_mode()
def in_class(found: Deviations, kind: AccuracyClass) -> InClass:
    """The error of every element and row in one accuracy class."""
    golden = found.golden
    products = FP32_ROUNDOFF * golden.score_bound
    if kind.product:
        products = products + kind.product * golden.product_bound
    scores, sums = products + found.added, (found.added / 2).unsqueeze(-1)
    weights, parts = (kind.roundoff / 2 + scores).square(), _parts(found, kind)
    variance = _variance(found, kind, weights, sums, parts)
    row_variance = variance.mean(-1, keepdim=True)
    sigma = torch.maximum(variance, row_variance).sqrt_()
    limit = torch.minimum(1.25 * _worst_case(found, kind, scores, sums), 9 * sigma) + found.flushed.unsqueeze(-1)
    # The limit is never 0, so an exact element has E = 0.
    strict = element = found.error.abs().div_(limit)
    if kind.underflow and golden.U is not None:
        wider = limit + 1.25 * kind.underflow * found.weight.unsqueeze(-1) * golden.U
        element = found.error.abs().div_(wider)
    typical = row_variance.squeeze(-1)
    return InClass(
        products=products,
        weights=weights,
        parts=parts,
        element=element,
        strict=strict,
        row=ratio(found.rms, (typical + 3 * _common(found, kind, weights)).sqrt()),
        typical=typical,
    )


def rows_within(found: Deviations, kind: AccuracyClass) -> bool:
    """Whether E and R keep their limits in a class. Both are defined for single rows."""
    asked = in_class(found, kind)
    return bool((asked.element <= E_LIMIT).all() & (asked.row <= R_LIMIT).all())


def _worst_case(found: Deviations, kind: AccuracyClass, scores: Tensor, sums: Tensor) -> Tensor:
    """B of every element; errors of float32 scores and sums count as four standard deviations.

    Args:
        scores: (n, heads_q) standard deviation of the scores.
        sums: (n, 1, 1) standard deviation of a float32 sum over the keys, relative to the sum of magnitudes.
    """
    golden, roundoff_out = found.golden, FORMATS[format_of(found.dtype)].roundoff
    worst = (kind.roundoff + 4 * (scores.unsqueeze(-1) + sums)) * golden.A
    rounded = torch.maximum(roundoff_out * found.size, found.step / 2)
    worst += 2 * rounded if kind.rescaled else rounded
    if kind.rounded_parts:
        worst += roundoff_out * golden.A
    return worst + kind.scores * golden.S if kind.scores and golden.S is not None else worst


def _variance(found: Deviations, kind: AccuracyClass, weights: Tensor, sums: Tensor, parts: Tensor | None) -> Tensor:
    """σ² of every element; ``sums`` as for :func:`_worst_case`."""
    golden = found.golden
    variance = weights.unsqueeze(-1) * golden.Q + _rounded(kind) * found.step.square()
    variance += (sums * golden.A).square_()
    variance += found.flushed.square().unsqueeze(-1)
    if parts is not None:
        variance += parts
    cut = cut_share(kind)
    if cut:
        variance += ((cut * found.keys).unsqueeze(-1) * golden.out).square_()
    if kind.spacing and golden.U is not None:  # for roughly normal values Σ v² is at most 2 (Σ|v|)² / n
        weight = kind.spacing * found.weight * (2 / 12 / found.keys).sqrt()
        variance += (weight.unsqueeze(-1) * golden.U).square_()
    return variance + (kind.scores / 2) ** 2 * golden.T if kind.scores and golden.T is not None else variance


def _parts(found: Deviations, kind: AccuracyClass) -> Tensor | None:
    """Added to σ² of every element where a kernel rounds the outputs of two or more parts of the keys.

    The squares of the parts add up to Q where values have both signs, and to at most o²/2 where they have one sign.
    """
    if not kind.rounded_parts:
        return None
    golden = found.golden
    return (FORMATS[format_of(found.dtype)].roundoff / 2) ** 2 * (golden.Q + golden.out.square() / 2)


def _rounded(kind: AccuracyClass) -> float:
    """Variance of the output's rounding, in squared steps.

    A kernel that multiplies rounded outputs by one factor errs equally in equal outputs, so this second rounding counts
    as half a step everywhere.
    """
    return 1 / 12 + kind.rescaled / 4


def cut_share(kind: AccuracyClass) -> float:
    """What tensor cores may truncate from a sum over the keys, relative to the sum, for each key; 0 in float32."""
    return 0.0 if kind.name == "fp32" else FP32_ROUNDOFF / ACCUMULATED


def _common(found: Deviations, kind: AccuracyClass, weights: Tensor) -> Tensor:
    """(n, heads_q) the part of a row's mean σ² that all its elements share.

    The error of one weight moves every element of its row, each by its part of v. Where one key has most of the weight,
    or V has one sign, the row's error is one random number and not the mean of many. R then allows 6 σ instead of 3 σ.
    """
    golden, dim = found.golden, found.error.shape[-1]
    common = ratio(weights * golden.gain, found.power * dim)
    return common + (kind.scores / 2) ** 2 * golden.T.mean(-1) if kind.scores and golden.T is not None else common
