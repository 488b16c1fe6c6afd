"""Samples of times as strips on one axis: a kernel is a row, a sample is a tick, the long tick is the median."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qualify.report import figures
from qualify.report.columns import Column, Table
from qualify.report.drawings.svg import COLOURS, Drawing, picture, safe, scale, tick_texts, titled

WIDTH, ROW = 420, 30
LEFT, RIGHT, TOP, BOTTOM = 12, 12, 8, 40
LABEL = "time of one call; the axis does not begin at 0"


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRow:
    """The samples of one kernel."""

    name: str
    number: int
    """number of the kernel's series"""
    samples_us: tuple[float, ...]
    median_us: float

    @property
    def lowest_us(self) -> float:
        """The shortest sample."""
        return min(self.samples_us)

    @property
    def highest_us(self) -> float:
        """The longest sample."""
        return max(self.samples_us)


COLUMNS: tuple[Column[SampleRow], ...] = (
    Column(key="kernel", title="Kernel card", cell=lambda strip: strip.name),
    Column(key="median_us", title="Median", unit="us", cell=lambda strip: strip.median_us),
    Column(key="lowest_us", title="Shortest", unit="us", cell=lambda strip: strip.lowest_us),
    Column(key="highest_us", title="Longest", unit="us", cell=lambda strip: strip.highest_us),
    Column(key="samples", title="Samples", unit="count", cell=lambda strip: len(strip.samples_us)),
)


def strips(title: str, rows: Sequence[SampleRow], note: str = "") -> Drawing | None:
    """All samples of several kernels under one another, the fastest first; None where there are none."""
    finite = [
        SampleRow(name=row.name, number=row.number, samples_us=kept, median_us=row.median_us)
        for row in rows
        if (kept := tuple(sample for sample in row.samples_us if math.isfinite(sample) and sample > 0))
        and math.isfinite(row.median_us)
    ]
    if not finite:
        return None
    finite.sort(key=lambda row: row.median_us)
    height = TOP + ROW * len(finite) + BOTTOM
    every = [sample for row in finite for sample in row.samples_us]
    axis = scale("log", every, LEFT, WIDTH - RIGHT)
    if max(every) <= 4 * min(every):
        room = (max(every) - min(every)) / 20 or max(every) / 20
        axis = replace(axis, kind="linear", low=min(every) - room, high=max(every) + room)
    parts = [_axis(axis.ticks(), [axis.at(tick) for tick in axis.ticks()], height)]
    for place, row in enumerate(finite):
        y = TOP + ROW * place
        ticks = "".join(f"M{axis.at(sample)} {y + 15}v10" for sample in row.samples_us)
        text = (
            f"{row.name}: median {figures.duration(row.median_us)}, {figures.duration(row.lowest_us)} to "
            f"{figures.duration(row.highest_us)}, {figures.counted(len(row.samples_us), 'sample')}"
        )
        parts.append(f'<text x="{LEFT}" y="{y + 11}">{safe(row.name)}</text>')
        parts.append(titled("path", f'class="ticks s{row.number % COLOURS}" d="{ticks}"', text))
        parts.append(titled("path", f'class="median" d="M{axis.at(row.median_us)} {y + 12}v16"', text))
    table = Table(caption=f"{title}: samples", columns=COLUMNS, rows=tuple(finite))
    label = f"{title}: samples of {figures.counted(len(finite), 'kernel')}, in microseconds"
    return Drawing(title=title, svg=picture(WIDTH, height, label, parts), note=note, table=table)


def _axis(ticks: Sequence[float], places: Sequence[float], height: int) -> str:
    base = height - BOTTOM + 4
    grid = "".join(f"M{place} {TOP}V{base}" for place in places)
    labels = [(place, figures.duration(tick) if tick else "0") for tick, place in zip(ticks, places, strict=True)]
    texts = "".join(tick_texts(labels, base + 14, WIDTH))
    return (
        f'<path class="grid" d="{grid}"/><path class="axis" d="M{LEFT} {base}H{WIDTH - RIGHT}"/>{texts}'
        f'<text class="label" x="{WIDTH / 2}" y="{height - 6}" text-anchor="middle">{LABEL}</text>'
    )
