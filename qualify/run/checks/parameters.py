"""parameters: reads the scale, the softcap and each head's sink back from the result.

One half of the keys has the score x + d and the value 1; the other half has the score x and the value 0. So the output
of a row is the share of the first half, and share and LSE are known in closed form. d differs between heads, and sinks
are near the logarithm of the number of keys, where they have an effect. With x = 0 the share gives the scale.
With x near the softcap it gives the softcap. From a wrong result the check computes the parameter that explains it.

At level full there are more calls. The scale is 1.0, which a kernel must not take for "not given". x is fifty times the
softcap, where tanh is 1 and its exponentials overflow. The sinks are so far above all scores that nothing else has
weight, and so far below that they have none.

The expectation is exact, so the tolerance only covers rounding. The weights of one half are equal and may all be
rounded in the same direction, by the roundoff of the accuracy class. The output is rounded to its format, and scores to
float32 or as the class says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from qualify.facts.accuracy import AccuracyClass, class_named
from qualify.facts.case import Workload
from qualify.facts.dtypes import FORMATS
from qualify.facts.outcome import Finding, Value
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.difference import narrower_format
from qualify.run.checks.interface import (
    LIKELY_LSE,
    WRONG_LSE,
    Result,
    Shipped,
    Subject,
    failing,
    paged_or_ragged,
    passed,
)
from qualify.run.checks.rows import rows_of
from qualify.run.golden.accuracy import ACCUMULATED, FP32_ROUNDOFF, declared_class
from qualify.run.inputs.formats import fitted
from qualify.run.inputs.kinds import key_positions
from qualify.run.inputs.tensors import Inputs, make_inputs, replace_keys, with_tensors

STEP = 1.5
"""d, the distance of the two scores, before a factor for each head; shares are then between 0.1 and 0.9"""
FAR = 30.0
"""x far from zero, where there is no softcap"""
ADDED_SINGLY = 2
"""Term of the tolerance for sums of n equal terms that are added one by one: the first term is rounded n times and the
last never. PyTorch's math path in float32 on an H100 was off by 42 units of 2^-24 on 358 keys; without this term only
23 were allowed."""
OTHER_SCALES = (1.0, 0.5)
"""at level full, the scale becomes the first of these that differs from it, to catch a kernel that ignores a given
scale"""
WRONG_OUT = "The output is wrong beside an LSE that is right"
"""what is wrong then, instead of what the check says in general"""
LIKELY_OUT = "weights, sums or an output of too few bits, or weights that meet other values"
"""what is then most often behind it"""
LOST_BITS = "The result is off by no more than a rounding of the scores to bf16 explains"
"""the same where a looser accuracy class would allow it"""
LIKELY_LOST = "scores, weights or sums that are rounded to fewer bits"
LOOSER = class_named("lowp_scores")
"""that class"""
FEWER_BITS = "The output has fewer bits than its dtype"
"""what is wrong where the output was rounded to a narrower format"""
FACTOR = 64.0
"""how much larger or smaller than the call's a recovered scale or softcap may be"""
HALVINGS = 60
"""steps of the search for it"""
CAPPED = 50.0
"""x divided by the softcap in the call where tanh(x / softcap) is 1"""
UNEXPLAINED = 0.25
"""the part of the LSE's error that a recovered scale may leave over, since it was read from a rounded output"""
NEGLIGIBLE = -1e30
"""value of sinks that have no weight"""
OVERWHELMING = 120.0
"""by how much overwhelming sinks are above x plus the logarithm of the number of keys; exp(120) overflows float32"""


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


