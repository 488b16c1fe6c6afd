"""The map of kernels by models and phases: coloured by the worst verdict, or by the time against the fastest kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qualify.facts.run import Verdict
from qualify.report.drawings.svg import Drawing, picture, safe

CELL, WIDEST, ROW, HEAD = 42, 54, 24, 112
"""in px: least and largest width of a field, its height, least height of the names of kernels above"""
SLOPE = 80
"""degrees by which the names of kernels rise to the right: so six kernels fit on a phone, with their names"""
CHARACTER = 7.5
"""average width of a character in px, rounded up"""
WIDE_CHARACTER, GAP = 8, 6
"""in px: the same of a phase, as ``chunked`` has no narrow letter, and what is left between it and its first field"""
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
    """name of the model; on a line of its own above the first of its rows"""
    name: str


def step_of(ratio: float | None) -> int | None:
    """Number of the colour for a ratio to the fastest time; None where there is no time."""
    return None if ratio is None else sum(ratio > step for step in STEPS)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatSizes:
    """What a map takes, in px, so that no name and no text is cut off."""

    label: int
    """width of the phases at the left"""
    cell: int
    """width of a field"""
    width: int
    """width of the picture"""
    head: int
    """height of the names of kernels"""

    def left(self, column: int) -> int:
        """The left edge of a column."""
        return self.label + self.cell * column


def heat(title: str, rows: Sequence[RowName], columns: Sequence[str], fields: Sequence[Field]) -> Drawing | None:
    """The map; None where there is no field. A place without a field is not applicable: nobody ran it."""
    if not fields:
        return None
    texts = [text for field in fields for text in (field.text, _time(field))]
    sizes = room_of(columns, rows, texts)
    tops = _tops(rows, sizes.head)
    height = tops[-1] + ROW + 6
    filled = {(field.row, field.column) for field in fields}
    empty = "".join(
        f"M{sizes.left(column) + sizes.cell // 2 - 6} {top + 12}h12"
        for row, top in enumerate(tops)
        for column in range(len(columns))
        if (row, column) not in filled
    )
    parts = [*(_head(sizes, column, name) for column, name in enumerate(columns))]
    parts += [*_labels(sizes, rows, len(columns), tops), f'<path class="none" d="{empty}"/>']
    parts += [_field(sizes, field, tops[field.row]) for field in fields]
    label = f"{title}: {len(rows)} rows of models and phases, {len(columns)} kernels"
    svg = picture(sizes.width, height, label, parts, "heat", links=True)
    return Drawing(title=title, svg=svg)


def room_of(columns: Sequence[str], rows: Sequence[RowName] = (), texts: Sequence[str] = ()) -> HeatSizes:
    """The sizes of a map.

    Args:
        columns: names of the kernels.
        rows: the name of a model has a line of its own.
        texts: of the fields.
    """
    turn = math.radians(SLOPE)
    label = max((WIDE_CHARACTER * len(row.name) for row in rows), default=0) + GAP
    cell = min(max([CELL, *(math.ceil(CHARACTER * len(text)) + 4 for text in texts)]), WIDEST)
    longest = max((CHARACTER * len(row.group) for row in rows), default=0.0)
    ends = (cell * (at + 0.5) + CHARACTER * len(name) * math.cos(turn) for at, name in enumerate(columns))
    highest = max((CHARACTER * len(name) * math.sin(turn) for name in columns), default=0.0)
    width = max(label + max(cell * len(columns), *ends, 0.0), longest)
    head = max(HEAD, math.ceil(highest) + 18)
    return HeatSizes(label=label, cell=cell, width=math.ceil(width) + 12, head=head)


def _tops(rows: Sequence[RowName], head: int) -> list[int]:
    """The upper edge of each row; above the first row of a model is a line for its name."""
    tops, y = [], head
    for number in range(len(rows)):
        y += ROW if _begins(rows, number) else 0
        tops.append(y)
        y += ROW
    return tops


def _begins(rows: Sequence[RowName], number: int) -> bool:
    """Whether that row is the first of its model."""
    return not number or rows[number - 1].group != rows[number].group


def _head(sizes: HeatSizes, column: int, name: str) -> str:
    x = sizes.left(column) + sizes.cell / 2
    return f'<text transform="translate({x} {sizes.head - 8}) rotate(-{SLOPE})">{safe(name)}</text>'


def _labels(sizes: HeatSizes, rows: Sequence[RowName], columns: int, tops: Sequence[int]) -> list[str]:
    parts, edges = [], []
    for number, (row, top) in enumerate(zip(rows, tops, strict=True)):
        if _begins(rows, number):
            edges.append(f"M0 {top - ROW}H{sizes.left(columns)}")
            parts.append(f'<text class="strong" x="0" y="{top - 8}">{safe(row.group)}</text>')
        parts.append(f'<text x="{sizes.label - GAP}" y="{top + 16}" text-anchor="end">{safe(row.name)}</text>')
    return [f'<path class="grid" d="{"".join(edges)}"/>', *parts]


def _time(field: Field) -> str:
    """The time of a field over that of the fastest kernel."""
    return "–" if field.ratio is None else f"{field.ratio:.2f}×" if field.ratio < 10 else f"{field.ratio:.0f}×"


def _field(sizes: HeatSizes, field: Field, y: int) -> str:
    x, middle = sizes.left(field.column), sizes.left(field.column) + sizes.cell / 2
    step = step_of(field.ratio)
    classes = f"{field.verdict} {'untimed' if step is None else f't{step}'}"
    title = safe(field.title)
    return (
        f'<a class="{classes}" data-cases="{safe(field.cases)}" aria-label="{title}"><title>{title}</title>'
        f'<rect x="{x + 1}" y="{y + 1}" width="{sizes.cell - 2}" height="{ROW - 2}" rx="2"/>'
        f'<text class="by-verdict" x="{middle}" y="{y + 16}" text-anchor="middle">{safe(field.text)}</text>'
        f'<text class="by-time" x="{middle}" y="{y + 16}" text-anchor="middle">{_time(field)}</text></a>'
    )
