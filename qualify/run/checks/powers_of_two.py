"""powers of two: scaling that no correct kernel may notice.

(2^a q, k, 2^-a scale) has exactly the same scores, and 2^c V exactly 2^c times the output. They agree bit for bit,
because a power of two changes exponents only. A kernel that rounds q·k to 16 bits before the scale overflows (2^12 q
takes |q·k| beyond 65504). So does one that accumulates the output in fp16. 2^-6 q comes with a scale above 1. bf16 and
float32 have the exponents for 2^40: with those, and with (2^40 q, 2^-40 k), data that pass through fp16 are lost.

The inputs are small multiples of 1/8 and 1/4, so nothing leaves the formats' normal range. Where the values are part
of the keys, the queries' elements are 0 there in the test of V, so the values have no weight in the scores.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from qualify.facts.dtypes import FORMATS, Format
from qualify.facts.outcome import Finding
from qualify.run.checks.interface import Result, Shipped, Subject, changed, difference, failing, passed, unsteady
from qualify.run.inputs.tensors import Inputs, with_tensors

EXPONENT = 12
"""2^12 times a score of some 40, or times a sum over a tile, is beyond fp16's largest number"""
WIDE_EXPONENT = 40
"""of formats with eight bits of exponent: beyond fp16 in both directions, and far from the ends of float32"""
QUIET = -6
"""even, as EXPONENT is: PyTorch's math path gives q and k the square root of the scale each"""
STEP, MOST = 1 / 8, 2
"""queries and keys are multiples of the one; they and the values are at most the other"""
GONE = 100.0
"""a hidden key whose logit is so far below zero has no weight; what a card's ``hidden_score`` must leave of it"""


class PowersOfTwo(Shipped):
    """Scales q against the scale, and V against the output."""

    def skips(self, subject: Subject) -> str:
        """Applies to every kernel."""
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """The plain call, the scaled queries, queries against keys, the scaled values."""
        workload, inputs = subject.workload, small_multiples(subject)
        exact = subject.card.claims.deterministic
        before = subject.run(inputs.call)
        louder_by = loudest(subject, inputs)
        for by in filter(None, (louder_by, quiet(workload.q_format))):
            altered = with_tensors(inputs, q=scaled(inputs.q_whole, 2.0**by))
            call = replace(altered.call, scale=inputs.call.scale / 2.0**by)
            found = difference(subject, before, subject.run(call), exact=exact)
            if found:
                detail = f"2^{by} q with 2^{-by} scale is the same call, but {changed(found)}"
                return [
                    unsteady(subject, inputs.call, before)
                    or failing(self.name, detail, {"scaled": "q", "exponent": by, **found})
                ]
        by = WIDE_EXPONENT
        if exponent_of(workload.q_format) == exponent_of(workload.kv_format) == by and not workload.latent:
            altered = with_tensors(inputs, q=scaled(inputs.q_whole, 2.0**by), k=scaled(inputs.k_whole, 2.0**-by))
            found = difference(subject, before, subject.run(altered.call), exact=exact)
            if found:
                detail = f"2^{by} q with 2^-{by} k is the same call, but {changed(found)}"
                return [
                    unsteady(subject, inputs.call, before)
                    or failing(self.name, detail, {"scaled": "k", "exponent": -by, **found})
                ]
        if workload.latent:
            deaf = inputs.q_whole.clone()
            deaf[..., : workload.rope.start] = 0.0
            inputs = with_tensors(inputs, q=deaf)
            before = subject.run(inputs.call)
        exponent = exponent_of(workload.kv_format)
        for by in filter(None, (exponent, subnormal(workload.kv_format, workload.out_format))):
            after = subject.run(with_tensors(inputs, v=scaled(inputs.v_whole, 2.0**by)).call)
            found = difference(subject, before, Result(out=after.out / 2.0**by, lse=after.lse), exact=exact)
            if found:
                detail = f"2^{by} V must give 2^{by} times the output, but (divided again) {changed(found)}"
                return [
                    unsteady(subject, inputs.call, before)
                    or failing(self.name, detail, {"scaled": "v", "exponent": by, **found})
                ]
        how = "bit for bit" if exact else "within rounding"
        asked = f"2^{louder_by} q with 2^-{louder_by} scale, and 2^{exponent} V"
        return [passed(self.name, f"{asked}: the same, {how}")]


def exponent_of(name: Format) -> int:
    """By how much the small multiples may grow in a format: 2^7 in e4m3, whose scores then leave fp16's range too."""
    room = math.floor(math.log2(FORMATS[name].largest / MOST))
    return WIDE_EXPONENT if room > WIDE_EXPONENT else min(EXPONENT, room)


def quiet(name: Format) -> int:
    """By how much queries shrink: an even power of two that leaves them in their format's normal range."""
    room = math.ceil(math.log2(FORMATS[name].smallest_normal / STEP))
    return max(QUIET, room + room % 2)


def subnormal(kv: Format, out: Format) -> int:
    """What takes values of 8 bits below their normal range, exactly; 0 where nothing does, or outputs leave theirs."""
    if not FORMATS[kv].descaled or FORMATS[out].underflows:
        return 0
    return math.floor(math.log2(FORMATS[kv].smallest_normal))


def loudest(subject: Subject, inputs: Inputs) -> int:
    """By how much the queries grow: no further than where scale and factors take ``hidden_score`` near zero."""
    hidden = subject.card.claims.hidden_score
    most = exponent_of(subject.workload.q_format)
    if hidden is None:
        return most
    scale = inputs.call.scale
    for factors in (inputs.call.q_descale, inputs.call.k_descale):
        scale *= 1.0 if factors is None else float(factors.min())
    room = math.floor(math.log2(max(1.0, -hidden * scale / GONE)))
    return min(most, room - room % 2)


def scaled(values: Tensor, factor: float) -> Tensor:
    """Each value times a factor, exactly; fp8 has no product of its own."""
    return (values.float() * factor).to(values.dtype)


def small_multiples(subject: Subject) -> Inputs:
    """Queries and keys are multiples of 1/8 up to 2, values of 1/4 from 1/2: exact, scaled too."""
    inputs = subject.inputs()
    generator = torch.Generator(subject.device).manual_seed(subject.seed + 5)

    def draw(like: Tensor, low: int, high: int, step: float) -> Tensor:
        whole = torch.randint(low, high + 1, like.shape, generator=generator, device=like.device)
        return (whole * step).to(like.dtype)

    return with_tensors(
        inputs,
        q=draw(inputs.q_whole, round(-MOST / STEP), round(MOST / STEP), STEP),
        k=draw(inputs.k_whole, round(-MOST / STEP), round(MOST / STEP), STEP),
        v=draw(inputs.v_whole, 2, 8, 1 / 4),
    )
