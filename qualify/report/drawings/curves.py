"""Values against length, one line for each kernel: times, shares of the ceiling, errors with their limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qualify.report.drawings.svg import (
    COLOURS,
    Drawing,
    Frame,
    LegendKey,
    Scale,
    length_text,
    line,
    mark,
    picture,
    scale,
)

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 24, 44


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One point of a line."""

    x: float
    y: float
    low: float
    """lowest value at that length; equal to ``high`` where there is only one value"""
    high: float
    title: str
    """the numbers of the point, shown on hover"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line; a kernel has several where its calls differ in more than length."""

    name: str
    number: int
    """number of the kernel; it selects colour, marker and dashes, the same in every drawing of a page"""
    points: tuple[Point, ...]


def curves(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    y_kind: Literal["log", "linear"] = "log",
    y_unit: str = "",
    y_factor: float = 1.0,
    limit: float | None = None,
    limit_text: str = "",
    note: str = "",
) -> Drawing | None:
    """Lines over a logarithmic axis of lengths; None where there is no point.

    Args:
        limit: value at which a horizontal line stands; None = no line.
    """
    points = [point for one in series for point in one.points]
    if not points:
        return None
    values = [bound for point in points for bound in (point.low, point.high)]
    axis = _lengths(points)
    at = _columns(series, axis)
    frame = Frame(
        width=WIDTH,
        height=HEIGHT,
        x=axis,
        y=scale(y_kind, values if limit is None else [*values, limit], HEIGHT - BOTTOM, TOP),
        x_label=_side_by_side(x_label, points[0]) if len(at) > 1 else x_label,
        y_label=y_label,
        x_text="length",
        y_unit=y_unit,
        y_factor=y_factor,
    )
    names = dict.fromkeys((one.name, one.number) for one in series if one.points)
    label = f"{title}: {y_label} against {x_label}; {len(points)} points of {len(names)} kernels"
    svg = picture(WIDTH, HEIGHT, label, _parts(series, frame, limit, at))
    keys = tuple(LegendKey(name=name, number=number) for name, number in names)
    keys += (LegendKey(name=limit_text, number=0, line=True),) if limit is not None else ()
    return Drawing(title=title, svg=svg, keys=keys, note=note)


def _lengths(points: Sequence[Point]) -> Scale:
    """The axis of lengths, with a tick at each length."""
    axis = scale("log", [point.x for point in points], LEFT, WIDTH - RIGHT, base=2)
    return replace(axis, marks=tuple(sorted({point.x for point in points})))


def _side_by_side(x_label: str, point: Point) -> str:
    return f"{x_label} ({length_text(point.x)}); kernels side by side"


def _parts(series: Sequence[Series], frame: Frame, limit: float | None, at: Mapping[int, float]) -> list[str]:
    """The frame, the limit where there is one, and the lines."""
    parts = [frame.axes()]
    if limit is not None:
        parts.append(f'<path class="limit" d="M{frame.x.start} {frame.y.at(limit)}H{frame.x.end}"/>')
    return [*parts, *(part for one in series for part in _line(one, frame, at))]


def _line(one: Series, frame: Frame, at: Mapping[int, float]) -> list[str]:
    """One line with its markers.

    Args:
        at: place of each kernel on the x axis where all calls have the same length, as :func:`_columns` gives it.
    """
    places = [(at.get(one.number, frame.x.at(point.x)), frame.y.at(point.y)) for point in one.points]
    pairs = list(zip(places, one.points, strict=True))
    spans = [_span(one.number, frame, place[0], point) for place, point in pairs if point.high > point.low]
    return [*spans, line(one.number, places), *(mark(one.number, *place, point.title) for place, point in pairs)]


def _columns(series: Sequence[Series], axis: Scale) -> dict[int, float]:
    """Places of the kernels, side by side, where all calls have the same length; empty where lengths differ."""
    if len({point.x for one in series for point in one.points}) > 1:
        return {}
    numbers = sorted({one.number for one in series if one.points})
    step = (axis.end - axis.start) / (len(numbers) + 1)
    return {number: round(axis.start + step * place, 1) for place, number in enumerate(numbers, 1)}


def _span(number: int, frame: Frame, x: float, point: Point) -> str:
    """A vertical line from the lowest to the highest of several cases at one place."""
    return f'<path class="span s{number % COLOURS}" d="M{x} {frame.y.at(point.low)}V{frame.y.at(point.high)}"/>'
