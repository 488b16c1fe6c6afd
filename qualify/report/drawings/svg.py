"""What all drawings share: scales with ticks, a frame with axes, markers that differ in form as well as in colour."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

from qualify.report.columns import AnyTable
from qualify.text import visible

COLOURS = 8
"""colours of series in the style, s0 to s7: they stay apart for colour-blind eyes"""
DASHES = 4
"""patterns of lines, d0 to d3"""
SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
LETTER = 6.2
"""approximate width of a letter in the label of a tick, in units of the drawing"""
MOST_TICKS = 7
FEW_POWERS = 2
"""up to so many powers of ten on an axis, two and five times a power get ticks too"""
MARKERS = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "m-3.6 -3.6h7.2v7.2h-7.2z",
    "m0 -4.6l4.4 7.8h-8.8z",
    "m0 -5l5 5l-5 5l-5 -5z",
    "m0 4.6l4.4 -7.8h-8.8z",
    "m-1.5 -4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "m-4.5 -2.6l4.5 -2.6l4.5 2.6v5.2l-4.5 2.6l-4.5 -2.6z",
)
"""SVG paths of the markers. Each series has a marker of its own, because colour is never the only sign."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LegendKey:
    """One entry of a legend."""

    name: str
    number: int
    """number of the series; it selects colour, marker and dashes"""
    line: bool = False
    """whether the entry stands for a line without markers, such as a limit"""

    @property
    def sample(self) -> Markup:
        """The marker as it looks in the drawing."""
        inside = '<path class="limit" d="M0 7H18"/>' if self.line else mark(self.number, 9, 7)
        return Markup(f'<svg class="key" viewBox="0 0 18 14" aria-hidden="true">{inside}</svg>')  # noqa: S704 (made here)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """A picture, how to read it, and its numbers."""

    title: str
    svg: Markup
    keys: tuple[LegendKey, ...] = ()
    note: str = ""
    table: AnyTable | None = None
    """the numbers, shown beneath; None where another table on the page holds them"""
    wide: bool = False
    """whether a narrow screen scrolls the drawing instead of making it smaller"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Where a value lies on an axis."""

    kind: Literal["log", "linear"]
    low: float
    high: float
    start: float
    """place of the lowest value, in units of the drawing"""
    end: float
    base: int = 10
    """base of the ticks of a logarithmic axis: 10, or 2 for lengths"""
    marks: tuple[float, ...] = ()
    """values that get ticks; empty = round values get them"""

    def at(self, value: float) -> float:
        """The place of a value in units of the drawing; values beyond the axis stand at its ends."""
        value = min(max(value, self.low), self.high)
        if self.kind == "log":
            span = math.log(self.high / self.low)
            share = math.log(value / self.low) / span if span else 0.5
        else:
            share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """The given values where there are at most MOST_TICKS, else round values on the axis."""
        if 0 < len(self.marks) <= MOST_TICKS:
            return list(self.marks)
        if self.kind == "linear":
            return _linear_ticks(self.low, self.high)
        first = math.ceil(math.log(self.low, self.base) - 1e-9)
        last = math.floor(math.log(self.high, self.base) + 1e-9)
        step = max(1, math.ceil((last - first + 1) / MOST_TICKS))
        found = [float(self.base) ** power for power in range(first, last + 1, step)]
        if self.base == 10 and len(found) <= FEW_POWERS:
            found = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
            found = [tick for tick in found if self.low <= tick <= self.high]
        return found if len(found) > 1 else _between(self.low, self.high)