class Parameters(Shipped):
    """Two groups of keys, whose result is known in closed form."""

    def skips(self, subject: Subject) -> str:
        """Skips workloads where no query sees two keys, or where keys have no element for each of the two scores."""
        if subject.workload.head_dim - subject.workload.rope.start < 2:
            return "keys of one element hold one score"
        return "" if max(subject.workload.seqlens_k) > 1 else "no query sees two keys"

    def run(self, subject: Subject) -> list[Finding]:
        """Judge probes with x near and far from zero; at level full also with another scale and other sinks."""
        workload = paged_or_ragged(subject)
        scales = [workload.scale]
        full = subject.level == "full"
        if full and subject.card.jit != "shapes":
            scales.append(next(scale for scale in OTHER_SCALES if scale != workload.scale))
        bases = [0.0, workload.softcap or FAR] + [CAPPED * workload.softcap] * (full and workload.softcap > 0)
        asked = [(base, 0.0) for base in bases]
        asked += [(0.0, above) for above in (NEGLIGIBLE, OVERWHELMING)] * (full and workload.sinks)
        for scale in scales:
            altered = replace(subject, workload=replace(workload, scale=scale))
            for base, above in asked:
                probe = make_probe(altered, base, sinks_above=above)
                wrong = judge_probe(altered, probe, altered.run(probe.inputs.call))
                if wrong:
                    return [wrong]
        names = ["scale"] + ["softcap"] * bool(workload.softcap) + ["sinks"] * workload.sinks
        uses = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        tried = f"{len(scales)} scale{'s' if len(scales) > 1 else ''} tried"
        return [passed(self.name, f"the kernel uses the call's {uses} in every head ({tried})")]


def make_probe(subject: Subject, base: float, *, sinks_above: float = 0.0) -> Probe:
    """The probe. Keys are 1 or 0 in one element and 1 in the next; a query holds d and x in these two elements.

    These are the first two elements; in latent attention, the first two behind the values. All other elements of the
    queries are 0.

    Args:
        base: x, in units of the score.
        sinks_above: by how much sinks are moved up.
    """
    workload = subject.workload
    device = subject.device
    inputs = make_inputs(workload, kind="normal", seed=subject.seed, device=device)
    position = key_positions(workload, device)
    first = position // workload.mask.step % 2 == 0
    heads = torch.arange(workload.heads_q, device=device)
    factor = 1 + (heads % 4) / 4
    total = len(position)
    k = torch.zeros(total, 1, workload.head_dim, device=device)
    at = workload.rope.start
    k[:, 0, at] = first.float()
    k[:, 0, at + 1] = 1.0
    v = first.float().view(-1, 1, 1).expand(-1, 1, workload.head_dim_v)
    q_whole = torch.zeros_like(inputs.q_whole)
    q_whole[..., at] = fitted(STEP * factor / workload.scale, q_whole.dtype)
    if base:
        q_whole[..., at + 1] = fitted(base / workload.scale * torch.ones_like(factor), q_whole.dtype)
    everything = torch.ones(total, dtype=torch.bool, device=device)
    inputs = replace_keys(with_tensors(inputs, q=q_whole), workload, everything, k, v)
    if workload.sinks:
        inputs = replace(inputs, call=replace(inputs.call, sinks=_sinks(workload, base + sinks_above, device)))
    delta = q_whole[0, :, at].double()
    shift = q_whole[0, :, at + 1].double() if base else torch.zeros_like(delta)
    ones, zeros = _halves(workload, device)
    return Probe(inputs=inputs, high=shift + delta, low=shift, ones=ones, zeros=zeros)


def _sinks(workload: Workload, base: float, device: torch.device) -> Tensor:
    """Sinks near the common weight of all keys, different for every head, and exact in bf16."""
    middle = base + float(torch.tensor(float(max(workload.seqlens_k))).log())
    steps = torch.arange(workload.heads_q, device=device) % 5 * 0.5 - 1
    return (middle + steps).bfloat16().float()


def _halves(workload: Workload, device: torch.device) -> tuple[Tensor, Tensor]:
    """(total_q,) numbers of visible keys of the first half and of the other: keys belong to the halves in turn."""
    visible = rows_of(workload, device).visible()
    begins_with_other = visible.low // visible.step % 2
    first = (visible.count + 1 - begins_with_other) // 2
    return first, visible.count - first


