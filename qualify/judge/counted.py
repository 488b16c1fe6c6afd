"""Which outcome counts of each planned case, among the runs whose evidence may count.

The newest one counts, whatever it says. Of two outcomes, that one is newer whose case ended later. Where one of them
does not say when, the run that began later has the newer one. But a run that was resumed may have gone on after a newer
one began on the same card. Then nobody knows which of two outcomes is the newer one, and the one that speaks against
the case counts. So it is where the clock of a machine differed from the store's. A failure also counts where only a
lower level passed since, by the same code: fewer checks, on fewer inputs, do not settle it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Literal

from qualify.facts.clock import is_future
from qualify.facts.outcome import Measured, NotRun, Outcome, Refused, card_of, findings_of, on_card, ran_code
from qualify.facts.run import Record, Run
from qualify.judge.evidence import EDITED, Fresh, Outdated, Reject, stale_words
from qualify.judge.notes import failed_note
from qualify.judge.seals import Seals
from qualify.plan.plan import Plan
from qualify.verdict.faults import failed_cards, is_kernel_fault, own_card
from qualify.verdict.origin import (
    end_of,
    ended_later,
    made_at,
    origin_of,
    perhaps_newer,
    reaches,
    weaker,
    went_on,
)

Sourced = tuple[Run, Outcome]
"""an outcome with its card, and the run that it is from"""
Order = Literal["newer", "older", "unknown"]


class Counted:
    """The outcomes that count.

    A run is rejected where its plan was edited, for example where cases are missing. It is rejected in part where the
    hardware of one of its cards failed, where outcomes are too old, or where its plan refused what can run now. A
    failed card's evidence does not count, and hides what is older: the newest outcome counts, whatever it says.
    """

    def __init__(
        self,
        seals: Seals,
        plan: Plan,
        usable: Sequence[Run],
        wanted: Fresh,
        outdated: Outdated,
        available: Collection[str],
    ) -> None:
        """Look at the runs, from the newest on, as far as they may hold what counts.

        Args:
            usable: the runs whose evidence may count, newest first.
            available: kernels that the judged machine can run now: that a plan refused them proves nothing any more.
        """
        self.found: dict[str, Sourced] = {}
        """by case id"""
        self.rejects: list[Reject] = []
        """runs whose evidence does not count, at least in part, newest first"""
        self.notes: dict[str, str] = {}
        """by the run that they are from, failures that count although another run began later"""
        self._seals = seals
        self._wanted = wanted
        self._outdated = outdated
        self._available = available
        self._hashes = {case.id: case.content_hash for case in plan.cases}
        self._usable = {run.id for run in usable}
        self._hidden: set[str] = set()  # ids of cases whose newest evidence is of a card that failed
        self._passed: dict[str, Sourced] = {}  # what passed at a higher level than the outcome that counts
        self._sources: dict[str, Run] = {}
        self._first: datetime | None = None  # the earliest end of a case that was found
        for run in usable:
            beside = self._beside(run)
            if beside or self._wants(run):
                self._look_at(run, beside)

    def _beside(self, run: Run) -> set[str]:
        """Ids of runs that gave outcomes, and that this run may have outlived."""
        return {name for name, it in self._sources.items() if _may_outlive(run, it)}

    def _wants(self, run: Run) -> bool:
        """Whether a run may hold what counts: cases lack evidence, or it may have ended later, or it checked more."""
        lacks = len(self.found) + len(self._hidden) < len(self._hashes)
        later = self._first is not None and reaches(run, self._first)
        return lacks or later or any(weaker(it.level, run.level) for it in self._sources.values())

    def _look_at(self, run: Run, beside: Collection[str]) -> None:
        """Takes from a run what counts, or rejects it."""
        records, own = self._seals.records(run.id), own_card(run)
        if edited := self._seals.edited(run):
            self.rejects.append(Reject(run=run, reason=f"{EDITED}{edited}", told=True))
            return
        failed = failed_cards(records, own)
        if failed:
            self.rejects.append(Reject(run=run, reason="; ".join(failed_note(failed)), told=True))
        unfit: dict[str, str] = {}
        for record in self._in_question(records, self._outdated(run)):
            if why := self._refused_once(record):
                unfit[record.case.id] = why
                continue
            made = made_at(record.outcome, run, self._wanted.now)
            if self._wanted.now - made <= self._wanted.max_age:
                card = card_of(record.outcome) or own
                self._weigh(record, run, card, card in failed, beside)
            elif not isinstance(record.outcome, NotRun):
                unfit[record.case.id] = stale_words(run, made)
        if unfit:
            self.rejects.append(Reject(run=run, cases=unfit))

    def _in_question(self, records: Sequence[Record], changed: Collection[str]) -> list[Record]:
        """The records of planned cases that are not hidden, and not of other code.

        Args:
            changed: kernels whose code is another one now.
        """
        planned = [it for it in records if self._hashes.get(it.case.id) == it.case.content_hash]
        seen = [it for it in planned if it.case.id not in self._hidden]
        return [it for it in seen if not (it.case.kernel in changed and ran_code(it.outcome))]

    def _refused_once(self, record: Record) -> str:
        """Why the refusal by a plan does not count: the kernel can run now. Empty where it counts, or is none."""
        outcome = record.outcome
        if not isinstance(outcome, Refused) or outcome.by != "plan" or record.case.kernel not in self._available:
            return ""
        return f"refused then ({outcome.reasons[0]}), and this machine can run it now"

    def _weigh(self, record: Record, run: Run, card: str, card_failed: bool, beside: Collection[str]) -> None:
        """Takes an outcome where it counts instead of the one that counted so far."""
        name, outcome, now = record.case.id, record.outcome, self._wanted.now
        other = self.found.get(name)
        order = self._order_by_level(record, run, other, beside) if other else "newer"
        if order == "older":
            if other and weaker(other[0].level, run.level) and not card_failed and _is_pass(outcome):
                self._passed.setdefault(name, (run, outcome))
            return
        if card_failed and ran_code(outcome):
            if order == "newer":
                self.found.pop(name, None)
                self._hidden.add(name)
        elif self._tells(outcome, run):
            self.found[name] = run, on_card(outcome, card)
            self._sources[run.id] = run
            if ends := end_of(outcome, run, now):
                self._first = min(ends) if self._first is None else min(*ends, self._first)
            if other and order == "unknown":
                self.notes.setdefault(run.id, _late_note(record, run, other, now))

    def _order_by_level(self, record: Record, run: Run, other: Sourced, beside: Collection[str]) -> Order:
        """As :func:`_order`, where a failure at a higher level stands until a pass at that level, or of other code."""
        own, kernel = (run, record.outcome), record.case.kernel
        if _is_unsettled(other, own, kernel):
            return "older"
        if not _is_unsettled(own, other, kernel):
            return _order(record.outcome, run, other, beside, self._wanted.now)
        passed = self._passed.get(record.case.id)
        if passed is None or not _is_of_code(run, passed[0], kernel):
            return "unknown"
        outlived = {passed[0].id} if _may_outlive(run, passed[0]) else set[str]()
        return "older" if _order(record.outcome, run, passed, outlived, self._wanted.now) == "older" else "unknown"

    def _tells(self, outcome: Outcome, run: Run) -> bool:
        """Whether an outcome counts at the wanted level; what was taken over from a usable run is taken from that."""
        if isinstance(outcome, NotRun) or (weaker(run.level, self._wanted.level) and not _speaks_against(outcome)):
            return False
        origin = origin_of(outcome)
        return not origin or (origin.run not in self._usable and not is_future(origin.began_at, self._wanted.now))


def _order(outcome: Outcome, run: Run, other: Sourced, beside: Collection[str], now: datetime) -> Order:
    """Which of two outcomes of a case counts: this one as the newer one, the other, or this one because nobody knows.

    Args:
        other: an outcome that counted so far, and its run, which began later.
        beside: ids of runs that this run may have outlived.
    """
    mine, theirs = end_of(outcome, run, now), end_of(other[1], other[0], now)
    if mine and theirs:
        later = ended_later(mine, theirs)
        if later is not None:
            return "newer" if later else "older"
    elif other[0].id not in beside:
        return "older"
    return "unknown" if _contradicts(outcome, other[1]) else "older"


def _is_unsettled(failed: Sourced, passed: Sourced, kernel: str) -> bool:
    """Whether an outcome speaks against its case, and another one of the same code passed at a lower level only."""
    (run, outcome), (other, newer) = failed, passed
    return weaker(other.level, run.level) and _is_of_code(run, other, kernel) and _contradicts(outcome, newer)


def _is_of_code(run: Run, other: Run, kernel: str) -> bool:
    """Whether two runs noted the same code of a kernel, or none."""
    return (run.code or {}).get(kernel) == (other.code or {}).get(kernel)


def _may_outlive(run: Run, other: Run) -> bool:
    """Whether a run that began earlier may have gone on after another one began."""
    return went_on(run, other) or perhaps_newer(run, other)


def _contradicts(outcome: Outcome, newer: Outcome) -> bool:
    """Whether an outcome speaks against its case, and that of a run which began later does not."""
    return ran_code(outcome) and _speaks_against(outcome) and not _speaks_against(newer)


def _speaks_against(outcome: Outcome) -> bool:
    """Whether a run at a higher level, which checks more, could not have given a better outcome."""
    failed = any(it.verdict == "fail" for it in findings_of(outcome))
    return not isinstance(outcome, Measured) or failed or is_kernel_fault(outcome)


def _is_pass(outcome: Outcome) -> bool:
    """Whether it ran as its card claims, and nothing is open."""
    if not isinstance(outcome, Measured) or is_kernel_fault(outcome):
        return False
    proven = outcome.evidence.witness.state == "proven"
    return proven and all(found.verdict in {"pass", "note"} for found in outcome.evidence.findings)


def _late_note(record: Record, run: Run, other: Sourced, now: datetime) -> str:
    """That a failure of the run counts, although another run began later; the first such case stands for all."""
    newer, outcome = other
    if weaker(newer.level, run.level):
        return (
            f"run {run.id} at level {run.level} failed {record.case.id}, and run {newer.id}, which passed it, checked "
            f"less, at level {newer.level}: the failure counts. Run the matrix again at level {run.level} to settle it"
        )
    dated = end_of(record.outcome, run, now) and end_of(outcome, newer, now)  # then only the clocks leave it open
    beside = not dated and went_on(run, newer)
    why = "and ended after it began, on the same card" if beside else "by a clock that was wrong"
    return (
        f"run {run.id} began before run {newer.id} {why}: of {record.case.id} its failure counts, because nobody "
        "knows which outcome is newer. Run the matrix again to settle it"
    )
