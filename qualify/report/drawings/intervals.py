"""Changes of time with their intervals: a row for each cell, and vertical lines at no change and at each budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qualify.facts.run import Verdict
from qualify.report.drawings.svg import Drawing, LegendKey, Scale, picture, safe, scale, tick_texts, titled
from qualify.report.figures import counted

WIDTH, ROW = 900, 22
LEFT, RIGHT, TOP, BOTTOM = 430, 16, 8, 42
SHOWN = 24
"""most cells that are drawn: those whose time grew most; the table beneath has all"""
LONGEST = 66
"""most characters of a cell's name in the drawing; hover and the table show it whole"""
FARTHEST = 0.5
"""change (as a share) at which bars are cut, so that one cell does not compress all others; more where a budget is"""
ARROWS = {-1: "l7 -5v10z", 1: "l-7 -5v10z"}
"""SVG paths of a mark that points to what lies beyond the left or the right end of the axis"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """The change of one cell. Changes are shares: 0.02 = 2 % longer."""

    name: str
    verdict: Verdict
    """verdict whose colour the row has"""
    change: float
    low: float
    high: float
    title: str
    """the numbers in words, shown on hover"""


def intervals(title: str, cells: Sequence[Interval], limits: Sequence[float]) -> Drawing | None:
    """The cells under one another; None where none was timed.

    Args:
        limits: shares that budgets allow.
    """
    rows = [cell for cell in cells if all(map(math.isfinite, (cell.change, cell.low, cell.high)))][:SHOWN]
    if not rows:
        return None
    height = TOP + ROW * len(rows) + BOTTOM
    farthest = max([FARTHEST, *(1.5 * abs(limit) for limit in limits)])
    inside = [_cut(end, farthest) for row in rows for end in (row.low, row.change, row.high)]
    axis = _axis([0.0, *limits, *inside])
    parts = [_frame(axis, height), *(_limit(axis, limit, height) for limit in sorted(set(limits)))]
    parts += [_row(axis, row, TOP + ROW * place, farthest) for place, row in enumerate(rows)]
    label = f"{title}: change of {counted(len(rows), 'cell')} with 95 % intervals; the table below holds the same"
    note = "A mark is the change of a cell, its bar the 95 % interval. Left of 0 is faster, right of it slower."
    if len(rows) < len(cells):
        note += f" Drawn are the {len(rows)} cells that grew most."
    note += _cut_note(rows, farthest)
    keys = (LegendKey(name="what a budget allows", number=0, line=True),) if limits else ()
    svg = picture(WIDTH, height, label, parts, "intervals")
    return Drawing(title=title, svg=svg, keys=keys, note=note, wide=True)


def _cut(share: float, farthest: float) -> float:
    return min(max(share, -farthest), farthest)


def _cut_note(rows: Sequence[Interval], farthest: float) -> str:
    """What is not drawn where it lies."""
    note = ""
    if any(abs(row.change) > farthest for row in rows):
        note += f" A triangle is a change of more than ±{farthest:.0%}, with its number beside it."
    if any(max(abs(row.low), abs(row.high)) > farthest for row in rows):
        note += f" Bars are cut at ±{farthest:.0%}: what lies beyond is not drawn."
    return note


def _axis(values: Sequence[float]) -> Scale:
    """A linear axis with room at both ends."""
    room = (max(values) - min(values)) * 0.06 or 0.01
    found = scale("linear", values, LEFT, WIDTH - RIGHT)
    return Scale(kind="linear", low=min(values) - room, high=max(values) + room, start=found.start, end=found.end)


def _frame(axis: Scale, height: int) -> str:
    base = height - BOTTOM + 2
    ticks = axis.ticks()
    grid = "".join(f"M{axis.at(tick)} {TOP}V{base}" for tick in ticks)
    texts = "".join(tick_texts([(axis.at(tick), _percent(tick)) for tick in ticks], base + 15, WIDTH))
    middle = (axis.start + axis.end) / 2
    return (
        f'<path class="grid" d="{grid}"/><path class="axis" d="M{LEFT} {base}H{WIDTH - RIGHT}"/>'
        f'<path class="axis" d="M{axis.at(0.0)} {TOP}V{base}"/>{texts}'
        f'<text class="label" x="{middle}" y="{height - 6}" text-anchor="middle">change of the time of one call</text>'
    )


def _percent(share: float) -> str:
    return f"{100 * share:+.3g}\N{NO-BREAK SPACE}%" if share else "0"


def _limit(axis: Scale, limit: float, height: int) -> str:
    return titled("path", f'class="limit" d="M{axis.at(limit)} {TOP}V{height - BOTTOM + 2}"', f"budget {limit:+z.1%}")


def _row(axis: Scale, row: Interval, y: int, farthest: float) -> str:
    name = row.name if len(row.name) <= LONGEST else f"…{row.name[1 - LONGEST :]}"
    middle = y + ROW / 2
    bar = f"M{axis.at(_cut(row.low, farthest))} {middle}H{axis.at(_cut(row.high, farthest))}"
    return (
        f'<g class="{row.verdict}"><title>{safe(row.title)}</title>'
        f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{safe(name)}</text>'
        f'<path class="reach" d="{bar}"/>{_mark(axis, row.change, middle, farthest)}</g>'
    )


def _mark(axis: Scale, change: float, middle: float, farthest: float) -> str:
    """A dot at the change; at the end of the axis a triangle that points to it, with the number."""
    place = axis.at(_cut(change, farthest))
    if abs(change) <= farthest:
        return f'<circle cx="{place}" cy="{middle}" r="4"/>'
    way, anchor = (-1, "start") if change < 0 else (1, "end")
    return (
        f'<path class="beyond" d="M{place} {middle}{ARROWS[way]}"/>'
        f'<text class="label" x="{place - way * 11}" y="{middle + 4}" text-anchor="{anchor}">{_percent(change)}</text>'
    )
