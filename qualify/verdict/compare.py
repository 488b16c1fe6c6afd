"""Two runs compared: what changed, and whether that is a regression, suspicious, nothing, or not to be decided.

How each change is called:

* A verdict that became FAIL is a regression; evidence that is gone is insufficient data.
* Another attention kernel, or the same one in another grid, is suspicious; one of an older generation is a regression.
  The same one with other registers or shared memory is a note: another compiler, or another build, made it.
* Another measured accuracy class is a regression where it is looser. Error statistics that came nearer to their limit
  by a quarter of it are suspicious.
* Two runs one after the other cannot prove that a kernel became slower: the card drifts between them. A longer time is
  suspicious at most. It is so only for one call on one card, beyond the minimum effect, against the ceilings measured
  in the same session, and where the middle halves of the samples do not overlap. A level decides in how many blocks,
  and for how long, a case is timed: times of two levels are not compared.
* Other bits for equal inputs count as harmless where the stack, the code or the kernel changed: the numbers say
  how far they lie apart. On the same stack they are suspicious, unless the kernel's card claims no determinism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import quantiles

from qualify.facts.accuracy import CALLED, E_LIMIT, G_LIMIT, ORDER, R_LIMIT
from qualify.facts.baseline import Baseline
from qualify.facts.code import own_change
from qualify.facts.comparison import BUCKETS, Bucket, Change, Comparison, Since, StackChange, Topic
from qualify.facts.differing import stack_changes
from qualify.facts.environment import in_environment
from qualify.facts.outcome import Evidence, NotRun, Statistics, Timing, card_of, evidence_of, is_time, on_shared_card
from qualify.facts.run import Judgement, Record, Run
from qualify.verdict.dispatch import kernel_change, weight_us

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
NAMED = 3
"""kernels that a caveat names"""
LARGE = 5.0
"""with fewer than ``SAMPLES`` samples the times must differ by this factor, and the ranges of the samples must not
overlap"""
ABSENT = "absent"
CARDS_DIFFER = "equal cards differ"
LEVELS_DIFFER = "the level decides how long a case is timed (run both at one level)"
Look = Callable[[Record, Evidence, Evidence], Change | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two runs, judged."""

    run: Run
    records: Sequence[Record]
    judgements: Sequence[Judgement]


def compare(before: Side, after: Side) -> Comparison:
    """Everything that differs between two runs, case by case where both have the case."""
    old, new = _by_id(before), _by_id(after)
    both = [(old[name][0], new[name][0]) for name in new if name in old]
    verdicts = _ordered(_verdicts(old, new))
    kernels = _ordered(_each(both, kernel_change))
    numbers = _ordered(_each(both, _numbers)) if _same_checks(before, after) else ()
    times = compare_times(before.run, after.run, both)
    bits = _ordered(_each(both, _bits_of(before.run, after.run)))
    worst: dict[str, Bucket] = dict.fromkeys([*old, *new], "none")
    for change in (*verdicts, *kernels, *numbers, *times, *bits):
        worst[change.id] = min(worst[change.id], change.bucket, key=BUCKETS.index)
    return Comparison(
        before=before.run,
        after=after.run,
        stack=tuple(_stack_changes(before.run, after.run)),
        verdicts=verdicts,
        kernels=kernels,
        numbers=numbers,
        times=times,
        bits=bits,
        cases={bucket: list(worst.values()).count(bucket) for bucket in BUCKETS},
        caveats=tuple(_caveats(before, after, both)),
        uncompared=dict(_uncompared(before, after, both)),
    )


def compare_times(before: Run, after: Run, both: Iterable[tuple[Record, Record]]) -> tuple[Change, ...]:
    """Times that differ between two runs, from the cases that both have and timed alike on one card."""
    alike = (pair for pair in both if _on_one_card(before, after, *pair) and _in_as_many_blocks(*pair))
    return _ordered(_each(alike, _time))


def is_compared(topic: Topic, before: Run, after: Run, old: Record, new: Record) -> bool:
    """Whether a change of the topic would show in a case that two runs have."""
    one, other = evidence_of(old.outcome), evidence_of(new.outcome)
    if topic == "verdicts":
        return not isinstance(new.outcome, NotRun)
    if topic == "numbers":
        return bool(one and one.statistics and other and other.statistics)
    if topic == "times":
        both_timed = _is_timed(old) and _is_timed(new)
        return both_timed and _on_one_card(before, after, old, new) and _in_as_many_blocks(old, new)
    return one is not None and other is not None


