"""Files what happens in a run: commits outcomes in groups, notes the driver's errors, shows what is committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from qualify.errors import UsageError
from qualify.facts.case import Case
from qualify.facts.differing import stack_words
from qualify.facts.outcome import Measured, NotRun, Substituted, card_of, ended
from qualify.facts.run import Record, Run
from qualify.fleet.sealing import Ledger
from qualify.fleet.sharing import calls_of, shared
from qualify.fleet.xid_notes import XidNotes
from qualify.run.process.compile_ahead import Compiling, GivenUp
from qualify.run.process.supervisor import At, Done, Event, Started, Tick
from qualify.store.store import Store
from qualify.verdict.faults import own_card

COMMIT_SECONDS = 0.5
"""longest that a finished result waits for its commit"""
COMMIT_RECORDS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a run stands, for whoever shows it."""

    done: int
    """calls with a final outcome; equal calls of several cases are one"""
    total: int
    case_id: str
    """empty while a worker starts"""
    stage: str
    record: Record | None
    """the case that just got an outcome"""
    final: bool = True
    """False where that case will be repeated"""
    compiling: bool = False
    """kernels are being compiled ahead; no case has begun"""
    unstored: str = ""
    """why the store takes nothing now, and how many outcomes wait; empty where it does"""
    told: str = ""
    """a sentence about the store that deserves a line of its own"""


Show = Callable[[Progress], None]


def _described(run: Run, started: Started) -> Run:
    """The run with what a judge reports; what was reported first stays, as in the store."""
    found = started.environments
    environments = {name: replace(one, stack=one.stack or found.get(name)) for name, one in run.environments.items()}
    stack, ceilings = run.stack or started.stack, run.ceilings or started.ceilings
    return replace(run, stack=stack, ceilings=ceilings, environments=environments)


