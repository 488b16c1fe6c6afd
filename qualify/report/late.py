"""Late parts: tables that the page's script inserts when a reader opens them.

They stand in the compressed data of the page. A reader without JavaScript finds the same tables in their place, up to a
number of HTML elements for the page; beyond that, a sentence says where the tables are. So every page stays small
enough to open at once.
"""

from __future__ import annotations

from qualify.report.room import Room

ELEMENTS = 4_000
"""most HTML elements of all tables together that a page holds for readers without JavaScript: about 450 rows"""


class LateParts:
    """The late parts of one page, in the order of the page.

    Args:
        room: room for elements that the page still has.
    """

    def __init__(self, room: Room) -> None:
        self.kept: list[str] = []
        """markup of each part, for the data of the page"""
        self._room = room.part(ELEMENTS)

    def keep(self, markup: str) -> int:
        """Keep a part for the data of the page; returns its number there."""
        self.kept.append(str(markup))
        return len(self.kept) - 1

    def fits(self, markup: str) -> bool:
        """Whether a part fits into the page for readers without JavaScript; if so, its elements are taken."""
        return self._room.take(markup)
