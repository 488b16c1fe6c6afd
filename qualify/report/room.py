"""How many elements a page may still have.

What comes first on a page takes first; what no longer fits is folded into the data of the page, or told in one line.
"""

from __future__ import annotations

import re
from typing import Any

from qualify.report.columns import Cell, Table
from qualify.report.names import parted

START = 13_000
"""elements of the parts of a report that grow with the run. Some 6,000 more are the frame, and the list of all cases:
a page has 20,000 at most"""


class PartSizes:
    """Elements for single parts of a report, so that what comes first leaves something to the others."""

    why = 6_000
    answers = 2_000
    table = 1_500
    changes = 3_000


_LATE = re.compile(r"(<noscript[^>]*>).*?(</noscript>)", re.DOTALL)


class Room:
    """Elements that are left.

    Args:
        elements: how many.
        within: the room that it is a part of, which it uses up as well.
    """

    def __init__(self, elements: int, within: Room | None = None) -> None:
        self._left = elements
        self._within = within

    def part(self, elements: int) -> Room:
        """A part of it, so that what comes first leaves something to the others."""
        return Room(elements, self)

    def take(self, markup: str) -> bool:
        """Whether that markup fits; if so, it is counted."""
        return self._take(_elements(markup))

    def take_around(self, markup: str) -> bool:
        """The same without what stands within its ``<noscript>``, which was counted when it was made."""
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
    """Elements of a cell: its own, a link, a bar, and where its text may be broken."""
    return 1 + bool(cell.href) + 2 * (cell.bar_px is not None) + parted(cell.text).count("<wbr>")


def _size_below(cell: Cell) -> int:
    """The same of a sentence below the row, with its heading, and with the row and the cell that may be its own."""
    return 3 + _size(cell) if cell.text else 0


def _elements(markup: str) -> int:
    """Text has no ``<``: the templates escape it."""
    return markup.count("<") - markup.count("</")
