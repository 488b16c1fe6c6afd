"""What changed between two runs, as pages show it: one of its own, and a part of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from qualify.facts.baseline import Baseline
from qualify.facts.comparison import BUCKETS, Bucket, Change, Comparison, StackChange, Topic
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.differences import ABSENT, change_text, counted_buckets, summary_line, weaker_line
from qualify.report.weaker import weaker_table

GLYPHS: dict[Bucket, str] = {"regression": "✗", "suspicious": "!", "insufficient data": "?", "none": "✓"}
"""so that colour is never the only sign"""
CLASSES: dict[Bucket, str] = {
    "regression": "FAIL",
    "suspicious": "WAIVED",
    "insufficient data": "INCONCLUSIVE",
    "none": "PASS",
}
"""style of each bucket: those of the verdicts"""
ROWS = 1000
"""rows of a table; the JSON twin has all"""

STACK: tuple[Column[StackChange], ...] = (
    Column(key="component", title="Component", cell=lambda change: change.component, code=True),
    Column(key="kind", title="Kind", cell=lambda change: change.kind),
    Column(key="from", title="From", cell=lambda change: change.before or ABSENT, sentence=True),
    Column(key="to", title="To", cell=lambda change: change.after or ABSENT, sentence=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffPage:
    """Everything that the page of a comparison shows."""

    comparison: Comparison
    headline: str
    badge: str
    """style class of the headline"""
    glyph: str
    summary: str
    buckets: tuple[tuple[str, str, str, int], ...]
    """style class, glyph, word, cases"""
    facts: tuple[tuple[str, str], ...]
    stack: AnyTable
    topics: tuple[tuple[Topic, str, AnyTable], ...]
    """topic, counts in words, its changes"""
    limit: int
    weakened: AnyTable
    """what the later run asks less"""


def diff_page(comparison: Comparison, baseline: Baseline | None = None) -> DiffPage:
    """What a page shows of a comparison.

    Args:
        baseline: who accepted the run before, where it is the accepted one.
    """
    worst: Bucket = next((bucket for bucket in BUCKETS if comparison.cases.get(bucket)), "none")
    shown: Bucket = "suspicious" if worst == "none" and comparison.weaker else worst
    return DiffPage(
        comparison=comparison,
        headline=_headline(worst, comparison),
        badge=CLASSES[shown],
        glyph=GLYPHS[shown],
        summary=summary_line(comparison),
        buckets=tuple((CLASSES[it], GLYPHS[it], it, comparison.cases[it]) for it in BUCKETS if comparison.cases[it]),
        facts=(*_facts(comparison), *_acceptance(baseline)),
        stack=Table(caption="What changed under the kernels", columns=STACK, rows=comparison.stack),
        topics=tuple(
            (topic, counted_buckets(changes), _table(topic, changes)) for topic, changes in comparison.topics()
        ),
        limit=ROWS,
        weakened=weaker_table(comparison.weaker, weaker_line(comparison)),
    )


def _headline(worst: Bucket, comparison: Comparison) -> str:
    if worst != "none":
        return worst.capitalize()
    return "The later run asks less" if comparison.weaker else "Nothing got worse"


def _facts(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    facts = []
    for word, run in (("Before", comparison.before), ("After", comparison.after)):
        stack = run.stack.fingerprint[:12] if run.stack else "unknown stack"
        facts += [(word, run.id), (f"{word}: matrix, level", f"{run.matrix}, {run.level}"), (f"{word}: stack", stack)]
    return tuple(facts)


def _acceptance(baseline: Baseline | None) -> tuple[tuple[str, str], ...]:
    if baseline is None:
        return ()
    return (("Accepted", f"{baseline.accepted_at:%Y-%m-%d} by {baseline.accepted_by}: {baseline.reason}"),)


def _table(topic: Topic, changes: Sequence[Change]) -> AnyTable:
    columns: tuple[Column[Change], ...] = (
        Column(key="bucket", title="Bucket", cell=lambda change: f"{GLYPHS[change.bucket]} {change.bucket}"),
        Column(key="id", title="Case", cell=lambda change: change.id, code=True),
        Column(key="change", title="From, to, and why", cell=partial(change_text, topic), sentence=True),
        Column(key="impact_us", title="Impact", unit="us", cell=lambda change: change.impact_us or None),
    )
    return Table(caption=f"Changed {topic}, the worst first", columns=columns, rows=tuple(changes))