def _uncompared(
    before: Side, after: Side, both: Sequence[tuple[Record, Record]]
) -> Iterator[tuple[Topic, tuple[int, int]]]:
    """The topics that were not compared in every case of which both runs have a value."""
    counted = [pair for pair in both if is_compared("numbers", before.run, after.run, *pair)]
    if counted and not _same_checks(before, after):
        yield "numbers", (0, len(counted))
    timed = [pair for pair in both if all(_is_timed(record) for record in pair)]
    alike = sum(is_compared("times", before.run, after.run, *pair) for pair in timed)
    if alike < len(timed):
        yield "times", (alike, len(timed))


@dataclass(frozen=True, kw_only=True, slots=True)
class Untimed:
    """Why not all times of two runs are compared."""

    what: str
    """how the runs, or some of their cases, differ"""
    because: str
    """why times that differ so say nothing of each other"""


def why_untimed(before: Run, after: Run, both: Iterable[tuple[Record, Record]]) -> Untimed | None:
    """Why not all times are compared; None where both runs timed every case alike, on one card."""
    if not before.stack or not after.stack:
        return Untimed(what="the stack of one run is unknown", because=CARDS_DIFFER)
    timed = [pair for pair in both if all(_is_timed(record) for record in pair)]
    here = [pair for pair in timed if _on_one_card(before, after, *pair)]
    found = []
    if len(here) < len(timed) and here:
        found.append((f"{len(timed) - len(here)} of {len(timed)} cases ran on another card", CARDS_DIFFER))
    elif not here and (timed or _uuid(before) != _uuid(after)):
        found.append(("the runs used two cards", CARDS_DIFFER))
    if other := sum(not _in_as_many_blocks(*pair) for pair in here):
        found.append((f"{other} of {len(timed)} cases were timed in another number of blocks", LEVELS_DIFFER))
    differences, reasons = zip(*found, strict=True) if found else ((), ())
    return Untimed(what=" and ".join(differences), because=" and ".join(reasons)) if found else None


def _is_timed(record: Record) -> bool:
    evidence = evidence_of(record.outcome)
    return evidence is not None and evidence.timing is not None


def _on_one_card(before: Run, after: Run, old: Record, new: Record) -> bool:
    """Whether a case ran on one card in both runs: where several cards share a run, its outcome names the card."""
    return (card_of(old.outcome) or _uuid(before)) == (card_of(new.outcome) or _uuid(after)) != ""


def _in_as_many_blocks(old: Record, new: Record) -> bool:
    """Whether a case was timed in as many blocks in both runs; False also at two levels.

    The level of a run does not tell it: a run at smoke takes over what an earlier one measured at full.
    """
    one, other = evidence_of(old.outcome), evidence_of(new.outcome)
    timings = [it.timing for it in (one, other) if it is not None and it.timing is not None]
    return len({len(timing.samples_us) for timing in timings}) <= 1


def _uuid(run: Run) -> str:
    return run.stack.device.uuid if run.stack else ""


def changed_since(before: Run, after: Run, kernels: Iterable[str], baseline: Baseline | None) -> Since:
    """What changed under the kernels between two runs, without their cases.

    Args:
        baseline: the acceptance of the earlier run; None where nobody accepted it.
    """
    changes = tuple(_stack_changes(before, after))
    return Since(before=before, baseline=baseline, stack=changes, code=changed_kernels(before, after, kernels))


def _stack_changes(before: Run, after: Run) -> Iterator[StackChange]:
    """What changed under the kernels: of this interpreter, then of each environment that both have, as PART@NAME."""
    for name in ("", *after.environments):
        for change in stack_changes(before.stack_of(name), after.stack_of(name)):
            yield replace(change, component=in_environment(change.component, name))


def _by_id(side: Side) -> dict[str, tuple[Record, Judgement]]:
    return {
        record.case.id: (record, judgement) for record, judgement in zip(side.records, side.judgements, strict=True)
    }


