"""Cases that take longer than in the accepted baseline: what is told of them wherever a verdict is shown.

Two runs one after the other cannot prove that a kernel became slower, so these are no failures. Neither is a release
promoted without a word about them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qualify.facts.comparison import Change, Seen, Slowdown
from qualify.report import figures
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.one_line import one_line
from qualify.store.store import Store
from qualify.verdict.slower import factor, slowdown

if TYPE_CHECKING:
    from qualify.report.judged import Judged

LOOKED_AT = 500
"""newest runs of the matrix whose cards are known"""
ROWS = 1000
"""rows of the table; the JSON twin has all"""


def with_slower(store: Store, judged: Judged) -> Judged:
    """The verdict, with what takes longer than in the accepted baseline; as it is where nobody accepted one.

    Nothing is compared where the evidence is from several cards, or from another card than the baseline: equal cards
    differ.
    """
    run = judged.run
    baseline = store.baseline(run.matrix, run.stack.device.variant) if run.stack else None
    if baseline is None or baseline.run_id in judged.runs or not _one_card(store, judged):
        return judged
    before = store.run(baseline.run_id)
    if before.stack is None or run.stack is None or before.stack.device.uuid != run.stack.device.uuid:
        return judged
    records = store.records(before.id)
    return replace(judged, slower=slowdown(before, records, run, judged.records, accepted_by=baseline.accepted_by))


def _one_card(store: Store, judged: Judged) -> bool:
    """Whether all runs that the evidence is from used one card; what a run takes over is from its own."""
    runs = store.runs(judged.run.matrix, limit=LOOKED_AT) if len(judged.runs) > 1 else []
    return len({run.stack.device.uuid for run in runs if run.id in judged.runs and run.stack}) <= 1


def slower_data(slower: Slowdown | None) -> list[dict[str, Any]]:
    """For JSON: each case with both times, the factor, and the run that it is compared with."""
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
    """How many cases, how much, and against what."""
    accepted = f", accepted by {slower.accepted_by}" if slower.accepted_by else ""
    count = figures.counted(len(slower.cases), "case")
    word = "is" if len(slower.cases) == 1 else "are"
    most = f"{factor(slower.cases[0]):.3g} times as long{' at most' if len(slower.cases) > 1 else ''}"
    return one_line(f"{count} {word} slower than in run {slower.run}{accepted}: {most}")


def sentence(change: Change) -> str:
    """Both times and the factor."""
    before, after = (figures.duration(_us(side)) for side in (change.before, change.after))
    return one_line(f"{before} became {after}, {factor(change):.3g} times as long; measured one after the other")


def slower_table(slower: Slowdown | None) -> AnyTable:
    """The same for the page; no rows where nothing became slower."""
    columns: tuple[Column[Change], ...] = (
        Column(key="id", title="Case", cell=lambda change: change.id, code=True),
        Column(key="before_us", title="Before", unit="us", cell=lambda change: _us(change.before)),
        Column(key="after_us", title="Now", unit="us", cell=lambda change: _us(change.after)),
        Column(key="factor", title="Times as long", number=True, cell=lambda change: f"{factor(change):.3g}"),
        Column(key="detail", title="How it was compared", cell=lambda change: change.detail, sentence=True),
    )
    caption = headline(slower) if slower else "No case is slower than in the baseline"
    return Table(caption=caption, columns=columns, rows=slower.cases[:ROWS] if slower else ())


def _us(side: Seen) -> float:
    return float(side) if isinstance(side, int | float) else math.nan
