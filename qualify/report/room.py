"""How many HTML elements a page may still get.

The first parts of a page take their elements first. A part that no longer fits goes into the data of the page, or
becomes one line.
"""

from __future__ import annotations

import re
from typing import Any

from qualify.report.columns import Cell, Table
from qualify.report.names import parted

START = 13_000
"""Most elements of those parts of a report that grow with the run. The frame and the list of all cases take about 6,000
more: a page has at most 20,000."""


class PartSizes:
    """Most elements of single parts of a report, so that the first parts leave some to the others."""

    why = 6_000
    answers = 2_000
    table = 1_500
    changes = 3_000


_LATE = re.compile(r"(<noscript[^>]*>).*?(</noscript>)", re.DOTALL)


class Room:
    """A number of elements that may still be used.

    Args:
        elements: how many.
        within: room that this one is a part of; elements that are taken here are taken there too.
    """

    def __init__(self, elements: int, within: Room | None = None) -> None:
        self._left = elements
        self._within = within

    def part(self, elements: int) -> Room:
        """A part of this room, with a limit of its own."""
        return Room(elements, self)

    def take(self, markup: str) -> bool:
        """Whether the markup fits; if so, its elements are taken."""
        return self._take(_elements(markup))

    def take_around(self, markup: str) -> bool:
        """The same, but without the content of ``<noscript>``, whose elements were taken when it was made."""
        return self._take(_elements(_LATE.sub(r"\1\2", markup)))

    def rows(self, table: Table[Any], limit: int = 0) -> tuple[Any, ...]:
        """The first rows of a table that fit.

        Args:
            limit: the most of them; 0 = any number.
        """
        rows = table.rows[:limit] if limit else table.rows
        beside, below = table.laid_out
        for number, row in enumerate(rows):
            if not self._take(1 + sum(map(_size, beside.cells(row))) + sum(map(_size_below, below.cells(row)))):
                return rows[:number]
        return rows

    def _take(self, count: int) -> bool:
        if not self._has(count):
            return False
        self._spend(count)
        return True

    def _has(self, count: int) -> bool:
        return count <= self._left and (self._within is None or self._within._has(count))

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._within is not None:
            self._within._spend(count)


def _size(cell: Cell) -> int:
    """Elements of a cell: the cell, its link, its bar, and the places where its text may be broken."""
    return 1 + bool(cell.href) + 2 * (cell.bar_px is not None) + parted(cell.text).count("<wbr>")


def _size_below(cell: Cell) -> int:
    """Elements of a sentence below its row: the cell, its heading, and the row that it may need."""
    return 3 + _size(cell) if cell.text else 0


def _elements(markup: str) -> int:
    """Elements of a piece of markup: its opening tags. No text holds ``<``, because the templates escape it."""
    return markup.count("<") - markup.count("</")