def _ordered(changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(sorted(changes, key=lambda change: (BUCKETS.index(change.bucket), -change.impact_us)))


def _each(both: Iterable[tuple[Record, Record]], look: Look) -> Iterator[Change]:
    """The changes that ``look`` finds in the cases that ran to their end on both sides."""
    for old, new in both:
        one, other = evidence_of(old.outcome), evidence_of(new.outcome)
        if one is not None and other is not None and (change := look(new, one, other)) is not None:
            yield change


def _same_checks(before: Side, after: Side) -> bool:
    return before.run.check_version == after.run.check_version


def changed_kernels(before: Run, after: Run, kernels: Iterable[str]) -> dict[str, str]:
    """By kernel, its own files that differ between two runs; empty where one run did not note its code.

    Installed distributions do not count: the stack shows them.
    """
    one, other = before.code or {}, after.code or {}
    found = {kernel: own_change(one.get(kernel), other.get(kernel)) for kernel in kernels}
    return {kernel: files for kernel, files in found.items() if files}


def code_caveats(before: Run, after: Run, kernels: Iterable[str]) -> Iterator[str]:
    """The kernels whose own files changed: no component of the stack is to blame for that."""
    alike: dict[str, list[str]] = {}
    for kernel, files in changed_kernels(before, after, kernels).items():
        alike.setdefault(files, []).append(kernel)
    for files, names in alike.items():
        more = f" and {len(names) - NAMED} more" if names[NAMED:] else ""
        told = f"the code of {', '.join(names[:NAMED])}{more} changed between the runs"
        yield f"{told}, which no component of the stack shows: {files}"


def _caveats(before: Side, after: Side, both: Sequence[tuple[Record, Record]]) -> Iterator[str]:
    one, other = before.run, after.run
    if one.matrix != other.matrix:
        yield f"the runs are of two matrices, {one.matrix} and {other.matrix}: only cases with equal ids are compared"
    elif one.matrix_hash != other.matrix_hash:
        yield "the matrix changed between the runs: a case of one id may be judged by another policy"
    if one.level != other.level:
        yield f"the levels differ ({one.level}, {other.level}): fewer checks were asked of one side"
    for run in (one, other):
        if run.narrowed:
            yield f"run {run.id} was narrowed by --select or --kernel: cases of the rest of the matrix are absent"
    if not _same_checks(before, after):
        yield (
            f"the checks differ (version {one.check_version}, {other.check_version}): numbers are not compared, and a "
            "verdict may have changed with its check"
        )
    if not one.stack or not other.stack:
        yield "the stack of one run is unknown: stacks and times are not compared"
    elif why := why_untimed(one, other, both):
        yield f"{why.what}: their times are not compared, because {why.because}"
    if any(run.state != "completed" for run in (one, other)):
        yield "one of the runs did not complete"
    yield from code_caveats(one, other, dict.fromkeys(record.case.kernel for _, record in both))


def _verdicts(
    old: Mapping[str, tuple[Record, Judgement]], new: Mapping[str, tuple[Record, Judgement]]
) -> Iterator[Change]:
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


def _numbers(record: Record, before: Evidence, after: Evidence) -> Change | None:
    """The pair of statistics of equal inputs that changed most."""
    old = {(item.inputs, item.seed): item for item in before.statistics}
    found = [(old[item.inputs, item.seed], item) for item in after.statistics if (item.inputs, item.seed) in old]
    if not found:
        if not (before.statistics and after.statistics):
            return None
        detail = "the inputs have nothing in common"
        return _number_change(record, "insufficient data", before.statistics[0], after.statistics[0], detail)
    ranked = [(*_number_bucket(one, other), one, other) for one, other in found]
    bucket, _, detail, one, other = min(ranked, key=lambda item: (BUCKETS.index(item[0]), -item[1]))
    return _number_change(record, bucket, one, other, detail) if detail else None


def _number_change(record: Record, bucket: Bucket, one: Statistics, other: Statistics, detail: str) -> Change:
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


def _bits_of(before: Run, after: Run) -> Look:
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


def _time(record: Record, before: Evidence, after: Evidence) -> Change | None:
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
    return "suspicious", "slower, measured one after the other: confirm it with interleaved runs"


def _middle(samples_us: Sequence[float]) -> tuple[float, float]:
    """First and third quartile."""
    low, _, high = quantiles(samples_us, n=4)
    return low, high
