"""Every case that ran, for readers without JavaScript: a row for each model and kernel, a line for each case.

A row has a handful of HTML elements however many cases it holds, so that a page of 10,000 cases still opens at once.
The evidence of a failed case is plain text for the same reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from qualify.facts.run import Verdict
from qualify.report import figures
from qualify.report.columns import AnyTable
from qualify.report.sections import Section, kernel_label, values_text
from qualify.report.views import SEVERITY, WORDS, CaseView

MOST_ROWS = 250
"""Most rows. Where there would be more, each model gets one row; or else each kernel; or else all cases share one."""
LEVELS = (("model", "kernel"), ("model",), ("kernel",), ())
"""what the cases of a row have in common"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactRow:
    """Cases of one kernel on one model. In a very large run, cases of one model, or of one kernel, or of both."""

    model: str
    """empty = cases of several models"""
    kernel: str
    """empty = cases of several kernels"""
    worst: Verdict
    counts: str
    """cases by verdict, in words"""
    launched: str
    """short names of the kernels that really ran"""
    lines: str
    """one line for each case that ran: glyph, the parts of its id that the row does not name, and its time"""
    ran: int


def compact_rows(views: Sequence[CaseView]) -> tuple[CompactRow, ...]:
    """The rows, in the order of the cases. A kernel that ran no case of a model has no row."""
    ran = [view for view in views if view.ran]
    common = next(names for names in LEVELS if len({_shared(view, names) for view in ran}) <= MOST_ROWS)
    found: dict[tuple[str, ...], list[CaseView]] = {}
    for view in views:
        found.setdefault(_shared(view, common), []).append(view)
    return tuple(
        _row(dict(zip(common, shared, strict=True)), cases)
        for shared, cases in found.items()
        if any(it.ran for it in cases)
    )


def _shared(view: CaseView, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(getattr(view.case, name) for name in names)


def _row(common: dict[str, str], cases: Sequence[CaseView]) -> CompactRow:
    counts = Counter(view.verdict for view in cases)
    named = [verdict for verdict in SEVERITY if counts[verdict]]
    ran = sorted((view for view in cases if view.ran), key=lambda view: SEVERITY.index(view.verdict))
    model, kernel = common.get("model", ""), common.get("kernel", "")
    return CompactRow(
        model=model,
        kernel=kernel,
        worst=named[0],
        counts=", ".join(f"{WORDS[verdict][0]} {counts[verdict]:,} {WORDS[verdict][1]}" for verdict in named),
        launched=", ".join(label for label in dict.fromkeys(map(kernel_label, ran)) if label),
        lines="\n".join(_line(view, model, kernel) for view in ran),
        ran=len(ran),
    )


def _line(view: CaseView, model: str, kernel: str) -> str:
    """A case on one line, without the model and the kernel that its row names."""
    case = view.case
    parts = ("" if model else case.model, case.phase, case.shape, case.dtype, case.mask, "" if kernel else case.kernel)
    told = figures.duration(view.timing.latency_us) if view.timing else view.outcome.outcome.replace("_", " ")
    return f"{WORDS[view.verdict][0]} {'/'.join(filter(None, parts))} {told}"


def case_line(view: CaseView) -> str:
    """A failed case on one line, with its first reason."""
    why = next(iter(view.reasons or view.why), "")
    return f"{WORDS[view.verdict][0]} {view.case.id} {why}".rstrip()


def evidence_text(section: Section) -> str:
    """All evidence of a case as text: why, what each check says, what ran, numbers and times."""
    view = section.view
    lines = [f"{WORDS[view.verdict][1]} because {'; '.join(section.reasons)}"] if section.reasons else []
    lines += [
        f"{finding.verdict} {finding.check}: {finding.detail}"
        + (f" ({values_text(finding.values)})" if finding.values and finding.verdict != "pass" else "")
        for finding in section.findings
    ]
    for table in (section.launches, section.statistics):
        lines += _rows_text(table) if table else []
    lines += [f"Samples: {section.strip.label}"] if section.strip else []
    lines += [f"{term}: {value}" for term, value in section.facts]
    return "\n".join([*lines, *([section.log] if section.log else [])])


def _rows_text(table: AnyTable) -> list[str]:
    """A line for each row, with the names of its columns."""
    named = (zip(table.columns, table.cells(row), strict=True) for row in table.rows)
    return [
        f"{table.caption}: " + ", ".join(f"{column.heading} {cell.text}" for column, cell in pairs) for pairs in named
    ]