class Filing:
    """Takes events, commits records in groups, keeps count of what is committed."""

    def __init__(
        self,
        store: Store,
        run: Run,
        show: Show,
        cases: Sequence[Case],
        ledger: Ledger,
        *,
        owed: int,
        xids: XidNotes,
    ) -> None:
        self.store = store
        self.xids = xids
        self.ledger = ledger
        self.run = run
        """the run, with the stacks and ceilings that the store has of it"""
        self.show = show
        self.calls = calls_of(cases)
        self.total = len(self.calls)
        self.before = self.total - owed
        self.final: set[str] = set()
        """cases that got their final outcome here; the loss of a CUDA context may take one back"""
        self.waiting: list[Done] = []
        self.offered: list[Done] = []
        """what the store has not taken yet; it gets them again, as they are, before it gets what waits"""
        self.records: list[Record] = []
        """the outcomes of these, for all cases that make the same calls"""
        self.ahead_us: dict[str, float] = {}
        """what the first call of a case cost when it was compiled ahead"""
        self.since = time.monotonic()
        self.compiling = Progress(
            done=self.before, total=self.total, case_id="", stage="compile ahead", record=None, compiling=True
        )
        """where compiling ahead stands"""
        ledger.patience.tell = self._tell

    @property
    def unstored(self) -> int:
        """How many outcomes are only in memory."""
        return len(self.records) + len(self.waiting)

    def note_compiled(self, call: Compiling | GivenUp | None) -> None:
        """Remember what it cost to compile a call ahead: it is the case's first call. None = it still goes on."""
        match call:
            case Compiling(case_id=case_id, first_call_us=cost):
                if cost is not None:
                    self.ahead_us[case_id] = cost
                stage = f"compiled ahead: {call.done} of {call.total}"
                self.compiling = replace(self.compiling, case_id=case_id, stage=stage)
                self.show(self.compiling)
            case GivenUp(error=error):
                told = f"compiling ahead was given up, the run compiles the rest: {error}"
                self.show(replace(self.compiling, case_id="", stage="start", compiling=False, told=told))
            case None:
                self.show(self.compiling)

    def take(self, event: Event) -> None:
        """File one event of the supervisor."""
        match event:
            case Started():
                self._check_stack(event)
                self.run = _described(self.run, event)
                keep = self.ledger.patience.keep
                keep(lambda: self.store.set_stack(self.run.id, event.stack, event.ceilings))
                if event.environments:
                    keep(lambda: self.store.set_environments(self.run.id, event.environments))
            case At():
                self.xids.at(event.case_id, event.card)
                self._report(event.case_id, event.stage)
            case Done():
                record = self._with_compilation(event.record)
                outcome = ended(record.outcome, datetime.now(UTC))
                self.waiting.append(replace(event, record=replace(record, outcome=outcome)))
            case Tick():
                pass
        overdue = time.monotonic() - self.since > COMMIT_SECONDS
        if overdue or len(self.waiting) >= COMMIT_RECORDS:
            self.file()

    def take_over(self, records: Sequence[Record]) -> set[str]:
        """Store what earlier runs settled; the ids of the cases that need not run."""
        self.ledger.add(records)
        executed = {cases[0].id for cases in self.calls.values()}
        taken = {record.case.id for record in records}
        self.before += len(taken & executed)
        return taken

    def file(self) -> None:
        """Write what is waiting, then show it: whatever was shown as done survives the end of this process.

        What the store refuses for now stays in memory.
        """
        self._show_done(self._commit(wait=False))

    def file_all(self) -> None:
        """The same, but wait where the store refuses it for now."""
        self._show_done(self._commit_all())

    def _show_done(self, written: Sequence[Done]) -> None:
        for event in written:
            case_id = event.record.case.id
            if event.final:
                self.final.add(case_id)
            else:
                self.final.discard(case_id)
            self._report(case_id, "done", event.record, final=event.final)

    def _with_compilation(self, record: Record) -> Record:
        """The record with what its first call cost on this machine, where another process made it."""
        outcome, ahead_us = record.outcome, self.ahead_us.get(record.case.id)
        if ahead_us is None or not isinstance(outcome, Measured | Substituted):
            return record
        evidence = replace(outcome.evidence, first_call_us=max(ahead_us, outcome.evidence.first_call_us))
        return replace(record, outcome=replace(outcome, evidence=evidence))

    def _with_xids(self, record: Record) -> Record:
        """The record with what the driver reported during the case."""
        return self.xids.noted(record, card_of(record.outcome), own_card(self.run))

    def end(self) -> None:
        """Nothing more happens on the cards: write what waits, and what the driver reported since the last case."""
        self.xids.close()
        self._commit_all()
        if self.xids.untold:
            records = self.ledger.patience.keep(lambda: self.store.records(self.run.id))
            self.records = self.xids.late(records, own_card(self.run))
            self._commit_all()

    def leave(self, why: str) -> None:
        """Say of every case without an outcome why it is not run."""
        done = self.ledger.patience.keep(lambda: self.store.done(self.run.id))
        left = [case for cases in self.calls.values() for case in cases if case.id not in done]
        self.ledger.add([Record(case=case, outcome=NotRun(reason=why)) for case in left])

    def _commit_all(self) -> list[Done]:
        """Write everything, however long the store refuses it for now; returns what was written."""
        written: list[Done] = []
        while self.unstored:
            written += self._commit(wait=True)
        return written

    def _commit(self, *, wait: bool) -> list[Done]:
        """Write what the store has not taken yet, or else what is waiting, in one transaction; returns it."""
        if not self.records:
            offered = [replace(event, record=self._with_xids(event.record)) for event in self.waiting]
            records = [record for event in offered for record in shared(event.record, self.calls)]
            self.offered, self.records, self.waiting = offered, records, []
        if self.records and not self.ledger.add(self.records, wait=wait):
            return []
        written, self.offered, self.records = self.offered, [], []
        self.since = time.monotonic()
        return written

    def _check_stack(self, started: Started) -> None:
        """All workers of a run, and of its continuation, run on one stack."""
        known = self.run.stack
        if known is None or known.fingerprint == started.stack.fingerprint:
            return
        raise UsageError(
            f"run {self.run.id} began on another stack ({stack_words(known, started.stack)}). Evidence of two stacks "
            "is not mixed in one run: start a new one."
        )

    def _report(
        self, case_id: str, stage: str, record: Record | None = None, *, final: bool = True, told: str = ""
    ) -> None:
        unstored = self.ledger.patience.refusal
        if unstored and self.unstored:
            unstored = f"{self.unstored} outcome{'s' if self.unstored > 1 else ''} in memory, because {unstored}"
        self.show(
            Progress(
                done=self.before + len(self.final),
                total=self.total,
                case_id=case_id,
                stage=stage,
                record=record,
                final=final,
                unstored=unstored,
                told=told,
            )
        )

    def _tell(self, text: str) -> None:
        self._report("", "", told=text)
