"""Cases that take longer than in the accepted baseline, in the words and tables of every report.

Two runs one after the other cannot prove that a kernel became slower, so a slower case is no failure by itself. But a
verdict that promotes a release names the slower cases.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from qualify.facts.comparison import Change, Seen, Slowdown
from qualify.facts.typed import level_words
from qualify.judge.judged import Judged
from qualify.report import figures
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.next_step import NextStep
from qualify.text import one_line
from qualify.verdict.slower import factor

SHOWN = 10
"""most rows that the page shows from the start, so that a reader on a phone reaches what stands below"""
ROWS = 1000
"""most rows of the table; the JSON twin has all"""


def slower_data(slower: Slowdown | None) -> list[dict[str, Any]]:
    """The cases as JSON, each with both times, the factor, and the run that it is compared with."""
    if slower is None:
        return []
    return [
        {
            "id": change.id,
            "before_us": change.before,
            "after_us": change.after,
            "factor": factor(change),
            "run": slower.run,
            "detail": change.detail,
        }
        for change in slower.cases
    ]


def headline(slower: Slowdown) -> str:
    """How many cases became slower, by which factor at most, and compared with which run."""
    accepted = f", accepted by {slower.accepted_by}" if slower.accepted_by else ""
    count = figures.counted(len(slower.cases), "case")
    word = "is" if len(slower.cases) == 1 else "are"
    most = f"{factor(slower.cases[0]):.3g} times as long{' at most' if len(slower.cases) > 1 else ''}"
    return one_line(f"{count} {word} slower than in run {slower.run}{accepted}: {most}")


def sentence(change: Change) -> str:
    """Both times and their factor, in words."""
    before, after = (figures.duration(_us(side)) for side in (change.before, change.after))
    return one_line(f"{before} became {after}, {factor(change):.3g} times as long; measured one after the other")


def slower_steps(judged: Judged, slower: Slowdown) -> list[NextStep]:
    """How to tell a slowdown from noise, or how to accept it. Every command can be pasted."""
    run, typed = judged.run, judged.typed
    again = typed.command("run", run.matrix_path, *level_words(run.level), "--device", run.device, "--fresh")
    reason = f"takes longer than {slower.run} in {figures.counted(len(slower.cases), 'case')}"
    return [
        NextStep("look at what became slower", typed.command("diff", slower.run, judged.source(slower.cases[0].id))),
        NextStep("measure again on an idle machine, before you blame a kernel", again),
        NextStep("or accept the times", typed.accept(run.id, reason)),
    ]


def comparison_words(slower: Slowdown) -> str:
    """How most of the cases were compared, which the page says once."""
    return Counter(map(_compared, slower.cases)).most_common(1)[0][0]


def _compared(change: Change) -> str:
    """How a case was compared; its detail begins with the change in percent, which other columns say."""
    return change.detail.partition(" %: ")[2] or change.detail


def slower_table(slower: Slowdown | None) -> AnyTable:
    """The cases as a table; no rows where no case became slower.

    A row says how it was compared where that differs from most of the others.
    """
    usual = comparison_words(slower) if slower else ""
    columns: tuple[Column[Change], ...] = (
        Column(key="id", title="Case", cell=lambda change: change.id, code=True),
        Column(key="before_us", title="Before", unit="us", cell=lambda change: _us(change.before)),
        Column(key="after_us", title="Now", unit="us", cell=lambda change: _us(change.after)),
        Column(key="factor", title="Times as long", number=True, cell=lambda change: f"{factor(change):.3g}"),
        Column(
            key="detail",
            title="How it was compared",
            cell=lambda change: "" if _compared(change) == usual else _compared(change),
            sentence=True,
        ),
    )
    return Table(
        caption="Slower cases, the largest factor first", columns=columns, rows=slower.cases[:ROWS] if slower else ()
    )


def _us(side: Seen) -> float:
    return float(side) if isinstance(side, int | float) else math.nan
