"""The kernel map: what a library launches along each axis, as a picture and as a table, on a page of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase

from qualify import __version__
from qualify.errors import InfrastructureError
from qualify.facts import codec
from qualify.facts.cliffs import Map, Segment
from qualify.report import figures
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.files import replace_text
from qualify.report.page import render_page

WIDTH = 960
"""of the picture, in its own units"""
NARROW = 3
"""least width of a bar: a cliff of one value is seen too"""
LABEL = 44
"""least distance of two labels below the bars"""
TONES = 6
"""colours; the letter in the bar tells more kernels apart than these"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """The values over which the same is launched."""

    x: float
    width: float
    tone: int
    """number of its colour"""
    letter: str
    """of what is launched, where there is room for it"""
    title: str
    about: bool
    """its right end was not found exactly"""


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisTick:
    """A value below the bars."""

    x: float
    text: str
    anchor: str
    """``start``, or ``end`` at the right edge"""


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisMap:
    """One axis."""

    axis: str
    summary: str
    bars: tuple[Bar, ...]
    ticks: tuple[AxisTick, ...]
    table: AnyTable


@dataclass(frozen=True, kw_only=True, slots=True)
class CliffsPage:
    """Everything that the page shows."""

    kernel: str
    qualify_version: str
    facts: tuple[tuple[str, str], ...]
    width: int
    maps: tuple[AxisMap, ...]
    legend: AnyTable


def write_cliffs(directory: Path, kernel: str, call: str, device: str, maps: Sequence[Map]) -> Path:
    """Writes the page and its JSON twin and returns the path of the page.

    Args:
        call: the call that was varied, in words.

    Raises InfrastructureError where the folder cannot be made or written.
    """
    html = render_page("cliffs.html", page_of(kernel, call, device, maps))
    data = {
        "schema": "qualify.cliffs/1",
        "kernel": kernel,
        "device": device,
        "maps": codec.to_data(list(maps), list[Map]),
    }
    page = directory / f"cliffs-{kernel}.html"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        replace_text(page.with_suffix(".json"), codec.to_json(data))
        replace_text(page, html)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InfrastructureError(
            f"the kernel map cannot be written to {directory}: {reason}. Give another folder with --out DIR."
        ) from error
    return page


def page_of(kernel: str, call: str, device: str, maps: Sequence[Map]) -> CliffsPage:
    """The page of some maps of one kernel."""
    launched = list(dict.fromkeys(segment.launched for found in maps for segment in found.segments))
    letters = {text: letter_of(number) for number, text in enumerate(launched)}
    return CliffsPage(
        kernel=kernel,
        qualify_version=__version__,
        facts=(("Kernel card", kernel), ("Call that was varied", call), ("Device", device)),
        width=WIDTH,
        maps=tuple(_axis(found, letters, launched) for found in maps),
        legend=Table(
            caption="What is launched",
            columns=(
                Column(key="letter", title="Letter", cell=lambda text: letters[text]),
                Column(key="launched", title="Attention kernels, or how the call ended", cell=str, code=True),
            ),
            rows=tuple(launched),
        ),
    )


def letter_of(number: int) -> str:
    """A to Z, then A2 and so on."""
    turn, place = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[place] + (str(turn + 1) if turn else "")


def _axis(found: Map, letters: dict[str, str], launched: Sequence[str]) -> AxisMap:
    bars = _bars(found.segments, letters, launched)
    columns: tuple[Column[Segment], ...] = (
        Column(key="first", title="From", cell=lambda part: part.first, number=True),
        Column(key="last", title="To", cell=lambda part: part.last, number=True),
        Column(key="exact", title="End", cell=lambda part: "exact" if part.exact else "about"),
        Column(key="letter", title="Letter", cell=lambda part: letters[part.launched]),
        Column(key="launched", title="Launched", cell=lambda part: part.launched, code=True),
    )
    cliffs = figures.counted(len(found.segments) - 1, "cliff")
    return AxisMap(
        axis=found.axis,
        summary=f"{cliffs}, {figures.counted(found.traced, 'value')} traced",
        bars=bars,
        ticks=_ticks(found.segments, bars),
        table=Table(caption=f"Along {found.axis}", columns=columns, rows=found.segments),
    )


def _bars(segments: Sequence[Segment], letters: dict[str, str], launched: Sequence[str]) -> tuple[Bar, ...]:
    """Side by side on a logarithmic axis: each begins at its first value and ends where the next begins."""
    first = segments[0].first
    ends = [*(segment.first for segment in segments[1:]), segments[-1].last + 1]
    span = math.log2(ends[-1] / first)
    bars = []
    for segment, end in zip(segments, ends, strict=True):
        x = WIDTH * math.log2(segment.first / first) / span
        width = WIDTH * math.log2(end / first) / span - x
        letter = letters[segment.launched]
        bars.append(
            Bar(
                x=round(x, 2),
                width=round(max(width, NARROW), 2),
                tone=launched.index(segment.launched) % TONES,
                letter=letter if width >= 12 * len(letter) else "",
                title=f"{segment.first} to {segment.last}: {letter}, {segment.launched}",
                about=not segment.exact,
            )
        )
    return tuple(bars)


def _ticks(segments: Sequence[Segment], bars: Sequence[Bar]) -> tuple[AxisTick, ...]:
    """The first value of each bar that has room for it, and the last value of all."""
    ticks: list[AxisTick] = []
    for segment, bar in zip(segments, bars, strict=True):
        if (not ticks or bar.x - ticks[-1].x >= LABEL) and (bar is bars[0] or WIDTH - bar.x >= 2 * LABEL):
            ticks.append(AxisTick(x=bar.x, text=str(segment.first), anchor="start"))
    return (*ticks, AxisTick(x=WIDTH, text=str(segments[-1].last), anchor="end"))