def _linear_ticks(low: float, high: float) -> list[float]:
    span = high - low
    if span <= 0:
        return [low]
    rough = span / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _between(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis with at most one round value."""
    return [tick for tick in _linear_ticks(low, high) if low <= tick <= high] or [low, high]


def scale(kind: Literal["log", "linear"], values: Sequence[float], start: float, end: float, base: int = 10) -> Scale:
    """A scale that holds all values, with a little room at its ends; a linear one begins at 0."""
    finite = [value for value in values if math.isfinite(value) and (kind == "linear" or value > 0)] or [1.0]
    low, high = min(finite), max(finite)
    if kind == "linear":
        return Scale(kind=kind, low=min(0.0, low), high=high * 1.05 or 1.0, start=start, end=end)
    room = 1.15 if base == 10 else 1.25
    return Scale(kind=kind, low=low / room, high=high * room, start=start, end=end, base=base)


def shown(value: float, unit: str = "") -> str:
    """A tick with an SI prefix: ``8k``, ``300 µs``; small plain numbers and percent have none."""
    if value == 0 or not unit.strip().isalpha():
        return f"{value:.3g}{unit}" if abs(value) < 1000 else _prefixed(value, "")
    return _prefixed(value, unit)


def _prefixed(value: float, unit: str) -> str:
    size = abs(value)
    factor, prefix = next(((factor, prefix) for factor, prefix in SI if size >= factor * 0.9999), SI[-1])
    return f"{value / factor:.3g}{' ' if unit else ''}{prefix}{unit}"


def length_text(value: float) -> str:
    """A number of keys: powers of two in Ki, others as they are."""
    number = round(value)
    return f"{number // 1024}Ki" if number >= 1024 and number % 1024 == 0 else f"{number:,}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """Axes around a drawing."""

    width: int
    height: int
    x: Scale
    y: Scale
    x_label: str
    y_label: str
    x_text: Literal["length", "si"] = "si"
    y_unit: str = ""
    """unit behind the number of each tick, for example ``s`` or ``%``"""
    y_factor: float = 1.0
    """factor between a value and the number that its tick shows"""

    def axes(self) -> str:
        """Grid, ticks and labels."""
        ticks = sorted(self.x.ticks())
        lines = [f"M{self.x.at(tick)} {self.y.end}V{self.y.start}" for tick in ticks]
        text_of = length_text if self.x_text == "length" else shown
        labels = [(self.x.at(tick), text_of(tick)) for tick in ticks]
        texts = tick_texts(labels, self.y.start + 15, self.width)
        for tick in self.y.ticks():
            place = self.y.at(tick)
            lines.append(f"M{self.x.start} {place}H{self.x.end}")
            text = shown(tick * self.y_factor, self.y_unit)
            texts.append(f'<text x="{self.x.start - 6}" y="{place + 4}" text-anchor="end">{text}</text>')
        middle = (self.x.start + self.x.end) / 2
        return (
            f'<path class="grid" d="{"".join(lines)}"/>'
            f'<path class="axis" d="M{self.x.start} {self.y.end}V{self.y.start}H{self.x.end}"/>{"".join(texts)}'
            f'<text class="label" x="{middle}" y="{self.height - 6}" text-anchor="middle">{escape(self.x_label)}</text>'
            f'<text class="label" x="4" y="12">{escape(self.y_label)}</text>'
        )


def tick_texts(labels: Iterable[tuple[float, str]], y: float, width: float) -> list[str]:
    """Labels under their places, from left to right; one at an edge of the drawing begins or ends at its place.

    Where two would overlap, only the first is written.
    """
    texts, free = [], -math.inf
    for place, text in labels:
        size = LETTER * len(text)
        room = size / 2 + LETTER
        anchor, before = (
            ("start", 0.0) if place < room else ("end", size) if place > width - room else ("middle", size / 2)
        )
        if place - before >= free:
            texts.append(f'<text x="{place}" y="{y}" text-anchor="{anchor}">{text}</text>')
            free = place - before + size + LETTER
    return texts


def picture(
    width: int, height: int, label: str, parts: Iterable[str], classes: str = "", *, links: bool = False
) -> Markup:
    """A drawing that a screen reader announces by its label.

    The style sheet sets its width.

    Args:
        links: the drawing holds links. Then a screen reader takes it for a group of links, and it keeps its own size,
            so that its labels are as large as text.
    """
    size = f'viewBox="0 0 {width} {height}"' + (f' width="{width}" height="{height}"' if links else "")
    role = "group" if links else "img"
    name = " ".join(filter(None, ("draw", classes)))
    body = "".join(parts)
    return Markup(  # noqa: S704 (each part escapes what is not our own)
        f'<svg class="{name}" {size} role="{role}" aria-label="{safe(label)}">{body}</svg>'
    )


def safe(text: str) -> Markup:
    """Text from outside, visible and escaped."""
    return escape(visible(text))


def titled(tag: str, attributes: str, title: str) -> str:
    """A shape that shows a title on hover. The attributes are not escaped: they never come from outside."""
    return f"<{tag} {attributes}><title>{safe(title)}</title></{tag}>"


def mark(number: int, x: float, y: float, title: str = "") -> str:
    """The marker of a series at a point, with a title on hover."""
    place = f'href="#mark{number % len(MARKERS)}" x="{x}" y="{y}" class="mark s{number % COLOURS}"'
    return titled("use", place, title) if title else f"<use {place}/>"


def markers() -> Markup:
    """The definitions of all markers, which a page holds once."""
    forms = "".join(f'<path id="mark{number}" d="M0 0{path}"/>' for number, path in enumerate(MARKERS))
    return Markup(f'<svg class="forms" aria-hidden="true"><defs>{forms}</defs></svg>')  # noqa: S704 (made here)


def line(number: int, points: Sequence[tuple[float, float]]) -> str:
    """The line of a series through its points; nothing for one point."""
    if len(points) < 2:
        return ""
    path = "L".join(f"{x} {y}" for x, y in points)
    return f'<path class="line s{number % COLOURS} d{number % DASHES}" d="M{path}"/>'
