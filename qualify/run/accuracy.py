"""The error budget: how far a correct kernel of an accuracy class may be from the golden result.

A fused kernel keeps scores in float32, rounds the weights P to a format with unit roundoff u_P,
accumulates in float32 and rounds the output with u_O. With e = out - o, per element:

    worst case    B  = u_P·A + u_O·|o|
    statistical   σ² = (u_P/2)²·Q + ulp(o)²/12,     σ_row² = the mean of σ² over a row

    E = max |e| / min(1.25·B, 9·max(σ, σ_row))      ≤ 1      one wrong element
    R = worst row's rms(e) / σ_row                  ≤ 3      one wrong row
    G = rms over everything of e / σ_row            ≤ 1.6    a little wrong everywhere
    β = <e,o> / <o,o>, against β₀ + 6·SE            ≤ 1      a bias that averages hide

docs/numerics.md derives them and publishes how correct kernels measure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qualify.run.reference import Golden

E_LIMIT = 1.0
R_LIMIT = 3.0
G_LIMIT = 1.6

FP32_ROUNDOFF = 2.0**-24
"""of a score, relative to its largest products; an absolute error of a score is a relative one of its weight"""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyClass:
    """What a kernel does to the weights P."""

    name: str
    roundoff: float
    """u_P: unit roundoff of the format of P"""
    gain: float
    """β₀: bias that a correct kernel may have"""
    underflow: float
    """a_P: absolute error of a weight below the format's normal range, relative to the row's largest; 0 = none"""


CLASSES: tuple[AccuracyClass, ...] = (
    AccuracyClass(name="fp32", roundoff=2.0**-21, gain=2e-6, underflow=0.0),
    AccuracyClass(name="fp16", roundoff=2.0**-11, gain=6e-5, underflow=2.0**-15),
    AccuracyClass(name="bf16", roundoff=2.0**-8, gain=5e-4, underflow=0.0),
)
"""Tightest first."""

SIGNIFICANT_BITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24}


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """The statistics of one output, and where its worst element stands."""

    E: float
    R: float
    G: float
    beta: float
    beta_limit: float
    worst: tuple[int, int, int]
    """(index into golden rows, head, element) of the largest E"""
    worst_row: tuple[int, int]
    """(index into golden rows, head) of the largest R"""
    over: int
    """elements whose E exceeds the limit"""

    @property
    def within(self) -> bool:
        """Whether every statistic keeps its limit; a NaN does not."""
        kept = self.E <= E_LIMIT and self.R <= R_LIMIT and self.G <= G_LIMIT
        return kept and abs(self.beta) <= self.beta_limit


def class_named(name: str) -> AccuracyClass:
    """The class of that name; KeyError on an unknown one (cards are checked before)."""
    return {known.name: known for known in CLASSES}[name]


def spacing(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Distance between neighbouring numbers of ``dtype`` at each value: its ulp."""
    bits = SIGNIFICANT_BITS[dtype]
    _, exponent = torch.frexp(values)
    least = math.log2(torch.finfo(dtype).smallest_normal) - bits + 1
    steps = (exponent - bits).to(values.dtype).clamp(min=least)
    # frexp gives 0 the exponent of 1/2 to 1, and an exact 0 would have a budget that it does not need.
    return torch.exp2(torch.where(values == 0, least, steps))


def _ratio(error: Tensor, limit: Tensor) -> Tensor:
    """Error / limit, with 0 / 0 = 0: an exact result needs no budget."""
    return torch.where(error == 0, 0.0, error / limit)


def judge(golden: Golden, out: Tensor, kind: AccuracyClass, *, underflow: bool = True) -> Errors:
    """Measure an output against the golden result in one accuracy class.

    Args:
        golden: result for n rows, all of which see at least one key.
        out: (n, heads_q, head_dim_v) the kernel's output for those rows, in its own dtype.
        underflow: whether the class's underflow term counts; False shows what it is worth.
    """
    exact = golden.out
    error = out.to(exact.dtype) - exact
    roundoff_out = 2.0 ** -SIGNIFICANT_BITS[out.dtype]
    # Float32 scores and row sums: one standard deviation of their error, and four as the worst case.
    scores = FP32_ROUNDOFF * (golden.score_bound + golden.keys.to(exact.dtype).sqrt()[:, None]).unsqueeze(-1)
    step = spacing(exact, out.dtype)
    worst_case = (kind.roundoff + 4 * scores) * golden.A + torch.maximum(roundoff_out * exact.abs(), step / 2)
    variance = (kind.roundoff / 2 + scores).square() * golden.Q + step.square() / 12
    row_variance = variance.mean(-1, keepdim=True)
    sigma = torch.maximum(variance, row_variance).sqrt()
    limit = torch.minimum(1.25 * worst_case, 9 * sigma)
    if underflow and kind.underflow and golden.U is not None:
        rescale = torch.exp(golden.row_max - golden.lse).unsqueeze(-1)
        limit = limit + 1.25 * kind.underflow * rescale * golden.U
    element = _ratio(error.abs(), limit)
    row = _ratio(error.square().mean(-1).sqrt(), row_variance.squeeze(-1).sqrt())
    power = exact.square().sum()
    standard_error = (variance * exact.square()).sum().sqrt() / power
    heads, dim = exact.shape[1:]
    at, at_row = int(element.nan_to_num(nan=math.inf).argmax()), int(row.nan_to_num(nan=math.inf).argmax())
    return Errors(
        E=float(element.max()),
        R=float(row.max()),
        G=float(row.square().mean().sqrt()),
        beta=float((error * exact).sum() / power),
        beta_limit=kind.gain + 6 * float(standard_error),
        worst=(at // (heads * dim), at // dim % heads, at % dim),
        worst_row=(at_row // heads, at_row % heads),
        over=int((element > E_LIMIT).sum()),
    )
