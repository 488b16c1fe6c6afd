"""Xids: the errors that NVIDIA's driver reports, and whose they are.

The source is NVIDIA's catalogue of October 2025:
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html

An error is the card's where its memory failed, or where it needs a reset that no program makes necessary. Nobody knows
whose these are, among others:

* 46 and 109: a kernel that hangs gives them, too.
* 137: a page fault of another card. 154: what to do about another Xid. 159 to 161: the catalogue does not say.
* 151, 166 and 170 are of confidential computing, 162 to 165 of the power supply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from qualify.facts.outcome import Finding

KERNEL_XIDS: Mapping[int, str] = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "channels were cleaned up",
}
"""errors of a program: its kernel faulted, or its context was lost"""
HARDWARE_XIDS: Mapping[int, str] = {
    48: "double-bit ECC error",
    62: "a microcontroller of the GPU halted",
    63: "a faulty row of memory was recorded for remapping",
    64: "a faulty row of memory could not be recorded",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the GSP firmware does not answer",
    120: "error of the GSP firmware",
    136: "an NVLink could not be trained",
    140: "unrecovered ECC error",
    143: "the GPU could not be initialized",
    **dict.fromkeys(range(144, 151), "NVLink error"),
    155: "NVLink error",
    156: "a faulty part of the GPU is to be retired",
    157: "a faulty part of the GPU could not be retired",
    158: "the GPU does not answer",
    167: "the GPU does not answer over PCIe",
    168: "errors of memory that the driver needs",
    169: "a microcontroller of the GPU halted",
    171: "uncorrectable DRAM error",
    172: "uncorrectable SRAM error",
}
"""errors of the card, whatever ran on it"""
XID = "xid"
"""check of the note on the case that a card was at when the driver reported an Xid"""
XidBlame = Literal["kernel", "hardware", "unknown"]
WHOSE: Mapping[XidBlame, str] = {
    "hardware": "nothing that the card measured in this run counts",
    "kernel": "a program on the card caused it",
    "unknown": "nobody knows whose error it is",
}
"""what the blame means for a run, in words"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Xid:
    """One error that the driver reported."""

    number: int
    card: str
    """UUID of the GPU; empty where only its place on the bus is known"""
    bus: str
    """``0000:3b:00``: domain, bus and device of PCI; empty where the report does not say"""
    seen_s: float
    """when it was seen, by the machine's monotonic clock"""
    text: str
    """what the kernel's log says after the number; empty where NVML alone told it"""
    case: str = ""
    """the case that ran on the card; empty where none did, or where several cards share the run"""

    @property
    def blame(self) -> XidBlame:
        """Whose error it is."""
        return blame_of(self.number)

    @property
    def words(self) -> str:
        """The error in a sentence: its number, its meaning and the case."""
        meaning = KERNEL_XIDS.get(self.number) or HARDWARE_XIDS.get(self.number) or self.text
        during = f" during {self.case}" if self.case else ""
        return f"Xid {self.number}{f' ({meaning})' if meaning else ''}{during}"

    @property
    def note(self) -> Finding:
        """The note that the case gets."""
        words = f": {self.text}" if self.text else ""
        return Finding(
            check=XID,
            verdict="note",
            detail=f"the driver reported {self.words}{words}; {WHOSE[self.blame]}",
            values={"xid": self.number, "blame": self.blame, "card": self.card},
        )


def blame_of(number: int) -> XidBlame:
    """Whose error an Xid is."""
    if number in HARDWARE_XIDS:
        return "hardware"
    return "kernel" if number in KERNEL_XIDS else "unknown"


def worst_blame(xids: Iterable[int]) -> XidBlame | None:
    """Whose errors several Xids are, taken together; None where there are none.

    A card that fails takes the kernel's context with it, so errors of the card count first.
    """
    blames = {blame_of(number) for number in xids}
    order: tuple[XidBlame, ...] = ("hardware", "kernel", "unknown")
    return next((blame for blame in order if blame in blames), None)
