"""Tables of a page: one literal tuple of columns each, so that a new column is one ``Column(...)`` entry."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, Self, TypeVar

from qualify.report import figures
from qualify.units import unit_of

Row = TypeVar("Row")
Value = str | int | float | bool | None


SHORT = 32
"""most characters of a code or a verdict, such as the id of a run, that the page never breaks into lines"""
FEW, LONG = 6, 72
"""In a table of more than FEW columns, sentences of more than LONG characters stand below their row."""
MANY = 10
"""In a table of more than MANY columns, all sentences do: the last column would be beyond the edge of a desk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limited:
    """A number and the limit that it has to keep."""

    value: float
    limit: float

    @property
    def over(self) -> bool:
        """Whether the limit is broken; NaN breaks it."""
        return figures.exceeds(self.value, self.limit)

    @property
    def bar_px(self) -> float | None:
        """Length of the bar in pixels; None where there is no limit."""
        return None if math.isinf(self.limit) else figures.bar_px(self.value, self.limit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Column(Generic[Row]):
    """One column: what stands in its header, and how a row gives its cell."""

    key: str
    """name of the value in JSON"""
    title: str
    cell: Callable[[Row], Value | Limited]
    """the value; a :class:`Limited` also gets a bar"""
    unit: str = ""
    """symbol in qualify.units; empty = text, or a plain number"""
    link: Callable[[Row], str] | None = None
    """where the cell leads: an anchor without ``#``, empty for nowhere"""
    page: Callable[[Row], str] | None = None
    """address of another page of the site to which the cell leads; empty for nowhere"""
    tone: Callable[[Row], str] | None = None
    """name of a verdict whose colour the cell has; the cell says in words what that means"""
    show_limit: bool = False
    """whether each cell repeats its limit; not needed where the title states it"""
    number: bool = False
    """a plain number without a unit, aligned like one"""
    code: bool = False
    """set in a fixed-width face"""
    sentence: bool = False
    """long text that wraps; a page leaves the column out where no row has such a text"""
    name: bool = False
    """a long name, such as that of a device or a machine: it may wrap. Other cells stay on one line"""

    @property
    def heading(self) -> str:
        """Title with its unit."""
        unit = unit_of(self.unit) if self.unit not in figures.SELF_EXPLAINING else None
        return f"{self.title} ({unit.shown})" if unit and unit.shown and unit.shown not in self.title else self.title

    @property
    def meaning(self) -> str:
        """What the unit means, for a tooltip; empty where there is none."""
        unit = unit_of(self.unit)
        return unit.meaning if unit else ""

    @property
    def classes(self) -> str:
        """Style classes of the column."""
        if self.unit or self.number:
            return "n"
        return "k" if self.code else "t" if self.sentence else "w" if self.name else ""

    def shown(self, row: Row) -> Cell:
        """The cell of a row, ready to show."""
        value = self.cell(row)
        href = f"#{fragment}" if self.link and (fragment := self.link(row)) else ""
        if not isinstance(value, Limited):
            classes = f"{self.classes} tone {self.tone(row)}".lstrip() if self.tone else self.classes
            shown = figures.text(value, self.unit)
            classes += " id" if self.code and len(shown) <= SHORT else ""
            classes += " w" if self.tone and len(shown) > SHORT else ""
            return Cell(shown, classes, self.page(row) if self.page and value not in ("", None) else href, None)
        text = figures.text(value.value, self.unit)
        if self.show_limit:
            text += f" / {figures.text(value.limit if math.isfinite(value.limit) else None, self.unit)}"
        return Cell(text, f"{self.classes} x" if value.over else self.classes, href, value.bar_px)


class Cell(NamedTuple):
    """One cell as the page shows it; a named tuple, because a page has hundreds of thousands."""

    text: str
    classes: str
    """``n`` for numbers, ``k`` for a fixed-width face, ``t`` for sentences, ``w`` for names, ``x`` over its limit"""
    href: str
    bar_px: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Table(Generic[Row]):
    """Rows under columns, with a caption that a screen reader announces."""

    caption: str
    columns: tuple[Column[Row], ...]
    rows: tuple[Row, ...]
    row_anchor: Callable[[Row], str] | None = None
    """fragment that leads to a row"""

    def split(self, count: int) -> tuple[Self, Self]:
        """Two tables: the first rows, and the others."""
        return replace(self, rows=self.rows[:count]), replace(self, rows=self.rows[count:])

    @property
    def laid_out(self) -> tuple[Self, Self]:
        """Two tables: what a page shows in columns, and what it shows below each row.

        Sentences stand below their row where there are many columns (FEW, LONG, MANY). A column of sentences that is
        empty in every row is in neither table.
        """
        longest = {it: max((len(str(it.cell(row) or "")) for row in self.rows), default=0) for it in self._sentences}
        beside = tuple(it for it in self.columns if longest.get(it, 1))
        most = 0 if len(beside) > MANY else LONG
        below = tuple(it for it in beside if longest.get(it, 0) > most) if len(beside) > FEW else ()
        return replace(self, columns=tuple(it for it in beside if it not in below)), replace(self, columns=below)

    @property
    def _sentences(self) -> tuple[Column[Row], ...]:
        return tuple(it for it in self.columns if it.sentence)

    def cells(self, row: Row) -> list[Cell]:
        """The cells of a row, ready to show."""
        return [column.shown(row) for column in self.columns]

    def data(self) -> list[dict[str, Value | dict[str, float]]]:
        """The rows for JSON: numbers stay numbers, a limited value is ``{"value", "limit"}``."""
        return [{column.key: _data(column.cell(row)) for column in self.columns} for row in self.rows]


AnyTable = Table[Any]
"""a table of any rows, for code that only shows it"""


def _data(value: Value | Limited) -> Value | dict[str, float]:
    return {"value": value.value, "limit": value.limit} if isinstance(value, Limited) else value
