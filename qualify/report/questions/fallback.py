"""What is the fallback, and how is it detected?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from qualify.facts.outcome import Refused, Substituted
from qualify.facts.run import Verdict
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.figures import counted
from qualify.report.names import short_name
from qualify.report.questions.interface import Answer, Line, Link, State
from qualify.report.views import CaseView, ModelView, ShapeView

HELD_AGAINST: tuple[Verdict, ...] = ("FAIL", "WAIVED", "INCONCLUSIVE")
"""verdicts on a case that the card claims and the library refused: such a refusal counts against the kernel"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusals:
    """What one kernel card refused, and which kernels prove those shapes instead."""

    kernel: str
    cases: tuple[CaseView, ...]
    served: Counter[str]
    """shapes by the kernel card that proves them"""
    unserved: int
    """refused shapes that no kernel proves"""

    @property
    def reason(self) -> str:
        """The most frequent reason, and how many others there are."""
        reasons = Counter(reason for view in self.cases for reason in view.why[:1])
        first = reasons.most_common(1)[0][0] if reasons else "no reason was recorded"
        return first + (f" (and {counted(len(reasons) - 1, 'other reason')})" if len(reasons) > 1 else "")

    @property
    def instead(self) -> str:
        """Kernels that prove the refused shapes, with the number of shapes."""
        return ", ".join(f"{kernel} ({count:,})" for kernel, count in self.served.most_common()) or "none"


def _patterns(view: CaseView) -> str:
    return ", ".join(view.evidence.witness.expected) if view.evidence else ""


def _launched(view: CaseView) -> str:
    launches = view.evidence.witness.launches if view.evidence else ()
    return ", ".join(short_name(launch.name) for launch in view.attention or launches) or "nothing"


def _unasserted(view: CaseView) -> bool:
    witness = view.evidence.witness if view.evidence else None
    return witness is not None and witness.state == "proven" and not witness.identity_asserted


def _reason(view: CaseView) -> str:
    return view.evidence.witness.reason if view.evidence else ""


CASES: tuple[Column[CaseView], ...] = (
    Column(key="case", title="Case", cell=lambda view: view.case.id, link=lambda view: view.anchor, code=True),
    Column(key="expected", title="Card expects", cell=_patterns, code=True),
    Column(key="launched", title="Launched", cell=_launched, code=True),
    Column(key="reason", title="Witness says", sentence=True, cell=_reason),
    Column(key="verdict", title="Verdict", cell=lambda view: view.verdict),
)

REFUSALS: tuple[Column[Refusals], ...] = (
    Column(key="kernel", title="Kernel card", cell=lambda row: row.kernel),
    Column(key="refused", title="Shapes refused", unit="count", cell=lambda row: len(row.cases)),
    Column(
        key="reason",
        title="Most frequent reason",
        sentence=True,
        cell=lambda row: row.reason,
        link=lambda row: row.cases[0].anchor,
    ),
    Column(key="instead", title="Proven instead by (shapes)", sentence=True, cell=lambda row: row.instead),
    Column(key="unserved", title="Without any path", unit="count", cell=lambda row: row.unserved),
)


def answer(model: ModelView) -> Answer:
    """Substitutions that happened, refusals with what serves the shape instead, and what stayed unproven."""
    substituted = tuple(view for view in model.cases if isinstance(view.outcome, Substituted))
    traced = tuple(view for view in model.cases if view.evidence)
    unproven = tuple(
        view for view in traced if view.claimed and view.evidence and view.evidence.witness.state == "unproven"
    )
    refusals = _refusals(model.shapes)
    return Answer(
        state=_state(model, unproven, traced),
        headline=_headline(model, substituted, unproven, traced),
        lines=_lines(refusals, unproven, substituted),
        notes=_notes(traced),
        tables=tuple(table for table in _tables(substituted, unproven, refusals) if table.rows),
        links_title="Substituted cases" if substituted else "",
        links=tuple(Link(text=view.case.id, anchor=view.anchor) for view in substituted),
    )


def _state(model: ModelView, unproven: Sequence[CaseView], traced: Sequence[CaseView]) -> State:
    replaced = {view.verdict for view in model.cases if isinstance(view.outcome, Substituted | Refused)}
    if "FAIL" in replaced:
        return "bad"
    if unproven or not traced or replaced & {"WAIVED", "INCONCLUSIVE"}:
        return "open"
    return "open" if _unserved(model) else "good"


