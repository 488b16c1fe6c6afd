"""Every case that ran, as a reader without a script sees it: a row for each model and kernel, a line for each case.

A row is a handful of elements however many cases it has, so that a page of 10,000 cases still opens at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from qualify.facts.run import Verdict
from qualify.report import figures
from qualify.report.sections import kernel_label
from qualify.report.views import SEVERITY, WORDS, CaseView


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactRow:
    """The cases of one kernel on one model."""

    model: str
    kernel: str
    worst: Verdict
    counts: str
    """cases by verdict, in words"""
    launched: str
    """short names of the kernels that really ran"""
    lines: str
    """one line for each case that ran: glyph, phase/shape/dtype/mask, time"""
    ran: int


def compact_rows(views: Sequence[CaseView]) -> tuple[CompactRow, ...]:
    """The rows in the order of the cases; a kernel that ran nothing on a model has none."""
    found: dict[tuple[str, str], list[CaseView]] = {}
    for view in views:
        found.setdefault((view.case.model, view.case.kernel), []).append(view)
    return tuple(_row(model, kernel, cases) for (model, kernel), cases in found.items() if any(it.ran for it in cases))


def _row(model: str, kernel: str, cases: Sequence[CaseView]) -> CompactRow:
    counts = Counter(view.verdict for view in cases)
    named = [verdict for verdict in SEVERITY if counts[verdict]]
    ran = sorted((view for view in cases if view.ran), key=lambda view: SEVERITY.index(view.verdict))
    return CompactRow(
        model=model,
        kernel=kernel,
        worst=named[0],
        counts=", ".join(f"{WORDS[verdict][0]} {counts[verdict]:,} {WORDS[verdict][1]}" for verdict in named),
        launched=", ".join(label for label in dict.fromkeys(map(kernel_label, ran)) if label),
        lines="\n".join(map(_line, ran)),
        ran=len(ran),
    )


def _line(view: CaseView) -> str:
    """A case on one line; its model and kernel stand before it."""
    case = view.case
    name = f"{case.phase}/{case.shape}/{case.dtype}/{case.mask}"
    told = figures.duration(view.timing.latency_us) if view.timing else view.outcome.outcome.replace("_", " ")
    return f"{WORDS[view.verdict][0]} {name} {told}"
