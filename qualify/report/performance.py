"""The verdict about time, for everything that shows a verdict: the budget, the cell, the change and its interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qualify.facts import codec
from qualify.facts.performance import (
    AcceptedEvidence,
    BudgetUse,
    BudgetVerdict,
    CellChange,
    Performance,
    TimeEvidence,
)
from qualify.facts.run import Run, Verdict
from qualify.facts.typed import Typed, level_words
from qualify.judge.judged import Judged
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.drawings.intervals import Interval, intervals
from qualify.report.drawings.svg import Drawing
from qualify.report.duel_text import VERDICT_WORDS
from qualify.report.figures import counted, interval_words, limit_percent, signed_percent
from qualify.report.next_step import NextStep
from qualify.text import one_line

SHOWN = 12
"""most cells that the text names for a budget"""
BEFORE = "BEFORE"
"""placeholder in a command where the earlier stack is unknown: the name of an environment, or a stack's fingerprint"""
WORDS: Mapping[TimeEvidence, str] = {"duel": "a duel", "history": "the history of runs"}
COUNTS: Mapping[AcceptedEvidence, tuple[str, str]] = {
    "duel": ("a duel counts", "no duel counts"),
    "history": ("the history of runs counts", "no history counts"),
    "either": ("a duel or the history of runs counts", "neither a duel nor history counts"),
}
"""words for required evidence, and words for missing evidence"""
STATES: Mapping[BudgetVerdict, str] = {"PASS": "✓ holds", "FAIL": "✗ exceeded", "INCONCLUSIVE": "? undecided"}
"""glyph and words for the verdict on a budget"""
WITHIN: Verdict = "WAIVED"
"""verdict whose colour a slower cell gets here, because it may be within its budget"""


def _tone(cell: CellChange) -> Verdict:
    return WITHIN if cell.verdict == "SLOWER" else VERDICT_WORDS[cell.verdict][1]


def headline(found: Performance) -> str:
    """How many budgets hold, and which evidence says so; or why no evidence counts."""
    if found.why_not:
        return one_line(f"{COUNTS[found.accepted][1]}: {found.why_not}")
    held = sum(use.verdict == "PASS" for use in found.budgets)
    shown = [found.duel] if found.duel else []
    shown += ["history"] if any("history" in use.evidence for use in found.budgets) else []
    return one_line(f"{held} of {len(found.budgets)} budgets hold against {found.against} ({' and '.join(shown)})")


def asked(found: Performance) -> str:
    """Which evidence of time the run needs before it can have a verdict."""
    return COUNTS[found.accepted][0]


def budget_sentence(use: BudgetUse) -> str:
    """One budget: what may grow, by how much, whether it holds, by which evidence, and the measured change."""
    by = f", by {' and '.join(WORDS[one] for one in use.evidence)}" if use.evidence else ""
    seen = "nothing was timed" if use.change is None else interval_words(use.change, use.low, use.high)
    word = {"PASS": "holds", "FAIL": "is exceeded", "INCONCLUSIVE": "is undecided"}[use.verdict]
    return f"budget of {use.name} ({limit_percent(use.allowed)}%) {word}{by}: {seen}"


def cell_sentence(cell: CellChange) -> str:
    """One cell with its verdict, its change and the evidence for it, or why there is no change."""
    told = "not timed" if cell.change is None else interval_words(cell.change, cell.low, cell.high)
    source = cell.basis if cell.evidence == "duel" else f"{cell.evidence}: {cell.basis}"
    basis = f" ({source})" if cell.change is not None else ""
    reason = f"; {cell.reason}" if cell.reason else ""
    return one_line(f"{cell.cell}: {cell.verdict}, {told}{basis}{reason}")


def performance_lines(found: Performance) -> list[str]:
    """Every budget that does not hold or is undecided, with its cells."""
    lines = []
    for use in found.budgets:
        if use.verdict == "PASS":
            continue
        lines.append(f"{'TIME':13}{budget_sentence(use)}")
        lines += [f"{'':13}{cell_sentence(cell)}" for cell in use.cells[:SHOWN]]
        if len(use.cells) > SHOWN:
            lines.append(f"{'':13}and {counted(len(use.cells) - SHOWN, 'more cell')}")
    return lines


