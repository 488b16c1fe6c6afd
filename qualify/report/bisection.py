"""Bisection over stored runs, and how it is told."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from qualify.cards.load import LoadedKernel
from qualify.errors import NothingSelected, NoVerdict
from qualify.facts.comparison import Comparison
from qualify.facts.outcome import NotRun
from qualify.facts.typed import PLAIN, Typed, level_words
from qualify.report.against import side_of
from qualify.report.differences import run_name, stack_change_text
from qualify.report.judged import judge
from qualify.report.one_line import one_line
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
"""newest runs of the matrix among which tested stacks are looked for"""


def plan_bisection(
    store: Store,
    comparison: Comparison,
    kernels: Mapping[str, LoadedKernel],
    *,
    select: str,
    now: datetime,
    waivers: Path | None,
) -> Bisection:
    """The plan, and what stored runs of stacks between the two say already.

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
        raise NothingSelected(f"--select {select!r} matches no case of the two runs. See them: qualify plan MATRIX")
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


def to_data(made: Bisection) -> dict[str, Any]:
    """The JSON of ``qualify bisect``."""
    return {
        "before": made.comparison.before.id,
        "after": made.comparison.after.id,
        "symptom": {"topic": made.symptom.topic, "cases": [change.id for change in made.symptom.changes]}
        if made.symptom
        else None,
        "components": [
            {
                "name": part.name,
                "changes": [
                    {"component": it.component, "kind": it.kind, "from": it.before, "to": it.after}
                    for it in part.changes
                ],
            }
            for part in made.parts
        ],
        "tested": [
            {"run": item.run.id, "upgraded": list(item.upgraded), "result": item.result} for item in made.tested
        ],
        "candidates": list(made.candidates),
        "blame": made.candidates[0] if len(made.candidates) == 1 else None,
        "tests": [{"upgraded": list(upgraded)} for upgraded in made.tests],
    }


def to_text(made: Bisection, typed: Typed = PLAIN) -> str:
    """What got worse, what may be to blame, what is known, and what to test."""
    before, after = made.comparison.before, made.comparison.after
    lines = [f"{run_name(before)} to {run_name(after)}"]
    if made.symptom is None:
        return "\n".join([*lines, "nothing got worse between the runs: there is nothing to blame"])
    count = len(made.symptom.changes)
    lines.append(f"worse: {made.symptom.topic} of {count} cases, first {one_line(made.symptom.changes[0].id)}")
    if not made.parts:
        return "\n".join([*lines, "the stacks are the same: what got worse is no component; run it again"])
    for part in made.parts:
        lines.append(f"changed: {part.name}")
        lines += [f"  {one_line(stack_change_text(change))}" for change in part.changes]
    for item in made.tested:
        lines.append(f"tested: {_mixture(item.upgraded)}: {item.result} (run {item.run.id})")
    if not made.candidates:
        return "\n".join([*lines, "no single component explains it: two act together, or the symptom comes and goes"])
    if len(made.candidates) == 1:
        return "\n".join([*lines, f"to blame: {made.candidates[0]}, where one component alone is to blame"])
    lines.append(f"may be to blame: {', '.join(made.candidates)}. Stacks to test, in any order: {len(made.tests)}")
    again = typed.command("run", before.matrix_path, *level_words(before.level))
    for number, upgraded in enumerate(made.tests, 1):
        lines.append(f"test {number}: {_mixture(upgraded)}, then: {again}")
    lines.append(f"then again: {typed.command('bisect', before.id, after.id, '--plan')}")
    return "\n".join(lines)


def _mixture(upgraded: tuple[str, ...]) -> str:
    return (
        f"the earlier stack with {', '.join(upgraded)} of the later one" if upgraded else "the earlier stack as it is"
    )
