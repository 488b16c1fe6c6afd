"""What the driver reported while a run was at a case becomes a note on that case: evidence, and no verdict."""

from __future__ import annotations

import time
from dataclasses import replace

from qualify.facts.outcome import Finding, noted
from qualify.facts.run import Record
from qualify.facts.xid import Xid
from qualify.run.machine.xids import XidWatch, at_case

NOTE = "xid"
"""check of the note"""
WHOSE = {
    "hardware": "the card failed, so look at it before you blame a kernel",
    "kernel": "a program on the card caused it",
    "unknown": "nobody knows whose error it is",
}


class XidNotes:
    """The Xids of the one card of a run, by the case that it was at."""

    def __init__(self, watch: XidWatch) -> None:
        self._watch = watch
        self._cases: list[tuple[float, str]] = []
        self._told: set[tuple[int, float]] = set()
        watch.start()

    def at(self, case_id: str) -> None:
        """The card is at this case from now on; empty = at none."""
        if not self._cases or self._cases[-1][1] != case_id:
            self._cases.append((time.monotonic(), case_id))

    def noted(self, record: Record, card: str) -> Record:
        """The record with a note for each Xid that the card reported while it was at the case.

        Args:
            card: UUID of the run's card.
        """
        for xid in self._watch.found:
            key = (xid.number, xid.seen_s)
            if xid.card != card or key in self._told:
                continue
            placed = at_case(xid, self._cases)
            if placed.case == record.case.id:
                self._told.add(key)
                record = replace(record, outcome=noted(record.outcome, _note(placed)))
        return record

    def close(self) -> None:
        """Nothing more is reported; :meth:`noted` still knows what was."""
        self._watch.close()


def _note(xid: Xid) -> Finding:
    words = f": {xid.text}" if xid.text else ""
    return Finding(
        check=NOTE,
        verdict="note",
        detail=f"the driver reported {xid.words}{words}; {WHOSE[xid.blame]}",
        values={"xid": xid.number, "blame": xid.blame, "card": xid.card},
    )
