"""Public incidents that a run replayed: which of them its stack reproduces, and on which kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from qualify.cards.incident import Incident
from qualify.cards.load import parse_matrix
from qualify.facts.checks import check_of
from qualify.facts.outcome import Crashed, NotRun, Refused, Substituted, TimedOut
from qualify.facts.run import Run
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.figures import counted
from qualify.report.views import CaseView, anchor

State = Literal["reproduced", "fails otherwise", "not reproduced", "not asked", "open", "not applicable"]
STATES: tuple[State, ...] = ("reproduced", "fails otherwise", "not reproduced", "not asked", "open", "not applicable")
"""states in order of weight: an incident has the first of these that one of its cases has"""
GLYPHS = {
    "reproduced": "✗",
    "fails otherwise": "✗",
    "not reproduced": "✓",
    "not asked": "?",
    "open": "?",
    "not applicable": "–",
}
NOT_ASKED = "not asked: "
"""beginning of the note of a check that was skipped"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """One incident and its cases."""

    incident: Incident
    views: tuple[CaseView, ...]
    states: tuple[State, ...]
    """state of each case, in the order of ``views``"""

    @property
    def state(self) -> State:
        """State of the incident in this run."""
        return next((state for state in STATES if state in self.states), "not applicable")

    def having(self, state: State) -> list[CaseView]:
        """The cases that have a state."""
        return [view for view, its in zip(self.views, self.states, strict=True) if its == state]

    def kernels(self, state: State) -> str:
        """Kernels of the cases that have a state, each named once."""
        return ", ".join(dict.fromkeys(view.case.kernel for view in self.having(state)))


def replays(run: Run, views: Iterable[CaseView]) -> tuple[Replay, ...]:
    """The incidents of the matrix for which the run has cases, in the matrix's order."""
    cases: dict[str, list[CaseView]] = {}
    for view in views:
        if view.case.incident:
            cases.setdefault(view.case.incident, []).append(view)
    if not cases:
        return ()
    incidents = parse_matrix(run.matrix_source, run.matrix_path).incidents
    return tuple(
        Replay(
            incident=incident,
            views=tuple(cases[incident.incident]),
            states=tuple(state_of(incident, view) for view in cases[incident.incident]),
        )
        for incident in incidents
        if incident.incident in cases
    )


def state_of(incident: Incident, view: CaseView) -> State:
    """State of the incident by one case."""
    outcome = view.outcome
    if isinstance(outcome, Refused) and outcome.by == "plan":
        return "not applicable"
    if isinstance(outcome, NotRun):
        return "open"
    endings = {"crash": Crashed, "hang": TimedOut, "refusal": Refused, "substitution": Substituted}
    if any(word in incident.shown_by and isinstance(outcome, kind) for word, kind in endings.items()):
        return "reproduced"
    failed = [finding for finding in view.findings if finding.verdict == "fail"]
    if any(finding.check in incident.shown_by and _counts(incident, finding.values) for finding in failed):
        return "reproduced"
    if failed or isinstance(outcome, Crashed | TimedOut | Refused | Substituted):
        return "fails otherwise"
    asked = {
        finding.check
        for finding in view.findings
        if not finding.detail.startswith(NOT_ASKED) and _counts(incident, finding.values)
    }
    wanted = {known.name if (known := check_of(word)) else word for word in incident.shown_by}
    return "not reproduced" if wanted & (asked | set(endings)) else "not asked"


def _counts(incident: Incident, values: Any) -> bool:
    """Whether a finding is about inputs of a kind that the incident names; if it names none, every finding counts."""
    return not incident.inputs or "inputs" not in values or values["inputs"] in incident.inputs


def _link(row: Replay) -> str:
    return row.having(row.state)[0].anchor if row.views else ""


def _reasons(row: Replay) -> str:
    """Why the incident does not apply to kernels, the most frequent reasons first."""
    views = row.having("not applicable")
    counts = Counter(reason for view in views for reason in view.why)
    shown = [reason for reason, _ in counts.most_common(2)]
    rest = f"; and {len(counts) - len(shown)} more" if len(counts) > len(shown) else ""
    return f"{counted(len(views), 'case')}: {'; '.join(shown)}{rest}" if views else ""


def _why(row: Replay) -> str:
    """The first reason of the case that reproduces the incident, or that fails otherwise."""
    if row.state not in {"reproduced", "fails otherwise"}:
        return ""
    return next(iter(row.having(row.state)[0].reasons), "")


COLUMNS: tuple[Column[Replay], ...] = (
    Column(key="state", title="State", cell=lambda row: f"{GLYPHS[row.state]} {row.state}", link=_link),
    Column(key="incident", title="Incident", cell=lambda row: row.incident.incident, code=True),
    Column(key="issue", title="Reported in", sentence=True, cell=lambda row: ", ".join(row.incident.issue)),
    Column(key="title", title="What went wrong", sentence=True, cell=lambda row: row.incident.title),
    Column(key="trigger", title="Trigger", sentence=True, cell=lambda row: row.incident.trigger),
    Column(key="shown_by", title="Shown by", sentence=True, cell=lambda row: ", ".join(row.incident.shown_by)),
    Column(key="on", title="Reproduced on", sentence=True, cell=lambda row: row.kernels("reproduced")),
    Column(key="why", title="Because", sentence=True, cell=_why),
    Column(key="not_on", title="Not reproduced on", sentence=True, cell=lambda row: row.kernels("not reproduced")),
    Column(key="refused", title="Not applicable", sentence=True, cell=_reasons),
)


def incidents_table(rows: Sequence[Replay]) -> AnyTable:
    """The table of the page: incidents that the stack reproduces come first, then the others by state."""
    ordered = sorted(rows, key=lambda row: STATES.index(row.state))
    return Table(
        caption="Public incidents, replayed on the kernels of this stack",
        columns=COLUMNS,
        rows=tuple(ordered),
        row_anchor=lambda row: anchor("incident", row.incident.incident),
    )


def counted_states(rows: Iterable[Replay]) -> str:
    """How many incidents are in each state, in words; empty where there are none."""
    counts = Counter(row.state for row in rows)
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def incidents_data(rows: Iterable[Replay]) -> list[dict[str, Any]]:
    """The incidents for JSON, each with its cases."""
    return [
        {
            "incident": row.incident.incident,
            "issue": list(row.incident.issue),
            "title": row.incident.title,
            "trigger": row.incident.trigger,
            "shown_by": list(row.incident.shown_by),
            "state": row.state,
            "cases": [
                {"id": view.case.id, "kernel": view.case.kernel, "state": state, "why": list(view.why)}
                for view, state in zip(row.views, row.states, strict=True)
            ],
        }
        for row in rows
    ]
