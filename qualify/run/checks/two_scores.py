"""A call of two groups of keys, whose result is known in closed form.

One half of the keys has the score x + d and the value 1; the other half has the score x and the value 0. So the output
of a row is the share of the first half, and share and LSE are known in closed form. d differs between heads, and sinks
are near the logarithm of the number of keys, where they have an effect.

The expectation is exact, so the tolerance only covers rounding. The weights of one half are equal and may all be
rounded in the same direction, by the roundoff of the accuracy class. The output is rounded to its format, and scores to
float32 or as the class says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qualify.facts.accuracy import AccuracyClass
from qualify.facts.case import Workload
from qualify.facts.dtypes import FORMATS
from qualify.run.checks.interface import Result, Subject
from qualify.run.checks.rows import rows_of
from qualify.run.golden.accuracy import declared_class
from qualify.run.golden.comparison import ACCUMULATED, FP32_ROUNDOFF
from qualify.run.inputs.formats import fitted
from qualify.run.inputs.kinds import key_positions
from qualify.run.inputs.tensors import Inputs, make_inputs, replace_keys, with_tensors

STEP = 1.5
"""d, the distance of the two scores, before a factor for each head; shares are then between 0.1 and 0.9"""
ADDED_SINGLY = 2
"""Term of the tolerance for sums of n equal terms that are added one by one: the first term is rounded n times and the
last never. PyTorch's math path in float32 on an H100 was off by 42 units of 2^-24 on 358 keys; without this term only
23 were allowed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A call, the two raw scores of each head, and the number of keys of each half that a row sees."""

    inputs: Inputs
    high: Tensor
    """(heads_q,) float64 q·k of the first half of the keys, before the scale"""
    low: Tensor
    """(heads_q,) float64 q·k of the other half"""
    ones: Tensor
    """(total_q,) number of visible keys of the first half"""
    zeros: Tensor
    """(total_q,) number of visible keys of the other half"""
    largest: float
    """size of the largest score, at least 1"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Halves:
    """What the probes of a workload share, whatever its scale: the two groups of keys."""

    first: Tensor
    """(total_k,) float32: 1 for keys of the first half, 0 for the others"""
    factor: Tensor
    """(heads_q,) by which d differs between heads"""
    ones: Tensor
    """(total_q,) number of visible keys of the first half"""
    zeros: Tensor
    """(total_q,) number of visible keys of the other half"""


def make_halves(workload: Workload, device: torch.device) -> Halves:
    """Keys belong to the halves in turn."""
    visible = rows_of(workload, device).visible()
    begins_with_other = visible.low // visible.step % 2
    ones = (visible.count + 1 - begins_with_other) // 2
    return Halves(
        first=(key_positions(workload, device) // workload.mask.step % 2 == 0).float(),
        factor=1 + (torch.arange(workload.heads_q, device=device) % 4) / 4,
        ones=ones,
        zeros=visible.count - ones,
    )


def make_probe(subject: Subject, base: float, *, sinks_above: float = 0.0, halves: Halves | None = None) -> Probe:
    """The probe. Keys are 1 or 0 in one element and 1 in the next; a query holds d and x in these two elements.

    These are the first two elements; in latent attention, the first two behind the values. All other elements of the
    queries are 0.

    Args:
        base: x, in units of the score.
        sinks_above: by how much sinks are moved up.
        halves: of the workload, where several probes share them.
    """
    workload, device, at = subject.workload, subject.device, subject.workload.rope.start
    halves = halves or make_halves(workload, device)
    inputs = make_inputs(workload, kind="normal", seed=subject.seed, device=device, shared=True)
    k = torch.zeros(len(halves.first), 1, workload.head_dim, device=device)
    k[:, 0, at] = halves.first
    k[:, 0, at + 1] = 1.0
    v = halves.first.view(-1, 1, 1).expand(-1, 1, workload.head_dim_v)
    q_whole = torch.zeros_like(inputs.q_whole)
    q_whole[..., at] = fitted(STEP * halves.factor / workload.scale, q_whole.dtype)
    if base:
        q_whole[..., at + 1] = fitted(base / workload.scale * torch.ones_like(halves.factor), q_whole.dtype)
    inputs = replace_keys(with_tensors(inputs, q=q_whole), None, k, v)
    if workload.sinks:
        inputs = replace(inputs, call=replace(inputs.call, sinks=_sinks(workload, base + sinks_above, device)))
    delta, low = q_whole[0, :, at : at + 2].double().unbind(-1)
    high = low + delta
    largest = max(1.0, float(high.abs().max()) * abs(workload.scale))
    return Probe(inputs=inputs, high=high, low=low, ones=halves.ones, zeros=halves.zeros, largest=largest)


def _sinks(workload: Workload, base: float, device: torch.device) -> Tensor:
    """Sinks near the common weight of all keys, different for every head, and exact in bf16."""
    middle = base + float(torch.tensor(float(max(workload.seqlens_k))).log())
    steps = torch.arange(workload.heads_q, device=device) % 5 * 0.5 - 1
    return (middle + steps).bfloat16().float()


def expected(probe: Probe, scale: float, softcap: float, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """(total_q, heads_q) float64: the share of the first half, and the LSE, for given parameters."""
    scores = torch.stack([probe.high, probe.low]) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    terms = torch.stack([probe.ones, probe.zeros]).double().log()[:, :, None] + scores[:, None, :]
    logits = terms if sinks is None else torch.cat([terms, sinks.double().expand_as(terms[:1])])
    lse = torch.logsumexp(logits, 0)
    return torch.exp(terms[0] - lse), lse


def far(
    subject: Subject, probe: Probe, result: Result, share: Tensor, lse: Tensor, kind: AccuracyClass | None = None
) -> Tensor:
    """(total_q, heads_q) bool: whether a result differs from an expectation by more than rounding explains.

    Args:
        kind: the accuracy class, instead of the one that the card declares.
    """
    far = out_far(subject, probe, result, share, kind)
    return far if result.lse is None else far | lse_far(subject, probe, result.lse, lse, kind)


def lse_far(subject: Subject, probe: Probe, actual: Tensor, lse: Tensor, kind: AccuracyClass | None = None) -> Tensor:
    """The same for the LSE alone; the card's claim covers what the declared class does to it."""
    limit = subject.card.claims.lse.rel * lse.abs().clamp(min=1) + 8 * FP32_ROUNDOFF * probe.largest
    limit = limit + (kind.scores * probe.largest if kind else 0.0)
    return (actual.T.double() - lse).abs().nan_to_num(nan=torch.inf) > limit


def out_far(subject: Subject, probe: Probe, result: Result, share: Tensor, kind: AccuracyClass | None = None) -> Tensor:
    """The same for the output alone."""
    declared = kind or declared_class(subject.card, subject.workload.dtype)
    keys = (probe.ones + probe.zeros).double()[:, None]
    sums = keys / (ADDED_SINGLY if declared.name == "fp32" else ACCUMULATED)
    rounded = 1.25 * declared.roundoff + (1 + declared.rounded_parts) * FORMATS[subject.workload.out_format].roundoff
    rounded += 2 * declared.scores * probe.largest  # both scores are rounded, perhaps in opposite directions
    allowed = (rounded + FP32_ROUNDOFF * (8 * probe.largest + sums)) * share + declared.underflow
    allowed = allowed + torch.finfo(result.out.dtype).smallest_normal
    error = (result.out.double() - share.unsqueeze(-1)).abs().amax(-1).nan_to_num(nan=torch.inf)
    return error > allowed
