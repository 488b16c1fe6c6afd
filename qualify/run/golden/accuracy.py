"""The error budget: how far a correct kernel of an accuracy class may be from the golden result.

A fused kernel keeps scores in float32, rounds the weights P to a format with unit roundoff u_P,
accumulates in float32 and rounds the output with u_O. With e = out - o, per element:

    worst case    B  = u_P·A + u_O·|o|
    statistical   σ² = (u_P/2)²·Q + ulp(o)²/12,     σ_row² = the mean of σ² over a row

(docs/numerics.md has the terms of float32, of tensor cores and of special formats, too)

    E = max |e| / min(1.25·B, 9·max(σ, σ_row))      ≤ 1      one wrong element
    R = worst row's rms(e) / σ_row                  ≤ 3      one wrong row (σ_row grows to 2 σ_row where all
                                                             elements of a row share one error)
    G = rms over many rows of e / σ_row             ≤ 1.6    a little wrong everywhere
    β = <e,o> / <o,o>, against β₀ + 6·SE            ≤ 1      a bias that averages hide

G and β are computed for every sequence alone and for the whole batch. The value closest to its limit counts, so that no
wrong sequence, long or short, hides behind others. docs/numerics.md derives the limits and shows how far correct
kernels stay from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qualify.cards.kernel import KernelCard
from qualify.facts.accuracy import E_LIMIT, G_LIMIT, R_LIMIT, AccuracyClass, class_named
from qualify.facts.dtypes import DTYPES, FORMATS, Dtype
from qualify.run.golden.reference import Golden
from qualify.run.inputs.formats import format_of

SIGMAS = 6.0

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """The statistics of one output, and the places of its worst element and row."""

    E: float
    E_without_underflow: float
    """E without the allowance for weights that underflow; the difference shows what the allowance is worth"""
    R: float
    G: float
    G_limit: float
    beta: float
    beta_limit: float
    worst: tuple[int, int, int]
    """(index into golden rows, head, element) of the largest E"""
    worst_row: tuple[int, int]
    """(index into golden rows, head) of the largest R"""
    worst_sequence: int | None
    """sequence that comes closest to a limit of G or β; None = the batch as a whole"""
    over: int
    """number of elements whose E exceeds the limit"""

    @property
    def within(self) -> bool:
        """Whether every statistic keeps its limit; a NaN breaks it."""
        kept = self.E <= E_LIMIT and self.R <= R_LIMIT and self.G <= self.G_limit
        return kept and abs(self.beta) <= self.beta_limit


def declared_class(card: KernelCard, dtype: Dtype) -> AccuracyClass:
    """The class that a card declares for a dtype, adjusted by the card's other claims about rounding.

    With an fp8 cache and 16-bit queries, the arithmetic has 16 bits, so ``fp8kv`` allows fp16 queries no more than the
    class ``fp16``.
    """
    declared = replace(class_named(card.accuracy[dtype]), rounded_parts=card.claims.split_outputs == "rounded")
    if declared.name == "fp8kv":
        like = declared
        if DTYPES[dtype].q == "fp16":
            like = replace(class_named("fp16"), rounded_parts=declared.rounded_parts)
        if card.claims.fp8.cache == "rounded":
            like = replace(like, roundoff=2 * like.roundoff, product=like.roundoff / 2)
        return replace(like, name=declared.name, rescaled=card.claims.fp8.value_factor == "after_rounding")
    return scaled(declared, card.claims.fp8.weight_scale)


def scaled(kind: AccuracyClass, weight_scale: float) -> AccuracyClass:
    """The class of a kernel that multiplies its weights by ``weight_scale`` before it rounds them to fp8.

    Other classes than ``fp8`` are returned unchanged.
    """
    return replace(kind, underflow=kind.underflow / weight_scale) if kind.name == "fp8" else kind


def spacing(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance between neighbouring numbers of ``dtype`` at each value: its ulp."""
    known = FORMATS[format_of(dtype)]
    _, exponent = torch.frexp(values)
    least = math.log2(known.smallest_normal) - known.bits + 1
    steps = (exponent - known.bits).to(values.dtype).clamp(min=least)
    # frexp gives 0 the exponent of numbers from 1/2 to 1, but an exact 0 needs no such budget.
    return torch.exp2(steps.masked_fill_(values == 0, least))