def _expected(probe: Probe, scale: float, softcap: float, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """(total_q, heads_q) float64: the share of the first half, and the LSE, for given parameters."""
    scores = [raw * scale for raw in (probe.high, probe.low)]
    if softcap:
        scores = [softcap * torch.tanh(score / softcap) for score in scores]
    terms = [
        count.double().log()[:, None] + score[None, :]
        for count, score in zip((probe.ones, probe.zeros), scores, strict=True)
    ]
    logits = terms if sinks is None else [*terms, sinks.double().expand_as(terms[0])]
    lse = torch.logsumexp(torch.stack(logits), 0)
    return torch.exp(terms[0] - lse), lse


def judge_probe(subject: Subject, probe: Probe, result: Result) -> Finding | None:
    """A finding where the share or the LSE of a row is not that of the call's parameters."""
    call = probe.inputs.call
    share, lse = _expected(probe, call.scale, call.softcap, call.sinks)
    several = (probe.ones > 0) & (probe.zeros > 0)
    far = _far(subject, probe, result, share, lse)
    wrong = far & several[:, None]
    if not bool(wrong.any()):
        return None
    wrong_out = wrong & _out_far(subject, probe, result, share)
    out_is_right = not bool(wrong_out.any())
    row, head = (int(x) for x in (wrong if out_is_right else wrong_out).nonzero()[0])
    sequence, query = subject.locate(row)
    actual = float(result.out[row, head, 0])
    values: dict[str, Value] = {
        "sequence": sequence,
        "query": query,
        "head": head,
        "actual": actual,
        "expected": float(share[row, head]),
        "share": float(wrong.sum() / several.sum() / wrong.shape[1]),
    }
    detail = (
        f"two groups of keys with scores {float(probe.high[head]) * call.scale:.4g} and "
        f"{float(probe.low[head]) * call.scale:.4g}: sequence {sequence}, query {query}, head {head} must give "
    )
    if result.lse is None:
        detail += f"{values['expected']:.6g}, gives {actual:.6g}"
    else:
        values |= {"lse": float(result.lse[head, row]), "lse_expected": float(lse[row, head])}
        of_lse = f"{values['lse']:.7g}, expected {values['lse_expected']:.7g}"
        if not out_is_right:
            detail += f"{values['expected']:.6g}, gives {actual:.6g} (LSE {of_lse})"
        else:
            detail += f"{values['expected']:.6g}; the output is right, but the LSE is {of_lse}"
            values |= {"actual": values["lse"], "expected": values["lse_expected"]}
            values |= {"wrong": WRONG_LSE, "likely": LIKELY_LSE}
            if not bool(result.lse.T[wrong].isfinite().any()):
                values["looks_like"] = "an exponential beyond float32"
    for cause, alternative in chain(_suspects(call, subject.workload), _recovered(probe, row, head, result)):
        other_share, other_lse = _expected(probe, *alternative)
        if not bool((_far(subject, probe, result, other_share, other_lse) & several[:, None]).any()):
            values["explained_by"] = cause
            values = {name: value for name, value in values.items() if name not in {"wrong", "likely", "looks_like"}}
            return failing("parameters", f"{detail}; explained by: {cause}", values)
    recovered = _recovered_scale(probe, row, head, actual)
    if recovered is not None and _explains(recovered, subject, probe, result):
        values["scale"] = recovered
        detail += f"; that is a scale of {recovered:.4g} instead of {call.scale:.4g}"
    elif not out_is_right:
        expected = share.unsqueeze(-1).expand_as(result.out)[wrong_out]
        narrow = narrower_format(result.out[wrong_out], expected)
        if narrow:
            values |= {"wrong": FEWER_BITS, "looks_like": f"an output that is rounded to {narrow}"}
            detail += f"; every wrong row looks like an output that is rounded to {narrow}"
        elif result.lse is not None and not bool(_lse_far(subject, probe, result.lse, lse)[several].any()):
            values |= {"wrong": WRONG_OUT, "likely": LIKELY_OUT}
        elif not bool((_far(subject, probe, result, share, lse, LOOSER) & several[:, None]).any()):
            values |= {"wrong": LOST_BITS, "likely": LIKELY_LOST}
            detail += f"; perhaps {LIKELY_LOST}"
    return failing("parameters", detail, values)


def _far(
    subject: Subject, probe: Probe, result: Result, share: Tensor, lse: Tensor, kind: AccuracyClass | None = None
) -> Tensor:
    """(total_q, heads_q) bool: whether a result differs from an expectation by more than rounding explains.

    Args:
        kind: the accuracy class, instead of the one that the card declares.
    """
    far = _out_far(subject, probe, result, share, kind)
    return far if result.lse is None else far | _lse_far(subject, probe, result.lse, lse, kind)


def _lse_far(subject: Subject, probe: Probe, actual: Tensor, lse: Tensor, kind: AccuracyClass | None = None) -> Tensor:
    """The same for the LSE alone; the card's claim covers what the declared class does to it."""
    limit = subject.card.claims.lse.rel * lse.abs().clamp(min=1) + 8 * FP32_ROUNDOFF * _largest(probe)
    limit = limit + (kind.scores * _largest(probe) if kind else 0.0)
    return (actual.T.double() - lse).abs().nan_to_num(nan=torch.inf) > limit


def _out_far(
    subject: Subject, probe: Probe, result: Result, share: Tensor, kind: AccuracyClass | None = None
) -> Tensor:
    """The same for the output alone."""
    declared = kind or declared_class(subject.card, subject.workload.dtype)
    largest = _largest(probe)
    keys = (probe.ones + probe.zeros).double()[:, None]
    sums = keys / (ADDED_SINGLY if declared.name == "fp32" else ACCUMULATED)
    rounded = 1.25 * declared.roundoff + (1 + declared.rounded_parts) * FORMATS[subject.workload.out_format].roundoff
    rounded += 2 * declared.scores * largest  # both scores are rounded, perhaps in opposite directions
    allowed = (rounded + FP32_ROUNDOFF * (8 * largest + sums)) * share + declared.underflow
    allowed = allowed + torch.finfo(result.out.dtype).smallest_normal
    error = (result.out.double() - share.unsqueeze(-1)).abs().amax(-1).nan_to_num(nan=torch.inf)
    return error > allowed


def _largest(probe: Probe) -> float:
    """The size of the largest score, at least 1."""
    return max(1.0, float(probe.high.abs().max()) * abs(probe.inputs.call.scale))


def _suspects(call: AttentionCall, workload: Workload) -> Iterator[tuple[str, tuple[float, float, Tensor | None]]]:
    """(name of the mistake, (scale, softcap, sinks)): wrong parameters that kernels are known to use."""
    default = workload.head_dim**-0.5
    padded = (1 << (workload.head_dim - 1).bit_length()) ** -0.5
    for cause, scale in (
        ("the scale of the call is ignored, 1/sqrt(head_dim) is used", default),
        ("the scale is that of a head_dim padded to a power of two", padded),
        ("no scale at all", 1.0),
    ):
        if scale != call.scale:
            yield cause, (scale, call.softcap, call.sinks)
    if call.softcap:
        yield "the softcap is ignored", (call.scale, 0.0, call.sinks)
        yield "the softcap is applied before the scale", (call.scale, call.softcap * call.scale, call.sinks)
    if call.sinks is not None:
        yield "the sinks are ignored", (call.scale, call.softcap, None)
        yield (
            "the sink of head 0 is used for every head",
            (call.scale, call.softcap, call.sinks[:1].expand_as(call.sinks)),
        )
        yield "each head has the sink of the head before", (call.scale, call.softcap, call.sinks.roll(1))
        yield "each head has the sink of the next head", (call.scale, call.softcap, call.sinks.roll(-1))
        for splits in (2, 3, 4):
            doubled = call.sinks + float(torch.tensor(float(splits)).log())
            yield f"the sinks are counted {splits} times", (call.scale, call.softcap, doubled)


def _recovered(
    probe: Probe, row: int, head: int, result: Result
) -> Iterator[tuple[str, tuple[float, float, Tensor | None]]]:
    """The same for a scale or a softcap where there is a softcap, and for a number that is added to all sinks.

    They are read from the result of one row, from its LSE where there is one: an output has fewer digits.
    """
    call = probe.inputs.call
    one = replace(probe, ones=probe.ones[[row]], zeros=probe.zeros[[row]])
    actual = float(result.out[row, head, 0] if result.lse is None else result.lse[head, row])

    def given(scale: float, softcap: float) -> float:
        share, lse = _expected(one, scale, softcap, call.sinks)
        return float((share if result.lse is None else lse)[0, head])

    if call.softcap:
        for scale in _solutions(lambda value: given(value, call.softcap), actual, call.scale):
            yield f"a scale of {scale:.4g} instead of {call.scale:.4g}", (scale, call.softcap, call.sinks)
        for softcap in _solutions(lambda value: given(call.scale, value), actual, call.softcap):
            yield f"a softcap of {softcap:.4g} instead of {call.softcap:.4g}", (call.scale, softcap, call.sinks)
    if call.sinks is not None:
        share, lse = (float(it[0, head]) for it in _expected(one, call.scale, call.softcap, None))
        # What the keys and the sink weigh together, beside keys that weigh 1.
        total = math.exp(min(actual - lse, FACTOR)) if result.lse is not None else share / actual if actual > 0 else 0.0
        if total > 1:
            off = lse + math.log(total - 1) - float(call.sinks[head])
            for added in _rounded(off):
                size = "large" if added > 0 else "small"
                yield f"all sinks are {abs(added):.4g} too {size}", (call.scale, call.softcap, call.sinks + added)


def _solutions(given: Callable[[float], float], actual: float, value: float) -> Iterator[float]:
    """Numbers near the one for which a growing function gives the actual result; nothing where none does."""
    low, high = value / FACTOR, value * FACTOR
    if value <= 0 or not given(low) <= actual <= given(high):  # NaN too
        return
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if given(middle) < actual else (low, middle)
    yield from _rounded(high)


def _rounded(number: float) -> Iterator[float]:
    """A number that was read from a rounded result, to fewer digits first: those are likely to be in the code."""
    yield from dict.fromkeys(float(f"{number:.{digits}g}") for digits in (2, 3, 6))


def _recovered_scale(probe: Probe, row: int, head: int, share: float) -> float | None:
    """The scale that explains a share; None with a softcap or sinks, where it cannot be computed."""
    call = probe.inputs.call
    if call.softcap or call.sinks is not None or not 0 < share < 1:
        return None
    odds = share / (1 - share) * float(probe.zeros[row]) / float(probe.ones[row])
    return float(torch.tensor(odds, dtype=torch.float64).log() / (probe.high[head] - probe.low[head]))


def _explains(scale: float, subject: Subject, probe: Probe, result: Result) -> bool:
    """Whether a scale that was read from one output explains all outputs, and the LSE where there is one.

    Args:
        scale: the scale. The output was rounded, so a true one still misses a small part of the LSE's error.
        subject: the kernel and its workload.
        probe: the call.
        result: what the kernel returned.
    """
    several = ((probe.ones > 0) & (probe.zeros > 0))[:, None]
    share, lse = _expected(probe, scale, 0.0, None)
    if bool((_out_far(subject, probe, result, share) & several).any()):
        return False
    if result.lse is None:
        return True
    off, at_call = (
        ((result.lse.T.double() - each) * several).abs().amax().nan_to_num(nan=torch.inf)
        for each in (lse, _expected(probe, probe.inputs.call.scale, 0.0, None)[1])
    )
    return bool(off < at_call * UNEXPLAINED)
