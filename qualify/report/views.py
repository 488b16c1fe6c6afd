"""Facts joined for reading: a case with its verdict, a production shape with its cases, a model with its shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qualify.facts.case import Case, Phase
from qualify.facts.outcome import (
    Evidence,
    Finding,
    Launch,
    Measured,
    NotRun,
    Outcome,
    Refused,
    Timing,
    evidence_of,
    findings_of,
)
from qualify.facts.run import CellJudgement, Conclusion, Judgement, Record, Verdict

PHASES: tuple[Phase, ...] = ("prefill", "chunked", "varlen", "decode", "verify")
SEVERITY: tuple[Verdict, ...] = ("FAIL", "INCONCLUSIVE", "WAIVED", "PASS", "NOT_REQUIRED")
"""verdicts in the order in which a reader must see them"""
WORDS: dict[Verdict, tuple[str, str]] = {
    "PASS": ("✓", "pass"),
    "FAIL": ("✗", "fail"),
    "WAIVED": ("◐", "waived"),
    "INCONCLUSIVE": ("?", "inconclusive"),
    "NOT_REQUIRED": ("–", "not required"),
}
"""glyph and word of each verdict, so that colour is never the only sign"""


def anchor(kind: str, name: str) -> str:
    """The id of an element in the page. It depends on the name alone, so it is the same in every report."""
    digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()
    return f"{kind}-{digest[:12]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseView:
    """A case, what happened, and the verdict on it."""

    case: Case
    outcome: Outcome
    verdict: Verdict
    reasons: tuple[str, ...]
    anchor: str
    evidence: Evidence | None
    """what was observed; None where the case did not run to its end"""
    findings: tuple[Finding, ...]
    """findings of the checks"""
    timing: Timing | None
    """time of the case; None where it was not timed"""

    @property
    def attention(self) -> tuple[Launch, ...]:
        """The attention kernels that were launched."""
        evidence = self.evidence
        return tuple(launch for launch in evidence.witness.launches if launch.role == "attention") if evidence else ()

    @property
    def ran(self) -> bool:
        """Whether the case used a device."""
        return not isinstance(self.outcome, Refused | NotRun)

    @property
    def timed(self) -> bool:
        """Whether its time may be compared: the case was measured, passed, and has a time."""
        passed = isinstance(self.outcome, Measured) and self.verdict == "PASS"
        return passed and self.timing is not None and self.timing.latency_us > 0

    @property
    def claimed(self) -> bool:
        """Whether the card claims the case. A case beyond the card's claims is no evidence against the kernel."""
        return not self.case.unclaimed

    @property
    def why(self) -> tuple[str, ...]:
        """The reasons of the outcome; where the outcome has none, those of the verdict."""
        match self.outcome:
            case Refused():
                return self.outcome.reasons
            case NotRun():
                return (self.outcome.reason,)
        return self.reasons


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapeView:
    """A production shape: its verdict, and its cases by kernel."""

    judgement: CellJudgement
    cases: tuple[CaseView, ...]
    anchor: str

    @property
    def label(self) -> str:
        """The shape without its model."""
        return self.judgement.cell.partition("/")[2]

    @property
    def phase(self) -> Phase:
        """Phase of the shape."""
        return self.cases[0].case.phase

    @property
    def required(self) -> bool:
        """Whether the gate requires a proven path for the shape."""
        return self.judgement.verdict != "NOT_REQUIRED"

    @property
    def proven(self) -> bool:
        """Whether the shape has a proven path: by any kernel, or by the expected one where the matrix names one."""
        return self.judgement.verdict == "PASS"

    @property
    def fastest(self) -> CaseView | None:
        """The passing case with the shortest time; None where none was timed."""
        timed = [(view.timing.latency_us, view.case.kernel, view) for view in self.cases if view.timing and view.timed]
        return min(timed, key=lambda entry: entry[:2])[2] if timed else None

    @property
    def proving(self) -> tuple[CaseView, ...]:
        """The cases that prove a path."""
        return tuple(view for view in self.cases if view.case.kernel in self.judgement.proven_by)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelView:
    """A model and its production shapes, in the matrix's order."""

    model: str
    shapes: tuple[ShapeView, ...]

    @property
    def cases(self) -> tuple[CaseView, ...]:
        """All cases of the model."""
        return tuple(view for shape in self.shapes for view in shape.cases)

    def ended(self, *verdicts: Verdict) -> tuple[CaseView, ...]:
        """The cases with one of these verdicts."""
        return tuple(view for view in self.cases if view.verdict in verdicts)

    def phases(self) -> list[tuple[Phase, tuple[ShapeView, ...]]]:
        """The phases that the model has, with their shapes."""
        grouped = [(phase, tuple(shape for shape in self.shapes if shape.phase == phase)) for phase in PHASES]
        return [(phase, shapes) for phase, shapes in grouped if shapes]


def join(records: Iterable[Record], conclusion: Conclusion) -> tuple[CaseView, ...]:
    """Each record with its verdict, in the order of the records. Raises KeyError where a case has no verdict."""
    judgements = {judgement.case_id: judgement for judgement in conclusion.judgements}
    return tuple(view_of(record, judgements[record.case.id]) for record in records)


def view_of(record: Record, judgement: Judgement) -> CaseView:
    """A record with its verdict."""
    evidence = evidence_of(record.outcome)
    return CaseView(
        case=record.case,
        outcome=record.outcome,
        verdict=judgement.verdict,
        reasons=judgement.reasons,
        anchor=anchor("case", record.case.id),
        evidence=evidence,
        findings=findings_of(record.outcome),
        timing=evidence.timing if evidence else None,
    )


def by_model(views: Sequence[CaseView], conclusion: Conclusion) -> tuple[ModelView, ...]:
    """The models of a run with their shapes. Raises KeyError where a shape has no verdict."""
    judgements = {cell.cell: cell for cell in conclusion.cells}
    cells: dict[str, list[CaseView]] = {}
    for view in views:
        cells.setdefault(view.case.cell, []).append(view)
    models: dict[str, list[ShapeView]] = {}
    for cell, members in cells.items():
        shape = ShapeView(judgement=judgements[cell], cases=tuple(members), anchor=anchor("shape", cell))
        models.setdefault(members[0].case.model, []).append(shape)
    return tuple(ModelView(model=model, shapes=tuple(shapes)) for model, shapes in models.items())