def _unserved(model: ModelView) -> int:
    """Shapes that need a path, and that every kernel refused."""
    return sum(
        shape.judgement.verdict in ("FAIL", "INCONCLUSIVE")
        and all(isinstance(view.outcome, Refused) for view in shape.cases)
        for shape in model.shapes
    )


def _headline(
    model: ModelView, substituted: Sequence[CaseView], unproven: Sequence[CaseView], traced: Sequence[CaseView]
) -> str:
    if not traced:
        return "Unknown: no case was traced"
    if substituted:
        forbidden = any(view.verdict in ("FAIL", "WAIVED") for view in substituted)
        allowed = "" if forbidden else ", none of them forbidden"
        return f"{counted(len(substituted), 'substitution')} in {counted(len(traced), 'traced case')}{allowed}"
    refused = sum(isinstance(view.outcome, Refused) and view.verdict in HELD_AGAINST for view in model.cases)
    against = (
        (refused, "claimed case refused", "claimed cases refused"),
        (len(unproven), "case unproven", "cases unproven"),
        (_unserved(model), "shape refused by every kernel", "shapes refused by every kernel"),
    )
    told = [counted(count, one, many) for count, one, many in against if count]
    return "; ".join([f"No substitution in {counted(len(traced), 'traced case')}", *told])


def _lines(
    refusals: Sequence[Refusals], unproven: Sequence[CaseView], substituted: Sequence[CaseView]
) -> tuple[Line, ...]:
    pairs = Counter((view.case.kernel, _launched(view)) for view in substituted)
    lines = [
        Line(term=f"{kernel} became", text=launched, note=counted(count, "case"), code=True)
        for (kernel, launched), count in pairs.most_common(2)
    ]
    if unproven:
        lines.append(Line(term="unproven", text=counted(len(unproven), "case"), note="never counts as a pass"))
    refused = sum(len(row.cases) for row in refusals)
    if refused:
        unserved = sum(row.unserved for row in refusals)
        rest = f"{unserved:,} without any path" if unserved else "all proven by another kernel"
        lines.append(Line(term="refused", text=counted(refused, "case"), note=rest))
    lines.append(Line(term="detected by", text="names of launched kernels"))
    return tuple(lines)


def _notes(traced: Sequence[CaseView]) -> tuple[str, ...]:
    calls = min((view.evidence.witness.calls for view in traced if view.evidence), default=0)
    unasserted = sorted({view.case.kernel for view in traced if _unasserted(view)})
    notes = [
        (
            "Detection: the names of the launched kernels are compared with the patterns of the card. Another "
            "attention family, or the math path, is a substitution; a name that cannot be assigned is unproven and "
            "never passes."
        ),
    ]
    if traced:
        notes.append(
            f"{counted(len(traced), 'case')} traced, each over at least {counted(calls, 'call')} that had to agree."
        )
    if unasserted:
        notes.append(f"Identity was not asserted for {', '.join(unasserted)}: the card's patterns accept any kernel.")
    return tuple(notes)


def _tables(
    substituted: tuple[CaseView, ...], unproven: tuple[CaseView, ...], refusals: tuple[Refusals, ...]
) -> tuple[AnyTable, ...]:
    return (
        Table(caption="Substituted: another kernel did the work", columns=CASES, rows=substituted),
        Table(caption="Unproven: the trace could not tell", columns=CASES, rows=unproven),
        Table(caption="Refused, and what serves the shape instead", columns=REFUSALS, rows=refusals),
    )


def _refusals(shapes: Sequence[ShapeView]) -> tuple[Refusals, ...]:
    refused: dict[str, list[tuple[CaseView, ShapeView]]] = {}
    for shape in shapes:
        for view in shape.cases:
            if isinstance(view.outcome, Refused):
                refused.setdefault(view.case.kernel, []).append((view, shape))
    return tuple(
        Refusals(
            kernel=kernel,
            cases=tuple(view for view, _ in pairs),
            served=Counter(name for _, shape in pairs for name in shape.judgement.proven_by),
            unserved=sum(not shape.judgement.proven_by for _, shape in pairs),
        )
        for kernel, pairs in refused.items()
    )
