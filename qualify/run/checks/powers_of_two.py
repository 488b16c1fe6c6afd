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
from qualify.facts.outcome import Finding, Value
from qualify.run.checks.difference import blame_change, difference
from qualify.run.checks.interface import Result, Shipped, Subject, passed
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
        inputs = small_multiples(subject)
        before = subject.run(inputs.call)
        louder_by = loudest(subject, inputs)
        wrong = (
            self._queries(subject, inputs, before, louder_by)
            or self._keys(subject, inputs, before)
            or self._values(subject, inputs, before)
        )
        if wrong:
            return [wrong]
        how = "bit for bit" if subject.card.claims.deterministic else "within rounding"
        asked = f"2^{louder_by} q with 2^-{louder_by} scale, and 2^{exponent_of(subject.workload.kv_format)} V"
        return [passed(self.name, f"{asked}: the same, {how}")]

    def _queries(self, subject: Subject, inputs: Inputs, before: Result, louder_by: int) -> Finding | None:
        """Louder and quieter queries under another scale are the same call."""
        for by in filter(None, (louder_by, quiet(subject.workload.q_format))):
            altered = with_tensors(inputs, q=scaled(inputs.q_whole, 2.0**by))
            call = replace(altered.call, scale=inputs.call.scale / 2.0**by)
            found = difference(subject, before, subject.run(call), exact=subject.card.claims.deterministic)
            if found:
                said = f"2^{by} q with 2^{-by} scale is the same call, but "
                values: dict[str, Value] = {"scaled": "q", "exponent": by}
                return blame_change(subject, self.name, said, found, values, call=inputs.call, before=before)
        return None

    def _keys(self, subject: Subject, inputs: Inputs, before: Result) -> Finding | None:
        """Loud queries on quiet keys are the same call, where both formats have room for that."""
        workload, by = subject.workload, WIDE_EXPONENT
        wide = exponent_of(workload.q_format) == exponent_of(workload.kv_format) == by
        if workload.latent or not wide:
            return None
        altered = with_tensors(inputs, q=scaled(inputs.q_whole, 2.0**by), k=scaled(inputs.k_whole, 2.0**-by))
        found = difference(subject, before, subject.run(altered.call), exact=subject.card.claims.deterministic)
        if not found:
            return None
        said = f"2^{by} q with 2^-{by} k is the same call, but "
        values: dict[str, Value] = {"scaled": "k", "exponent": -by}
        return blame_change(subject, self.name, said, found, values, call=inputs.call, before=before)

    def _values(self, subject: Subject, inputs: Inputs, before: Result) -> Finding | None:
        """Scaled values scale the output. Latent values are keys too: there the queries do not look at them."""
        workload = subject.workload
        if workload.latent:
            deaf = inputs.q_whole.clone()
            deaf[..., : workload.rope.start] = 0.0
            inputs = with_tensors(inputs, q=deaf)
            before = subject.run(inputs.call)
        for by in filter(None, (exponent_of(workload.kv_format), subnormal(workload.kv_format, workload.out_format))):
            after = subject.run(with_tensors(inputs, v=scaled(inputs.v_whole, 2.0**by)).call)
            same = Result(out=after.out / 2.0**by, lse=after.lse)
            found = difference(subject, before, same, exact=subject.card.claims.deterministic)
            if found:
                said = f"2^{by} V must give 2^{by} times the output, but (divided again) "
                values: dict[str, Value] = {"scaled": "v", "exponent": by}
                return blame_change(subject, self.name, said, found, values, call=inputs.call, before=before)
        return None


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
