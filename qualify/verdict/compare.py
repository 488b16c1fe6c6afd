"""Two runs compared: what changed, and whether that is a regression, suspicious, nothing, or not to be decided.

What each change of a case is called, ``changes`` says, and ``dispatch`` of the kernels that ran. Times are compared of
one call on one card. A level decides in how many blocks, and for how long, a case is timed: times of two levels are not
compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from qualify.facts.baseline import Baseline
from qualify.facts.code import own_change
from qualify.facts.comparison import BUCKETS, Bucket, Change, Comparison, Since, StackChange, Topic
from qualify.facts.differing import stack_changes
from qualify.facts.environment import in_environment
from qualify.facts.outcome import NotRun, card_of, evidence_of
from qualify.facts.run import Judgement, Record, Run
from qualify.verdict.changes import Look, bits_change_of, number_change, time_change, verdict_changes
from qualify.verdict.dispatch import kernel_change

NAMED = 3
"""kernels that a caveat names"""
CARDS_DIFFER = "equal cards differ"
LEVELS_DIFFER = "the level decides how long a case is timed (run both at one level)"


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
    verdicts = _ordered(verdict_changes(old, new))
    kernels = _ordered(_each(both, kernel_change))
    numbers = _ordered(_each(both, number_change)) if _same_checks(before, after) else ()
    times = compare_times(before.run, after.run, both)
    bits = _ordered(_each(both, bits_change_of(before.run, after.run)))
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
    return _ordered(_each(alike, time_change))


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
