"""All cases on one small map: kernels by models and phases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from urllib.parse import urlencode

from qualify.facts.run import Verdict
from qualify.report import figures
from qualify.report.columns import Column, Table
from qualify.report.drawings.heat import Field, RowName, heat
from qualify.report.drawings.svg import Drawing
from qualify.report.views import SEVERITY, WORDS, CaseView, ModelView, ShapeView

MOST_FIELDS = 800
"""Most fields of the map. Where there would be more, a model has one row for all phases. Where these are still too
many, the map shows only MOST_COLUMNS kernels and as many models as fit, those with failures first."""
MOST_COLUMNS = 40
"""most kernels of a map that shows only a part"""
ALL_PHASES = "all phases"


@dataclass(frozen=True, kw_only=True, slots=True)
class Square:
    """One kernel on the shapes of one model and phase."""

    model: str
    phase: str
    kernel: str
    views: tuple[CaseView, ...]
    ratio: float | None
    """median over the shapes of: time divided by the time of the fastest passing kernel; None = nothing was timed"""

    @property
    def counts(self) -> Counter[Verdict]:
        """Cases by verdict."""
        return Counter(view.verdict for view in self.views)

    @property
    def worst(self) -> Verdict:
        """The worst verdict of its cases."""
        return min((view.verdict for view in self.views), key=SEVERITY.index)

    @property
    def words(self) -> str:
        """The counts in words, the worst first."""
        counts = self.counts
        return ", ".join(f"{counts[verdict]:,} {WORDS[verdict][1]}" for verdict in SEVERITY if counts[verdict])


COLUMNS: tuple[Column[Square], ...] = (
    Column(key="model", title="Model", cell=lambda spot: spot.model),
    Column(key="phase", title="Phase", cell=lambda spot: spot.phase),
    Column(key="kernel", title="Kernel card", cell=lambda spot: spot.kernel),
    Column(key="cases", title="Cases", unit="count", cell=lambda spot: len(spot.views)),
    Column(key="verdicts", title="Verdicts", cell=lambda spot: spot.words),
    Column(key="ratio", title="Times as long as the fastest", number=True, cell=lambda spot: spot.ratio),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseOverview:
    """The map and its numbers."""

    spots: tuple[Square, ...]
    """squares in which at least one case ran or was required"""
    drawing: Drawing | None
    table: Table[Square]
    idle: tuple[str, ...]
    """kernels without a column, because no case of theirs ran or was required"""


def overview(models: Sequence[ModelView]) -> CaseOverview:
    """The map of a run. Kernels with failures come first, so that they are in view; others keep the plan's order."""
    kernels = tuple(dict.fromkeys(view.case.kernel for model in models for view in model.cases))
    phases = [(model, phase, shapes) for model in models for phase, shapes in model.phases()]
    groups: list[tuple[str, str, tuple[ShapeView, ...]]] = [(model.model, phase, its) for model, phase, its in phases]
    if len(groups) * len(kernels) > MOST_FIELDS:
        groups = [(model.model, ALL_PHASES, model.shapes) for model in models]
    found = [_spots(model, phase, shapes) for model, phase, shapes in groups]
    used = _worst_first(kernels, found)
    names = [RowName(group=model, name="all" if phase == ALL_PHASES else phase) for model, phase, _ in groups]
    rows = list(zip(names, found, strict=True))
    spots = tuple(spot for row in found for spot in row.values())
    return CaseOverview(
        spots=spots,
        drawing=_drawing(rows, used),
        table=Table(caption="Cases by model, phase and kernel", columns=COLUMNS, rows=spots),
        idle=tuple(kernel for kernel in kernels if kernel not in used),
    )


def _drawing(rows: Sequence[tuple[RowName, Mapping[str, Square]]], kernels: Sequence[str]) -> Drawing | None:
    """The map. Of a very large one, only the first kernels and models, those with failures first. None = no field."""
    drawn, columns, note = rows, kernels, ""
    if len(rows) * len(kernels) > MOST_FIELDS:
        columns = kernels[:MOST_COLUMNS]
        drawn = sorted(rows, key=lambda row: _severity(row[1].values()))[: MOST_FIELDS // len(columns)]
        note = (
            f"Drawn: {len(drawn):,} of {figures.counted(len(rows), 'model')} and {len(columns):,} of "
            f"{figures.counted(len(kernels), 'kernel')}, those with failures first."
        )
    fields = [
        _field(spots[kernel], row, column)
        for row, (_, spots) in enumerate(drawn)
        for column, kernel in enumerate(columns)
        if kernel in spots
    ]
    found = heat("Kernels by models and phases", [name for name, _ in drawn], columns, fields)
    return replace(found, note=note) if found else None


def _severity(squares: Iterable[Square]) -> int:
    """Place of the worst verdict in SEVERITY; a row without squares comes last."""
    return min((SEVERITY.index(square.worst) for square in squares), default=len(SEVERITY))


def _worst_first(kernels: Sequence[str], rows: Sequence[Mapping[str, Square]]) -> list[str]:
    """The kernels that have a square; those with failures come first, the worst verdict first."""
    worst = {
        kernel: min(SEVERITY.index(row[kernel].worst) for row in rows if kernel in row)
        for kernel in kernels
        if any(kernel in row for row in rows)
    }
    return sorted(worst, key=lambda kernel: worst[kernel] if worst[kernel] < SEVERITY.index("PASS") else len(SEVERITY))


def _spots(model: str, phase: str, shapes: Sequence[ShapeView]) -> Mapping[str, Square]:
    """The squares of a row by kernel. A kernel has none where no case of it ran and none was required."""
    members: dict[str, list[CaseView]] = {}
    ratios: dict[str, list[float]] = {}
    for shape in shapes:
        fastest = shape.fastest
        for view in shape.cases:
            members.setdefault(view.case.kernel, []).append(view)
            if fastest and fastest.timing and view.timing and view.timed:
                ratios.setdefault(view.case.kernel, []).append(view.timing.latency_us / fastest.timing.latency_us)
    return {
        kernel: Square(
            model=model,
            phase=phase,
            kernel=kernel,
            views=tuple(views),
            ratio=median(ratios[kernel]) if kernel in ratios else None,
        )
        for kernel, views in members.items()
        if any(view.ran or view.verdict != "NOT_REQUIRED" for view in views)
    }


def _field(spot: Square, row: int, column: int) -> Field:
    worst = spot.worst
    times = f"; median {figures.ratio(spot.ratio)} the time of the fastest" if spot.ratio else ""
    asked = {"model": spot.model, "kernel": spot.kernel} | ({} if spot.phase == ALL_PHASES else {"phase": spot.phase})
    return Field(
        row=row,
        column=column,
        verdict=worst,
        text=f"{WORDS[worst][0]} {spot.counts[worst]:,}",
        ratio=spot.ratio,
        title=f"{spot.kernel}, {spot.model}, {spot.phase}: {spot.words}{times}",
        cases=urlencode(asked),
    )
