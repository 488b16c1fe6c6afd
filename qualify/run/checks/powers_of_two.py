"""powers of two: scaling by powers of two that must not change a correct kernel's bits.

(2^a q, k, 2^-a scale) has exactly the same scores, and 2^c V has exactly 2^c times the output. Results agree bit for
bit, because a power of two only changes exponents. A kernel that rounds q·k to 16 bits before the scale overflows (with
2^12 q, |q·k| is above 65504). So does a kernel that accumulates the output in fp16. With 2^-6 q the scale is above 1.
bf16 and float32 have exponents for 2^40: with this factor, and with (2^40 q, 2^-40 k), data that pass through fp16 are
lost.

The inputs are small multiples of 1/8 and 1/4, so no number leaves the normal range of its format. Where the values are
part of the keys, the test of V sets the queries to 0 in these elements, so that the values have no effect on scores.
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
"""exponent of the factor in narrow formats: 2^12 times a score of about 40, or times a sum over a tile, exceeds fp16"""
WIDE_EXPONENT = 40
"""exponent of the factor in formats with eight exponent bits: beyond fp16 in both directions, but not near float32's"""
QUIET = -6
"""exponent for smaller queries; even, like EXPONENT, because PyTorch's math path multiplies q and k by √scale"""
STEP, MOST = 1 / 8, 2
"""queries and keys are multiples of STEP; queries, keys and values are at most MOST in size"""
GONE = 100.0
"""a key whose logit is so far below zero has no weight; a card's ``hidden_score`` must stay that far after scaling"""


class PowersOfTwo(Shipped):
    """Multiplies q and divides the scale; multiplies V and divides the output."""

    def skips(self, subject: Subject) -> str:
        """Applies to every kernel."""
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """Compare the plain call with scaled queries, with scaled queries and keys, and with scaled values."""
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
        """A finding where larger or smaller queries with the opposite scale change the result."""
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
        """A finding where large queries on small keys change the result; None where a format has no room for them."""
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
        """A finding where scaled values do not scale the output by the same factor.

        Latent values are part of the keys, so the queries are 0 in these elements.
        """
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
                said = f"2^{by} V must give 2^{by} times the output, but the output divided by 2^{by} differs: "
                if found["tensor"] == "lse":
                    said = f"2^{by} V must not change the LSE, but "
                values: dict[str, Value] = {"scaled": "v", "exponent": by}
                return blame_change(subject, self.name, said, found, values, call=inputs.call, before=before)
        return None


def exponent_of(name: Format) -> int:
    """Exponent of the largest factor that a format allows: 7 in e4m3, whose scores then exceed fp16 too."""
    room = math.floor(math.log2(FORMATS[name].largest / MOST))
    return WIDE_EXPONENT if room > WIDE_EXPONENT else min(EXPONENT, room)


def quiet(name: Format) -> int:
    """Exponent by which queries shrink: even, and such that they stay in their format's normal range."""
    room = math.ceil(math.log2(FORMATS[name].smallest_normal / STEP))
    return max(QUIET, room + room % 2)


def subnormal(kv: Format, out: Format) -> int:
    """Exponent that makes 8-bit values subnormal but keeps them exact; 0 = no such test.

    There is none for wider formats, or where outputs would leave their normal range.
    """
    if not FORMATS[kv].descaled or FORMATS[out].underflows:
        return 0
    return math.floor(math.log2(FORMATS[kv].smallest_normal))


def loudest(subject: Subject, inputs: Inputs) -> int:
    """Exponent by which the queries grow, limited so that scale and factors leave ``hidden_score`` far below zero."""
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
    """Each value times a factor, exactly. The product is computed in float32, because fp8 has none."""
    return (values.float() * factor).to(values.dtype)


def small_multiples(subject: Subject) -> Inputs:
    """Inputs whose queries and keys are multiples of 1/8 up to 2, and whose values are multiples of 1/4 from 1/2 to 2.

    They are exact in every format, also after scaling.
    """
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
