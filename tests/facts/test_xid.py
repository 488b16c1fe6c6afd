"""Whose error an Xid is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import qualify
from qualify.facts.xid import HARDWARE_XIDS, KERNEL_XIDS, Xid, XidBlame, blame_of

FLEET = Path(qualify.__file__).parents[1] / "docs" / "fleet.md"


@pytest.mark.parametrize(
    ("number", "blame"),
    [(140, "hardware"), (149, "hardware"), (171, "hardware"), (31, "kernel"), (137, "unknown"), (154, "unknown")],
)
def test_recent_errors_are_known(number: int, blame: XidBlame) -> None:
    """An ECC error that was not repaired is the card's; what only follows from another error is nobody's."""
    assert blame == blame_of(number)


def test_a_number_of_the_next_driver_is_noted() -> None:
    """What no list has yet is told with the driver's own words."""
    note = Xid(number=999, card="GPU-1", bus="", seen_s=0, text="words of the driver").note
    assert "the driver reported Xid 999 (words of the driver): words of the driver; nobody knows whose error it is" == (
        note.detail
    )


@pytest.mark.parametrize(("whose", "known"), [("the kernel's", KERNEL_XIDS), ("the card's", HARDWARE_XIDS)])
def test_the_documented_numbers_are_those_of_the_code(whose: str, known: dict[int, str]) -> None:
    """A person who reads the table knows what a number does."""
    (row,) = re.findall(rf"^\| ([0-9, –]+) \| {whose} \|", FLEET.read_text(), re.MULTILINE)
    ranges = [[int(end) for end in part.split("–")] for part in row.split(", ")]
    assert sorted(known) == [number for ends in ranges for number in range(ends[0], ends[-1] + 1)]
