"""parameters: reads the scale, the softcap and each head's sink back from the result.

The calls are those of ``two_scores``. With x = 0 the share gives the scale. With x near the softcap it gives the
softcap. From a wrong result the check computes the parameter that explains it. With x fifty times the softcap below
zero, every visible key scores -softcap: so does a hidden one where the softcap comes after the mask.

At level full there are more calls. The scale is 1.0, which a kernel must not take for "not given". x is fifty times the
softcap, where tanh is 1 and its exponentials overflow. The sinks are so far above all scores that nothing else has
weight, and so far below that they have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from qualify.facts.accuracy import class_named
from qualify.facts.case import Workload
from qualify.facts.outcome import Finding, Value
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.difference import narrower_format
from qualify.run.checks.interface import LSE_ALONE, Result, Shipped, Subject, failing, paged_or_ragged, passed
from qualify.run.checks.rows import cap_after_mask
from qualify.run.checks.two_scores import Probe, expected, far, lse_far, make_halves, make_probe, out_far

FAR = 30.0
"""x far from zero, where there is no softcap"""
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
"""x divided by the softcap in the calls where tanh(x / softcap) is -1 and 1"""
UNEXPLAINED = 0.25
"""the part of the LSE's error that a recovered scale may leave over, since it was read from a rounded output"""
NEGLIGIBLE = -1e30
"""value of sinks that have no weight"""
OVERWHELMING = 120.0
"""by how much overwhelming sinks are above x plus the logarithm of the number of keys; exp(120) overflows float32"""


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
        bases = [0.0, workload.softcap or FAR]
        bases += [side * CAPPED * workload.softcap for side in (-1, 1)[: 1 + full]] if workload.softcap else []
        asked = [(base, 0.0) for base in bases]
        asked += [(0.0, above) for above in (NEGLIGIBLE, OVERWHELMING)] * (full and workload.sinks)
        halves = make_halves(workload, subject.device)
        for scale in scales:
            altered = replace(subject, workload=replace(workload, scale=scale))
            for base, above in asked:
                probe = make_probe(altered, base, sinks_above=above, halves=halves)
                wrong = judge_probe(altered, probe, altered.run(probe.inputs.call))
                if wrong:
                    return [wrong]
        names = ["scale"] + ["softcap"] * bool(workload.softcap) + ["sinks"] * workload.sinks
        uses = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        tried = f"{len(scales)} scale{'s' if len(scales) > 1 else ''} tried"
        return [passed(self.name, f"the kernel uses the call's {uses} in every head ({tried})")]


def judge_probe(subject: Subject, probe: Probe, result: Result) -> Finding | None:
    """A finding where the share or the LSE of a row is not that of the call's parameters."""
    call = probe.inputs.call
    share, lse = expected(probe, call.scale, call.softcap, call.sinks)
    several = (probe.ones > 0) & (probe.zeros > 0)
    wrong = far(subject, probe, result, share, lse) & several[:, None]
    if not bool(wrong.any()):
        return None
    wrong_out = wrong & out_far(subject, probe, result, share)
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
    for mistake, alternative in chain(_suspects(call, subject.workload), _recovered(probe, row, head, result)):
        if not bool((far(subject, probe, result, *expected(probe, *alternative)) & several[:, None]).any()):
            return failing("parameters", f"{detail}; explained by: {mistake}", values | {"explained_by": mistake})
    kind, words = _kind(subject, probe, result, wrong, wrong_out)
    return failing("parameters", detail + words, values | kind)


def _kind(
    subject: Subject, probe: Probe, result: Result, wrong: Tensor, wrong_out: Tensor
) -> tuple[dict[str, Value], str]:
    """Values and words that say of which kind a wrong result is that no known mistake explains.

    Args:
        wrong: (total_q, heads_q) bool, where the output or the LSE is.
        wrong_out: the same for the output alone.
    """
    call = probe.inputs.call
    share, lse = expected(probe, call.scale, call.softcap, call.sinks)
    out_is_right = not bool(wrong_out.any())
    row, head = (int(x) for x in (wrong if out_is_right else wrong_out).nonzero()[0])
    values: dict[str, Value] = {**LSE_ALONE} if out_is_right else {}
    if call.softcap and bool((probe.low < 0).all()) and _more_keys(result, wrong, lse):
        mistake = cap_after_mask(call.softcap)
        return values | {"looks_like": mistake}, f"; it looks like {mistake}"
    if out_is_right and result.lse is not None and not bool(result.lse.T[wrong].isfinite().any()):
        values["looks_like"] = "an exponential beyond float32"
    scale = _recovered_scale(probe, row, head, float(result.out[row, head, 0]))
    if scale is not None and _explains(scale, subject, probe, result):
        return values | {"scale": scale}, f"; that is a scale of {scale:.4g} instead of {call.scale:.4g}"
    if out_is_right:
        return values, ""
    narrow = narrower_format(result.out[wrong_out], share.unsqueeze(-1).expand_as(result.out)[wrong_out])
    if narrow:
        rounded = f"an output that is rounded to {narrow}"
        return {"wrong": FEWER_BITS, "looks_like": rounded}, f"; every wrong row looks like {rounded}"
    several = (probe.ones > 0) & (probe.zeros > 0)
    if result.lse is not None and not bool(lse_far(subject, probe, result.lse, lse)[several].any()):
        return {"wrong": WRONG_OUT, "likely": LIKELY_OUT}, ""
    if not bool((far(subject, probe, result, share, lse, LOOSER) & several[:, None]).any()):
        return {"wrong": LOST_BITS, "likely": LIKELY_LOST}, f"; perhaps {LIKELY_LOST}"
    return {}, ""


def _more_keys(result: Result, wrong: Tensor, lse: Tensor) -> bool:
    """Whether each wrong row has a finite result and, where there is one, an LSE of more keys than it sees."""
    finite = bool(result.out[wrong].isfinite().all())
    return finite and (result.lse is None or bool((result.lse.T[wrong] > lse[wrong]).all()))


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
        share, lse = expected(one, scale, softcap, call.sinks)
        return float((share if result.lse is None else lse)[0, head])

    if call.softcap:
        for scale in _solutions(lambda value: given(value, call.softcap), actual, call.scale):
            yield f"a scale of {scale:.4g} instead of {call.scale:.4g}", (scale, call.softcap, call.sinks)
        for softcap in _solutions(lambda value: given(call.scale, value), actual, call.softcap):
            yield f"a softcap of {softcap:.4g} instead of {call.softcap:.4g}", (call.scale, softcap, call.sinks)
    if call.sinks is not None:
        share, lse = (float(it[0, head]) for it in expected(one, call.scale, call.softcap, None))
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
    share, lse = expected(probe, scale, 0.0, None)
    if bool((out_far(subject, probe, result, share) & several).any()):
        return False
    if result.lse is None:
        return True
    off, at_call = (
        ((result.lse.T.double() - each) * several).abs().amax().nan_to_num(nan=torch.inf)
        for each in (lse, expected(probe, probe.inputs.call.scale, 0.0, None)[1])
    )
    return bool(off < at_call * UNEXPLAINED)
