"""What the driver reported while a run was at a case becomes a note on that case. faults.py gives the verdict."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from qualify.facts.outcome import NotRun, Refused, card_of, noted
from qualify.facts.run import Record
from qualify.facts.xid import Xid
from qualify.run.machine.xids import XidWatch, at_case


class XidNotes:
    """The Xids of the cards of a run, by the case that each card was at."""

    def __init__(self, watch: XidWatch) -> None:
        self._watch = watch
        self._cases: dict[str, list[tuple[float, str]]] = defaultdict(list)
        """by card (empty = the run's only one), when each case began and its id"""
        self._filed: set[str] = set()
        self._told: set[tuple[str, int, float]] = set()
        watch.start()

    def at(self, case_id: str, place: str = "") -> None:
        """A card is at this case from now on.

        Args:
            case_id: empty = it is at none.
            place: UUID of the card; empty = the run has one card.
        """
        cases = self._cases[place]
        if not cases or cases[-1][1] != case_id:
            cases.append((time.monotonic(), case_id))

    def noted(self, record: Record, place: str, own: str) -> Record:
        """The record with a note for each Xid that its card reported while it was at the case.

        An error between two cases, or of a case that was filed before, is noted at the next one.

        Args:
            place: UUID of the card that gave the outcome; empty = the run has one card.
            own: UUID of the run's card, where it has one.
        """
        if isinstance(record.outcome, Refused | NotRun):
            return record  # it has no findings: the next case is noted
        for xid in self.untold:
            if xid.card != (place or own):
                continue
            case = at_case(xid, self._cases[place]).case
            if case == record.case.id or not case or case in self._filed:
                record = self._with(record, replace(xid, case=case))
        self._filed.add(record.case.id)
        return record

    @property
    def untold(self) -> list[Xid]:
        """The errors that no record has a note of yet, also those of cards that are not the run's."""
        return [xid for xid in self._watch.found if _key(xid) not in self._told]

    @property
    def failed(self) -> dict[str, str]:
        """The cards whose hardware failed, by UUID: why nothing more is run on each."""
        bad = [xid for xid in reversed(self._watch.found) if xid.blame == "hardware"]
        return {it.card: f"card {it.card} failed: {it.words}. Nothing more was run on it" for it in bad}

    def late(self, records: Sequence[Record], own: str) -> list[Record]:
        """The records that get a note, each the last case of its card: errors that no record told of while cases ran.

        Args:
            records: all of the run, as stored.
            own: UUID of the run's card, where it has one.
        """
        changed: dict[str, Record] = {}
        for xid in self.untold:
            ran = {
                record.case.id: changed.get(record.case.id, record)
                for record in records
                if not isinstance(record.outcome, Refused | NotRun) and (card_of(record.outcome) or own) == xid.card
            }
            for case in self._last(xid, ran):
                changed[case] = self._with(ran[case], replace(xid, case=case))
        return list(changed.values())

    def _last(self, xid: Xid, ran: dict[str, Record]) -> Iterator[str]:
        """The case that had begun last when the error was seen, among those that ran; none where none ran."""
        begun = [it for it in (self._cases.get(xid.card) or self._cases[""]) if it[1] in ran]
        case = at_case(xid, begun).case or next(reversed(ran), "")
        if case:
            yield case

    def _with(self, record: Record, xid: Xid) -> Record:
        self._told.add(_key(xid))
        return replace(record, outcome=noted(record.outcome, xid.note))

    def close(self) -> None:
        """Stop watching; the errors so far stay known."""
        self._watch.close()


def _key(xid: Xid) -> tuple[str, int, float]:
    """What tells errors apart: one look may find the same one on several cards."""
    return xid.card, xid.number, xid.seen_s
