"""Bisection over stored runs: which stacks between two were tested, and what is left to blame."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

from qualify.cards.load import LoadedKernel
from qualify.errors import NothingSelected, NoVerdict
from qualify.facts.comparison import Comparison
from qualify.facts.outcome import NotRun
from qualify.facts.typed import PLAIN, Typed
from qualify.judge.against import side_of
from qualify.judge.judged import judge
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
from qualify.verdict.compare import compare

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
    for run in store.runs(before.matrix, limit=LOOKED_AT):
        if run.id in ends or run.stack is None or run.check_version != before.check_version:
            continue
        upgraded = upgraded_parts(parts, before.stack, run.stack)
        if upgraded is None:
            continue
        earlier = earlier or side_of(judge(store, before.id, kernels, now=now, waivers=waivers))
        judged = judge(store, run.id, kernels, now=now, waivers=waivers)
        if judged.future:
            continue
        known = (it.case.id for it in judged.records if not isinstance(it.outcome, NotRun))
        result = result_of(symptom, compare(earlier, side_of(judged)), known)
        if result:
            found.append(StoredTest(run=run, upgraded=upgraded, result=result))
    return tuple(reversed(found))