def g_limit(rows: Tensor) -> Tensor:
    """Limit of G for a number of rows: the limit of R for a single row, near 1.6 for many."""
    return G_LIMIT + (R_LIMIT - G_LIMIT) / rows.sqrt()


def sigmas(sequences: int) -> float:
    """Standard errors by which β may be off: 6 for one sequence, more where the worst of many sequences counts."""
    return math.sqrt(SIGMAS**2 + 4 * math.log(max(1, sequences)))


def _ratio(error: Tensor, limit: Tensor) -> Tensor:
    """Error / limit, with 0 / 0 = 0: an exact result needs no budget."""
    return (error / limit).masked_fill_(error == 0, 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Compared:
    """An output against the golden result, by element and by row."""

    error: Tensor
    """(n, heads_q, head_dim_v)"""
    step: Tensor
    """same shape, ulp of the output's type"""
    scores: Tensor
    """(n, heads_q), standard deviation of the scores"""
    products: Tensor
    """(n, heads_q), the part of ``scores`` that comes from products"""
    flushed: Tensor
    """(n, heads_q), loss of the output where weights are flushed to 0"""
    parts: Tensor | float
    """(n, heads_q, head_dim_v), variance from rounding the outputs of parts of the keys"""
    element: Tensor
    """(n, heads_q, head_dim_v), E of every element"""
    strict: Tensor
    """same shape, E without the class's underflow term"""
    row: Tensor
    """(n, heads_q), R of every row"""
    spread: Tensor
    """(n, heads_q), rms(e) / σ_row"""


@torch.inference_mode()
def judge(golden: Golden, out: Tensor, kind: AccuracyClass) -> Errors:
    """Measure an output against the golden result in one accuracy class.

    Args:
        golden: golden result of n rows that all see at least one key; with ``S`` and ``T`` if the class rounds scores.
        out: (n, heads_q, head_dim_v) the kernel's output for those rows, in its own dtype.
        kind: the accuracy class.
    """
    found = _compare(golden, out, kind)
    sequence, G, allowed, beta, beta_limit = _by_sequence(golden, kind, found)
    heads, dim = golden.out.shape[1:]
    places = torch.stack([part.nan_to_num(nan=math.inf).argmax() for part in (found.element, found.row)])
    at, at_row, over = torch.cat([places, (found.element > E_LIMIT).sum()[None]]).tolist()
    E, strict, R = torch.stack([found.element.max(), found.strict.max(), found.row.max()]).tolist()
    return Errors(
        E=E,
        E_without_underflow=strict,
        R=R,
        G=G,
        G_limit=allowed,
        beta=beta,
        beta_limit=beta_limit,
        worst=(at // (heads * dim), at // dim % heads, at % dim),
        worst_row=(at_row // heads, at_row % heads),
        worst_sequence=sequence,
        over=over,
    )


@torch.inference_mode()
def rows_within(golden: Golden, out: Tensor, kind: AccuracyClass) -> bool:
    """Whether E and R keep their limits. Both are defined for single rows. Arguments as for :func:`judge`."""
    found = _compare(golden, out, kind)
    return bool((found.element <= E_LIMIT).all() & (found.row <= R_LIMIT).all())


def _compare(golden: Golden, out: Tensor, kind: AccuracyClass) -> _Compared:
    """Everything that is computed by element and by row."""
    exact = golden.out
    error = out.to(exact.dtype) - exact
    step = spacing(exact, out.dtype)
    products = FP32_ROUNDOFF * golden.score_bound + kind.product * golden.product_bound
    added = FP32_ROUNDOFF * golden.keys.to(exact.dtype).sqrt()[:, None]
    scores, sums = products + added, (added / 2).unsqueeze(-1)
    flushed = _flushed(golden)
    variance = _variance(golden, kind, scores, sums, step, flushed, out.dtype)
    row_variance = variance.mean(-1, keepdim=True)
    sigma = torch.maximum(variance, row_variance).sqrt()
    limit = torch.minimum(1.25 * _worst_case(golden, kind, scores, sums, step, out.dtype), 9 * sigma)
    limit = limit + flushed.unsqueeze(-1)
    strict = element = _ratio(error.abs(), limit)
    if kind.underflow and golden.U is not None:
        wider = limit + 1.25 * kind.underflow * _largest_weight(golden).unsqueeze(-1) * golden.U
        element = _ratio(error.abs(), wider)
    rms, typical = error.square().mean(-1).sqrt(), row_variance.squeeze(-1)
    return _Compared(
        error=error,
        step=step,
        scores=scores,
        products=products,
        flushed=flushed,
        parts=_parts(golden, kind, out.dtype),
        element=element,
        strict=strict,
        row=_ratio(rms, (typical + 3 * _common(golden, kind, scores)).sqrt()),
        spread=_ratio(rms, typical.sqrt()),
    )


def _worst_case(
    golden: Golden, kind: AccuracyClass, scores: Tensor, sums: Tensor, step: Tensor, dtype: torch.dtype
) -> Tensor:
    """B of every element; errors of float32 scores and sums count as four standard deviations.

    Args:
        sums: (n, 1, 1) standard deviation of a float32 sum over the keys, relative to the sum of magnitudes.
    """
    roundoff_out = FORMATS[format_of(dtype)].roundoff
    worst = (kind.roundoff + 4 * (scores.unsqueeze(-1) + sums)) * golden.A
    worst = worst + (1 + kind.rescaled) * torch.maximum(roundoff_out * golden.out.abs(), step / 2)
    worst = worst + kind.rounded_parts * roundoff_out * golden.A
    return worst + kind.scores * golden.S if kind.scores and golden.S is not None else worst


def _variance(
    golden: Golden, kind: AccuracyClass, scores: Tensor, sums: Tensor, step: Tensor, flushed: Tensor, dtype: torch.dtype
) -> Tensor:
    """σ² of every element; ``sums`` as for :func:`_worst_case`."""
    variance = (kind.roundoff / 2 + scores).square().unsqueeze(-1) * golden.Q + _rounded(kind) * step.square()
    variance = variance + (sums * golden.A).square() + flushed.square().unsqueeze(-1)
    variance = variance + _parts(golden, kind, dtype) + (_cut(golden, kind).unsqueeze(-1) * golden.out).square()
    if kind.spacing and golden.U is not None:  # for roughly normal values Σ v² is at most 2 (Σ|v|)² / n
        keys = golden.keys.to(golden.A.dtype)[:, None]
        weight = kind.spacing * _largest_weight(golden) * (2 / 12 / keys).sqrt()
        variance = variance + (weight.unsqueeze(-1) * golden.U).square()
    return variance + (kind.scores / 2) ** 2 * golden.T if kind.scores and golden.T is not None else variance


def _parts(golden: Golden, kind: AccuracyClass, dtype: torch.dtype) -> Tensor | float:
    """Added to σ² of every element where a kernel rounds the outputs of two or more parts of the keys.

    The squares of the parts add up to Q where values have both signs, and to at most o²/2 where they have one sign.
    """
    if not kind.rounded_parts:
        return 0.0
    return (FORMATS[format_of(dtype)].roundoff / 2) ** 2 * (golden.Q + golden.out.square() / 2)


def _largest_weight(golden: Golden) -> Tensor:
    """(n, heads_q) a row's largest weight, or the sink's where that is larger: a kernel may scale it to 1."""
    return torch.exp(golden.row_max - golden.lse)


def _flushed(golden: Golden) -> Tensor:
    """(n, heads_q) loss of the output where all weights, and the output itself, are flushed to 0."""
    keys = golden.keys.to(golden.out.dtype)[:, None]
    return FLUSHED * (1 + keys * _largest_weight(golden) * golden.value_bound)


def _rounded(kind: AccuracyClass) -> float:
    """Variance of the output's rounding, in squared steps.

    A kernel that multiplies rounded outputs by one factor errs equally in equal outputs, so this second rounding counts
    as half a step everywhere.
    """
    return 1 / 12 + kind.rescaled / 4


def _cut(golden: Golden, kind: AccuracyClass) -> Tensor:
    """(n, 1) what tensor cores may truncate from a sum over the keys, relative to the sum; 0 in float32."""
    step = 0.0 if kind.name == "fp32" else FP32_ROUNDOFF / ACCUMULATED
    return step * golden.keys.to(golden.A.dtype)[:, None]


def _common(golden: Golden, kind: AccuracyClass, scores: Tensor) -> Tensor:
    """(n, heads_q) the part of a row's mean σ² that all its elements share.

    The error of one weight moves every element of its row, each by its part of v. Where one key has most of the weight,
    or V has one sign, the row's error is one random number and not the mean of many. R then allows 6 σ instead of 3 σ.
    """
    power, dim = golden.out.square().sum(-1), golden.out.shape[-1]
    common = _ratio((kind.roundoff / 2 + scores).square() * golden.gain, power * dim)
    return common + (kind.scores / 2) ** 2 * golden.T.mean(-1) if kind.scores and golden.T is not None else common


def _by_sequence(
    golden: Golden, kind: AccuracyClass, compared: _Compared
) -> tuple[int | None, float, float, float, float]:
    """(sequence, G, limit of G, β, limit of β), where G and β are those closest to their limits.

    Candidates are every sequence alone and the whole batch. The sequence is that of G or of β, whichever is closer to
    its limit; None = the batch.
    """
    exact, step = golden.out, compared.step
    power = exact.square().sum(-1)
    along = (compared.error * exact).sum(-1)
    # An error of P moves all elements of a row together, so its part along the output is computed exactly.
    variance = (kind.roundoff / 2 + compared.scores).square() * golden.gain
    variance = variance + ((step.square() / 12 + compared.parts) * exact.square()).sum(-1)
    if kind.scores and golden.T is not None:
        variance = variance + (kind.scores / 2) ** 2 * golden.T.sum(-1) * power
    found, place = torch.unique(golden.sequence, return_inverse=True)
    ones = torch.ones_like(power)
    # A row with one key copies its value, so all heads of a group and all queries of that key have the same error.
    copy = (golden.keys == 1)[:, None]
    copied, variance = variance.sqrt().masked_fill_(~copy, 0.0), variance.masked_fill(copy, 0.0)
    # Truncated products change all weights in one direction: at worst the output's gain is their relative error.
    bent = (compared.products + _cut(golden, kind)) * power
    bent = bent + compared.flushed * exact.abs().sum(-1)
    if kind.rescaled:
        bent = bent + (step / 2 * exact.abs()).sum(-1)
    parts = torch.stack([compared.spread.square(), ones, along, power, variance, copied, bent], -1).sum(1)
    sums = parts.new_zeros(len(found), parts.shape[-1]).index_add_(0, place, parts)
    found, sums = found.cpu(), torch.cat([parts.sum(0, keepdim=True), sums]).cpu()
    squares, rows, gained, powers, variances, copies, bent = sums.unbind(-1)
    G, allowed = (squares / rows).sqrt(), g_limit(rows)
    beta, deviations = _ratio(gained, powers), (variances + copies.square()).sqrt()
    beta_limit = kind.gain + _ratio(bent, powers) + sigmas(len(found)) * _ratio(deviations, powers)
    shares = torch.stack([G / allowed, (beta / beta_limit).abs()]).nan_to_num(nan=math.inf)
    at_g, at_beta = (int(index) for index in shares.argmax(-1))
    worst = at_g if float(shares[0, at_g]) >= float(shares[1, at_beta]) else at_beta
    sequence = int(found[worst - 1]) if worst and len(found) > 1 else None
    return sequence, float(G[at_g]), float(allowed[at_g]), float(beta[at_beta]), float(beta_limit[at_beta])
