"""Bars along one axis of a call: a bar covers the values for which a library launches the same kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qualify.facts.cliffs import Map, Segment
from qualify.report.drawings.svg import Drawing, picture, safe

WIDTH, HEIGHT, BAR = 960, 66, 30
"""width and height of the picture, and height of its bars, in units of the picture"""
NARROW = 3
"""least width of a bar, so that a range of a single value can be seen"""
LABEL = 44
"""least distance of two labels below the bars"""
TONES = 6
"""number of colours; where there are more kernels, the letters in the bars tell them apart"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A range of values for which the same kernels are launched."""

    x: float
    width: float
    tone: int
    """number of its colour"""
    letter: str
    """letter of the launched kernels; empty where there is no room for it"""
    title: str
    about: bool
    """whether its right end is only known about"""


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisTick:
    """A value below the bars."""

    x: float
    text: str
    anchor: str
    """SVG text-anchor: ``start``, or ``end`` at the right edge"""


def kernel_map(found: Map, letters: Mapping[str, str], summary: str) -> Drawing:
    """The picture of one axis.

    Args:
        letters: letter of each set of launched kernels, in the order of the colours.
    """
    bars = bars_of(found.segments, letters)
    parts = [_drawn(bar, bars[place - 1] if place else None) for place, bar in enumerate(bars)]
    parts += [
        f'<text class="tick" x="{tick.x}" y="46" text-anchor="{tick.anchor}">{tick.text}</text>'
        for tick in ticks_of(found.segments, bars)
    ]
    parts.append(f'<text class="tick" x="{WIDTH / 2}" y="62" text-anchor="middle">{safe(found.title)}</text>')
    label = f"{found.title}: {summary}; the table below holds the same"
    return Drawing(title=found.title, svg=picture(WIDTH, HEIGHT, label, parts, "kernel-map"))


def _drawn(bar: Bar, before: Bar | None) -> str:
    letter = f'<text x="{bar.x + bar.width / 2}" y="20" text-anchor="middle">{bar.letter}</text>' if bar.letter else ""
    about = ' class="about"' if before and before.about else ""
    edge = f'<line{about} x1="{bar.x}" y1="0" x2="{bar.x}" y2="{BAR + 4}"/>' if before else ""
    shape = f'<rect x="{bar.x}" y="0" width="{bar.width}" height="{BAR}"/>'
    return f'<g class="tone{bar.tone}"><title>{safe(bar.title)}</title>{shape}{letter}{edge}</g>'


def bars_of(segments: Sequence[Segment], letters: Mapping[str, str]) -> tuple[Bar, ...]:
    """The bars on a logarithmic axis: each begins at its first value and ends where the next begins."""
    first = segments[0].first
    ends = [*(segment.first for segment in segments[1:]), segments[-1].last + 1]
    span = math.log2(ends[-1] / first)
    tones = {launched: number % TONES for number, launched in enumerate(letters)}
    bars = []
    for segment, end in zip(segments, ends, strict=True):
        x = WIDTH * math.log2(segment.first / first) / span
        width = WIDTH * math.log2(end / first) / span - x
        letter = letters[segment.launched]
        bars.append(
            Bar(
                x=round(x, 2),
                width=round(max(width, NARROW), 2),
                tone=tones[segment.launched],
                letter=letter if width >= 12 * len(letter) else "",
                title=f"{segment.first} to {segment.last}: {letter}, {segment.launched}",
                about=not segment.exact,
            )
        )
    return tuple(bars)


def ticks_of(segments: Sequence[Segment], bars: Sequence[Bar]) -> tuple[AxisTick, ...]:
    """The first value of each bar that has room for it, and the last value of all."""
    ticks: list[AxisTick] = []
    for segment, bar in zip(segments, bars, strict=True):
        if (not ticks or bar.x - ticks[-1].x >= LABEL) and (bar is bars[0] or WIDTH - bar.x >= 2 * LABEL):
            ticks.append(AxisTick(x=bar.x, text=f"{segment.first:,}", anchor="start"))
    return (*ticks, AxisTick(x=WIDTH, text=f"{segments[-1].last:,}", anchor="end"))
