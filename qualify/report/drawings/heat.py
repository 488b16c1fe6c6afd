"""The map of kernels by models and phases: coloured by the worst verdict, or by the time against the fastest kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qualify.facts.run import Verdict
from qualify.report.drawings.svg import Drawing, picture, safe

CELL, ROW, LABEL, HEAD = 54, 24, 210, 112
"""in px: width and height of a field, width of the labels at the left, least height of the labels above"""
SLOPE = 38
"""degrees by which the names of kernels rise to the right"""
CHARACTER = 7.5
"""average width of a character in px, rounded up"""
STEPS = (1.02, 1.25, 1.6, 2.5)
"""upper ends of the colours, as factors of the fastest kernel's time"""
STEP_WORDS = ("fastest", "up to 1.25×", "up to 1.6×", "up to 2.5×", "longer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One kernel on the shapes of one model and phase."""

    row: int
    column: int
    verdict: Verdict
    """the worst of its cases"""
    text: str
    """glyph and count of the worst verdict"""
    ratio: float | None
    """median time over that of the fastest passing kernel; None where nothing was timed"""
    title: str
    """all counts and times, shown on hover"""
    cases: str
    """query to which the script of the page narrows the list of cases; without the script the field is no link"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowName:
    """The label of a row."""

    group: str
    """name of the model; shown only where it differs from the row above"""
    name: str


def step_of(ratio: float | None) -> int | None:
    """Number of the colour for a ratio to the fastest time; None where there is no time."""
    return None if ratio is None else sum(ratio > step for step in STEPS)


def heat(title: str, rows: Sequence[RowName], columns: Sequence[str], fields: Sequence[Field]) -> Drawing | None:
    """The map; None where there is no field. A place without a field is not applicable: nobody ran it."""
    if not fields:
        return None
    width, head = room_of(columns)
    height = head + ROW * len(rows) + 6
    filled = {(field.row, field.column) for field in fields}
    empty = "".join(
        f"M{LABEL + CELL * column + 21} {head + ROW * row + 12}h12"
        for row in range(len(rows))
        for column in range(len(columns))
        if (row, column) not in filled
    )
    parts = [*(_head(column, name, head) for column, name in enumerate(columns)), *_labels(rows, len(columns), head)]
    parts += [f'<path class="none" d="{empty}"/>', *(_field(field, head) for field in fields)]
    label = f"{title}: {len(rows)} rows of models and phases, {len(columns)} kernels"
    svg = picture(width, height, label, parts, "heat", links=True)
    return Drawing(title=title, svg=svg)


def room_of(columns: Sequence[str]) -> tuple[int, int]:
    """Width of the picture and height of the names above it, in px, so that no name is cut off."""
    turn = math.radians(SLOPE)
    ends = (CELL * (at + 0.5) + CHARACTER * len(name) * math.cos(turn) for at, name in enumerate(columns))
    highest = max((CHARACTER * len(name) * math.sin(turn) for name in columns), default=0.0)
    return math.ceil(LABEL + max(CELL * len(columns), *ends, 0.0)) + 12, max(HEAD, math.ceil(highest) + 18)


def _head(column: int, name: str, head: int) -> str:
    x = LABEL + CELL * column + CELL / 2
    return f'<text transform="translate({x} {head - 8}) rotate(-{SLOPE})">{safe(name)}</text>'


def _labels(rows: Sequence[RowName], columns: int, head: int) -> list[str]:
    parts, edges = [], []
    for number, row in enumerate(rows):
        y = head + ROW * number
        first = not number or rows[number - 1].group != row.group
        if first:
            edges.append(f"M0 {y}H{LABEL + CELL * columns}")
            parts.append(f'<text class="strong" x="0" y="{y + 16}">{safe(row.group)}</text>')
        parts.append(f'<text x="{LABEL - 8}" y="{y + 16}" text-anchor="end">{safe(row.name)}</text>')
    return [f'<path class="grid" d="{"".join(edges)}"/>', *parts]


def _field(field: Field, head: int) -> str:
    x, y = LABEL + CELL * field.column, head + ROW * field.row
    step = step_of(field.ratio)
    time = "–" if field.ratio is None else f"{field.ratio:.2f}×" if field.ratio < 10 else f"{field.ratio:.0f}×"
    classes = f"{field.verdict} {'untimed' if step is None else f't{step}'}"
    title = safe(field.title)
    return (
        f'<a class="{classes}" data-cases="{safe(field.cases)}" aria-label="{title}"><title>{title}</title>'
        f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{ROW - 2}" rx="2"/>'
        f'<text class="by-verdict" x="{x + CELL / 2}" y="{y + 16}" text-anchor="middle">{safe(field.text)}</text>'
        f'<text class="by-time" x="{x + CELL / 2}" y="{y + 16}" text-anchor="middle">{time}</text></a>'
    )
