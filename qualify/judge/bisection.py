"""Bisection over stored runs: which stacks between two were tested, and what is left to blame."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

from qualify.cards.load import LoadedKernel
from qualify.errors import NothingSelected, NoVerdict
from qualify.facts.comparison import Comparison
from qualify.facts.run import Run
from qualify.facts.typed import PLAIN, Typed
from qualify.judge.against import side_of
from qualify.judge.judged import Judged, judge
from qualify.judge.stored import unread
from qualify.store.store import Store
from qualify.verdict.bisect import (
    Bisection,
    Part,
    StoredTest,
    Symptom,
    bisect,
    parts_of,
    result_of,
    symptom_of,
    upgraded_parts,
)
from qualify.verdict.compare import Side, changed_kernels, compare, is_compared
from qualify.verdict.origin import weaker

LOOKED_AT = 200
"""how many of the matrix's newest runs are searched for tested stacks"""


def plan_bisection(
    store: Store,
    comparison: Comparison,
    kernels: Mapping[str, LoadedKernel],
    *,
    select: str,
    now: datetime,
    waivers: Path | None,
    typed: Typed = PLAIN,
) -> Bisection:
    """The plan, and the results of stored runs on stacks between the two.

    Raises:
        NoVerdict: a stack is unknown.
        NothingSelected: neither run has a case that ``select`` matches.
    """
    if comparison.before.stack is None or comparison.after.stack is None:
        raise NoVerdict(
            "the stack of one of the runs is unknown: its first worker never began, so nothing can be blamed"
        )
    known = store.done(comparison.before.id) | store.done(comparison.after.id)
    if not any(fnmatchcase(name, select) for name in known):
        plan = typed.command("plan", comparison.after.matrix_path)
        raise NothingSelected(f"--select {select!r} matches no case of the two runs. See them: {plan}")
    changed = {change.id for _, changes in comparison.topics() for change in changes}
    symptom = symptom_of(comparison, (name for name in changed if fnmatchcase(name, select)))
    parts = parts_of(comparison.stack)
    tested = _tested(store, comparison, symptom, parts, kernels, now, waivers) if symptom else ()
    return bisect(comparison, symptom, parts, tested)


def _tested(
    store: Store,
    comparison: Comparison,
    symptom: Symptom,
    parts: tuple[Part, ...],
    kernels: Mapping[str, LoadedKernel],
    now: datetime,
    waivers: Path | None,
) -> tuple[StoredTest, ...]:
    """Stored runs of the matrix on stacks between the two, oldest first."""
    before, ends = comparison.before, {comparison.before.id, comparison.after.id}
    assert before.stack is not None, "plan_bisection refuses unknown stacks"
    found = []
    earlier = None
    calls: dict[str, set[str]] = defaultdict(set)
    for end in ends:
        for name, call in store.calls(end).items():
            calls[name].add(call)
    for run in store.runs(before.matrix, limit=LOOKED_AT):
        if run.id in ends or run.stack is None or run.check_version != before.check_version:
            continue
        upgraded = upgraded_parts(parts, before.stack, run.stack)
        if upgraded is None or unread(run):
            continue
        earlier = earlier or side_of(judge(store, before.id, kernels, now=now, waivers=waivers))
        judged = judge(store, run.id, kernels, now=now, waivers=waivers)
        if judged.future or judged.contradiction:
            continue
        known = (
            name
            for name, call in _compared(symptom, earlier, judged)
            if call in calls[name] and _has_code_of(run, name, comparison)
        )
        result = result_of(symptom, compare(earlier, side_of(judged)), known)
        lower = weaker(run.level, comparison.after.level)
        if result and not (lower and result != "bad"):  # what passed fewer checks may be bad all the same
            found.append(StoredTest(run=run, upgraded=upgraded, result=result))
    return tuple(reversed(found))


def _has_code_of(run: Run, case: str, comparison: Comparison) -> bool:
    """Whether a run had the kernel's own files of one of the two runs."""
    kernel = case.rpartition("/")[2]
    return not all(changed_kernels(run, end, [kernel]) for end in (comparison.before, comparison.after))


def _compared(symptom: Symptom, earlier: Side, judged: Judged) -> Iterator[tuple[str, str]]:
    """Ids of the cases in which a run can show the symptom, each with the content hash of its call there."""
    before = {record.case.id: record for record in earlier.records}
    for record in judged.records:
        old = before.get(record.case.id)
        if old and is_compared(symptom.topic, earlier.run, judged.run, old, record):
            yield record.case.id, record.case.content_hash
