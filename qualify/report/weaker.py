"""Where the requirements of a run are weaker than those of the accepted baseline: each with both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qualify.facts.typed import level_words
from qualify.facts.weaker import Less, Weaker
from qualify.judge.judged import Judged
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.figures import counted
from qualify.report.next_step import NextStep
from qualify.text import clipped, one_line

EXAMPLES = 3
"""most cases that the JSON names for each point"""
LONGEST = 160
"""most characters of one side of a change"""


def headline(weaker: Weaker) -> str:
    """How many requirements are weaker, than those of which run, and whether the policy allows it."""
    who = weaker.accepted_by if weaker.proven else f"{weaker.accepted_by} (unproven)"
    accepted = f"run {weaker.run}, accepted by {who} on {weaker.accepted_at:%Y-%m-%d}"
    allowed = "the policy forbids that" if weaker.forbidden else "the policy allows that"
    count = counted(len(weaker.changes), "requirement is", "requirements are")
    return one_line(f"{count} weaker than in baseline {accepted}; {allowed}")


def sentence(less: Less) -> str:
    """One requirement, as it was in the baseline and as it is in the run, on one line."""
    return one_line(f"{less.what}: then {clipped(less.then, LONGEST)}, now {clipped(less.now, LONGEST)}{_about(less)}")


def _about(less: Less) -> str:
    if not less.cases:
        return ""
    first = f"first {less.cases[0]}"
    return f" ({first})" if less.kind == "cases" else f" ({_counted(less)}, {first})"


def _counted(less: Less) -> str:
    return counted(less.count, "shape" if less.kind == "expectation" else "case") if less.cases else ""


def weaker_lines(weaker: Weaker) -> list[str]:
    """One line for each point."""
    return [f"{'WEAKER':13}{sentence(less)}" for less in weaker.changes]


def weaker_data(weaker: Weaker | None) -> dict[str, Any] | None:
    """The comparison as JSON; None where no requirement became weaker."""
    if weaker is None:
        return None
    return {
        "run": weaker.run,
        "accepted_by": weaker.accepted_by,
        "accepted_proven": weaker.proven,
        "accepted_at": weaker.accepted_at.isoformat(),
        "forbidden": weaker.forbidden,
        "changes": changes_data(weaker.changes),
    }


def changes_data(changes: Sequence[Less]) -> list[dict[str, Any]]:
    """Each point as JSON, with the number of its cases or shapes and the first of them."""
    return [
        {
            "kind": less.kind,
            "what": less.what,
            "then": less.then,
            "now": less.now,
            "count": less.count,
            "first": list(less.cases[:EXAMPLES]),
        }
        for less in changes
    ]


COLUMNS: tuple[Column[Less], ...] = (
    Column(key="what", title="What", cell=lambda less: less.what, code=True),
    Column(key="then", title="Required before", sentence=True, cell=lambda less: less.then),
    Column(key="now", title="Required now", sentence=True, cell=lambda less: less.now),
    Column(key="count", title="Applies to", cell=lambda less: _counted(less) or "all"),
    Column(key="first", title="First", cell=lambda less: next(iter(less.cases), "–"), code=True),
)


def weaker_table(changes: Sequence[Less]) -> AnyTable:
    """The points as a table; no rows where no requirement became weaker."""
    return Table(caption="Weaker requirements", columns=COLUMNS, rows=tuple(changes))


def weaker_steps(judged: Judged, weaker: Weaker) -> list[NextStep]:
    """How to restore the requirements, or how to accept weaker ones. Every command can be pasted."""
    run, typed = judged.run, judged.typed
    todo = []
    level = next((less.then for less in weaker.changes if less.kind == "level"), "")
    if level:
        words = ["--level", level, "--device", run.device]
        todo.append(NextStep(f"make evidence of level {level}", typed.command("run", run.matrix_path, *words)))
    if any(less.kind != "level" for less in weaker.changes):
        todo.append(NextStep(f"restore the requirements of run {weaker.run} that became weaker, each is named below"))
    accepted = run.id
    if not weaker.acceptable:
        make = typed.command("run", run.matrix_path, *level_words(run.level), "--device", run.device)
        todo.append(NextStep("or, if weaker requirements are intended, run the matrix as it is", make))
        accepted = "latest"
    reason = f"weaker requirements than {weaker.run} in {counted(len(weaker.changes), 'point')}"
    accept = typed.accept(accepted, reason, weaker.name)
    first = "or, if weaker requirements are intended," if weaker.acceptable else "then"
    todo.append(NextStep(f"{first} accept it as the baseline", accept))
    return todo
