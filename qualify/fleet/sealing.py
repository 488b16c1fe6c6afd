"""What a run writes into the store, summed on the way: its seal is of what was measured, not of what is read back.

Without a signing key nothing is summed. With one, a run takes over only what the same key has
sealed. Otherwise it would seal a forged outcome in the store as if it had been measured here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from qualify.errors import SigningFailed, UsageError
from qualify.facts import codec
from qualify.facts.case import Case
from qualify.facts.outcome import Outcome
from qualify.facts.run import Record, Run, RunState
from qualify.fleet.patience import Patience
from qualify.fleet.set_clock import SetClock
from qualify.seal.form import case_data, line, outcome_data, run_data
from qualify.seal.keys import SIGNING_KEY, SigningKey
from qualify.seal.parts import FieldDigests
from qualify.seal.sealed import check_seal, make_seal
from qualify.store.store import Store


class Ledger:
    """The plan and the outcomes of one run: each is stored, and summed for the seal."""

    def __init__(self, store: Store, run_id: str, key: SigningKey | None, clock: SetClock | None = None) -> None:
        """``clock`` dates the evidence; None = this machine's."""
        self._store = store
        self._clock = clock or SetClock()
        self._run_id = run_id
        self._key = key
        self.patience = Patience()
        """with the store, for whatever is written once the plan is stored"""
        self._digest = hashlib.sha256()
        self._parts = FieldDigests()
        self._places: dict[str, int] = {}
        self._planned: int | None = None

    def add_cases(self, cases: Sequence[Case]) -> None:
        """Stores the plan."""
        self._store.add_cases(self._run_id, cases)
        self._planned = len(cases)
        self._sum_cases(cases)

    def add(self, records: Sequence[Record], *, wait: bool = True) -> bool:
        """Stores outcomes of planned cases, in one transaction. Returns whether they are stored.

        Args:
            wait: where the store refuses them for now; otherwise the caller gives the same ones again.
        """
        use = partial(self._add, records)
        if not wait:
            return self.patience.attempt(use)
        self.patience.keep(use)
        return True

    def _add(self, records: Sequence[Record]) -> None:
        self._store.add(self._run_id, records)
        self._sum_records(records)

    def go_on(self) -> list[Record]:
        """Begins with the evidence of a run that goes on; empty without a key.

        Raises:
            UsageError: this key has not sealed it as it is.
        """
        if self._key is None:
            return []
        found = self._store.evidence(self._run_id)
        checked = check_seal(found.seal, found.lines, self._run_id, [self._key.public])
        if checked.why_not:
            raise UsageError(
                f"--resume {self._run_id}: {checked.why_not}. qualify seals a run only if all its evidence is known to "
                "be measured; a killed process leaves no seal. Start a new run: leave out --resume. Or go on "
                f"without {SIGNING_KEY}: then the run stays without a seal."
            )
        self._planned = found.run.planned
        self._sum_cases(found.cases)
        self._sum_records(found.outcomes)
        return found.records

    def finish(self, run: Run, state: RunState) -> Run:
        """Ends the run in the store; returns it as it ended."""
        now = datetime.now(UTC)
        skew_s = self._clock.skew_s(self._store, run.clock_skew_s)
        self.patience.keep(lambda: self._store.finish(run.id, state, now, skew_s))
        planned = run.planned if self._planned is None else self._planned
        return replace(run, state=state, finished_at=now, planned=planned, clock_skew_s=skew_s)

    def seal(self, ended: Run) -> None:
        """Seals a run that has ended; without a key nothing happens.

        Raises:
            SigningFailed: the key gives no signature, or the store does not hold what was measured.
        """
        if self._key is None:
            return
        self._take(run_data(_as_read(Run, ended)))
        try:
            seal = make_seal(ended.id, ended.state, self._digest.hexdigest(), self._parts, self._key)
        except SigningFailed as error:
            raise SigningFailed(f"run {ended.id} is stored without a seal. {error} Then run again.") from error
        found = self.patience.keep(lambda: self._store.evidence(ended.id))
        checked = check_seal(seal, found.lines, ended.id, [self._key.public])
        if checked.why_not:
            raise SigningFailed(
                f"run {ended.id} in {self._store.where} is not what was measured: {checked.why_not}. Something else "
                "has probably written into the store. The run was not sealed: start a new one."
            )
        self.patience.keep(lambda: self._store.set_seal(ended.id, seal))

    def _sum_cases(self, cases: Iterable[Case]) -> None:
        if self._key:
            for case in cases:
                self._places[case.id] = len(self._places)
                self._take(case_data(_as_read(Case, case)))

    def _sum_records(self, records: Iterable[Record]) -> None:
        if self._key:
            for record in records:
                self._take(outcome_data(self._places[record.case.id], _as_read(Outcome, record.outcome)))

    def _take(self, data: Mapping[str, Any]) -> None:
        self._digest.update(line(data))
        self._parts.add(data)


def _as_read(kind: Any, fact: Any) -> Any:
    """The fact as a store gives it back: a whole number in a field of floats becomes a float."""
    return codec.from_data(kind, codec.to_data(fact, kind))


def sealed_records(store: Store, run: Run, key: SigningKey) -> list[Record]:
    """The records of a run, if this key has sealed them as they are; else none."""
    found = store.evidence(run.id)
    same = line(run_data(found.run)) == line(run_data(run))
    if not same or check_seal(found.seal, found.lines, run.id, [key.public]).why_not:
        return []
    return found.records
