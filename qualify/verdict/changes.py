"""What a change of one case between two runs is called: of its verdict, numbers, bits or time.

* A verdict that became FAIL is a regression; evidence that is gone is insufficient data.
* Another measured accuracy class is a regression where it is looser. Error statistics that came nearer to their limit
  by a quarter of it are suspicious.
* Two runs one after the other cannot prove that a kernel became slower: the card drifts between them. A longer time is
  suspicious at most. It is so only beyond the minimum effect, against the ceilings measured in the same session, and
  where the middle halves of the samples do not overlap.
* Other bits for equal inputs count as harmless where the stack, the code or the kernel changed: the numbers say
  how far they lie apart. On the same stack they are suspicious, unless the kernel's card claims no determinism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import quantiles

from qualify.facts.accuracy import CALLED, E_LIMIT, G_LIMIT, ORDER, R_LIMIT
from qualify.facts.comparison import BUCKETS, Bucket, Change
from qualify.facts.outcome import Evidence, Statistics, Timing, is_time, on_shared_card
from qualify.facts.run import Judgement, Record, Run
from qualify.verdict.dispatch import weight_us

LIMITS: Mapping[str, float] = {"E": E_LIMIT, "R": R_LIMIT, "G": G_LIMIT, "beta": 1.0}
"""limit of each statistic; β is compared as a share of its own limit"""
NEARER = 0.25
"""share of its limit by which a statistic must grow to be suspicious"""
SAME = 1e-3
"""share of its limit within which a statistic is unchanged"""
LEAST_US = 10.0
"""shorter times are not compared, unless they differ by more than this"""
EFFECTS = ((50.0, 0.02), (LEAST_US, 0.03))
"""(kernels of at least so many µs, least share of change that counts)"""
SAMPLES = 4
"""fewer samples have no middle half"""
LARGE = 5.0
"""with fewer than ``SAMPLES`` samples the times must differ by this factor, and the ranges of the samples must not
overlap"""
ABSENT = "absent"
Look = Callable[[Record, Evidence, Evidence], Change | None]


def verdict_changes(
    old: Mapping[str, tuple[Record, Judgement]], new: Mapping[str, tuple[Record, Judgement]]
) -> Iterator[Change]:
    """Verdicts that differ, by the ids of the cases of both runs."""
    for name in dict.fromkeys((*new, *old)):
        before, after = old.get(name), new.get(name)
        one, other = (side[1].verdict if side else ABSENT for side in (before, after))
        if one == other:
            continue
        bucket, word = _verdict_bucket(one, other)
        reason = after[1].reasons[0] if after and after[1].reasons else ""
        yield Change(
            id=name,
            bucket=bucket,
            before=one,
            after=other,
            detail=f"{word}: {reason}" if reason else word,
            impact_us=max(weight_us(side[0]) for side in (before, after) if side),
        )


def _verdict_bucket(before: str, after: str) -> tuple[Bucket, str]:
    match before, after:
        case "absent", "FAIL":
            return "suspicious", "a new case, and it fails"
        case "INCONCLUSIVE", "FAIL":
            return "suspicious", "was not decided before, and fails"
        case _, "FAIL":
            return "regression", "new failure"
        case _, "INCONCLUSIVE":
            return "insufficient data", "not decided any more" if before != "absent" else "a new case, not decided"
        case _, "absent":
            return "insufficient data", "the case is gone"
        case "FAIL", "PASS":
            return "none", "fixed"
        case "PASS", "WAIVED":
            return "suspicious", "new failure, and it is waived"
        case "PASS" | "WAIVED", "NOT_REQUIRED":
            return "suspicious", "is refused now"
        case "absent", _:
            return "none", "a new case"
    return "none", "changed"


def number_change(record: Record, before: Evidence, after: Evidence) -> Change | None:
    """The pair of statistics of equal inputs that changed most."""
    old = {(item.inputs, item.seed): item for item in before.statistics}
    found = [(old[item.inputs, item.seed], item) for item in after.statistics if (item.inputs, item.seed) in old]
    if not found:
        if not (before.statistics and after.statistics):
            return None
        detail = "the inputs have nothing in common"
        return _number_changed(record, "insufficient data", before.statistics[0], after.statistics[0], detail)
    ranked = [(*_number_bucket(one, other), one, other) for one, other in found]
    bucket, _, detail, one, other = min(ranked, key=lambda item: (BUCKETS.index(item[0]), -item[1]))
    return _number_changed(record, bucket, one, other, detail) if detail else None


def _number_changed(record: Record, bucket: Bucket, one: Statistics, other: Statistics, detail: str) -> Change:
    return Change(
        id=record.case.id,
        bucket=bucket,
        before=_shown(one),
        after=_shown(other),
        detail=detail,
        impact_us=weight_us(record),
    )


def _shown(item: Statistics) -> dict[str, str | float | None]:
    return {
        "inputs": item.inputs,
        "measured_class": item.measured_class or None,
        "E": item.E,
        "R": item.R,
        "G": item.G,
        "beta": item.beta,
    }


def _number_bucket(one: Statistics, other: Statistics) -> tuple[Bucket, float, str]:
    """Bucket, size of the change in limits, and a sentence; an empty one where nothing changed."""
    if one.measured_class != other.measured_class:
        names = [item.measured_class or "none" for item in (one, other)]
        loose = [ORDER.index(item.measured_class) if item.measured_class in ORDER else -1 for item in (one, other)]
        detail = f"measured class {names[0]} became {names[1]}, on {other.inputs} inputs"
        if -1 in loose:
            return "suspicious", math.inf, detail
        return ("regression" if loose[1] > loose[0] else "none"), math.inf, detail
    shares = {name: (_share(one, name), _share(other, name)) for name in LIMITS}
    growth = {name: _difference(*pair) for name, pair in shares.items()}
    name = max(growth, key=lambda key: growth[key])
    if growth[name] > SAME:
        values = f"{getattr(one, name):.3g} became {getattr(other, name):.3g}"
        bucket: Bucket = "suspicious" if growth[name] > NEARER else "none"
        return bucket, growth[name], f"error ({CALLED[name]}) {values}, on {other.inputs} inputs"
    if min(growth.values()) < -SAME:
        best = min(growth, key=lambda key: growth[key])
        values = f"{getattr(one, best):.3g} became {getattr(other, best):.3g}"
        return "none", 0.0, f"error ({CALLED[best]}) {values}, on {other.inputs} inputs"
    return "none", 0.0, ""


def _share(item: Statistics, name: str) -> float:
    limit = item.beta_limit if name == "beta" else LIMITS[name]
    return abs(getattr(item, name)) / limit if limit else math.inf


def _difference(before: float, after: float) -> float:
    """By how much the value came nearer to its limit; NaN counts as infinitely far beyond."""
    one, other = (math.inf if math.isnan(value) else value for value in (before, after))
    return 0.0 if one == other else other - one


def bits_change_of(before: Run, after: Run) -> Look:
    """A function that finds cases whose output bits differ although their inputs are equal."""
    same = before.stack is not None and after.stack is not None and before.stack.agrees_with(after.stack)

    def bits(record: Record, one: Evidence, other: Evidence) -> Change | None:
        known = one.output_digest and other.output_digest and one.inputs_digest == other.inputs_digest
        if not known or one.output_digest == other.output_digest:
            return None
        kernel = record.case.kernel
        bucket, detail = _bits_bucket(same and _code_of(before, kernel) == _code_of(after, kernel), after, kernel)
        return Change(
            id=record.case.id,
            bucket=bucket,
            before=one.output_digest,
            after=other.output_digest,
            detail=detail,
            impact_us=0.0,
        )

    return bits


def _bits_bucket(same: bool, run: Run, kernel: str) -> tuple[Bucket, str]:
    if not same:
        return "none", "equal inputs give other bits, on another stack or by other code"
    if (run.terms or {}).get(kernel, {}).get("claims.deterministic") == "false":
        return "none", "equal inputs give other bits, and the kernel's card claims no determinism"
    return (
        "suspicious",
        "equal inputs give other bits on the same stack: a faulty card, or a kernel without determinism",
    )


def _code_of(run: Run, kernel: str) -> object:
    return (run.code or {}).get(kernel)


def time_change(record: Record, before: Evidence, after: Evidence) -> Change | None:
    """A time that changed by more than the minimum effect, of a case that ran on one card."""
    one, other = before.timing, after.timing
    if one is None or other is None or not (is_time(one.latency_us) and is_time(other.latency_us)):
        return None
    ratio = other.latency_us / one.latency_us
    least = next((effect for from_us, effect in EFFECTS if one.latency_us >= from_us), EFFECTS[-1][1])
    if abs(math.log(ratio)) < math.log1p(least):
        return None
    bucket, detail = _time_bucket(one, other, ratio, least)
    if is_wrong(before) and not is_wrong(after):
        bucket, detail = "insufficient data", "its earlier result was wrong, so its earlier time says nothing"
    elif bucket == "suspicious" and any(map(on_shared_card, (before, after))):
        detail = "slower, but another process used the card while one of them was timed: run both when it is free"
    return Change(
        id=record.case.id,
        bucket=bucket,
        before=one.latency_us,
        after=other.latency_us,
        detail=f"{(ratio - 1) * 100:+z.1f} %: {detail}",
        impact_us=abs(other.latency_us - one.latency_us) * record.case.layers,
    )


def is_wrong(evidence: Evidence) -> bool:
    """Whether a check failed: a wrong kernel may be fast because of what it leaves out."""
    return any(finding.verdict == "fail" for finding in evidence.findings)


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _time_bucket(one: Timing, other: Timing, ratio: float, least: float) -> tuple[Bucket, str]:
    if (one.flops, one.compulsory_bytes, one.exps) != (other.flops, other.compulsory_bytes, other.exps):
        now, then = (f"{timing.flops:.3g} FLOPs and {timing.compulsory_bytes:.3g} bytes" for timing in (other, one))
        return "insufficient data", f"it is another call: {now}, and {then} before, so its model changed"
    if min(one.latency_us, other.latency_us) < LEAST_US > abs(one.latency_us - other.latency_us):
        return "insufficient data", f"shorter than {LEAST_US:g} µs, where launches dominate"
    if one.cold != other.cold:
        return "insufficient data", "one was measured with a cold cache, the other with a warm one"
    samples = [[sample for sample in timing.samples_us if math.isfinite(sample)] for timing in (one, other)]
    few = min(map(len, samples)) < SAMPLES
    if few and (not all(samples) or abs(math.log(ratio)) < math.log(LARGE)):
        return "insufficient data", "too few samples"
    (low, high), (other_low, other_high) = ((min(own), max(own)) if few else _middle(own) for own in samples)
    if other_low <= high and low <= other_high:
        return "insufficient data", f"the {'samples' if few else 'middle halves of the samples'} overlap"
    card = other.roofline_us / one.roofline_us if _positive(one.roofline_us) and _positive(other.roofline_us) else 1.0
    own = math.log(ratio / card)
    if abs(own) < math.log1p(least) or (own > 0) != (ratio > 1):
        return "insufficient data", f"the card itself changed by {(card - 1) * 100:+z.1f} % between the runs"
    if ratio < 1:
        return "none", "faster"
    return "suspicious", "slower, measured one after the other: only a duel confirms it"


def _middle(samples_us: Sequence[float]) -> tuple[float, float]:
    """First and third quartile."""
    low, _, high = quantiles(samples_us, n=4)
    return low, high