def performance_steps(judged: Judged, found: Performance) -> list[NextStep]:
    """What to do about time."""
    again = judged.typed.command("run", judged.run.matrix_path, *level_words(judged.run.level), "--fresh")
    helps = found.accepted != "duel" and any(cell.before_us is not None for cell in found.cells)
    more = [NextStep("or give history more runs of this stack on this card", again)] if helps else []
    if found.why_not or not found.stack_a:
        return [
            NextStep("let this stack take turns with the one before on one card; see how", "qualify duel --help"),
            *more,
        ]
    command = duel_command(judged.run, judged.typed, found)
    if found.verdict == "INCONCLUSIVE":
        longer = "another duel, with more time" if found.duel else "a duel"
        return [NextStep(f"decide what is open by {longer}", command), *more]
    return [NextStep("look at the cells that take longer than their budget allows; to see it again", command)]


def duel_command(run: Run, typed: Typed, found: Performance) -> str:
    """The command of a duel in which the earlier stack and this one take turns on one card."""
    return typed.command("duel", found.stack_a or BEFORE, "here", run.matrix_path)


def performance_data(found: Performance | None) -> dict[str, Any] | None:
    """The verdict about time as JSON; None where there is none."""
    return None if found is None else {**codec.to_data(found), "verdict": found.verdict}


def _interval(it: BudgetUse | CellChange) -> str:
    return "–" if it.change is None else f"{signed_percent(it.low)} to {signed_percent(it.high)}"


BUDGET_COLUMNS: tuple[Column[BudgetUse], ...] = (
    Column(key="verdict", title="Budget", cell=lambda use: STATES[use.verdict], tone=lambda use: use.verdict),
    Column(key="name", title="What may grow", cell=lambda use: use.name),
    Column(key="allowed", title="By at most", number=True, cell=lambda use: f"{limit_percent(use.allowed)} %"),
    Column(key="change", title="Worst change", number=True, cell=lambda use: signed_percent(use.change)),
    Column(key="interval", title="Its 95 % interval", number=True, cell=_interval),
)
CELL_COLUMNS: tuple[Column[CellChange], ...] = (
    Column(key="cell", title="Cell", code=True, cell=lambda cell: cell.cell),
    Column(
        key="verdict",
        title="This stack is",
        sentence=True,
        cell=lambda cell: VERDICT_WORDS[cell.verdict][0],
        tone=_tone,
    ),
    Column(key="change", title="Change", number=True, cell=lambda cell: signed_percent(cell.change)),
    Column(key="interval", title="95 % interval", number=True, cell=_interval),
    Column(key="evidence", title="By", cell=lambda cell: WORDS[cell.evidence]),
    Column(key="reason", title="Why it is undecided", sentence=True, cell=lambda cell: cell.reason),
)


def budgets_table(found: Performance | None) -> AnyTable:
    """Each budget for the page."""
    return Table(caption="Budgets", columns=BUDGET_COLUMNS, rows=found.budgets if found else ())


def cells_drawing(found: Performance | None) -> Drawing | None:
    """The cells as intervals beside the budgets; None where nothing was timed."""
    if found is None:
        return None
    rows = [
        Interval(
            name=cell.cell,
            verdict=_tone(cell),
            change=cell.change,
            low=cell.change if cell.low is None else cell.low,
            high=cell.change if cell.high is None else cell.high,
            title=cell_sentence(cell),
        )
        for cell in found.cells
        if cell.change is not None
    ]
    return intervals("Change of each cell", rows, [use.allowed for use in found.budgets])


def cells_table(found: Performance | None) -> AnyTable:
    """Each compared cell, for the page; the cell whose time grew most comes first."""
    return Table(caption="Time of each cell", columns=CELL_COLUMNS, rows=found.cells if found else ())
