"""The heat map: production shapes by kernels, one verdict in each field."""

from __future__ import annotations

from dataclasses import dataclass

from qualify.facts.outcome import Measured
from qualify.facts.run import Verdict
from qualify.report import figures
from qualify.report.views import CaseView, ModelView, ShapeView

WORDS: dict[Verdict, tuple[str, str]] = {
    "PASS": ("✓", "pass"),
    "FAIL": ("✗", "fail"),
    "WAIVED": ("◐", "waived"),
    "INCONCLUSIVE": ("?", "inconclusive"),
    "NOT_REQUIRED": ("–", "not required"),
}
"""glyph and word of each verdict, so that colour is never the only sign"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One case in the heat map."""

    anchor: str
    verdict: Verdict
    note: str
    """its time where it has one, otherwise its outcome"""
    why: str
    """first reason, for a tooltip"""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatRow:
    """One production shape."""

    shape: ShapeView
    why: str
    """why the shape lacks its path, otherwise the kernels that prove it"""
    proven: int
    tried: int
    """kernels that the matrix asks for this shape"""
    fields: tuple[Field | None, ...]
    """in the order of the kernels; None where the matrix has no such case"""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatMap:
    """All production shapes under all kernels."""

    kernels: tuple[str, ...]
    groups: tuple[tuple[str, tuple[HeatRow, ...]], ...]
    """model and its rows"""


def heatmap(models: tuple[ModelView, ...]) -> HeatMap:
    """The heat map of a run; kernels in the order in which the matrix names them."""
    kernels = tuple(dict.fromkeys(view.case.kernel for model in models for view in model.cases))
    groups = tuple((model.model, tuple(_row(shape, kernels) for shape in model.shapes)) for model in models)
    return HeatMap(kernels=kernels, groups=groups)


def _row(shape: ShapeView, kernels: tuple[str, ...]) -> HeatRow:
    fields = {view.case.kernel: _field(view) for view in shape.cases}
    return HeatRow(
        shape=shape,
        why=next(iter(shape.judgement.reasons), ", ".join(shape.judgement.proven_by)),
        proven=len(shape.judgement.proven_by),
        tried=len(shape.cases),
        fields=tuple(fields.get(kernel) for kernel in kernels),
    )


def _field(view: CaseView) -> Field:
    outcome = view.outcome.outcome.replace("_", " ")
    timed = isinstance(view.outcome, Measured) and view.timing is not None
    return Field(
        anchor=view.anchor,
        verdict=view.verdict,
        note=figures.duration(view.timing.latency_us) if timed and view.timing else outcome,
        why=view.why[0] if view.why and view.verdict != "PASS" else "",
    )
