"""Cases that did not run, in groups with the same reason: who refused them, why, and how many they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from qualify.facts.outcome import Refused
from qualify.facts.run import Verdict
from qualify.report.columns import Column, Table
from qualify.report.figures import counted
from qualify.report.views import SEVERITY, CaseView

MODELS = 4
"""most models that a row names"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Cases of one kernel that did not run for the same reason."""

    verdict: Verdict
    kernel: str
    by: str
    """who refused them: ``plan`` or ``library``; or ``not run``"""
    reason: str
    views: tuple[CaseView, ...]

    @property
    def models(self) -> str:
        """Models of the cases, the first few by name."""
        counts = Counter(view.case.model for view in self.views)
        named = ", ".join(model for model, _ in counts.most_common(MODELS))
        return named + (f" and {counted(len(counts) - MODELS, 'other model')}" if len(counts) > MODELS else "")


COLUMNS: tuple[Column[Refusal], ...] = (
    Column(key="verdict", title="Verdict", cell=lambda row: row.verdict.replace("_", " ").lower()),
    Column(key="kernel", title="Kernel card", cell=lambda row: row.kernel),
    Column(key="by", title="By", cell=lambda row: row.by),
    Column(key="cases", title="Cases", unit="count", cell=lambda row: len(row.views)),
    Column(key="why", title="Reason", sentence=True, cell=lambda row: row.reason),
    Column(key="models", title="Models", sentence=True, cell=lambda row: row.models),
)


def refused_table(views: Sequence[CaseView]) -> Table[Refusal]:
    """Cases that did not run, by verdict, kernel and reason: the worst verdict first, then the largest group."""
    groups: dict[tuple[Verdict, str, str, str], list[CaseView]] = {}
    for view in views:
        if not view.ran:
            by = view.outcome.by if isinstance(view.outcome, Refused) else "not run"
            reason = "; ".join(view.why) or "no reason was recorded"
            groups.setdefault((view.verdict, view.case.kernel, by, reason), []).append(view)
    rows = [
        Refusal(verdict=verdict, kernel=kernel, by=by, reason=reason, views=tuple(members))
        for (verdict, kernel, by, reason), members in groups.items()
    ]
    rows.sort(key=lambda row: (SEVERITY.index(row.verdict), -len(row.views)))
    return Table(caption="Cases that did not run, by kernel and reason", columns=COLUMNS, rows=tuple(rows))
