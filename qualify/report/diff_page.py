"""What changed between two runs, for a page of its own and for a part of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qualify.facts.baseline import Baseline
from qualify.facts.comparison import BUCKETS, Bucket, Change, Comparison, StackChange, Topic
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.differences import (
    ABSENT,
    BUCKET_WORDS,
    change_text,
    counted_buckets,
    grouped,
    summary_line,
    weaker_line,
)
from qualify.report.weaker import weaker_table

GLYPHS: dict[Bucket, str] = {"regression": "✗", "suspicious": "!", "insufficient data": "?", "none": "✓"}
"""glyph of each bucket, so that colour is never the only sign"""
CLASSES: dict[Bucket, str] = {
    "regression": "FAIL",
    "suspicious": "WAIVED",
    "insufficient data": "INCONCLUSIVE",
    "none": "PASS",
}
"""style class of each bucket: the classes of the verdicts serve for both"""
ROWS = 300
"""most rows that a table shows; the JSON twin has all"""

USUAL_IMPACT = "the time that all layers of the model spend in the case"
SYMBOLS = (
    "class: the tightest accuracy class that it keeps; worst element, worst row, all rows: the error of each; "
    "β: the share by which all results are too large or too small"
)
IMPACT: dict[Topic, str] = {"times": "by how much that changes the time of all layers of the model"}

STACK: tuple[Column[StackChange], ...] = (
    Column(key="component", title="Component", cell=lambda change: change.component, code=True),
    Column(key="kind", title="Kind", cell=lambda change: change.kind),
    Column(key="from", title="From", cell=lambda change: change.before or ABSENT, sentence=True),
    Column(key="to", title="To", cell=lambda change: change.after or ABSENT, sentence=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Alike:
    """Changes of one kernel that look the same."""

    change: Change
    """the first of these changes, in the order of the list"""
    more: int
    """how many more look the same"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicPart:
    """The changes of one topic."""

    topic: Topic
    counts: str
    """number of changes by bucket, in words"""
    alike: AnyTable
    """a row for each group of changes that look the same"""
    every: AnyTable | None
    """a row for each change; None where no two changes look the same"""


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
    topics: tuple[TopicPart, ...]
    limit: int
    weaker: str
    """in how many points the later run requires less"""
    weakened: AnyTable
    """requirements of the later run that are weaker"""


def diff_page(
    comparison: Comparison, baseline: Baseline | None = None, *, case: Callable[[str], str] | None = None
) -> DiffPage:
    """What a page shows of a comparison.

    Args:
        baseline: acceptance of the earlier run; None = nobody accepted it.
        case: address of the page of a case; None = the page is a file.
    """
    worst: Bucket = next((bucket for bucket in BUCKETS if comparison.cases.get(bucket)), "none")
    shown = _shown(worst, comparison)
    return DiffPage(
        comparison=comparison,
        headline=_headline(worst, comparison),
        badge=CLASSES[shown],
        glyph=GLYPHS[shown],
        summary=summary_line(comparison),
        buckets=tuple((CLASSES[it], GLYPHS[it], it, comparison.cases[it]) for it in BUCKETS if comparison.cases[it]),
        facts=(*_facts(comparison), *_acceptance(baseline)),
        stack=Table(caption="What changed under the kernels", columns=STACK, rows=comparison.stack),
        topics=tuple(_part(comparison, topic, changes, case) for topic, changes in comparison.topics()),
        limit=ROWS,
        weaker=weaker_line(comparison),
        weakened=weaker_table(comparison.weaker),
    )


def _shown(worst: Bucket, comparison: Comparison) -> Bucket:
    """The bucket whose colour and glyph the headline has: what was not compared has no check mark."""
    if worst != "none":
        return worst
    if comparison.weaker:
        return "suspicious"
    return "insufficient data" if comparison.uncompared else "none"


def _headline(worst: Bucket, comparison: Comparison) -> str:
    if worst != "none":
        return worst.capitalize()
    if comparison.weaker:
        return "Weaker requirements"
    return "Nothing that was compared got worse" if comparison.uncompared else "Nothing got worse"


def _facts(comparison: Comparison) -> tuple[tuple[str, str], ...]:
    facts = []
    for word, run in (("Before", comparison.before), ("After", comparison.after)):
        stack = run.stack.fingerprint[:12] if run.stack else "unknown"
        facts.append((word, f"{run.id}: {run.matrix} at level {run.level}, stack {stack}"))
    return tuple(facts)


def _acceptance(baseline: Baseline | None) -> tuple[tuple[str, str], ...]:
    if baseline is None:
        return ()
    return (("Accepted", f"{baseline.accepted_at:%Y-%m-%d} by {baseline.who}: {baseline.reason}"),)


def _told(topic: Topic, change: Change) -> str:
    return change_text(topic, change).replace(" -> ", " → ", 1)


def _part(
    comparison: Comparison, topic: Topic, changes: Sequence[Change], case: Callable[[str], str] | None
) -> TopicPart:
    columns = _columns(topic, case)
    symbols = f"; {SYMBOLS}" if topic == "numbers" else ""
    caption = f"Changed {topic}, the worst first. Impact: {IMPACT.get(topic, USUAL_IMPACT)}{symbols}"
    rows = tuple(Alike(change=first, more=more) for first, more in grouped(topic, changes))
    some = len(rows) < len(changes)
    more: Column[Alike] = Column(key="more", title="More like it", cell=lambda row: row.more or None, number=True)
    return TopicPart(
        topic=topic,
        counts=counted_buckets(comparison, topic),
        alike=Table(caption=caption, columns=(*columns, more) if some else columns, rows=rows),
        every=Table(caption=caption, columns=columns, rows=tuple(Alike(change=it, more=0) for it in changes))
        if some
        else None,
    )


def _columns(topic: Topic, case: Callable[[str], str] | None) -> tuple[Column[Alike], ...]:
    return (
        Column(
            key="bucket",
            title="Bucket",
            cell=lambda row: f"{GLYPHS[row.change.bucket]} {BUCKET_WORDS[row.change.bucket]}",
            tone=lambda row: CLASSES[row.change.bucket],
        ),
        Column(
            key="id",
            title="Case",
            cell=lambda row: row.change.id,
            code=True,
            page=(lambda row: case(row.change.id)) if case else None,
        ),
        Column(key="change", title="From → to, and why", cell=lambda row: _told(topic, row.change), sentence=True),
        Column(key="impact_us", title="Impact", unit="us", cell=lambda row: row.change.impact_us or None),
    )
