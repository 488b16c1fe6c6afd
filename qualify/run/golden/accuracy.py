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
from qualify.facts.dtypes import DTYPES, Dtype
from qualify.run.golden.comparison import Deviations, InClass, compared, cut_share, in_class, ratio
from qualify.run.golden.result import Golden

SIGMAS = 6.0


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


def g_limit(rows: Tensor) -> Tensor:
    """Limit of G for a number of rows: the limit of R for a single row, near 1.6 for many."""
    return G_LIMIT + (R_LIMIT - G_LIMIT) / rows.sqrt()


def sigmas(sequences: int) -> float:
    """Standard errors by which β may be off: 6 for one sequence, more where the worst of many sequences counts."""
    return math.sqrt(SIGMAS**2 + 4 * math.log(max(1, sequences)))


def judge(golden: Golden, out: Tensor, kind: AccuracyClass) -> Errors:
    """Measure an output against the golden result in one accuracy class; arguments as for :func:`compared`."""
    return errors_in(compared(golden, out), kind)


@torch.inference_mode()
def errors_in(found: Deviations, kind: AccuracyClass) -> Errors:
    """Measure a compared output in one accuracy class. Everything is read at once, because each reading is a wait."""
    asked = in_class(found, kind)
    heads, dim = found.error.shape[1:]
    # The largest is NaN where any is, and then the first NaN is its place.
    (E, at), (R, at_row) = (part.flatten().max(0) for part in (asked.element, asked.row))
    strict = E if asked.strict is asked.element else asked.strict.max()
    sums = _sums(found, kind, asked)
    told = torch.cat(
        [torch.stack([E, strict, R]).double(), torch.stack([at, at_row]).double(), sums.flatten().double()]
    )
    worst, exact_worst, worst_row, place, place_row = (numbers := told.cpu())[:5].tolist()
    sequence, G, allowed, beta, beta_limit = _worst_sequence(kind, numbers[5:].view_as(sums).to(sums.dtype))
    return Errors(
        E=worst,
        E_without_underflow=exact_worst,
        R=worst_row,
        G=G,
        G_limit=allowed,
        beta=beta,
        beta_limit=beta_limit,
        worst=(int(place) // (heads * dim), int(place) // dim % heads, int(place) % dim),
        worst_row=(int(place_row) // heads, int(place_row) % heads),
        worst_sequence=sequence,
        over=0 if worst <= E_LIMIT else int((asked.element > E_LIMIT).sum()),
    )


def _sums(found: Deviations, kind: AccuracyClass, asked: InClass) -> Tensor:
    """(1 + sequences, 7): what G and β are made of, summed over the rows of the batch and of each sequence.

    The columns are the squares of rms(e) / σ_row, the number of rows, <e,o>, <o,o>, the variance of <e,o>, the
    deviation of its part from copied values, and the most that a bias of all weights adds to it.
    """
    golden, exact, power = found.golden, found.golden.out, found.power
    along = (found.error * exact).sum(-1)
    # An error of P moves all elements of a row together, so its part along the output is computed exactly.
    variance, rounded = asked.weights * golden.gain, found.step.square().div_(12)
    if asked.parts is not None:
        rounded += asked.parts
    variance = variance + rounded.mul_(exact.square()).sum(-1)
    if kind.scores and golden.T is not None:
        variance = variance + (kind.scores / 2) ** 2 * golden.T.sum(-1) * power
    # A row with one key copies its value, so all heads of a group and all queries of that key have the same error.
    copy = found.keys == 1
    copied, variance = variance.sqrt().masked_fill_(~copy, 0.0), variance.masked_fill(copy, 0.0)
    # Truncated products change all weights in one direction: at worst the output's gain is their relative error.
    cut = cut_share(kind)
    bent = (asked.products + cut * found.keys if cut else asked.products) * power
    bent = bent + found.flushed * found.size.sum(-1)
    if kind.rescaled:
        bent = bent + (found.step / 2 * found.size).sum(-1)
    spread = ratio(found.rms, asked.typical.sqrt()).square()
    parts = torch.stack([spread, torch.ones_like(power), along, power, variance, copied, bent], -1).sum(1)
    sums = parts.new_zeros(1 + golden.sequences, parts.shape[-1])
    torch.sum(parts, 0, out=sums[0])
    sums[1:].index_add_(0, golden.sequence, parts)
    return sums


def _worst_sequence(kind: AccuracyClass, sums: Tensor) -> tuple[int | None, float, float, float, float]:
    """(sequence, G, limit of G, β, limit of β), where G and β are those closest to their limits.

    Candidates are every sequence alone and the whole batch. The sequence is that of G or of β, whichever is closer to
    its limit; None = the batch.

    Args:
        sums: on the host, as of :func:`_sums`; sequences without a row are left out.
    """
    found = sums[:, 1].nonzero()[:, 0]
    squares, rows, gained, powers, variances, copies, bent = sums[found].unbind(-1)
    several = len(found) - 1
    G, allowed = (squares / rows).sqrt(), g_limit(rows)
    beta, deviations = ratio(gained, powers), (variances + copies.square()).sqrt()
    beta_limit = kind.gain + ratio(bent, powers) + sigmas(several) * ratio(deviations, powers)
    shares = torch.stack([G / allowed, (beta / beta_limit).abs()]).nan_to_num(nan=math.inf)
    at_g, at_beta = (int(index) for index in shares.argmax(-1))
    worst = at_g if float(shares[0, at_g]) >= float(shares[1, at_beta]) else at_beta
    sequence = int(found[worst]) - 1 if worst and several > 1 else None
    return sequence, float(G[at_g]), float(allowed[at_g]), float(beta[at_beta]), float(beta_limit[at_beta])
