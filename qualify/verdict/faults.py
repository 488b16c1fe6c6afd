"""Errors of the driver (Xids): what the notes of a run mean for its verdict. An error is the card's or the kernel's.

::

    hardware   the card failed: nothing that it measured in the run counts, neither a pass nor a failure
    kernel     the noted case fails, where nothing that crashed or hung on the card explains the error
    unknown    it is told, and changes nothing

A note stands at the case that the card was running when the driver reported the error. A kernel that faults loses its
context, so its own case crashes or hangs, and the note may stand at the next case. Where no case of that card did, the
noted case fails: otherwise nobody would know of the fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qualify.facts.outcome import Crashed, Finding, Measured, Outcome, Substituted, TimedOut, card_of, findings_of
from qualify.facts.run import Judgement, Record, Run
from qualify.facts.xid import XID, XidBlame, blame_of, worst_blame


def with_faults(records: Sequence[Record], judged: Sequence[Judgement], own: str) -> list[Judgement]:
    """The judgements, in which no case of a failed card counts, and a case with an unexplained fault fails.

    Args:
        judged: the judgement on each record, without waivers.
        own: UUID of the run's card: that of an outcome which names none.
    """
    notes = [errors_of(record.outcome) for record in records]
    if not any(notes):
        return list(judged)
    failed = failed_cards(records, own)
    cards = [card_of(record.outcome) or own for record in records]
    explained = {
        card for card, record in zip(cards, records, strict=True) if isinstance(record.outcome, Crashed | TimedOut)
    }
    return [
        _set_aside(judgement, card, failed[card])
        if card in failed and _ran(record)
        else _fault(judgement, errors)
        if card not in explained
        else judgement
        for card, record, judgement, errors in zip(cards, records, judged, notes, strict=True)
    ]


def errors_of(outcome: Outcome) -> list[Finding]:
    """The notes of an outcome about errors of the driver."""
    return [found for found in findings_of(outcome) if found.check == XID]


def is_kernel_fault(outcome: Outcome) -> bool:
    """Whether the driver reported an error of the kernel during the case, and none of the card."""
    return worst_blame(map(_xid, errors_of(outcome))) == "kernel"


def failed_cards(records: Sequence[Record], own: str) -> dict[str, str]:
    """The cards whose hardware failed during a run: by UUID, what the driver said of the first error.

    Args:
        own: UUID of the run's card: that of an outcome which names none.
    """
    found: dict[str, str] = {}
    for record in records:
        for note in errors_of(record.outcome):
            if blame_of(_xid(note)) == "hardware":
                found.setdefault(card_of(record.outcome) or own, note.detail)
    return found


def own_card(run: Run) -> str:
    """UUID of the card of the run's outcomes that name none; empty where nobody reported it."""
    return run.stack.device.uuid if run.stack else ""


def _ran(record: Record) -> bool:
    return isinstance(record.outcome, Measured | Substituted | Crashed | TimedOut)


def _xid(note: Finding) -> int:
    number = note.values.get("xid", 0)
    return number if isinstance(number, int) else 0


def _set_aside(judgement: Judgement, card: str, why: str) -> Judgement:
    if judgement.verdict == "NOT_REQUIRED":
        return judgement
    reason = f"{XID}: card {card} failed: {why}"
    return replace(judgement, verdict="INCONCLUSIVE", reasons=(reason, *judgement.reasons))


def _fault(judgement: Judgement, notes: Sequence[Finding]) -> Judgement:
    blame: XidBlame = "kernel"
    if judgement.verdict not in {"PASS", "INCONCLUSIVE"} or worst_blame(map(_xid, notes)) != blame:
        return judgement
    first = next(note.detail for note in notes if blame_of(_xid(note)) == blame)
    reason = f"{XID}: {first}, and nothing crashed or hung on the card"
    return replace(judgement, verdict="FAIL", reasons=(reason, *judgement.reasons))
