"""The drawings of each model: times and shares of the ceiling against length, errors, the roofline, samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from qualify.facts.accuracy import E_LIMIT
from qualify.facts.case import Phase
from qualify.facts.stack import Ceilings
from qualify.report import figures
from qualify.report.columns import Column, Table
from qualify.report.drawings.curves import Point, Series, curves
from qualify.report.drawings.roofline import Dot, roofline
from qualify.report.drawings.strips import SampleRow, strips
from qualify.report.drawings.svg import Drawing
from qualify.report.views import CaseView, ModelView

KINDS: tuple[tuple[str, frozenset[Phase]], ...] = (
    ("Prefill", frozenset({"prefill", "chunked", "varlen"})),
    ("Decode", frozenset({"decode", "verify"})),
)
"""The two kinds of drawings with their phases: prefill reads prompts, decode makes tokens, and times of one cannot be
compared with times of the other."""
LENGTHS = 12
"""most places on an axis of lengths. Where there are more lengths, those near one power of two share a place."""
ROWS = 200
"""most rows of the table beneath; the JSON twin has all"""
FAR_BEYOND = 10
"""an error of more than so many limits makes the axis logarithmic, so that small errors can still be told apart"""
KEYS = "longest sequence of keys"
BEYOND = "Above 100 % a call was faster than these measurements, for example because its data lay in a cache."


@dataclass(frozen=True, kw_only=True, slots=True)
class AtLength:
    """Cases of one kernel, variant and length, prompts or tokens."""

    kind: str
    kernel: str
    number: int
    """number of the kernel's series"""
    variant: str
    """what the calls of a line have in common beside their kernel: phase, mask, batch, and whether keys are paged"""
    keys: float
    """keys of the longest sequence"""
    views: tuple[CaseView, ...]

    @property
    def times_us(self) -> list[float]:
        """Times in µs of the cases that passed."""
        return [view.timing.latency_us for view in self.views if view.timing and view.timed]

    @property
    def shares(self) -> list[float]:
        """Shares of the ceiling of the same cases."""
        return [view.timing.ceiling_share for view in self.views if view.timing and view.timed]

    @property
    def errors(self) -> list[float]:
        """E of every input set, also of cases that failed."""
        return [item.E for view in self.views if view.evidence for item in view.evidence.statistics]

    @property
    def time_us(self) -> float | None:
        """Median time; None where nothing was timed."""
        return median(self.times_us) if self.times_us else None

    @property
    def share(self) -> float | None:
        """Median share of the ceiling; None where nothing was timed."""
        return median(self.shares) if self.shares else None

    @property
    def error(self) -> float | None:
        """The worst E; NaN is worse than any number."""
        return max(self.errors, key=_badness) if self.errors else None

    @property
    def name(self) -> str:
        """Kernel, variant and length."""
        return f"{self.kernel}, {self.variant}, {round(self.keys):,} keys"


