"""What a page leaves for its script: parts that it puts in where a reader opens them.

They stand in the compressed data of the page. A reader without JavaScript finds in their place the same tables, up to a
number of elements for the page; beyond that a sentence says where they are. So no page grows beyond what opens at once.
"""

from __future__ import annotations

from qualify.report.room import Room

ELEMENTS = 4_000
"""of all tables together that stand in the page for readers without JavaScript: some 450 rows"""


class LateParts:
    """The late parts of one page, in its order.

    Args:
        room: of the page.
    """

    def __init__(self, room: Room) -> None:
        self.kept: list[str] = []
        """markup for the data of the page"""
        self._room = room.part(ELEMENTS)

    def keep(self, markup: str) -> int:
        """The number of a part in the data of the page."""
        self.kept.append(str(markup))
        return len(self.kept) - 1

    def fits(self, markup: str) -> bool:
        """Whether a part may also stand in the page for readers without JavaScript; if so, it is counted."""
        return self._room.take(markup)
