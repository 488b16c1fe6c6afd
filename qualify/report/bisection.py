"""A bisection for people and machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qualify.facts.comparison import Comparison
from qualify.facts.typed import PLAIN, Typed, level_words
from qualify.report.differences import run_name, stack_change_text
from qualify.report.figures import counted
from qualify.text import one_line
from qualify.verdict.bisect import Bisection
from qualify.verdict.compare import changed_kernels


def to_data(made: Bisection) -> dict[str, Any]:
    """The JSON of ``qualify bisect``."""
    return {
        "before": made.comparison.before.id,
        "after": made.comparison.after.id,
        "caveats": list(made.comparison.caveats),
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
    lines = [f"{run_name(before)} to {run_name(after)}", *(f"caveat: {one_line(it)}" for it in made.comparison.caveats)]
    if made.symptom is None:
        return "\n".join([*lines, _nothing_worse(made.comparison, typed)])
    count = counted(len(made.symptom.changes), "case")
    lines.append(f"worse: {made.symptom.topic} of {count}, first {one_line(made.symptom.changes[0].id)}")
    changed = _changed_code(made)
    if not made.parts:
        todo = f"look at {changed}" if changed else "run the matrix again"
        return "\n".join([*lines, f"both runs have the same stack, so no component is to blame; {todo}"])
    first = f"look first at {changed}; " if changed else ""
    for part in made.parts:
        lines.append(f"changed: {part.name}")
        lines += [f"  {one_line(stack_change_text(change))}" for change in part.changes]
    for item in made.tested:
        lines.append(f"tested: {_mixture(item.upgraded)}: {item.result} (run {item.run.id})")
    if not made.candidates:
        told = "no single component explains it: two act together, or the symptom comes and goes"
        return "\n".join([*lines, f"{first}{told}"])
    if len(made.candidates) == 1:
        return "\n".join([*lines, f"{first}if a single component is to blame, it is {made.candidates[0]}"])
    candidates = ", ".join(made.candidates)
    lines.append(f"{first}may be to blame: {candidates}. Stacks to test, in any order: {len(made.tests)}")
    here = replace(typed, environments=before.environment_words)
    again = here.command("run", before.matrix_path, *level_words(before.level), "--device", before.device)
    for number, upgraded in enumerate(made.tests, 1):
        lines.append(f"test {number}: {_mixture(upgraded)}, then: {again}")
    lines.append(f"then again: {typed.command('bisect', before.id, after.id, '--plan')}")
    return "\n".join(lines)


def _changed_code(made: Bisection) -> str:
    """The kernels whose own code changed, which no stack shows, as what to look at; empty where none did."""
    kernels = dict.fromkeys(change.id.rpartition("/")[2] for change in made.symptom.changes) if made.symptom else {}
    changed = changed_kernels(made.comparison.before, made.comparison.after, kernels)
    return f"what changed in the code of {', '.join(changed)}" if changed else ""


def _nothing_worse(comparison: Comparison, typed: Typed) -> str:
    """That nothing got worse; where something limits the comparison, that nothing is known to have got worse."""
    changes = (change for _, changes in comparison.topics() for change in changes)
    open_ = {change.id for change in changes if change.bucket == "insufficient data"}
    if not open_ and not comparison.caveats:
        return "nothing got worse between the runs: there is nothing to blame"
    undecided = f", and {counted(len(open_), 'case is', 'cases are')} not decided" if open_ else ""
    look = " and ".join([*(["at the caveats"] if comparison.caveats else []), "at the changes"])
    changed = typed.command("diff", comparison.before.id, comparison.after.id)
    return f"nothing is known to have got worse{undecided}: look {look}: {changed}"


def _mixture(upgraded: tuple[str, ...]) -> str:
    return (
        f"the earlier stack with {', '.join(upgraded)} of the later one" if upgraded else "the earlier stack as it is"
    )