COLUMNS: tuple[Column[AtLength], ...] = (
    Column(key="kind", title="Phase", cell=lambda spot: spot.kind),
    Column(key="kernel", title="Kernel card", cell=lambda spot: spot.kernel),
    Column(key="variant", title="Calls", cell=lambda spot: spot.variant),
    Column(key="keys", title="Keys", unit="count", cell=lambda spot: round(spot.keys)),
    Column(key="cases", title="Cases", unit="count", cell=lambda spot: len(spot.views)),
    Column(key="time_us", title="Median time", unit="us", cell=lambda spot: spot.time_us),
    Column(key="ceiling_share", title="Median share of the ceiling", unit="share", cell=lambda spot: spot.share),
    Column(key="E", title="Worst element, E ≤ 1", unit="E", cell=lambda spot: spot.error),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPictures:
    """The drawings of one model, with their numbers."""

    model: str
    drawings: tuple[Drawing, ...]
    table: Table[AtLength]
    failed: int
    """number of failed cases; the page first opens the model with the most"""


def pictures(models: Sequence[ModelView], ceilings: Ceilings | None) -> tuple[ModelPictures, ...]:
    """The drawings of every model that has measurements; the model with the most failures comes first."""
    found = [_pictures(model, ceilings) for model in models]
    return tuple(sorted((one for one in found if one.drawings), key=lambda one: -one.failed))


def _pictures(model: ModelView, ceilings: Ceilings | None) -> ModelPictures:
    kernels = dict.fromkeys(view.case.kernel for view in model.cases if view.evidence)
    numbers = {kernel: number for number, kernel in enumerate(kernels)}
    spots = _spots(model, numbers)
    drawings = [
        *(_times(kind, spots) for kind, _ in KINDS),
        *(_shares(kind, spots) for kind, _ in KINDS),
        _errors(spots),
        _roofline(spots, ceilings),
        *(_samples(kind, phases, model, numbers) for kind, phases in KINDS),
    ]
    rows = tuple(spots[:ROWS])
    return ModelPictures(
        model=model.model,
        drawings=tuple(drawing for drawing in drawings if drawing),
        table=Table(caption=f"Numbers of the drawings: {model.model}", columns=COLUMNS, rows=rows),
        failed=len(model.ended("FAIL")),
    )


def _spots(model: ModelView, numbers: Mapping[str, int]) -> list[AtLength]:
    """The cases that ran, in groups of one kind (prefill or decode), kernel, variant and length."""
    members: dict[tuple[int, int, str, float], list[CaseView]] = {}
    for order, (_, phases) in enumerate(KINDS):
        ran = [view for view in model.cases if view.case.phase in phases and view.evidence and view.claimed]
        places = _places({_keys(view) for view in ran})
        for view in ran:
            key = (order, numbers[view.case.kernel], _variant(view), places[_keys(view)])
            members.setdefault(key, []).append(view)
    return [
        AtLength(
            kind=KINDS[order][0],
            kernel=views[0].case.kernel,
            number=number,
            variant=variant,
            keys=keys,
            views=tuple(views),
        )
        for (order, number, variant, keys), views in sorted(members.items())
    ]


def _variant(view: CaseView) -> str:
    """What calls of one kernel and length must have in common to be one point: phase, mask, batch, and paged keys."""
    case = view.case
    parts = (case.phase, case.mask, f"batch {case.workload.batch}", "paged" if case.workload.page_size else "")
    return " ".join(filter(None, parts))


def _keys(view: CaseView) -> int:
    return max(view.case.workload.seqlens_k, default=0) or 1


def _places(lengths: set[int]) -> dict[int, float]:
    """The place of each length on the axis: the length itself, or the nearest power of two where there are too many."""
    if len(lengths) <= LENGTHS:
        return {length: float(length) for length in lengths}
    return {length: 2.0 ** round(math.log2(length)) for length in lengths}


def _badness(value: float) -> float:
    return math.inf if math.isnan(value) else abs(value)


def _series(spots: Sequence[AtLength], points: Mapping[int, Point]) -> list[Series]:
    """One line for each kernel and variant.

    Args:
        points: the drawn points, by the number of their group in ``spots``.
    """
    lines: dict[tuple[str, int, str], list[Point]] = {}
    for at, spot in enumerate(spots):
        if at in points:
            lines.setdefault((spot.kernel, spot.number, spot.variant), []).append(points[at])
    return [Series(name=kernel, number=number, points=tuple(its)) for (kernel, number, _), its in lines.items()]


def _times(kind: str, spots: Sequence[AtLength]) -> Drawing | None:
    points = {}
    for at, spot in enumerate(spots):
        times = spot.times_us if spot.kind == kind else []
        if times:
            span = f", {figures.duration(min(times))} to {figures.duration(max(times))}" if len(times) > 1 else ""
            points[at] = Point(
                x=spot.keys,
                y=median(times) / 1e6,
                low=min(times) / 1e6,
                high=max(times) / 1e6,
                title=f"{spot.name}: {figures.duration(median(times))} (median of {_cases(times)}{span})",
            )
    return curves(
        f"{kind}: time against length",
        _series(spots, points),
        x_label=KEYS,
        y_label="time of one call",
        y_unit="s",
        note="Cases that pass; lower is better. A line joins calls that differ in length alone.",
    )


def _shares(kind: str, spots: Sequence[AtLength]) -> Drawing | None:
    points = {}
    note = "100 % is what the measured memory and arithmetic of this device allow at best. Higher is better."
    for at, spot in enumerate(spots):
        shares = spot.shares if spot.kind == kind else []
        if shares:
            title = f"{spot.name}: {figures.text(median(shares), 'share')} of the ceiling (median of {_cases(shares)})"
            points[at] = Point(x=spot.keys, y=median(shares), low=min(shares), high=max(shares), title=title)
    return curves(
        f"{kind}: share of the ceiling against length",
        _series(spots, points),
        x_label=KEYS,
        y_label="share of the ceiling",
        y_kind="linear",
        y_unit="\N{NO-BREAK SPACE}%",
        y_factor=100,
        note=f"{note} {BEYOND}" if any(point.high > 1 for point in points.values()) else note,
    )


def _cases(values: Sequence[float]) -> str:
    return figures.counted(len(values), "case")


def _errors(spots: Sequence[AtLength]) -> Drawing | None:
    """The worst E of each kernel and length, over prefill and decode together."""
    worst: dict[tuple[str, int, float], float] = {}
    for spot in spots:
        if spot.error is not None:
            key = (spot.kernel, spot.number, spot.keys)
            worst[key] = max(worst.get(key, 0.0), spot.error, key=_badness)
    top = 1.3 * max([E_LIMIT, *(abs(value) for value in worst.values() if math.isfinite(value))])
    series: dict[tuple[str, int], list[Point]] = {}
    for (kernel, number, keys), value in sorted(worst.items(), key=lambda entry: entry[0][1:]):
        place = abs(value) if math.isfinite(value) else top
        title = f"{kernel}, {round(keys):,} keys: error of the worst element {figures.text(value)}, limit {E_LIMIT:g}"
        point = Point(x=keys, y=place, low=place, high=place, title=title)
        series.setdefault((kernel, number), []).append(point)
    return curves(
        "Error against length",
        [Series(name=kernel, number=number, points=tuple(its)) for (kernel, number), its in series.items()],
        x_label=KEYS,
        y_label="error of the worst element",
        y_kind="log" if top > FAR_BEYOND * E_LIMIT else "linear",
        limit=E_LIMIT,
        limit_text="limit: 1",
        note="The largest error of one element (E) over what its accuracy class allows there. Above 1 it fails.",
    )


def _roofline(spots: Sequence[AtLength], ceilings: Ceilings | None) -> Drawing | None:
    if ceilings is None:
        return None
    dots = []
    for spot in spots:
        timed = [view for view in spot.views if view.timing and view.timed and view.timing.compulsory_bytes]
        if timed:
            view = sorted(timed, key=lambda view: view.timing.latency_us if view.timing else 0)[len(timed) // 2]
            timing = view.timing
            assert timing
            reached = timing.flops / timing.latency_us * 1e6
            intensity = timing.flops / timing.compulsory_bytes
            text = f"{figures.text(reached, 'flops_per_s')} at {intensity:.3g} FLOP per byte"
            share = f"{figures.text(timing.ceiling_share, 'share')} of the ceiling"
            title = f"{spot.kind.lower()}, {spot.name}: {text}, {share}"
            if reached > 0 and intensity > 0:
                dots.append(
                    Dot(kernel=spot.kernel, number=spot.number, intensity=intensity, flops_per_s=reached, title=title)
                )
    used: set[str] = {view.case.dtype for spot in spots for view in spot.views}
    measured: dict[str, float] = dict(ceilings.matmul_flops_per_s)
    peaks = {dtype: peak for dtype, peak in measured.items() if dtype in used}
    return roofline("Roofline", dots, peaks or measured, ceilings.copy_bytes_per_s)


def _samples(kind: str, phases: frozenset[Phase], model: ModelView, numbers: Mapping[str, int]) -> Drawing | None:
    """The samples of one shape: the one on which the most kernels were timed, and among these the slowest."""
    ranked = []
    for place, shape in enumerate(model.shapes):
        timed = [view for view in shape.cases if view.timed and view.timing and view.timing.samples_us]
        if shape.phase in phases and timed:
            ranked.append(
                (len(timed), sum(view.timing.latency_us for view in timed if view.timing), -place, shape, timed)
            )
    if not ranked:
        return None
    *_, shape, timed = max(ranked, key=lambda entry: entry[:3])
    rows = [
        SampleRow(
            name=view.case.kernel,
            number=numbers[view.case.kernel],
            samples_us=view.timing.samples_us,
            median_us=view.timing.latency_us,
        )
        for view in timed
        if view.timing
    ]
    return strips(f"{kind}: samples of {shape.label}", rows, note="Each tick is one sample, the long one the median.")
