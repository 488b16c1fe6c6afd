"""Evidence that must be sealed: whose seals count, and what a run holds that bears its seal."""

from __future__ import annotations

from collections.abc import Sequence

from qualify.facts.run import Record, Run
from qualify.seal.form import line, run_data
from qualify.seal.keys import PublicKey
from qualify.seal.sealed import SealCheck, check_seal
from qualify.store.store import Store


class Seals:
    """The evidence of a store, read only where it is what one of some keys sealed; without keys all of it.

    What is checked is what is judged: a run's records are those that its seal was held against.
    """

    def __init__(self, store: Store, keys: Sequence[PublicKey] = ()) -> None:
        self._store = store
        self._keys = keys
        self._known: dict[str, tuple[Run, list[Record], SealCheck]] = {}

    def run(self, run_id: str) -> Run:
        """A run, whether its seal counts or not."""
        return self._checked(run_id)[0] if self._keys else self._store.run(run_id)

    def records(self, run_id: str) -> list[Record]:
        """Its records."""
        return self._checked(run_id)[1] if self._keys else self._store.records(run_id)

    def why_not(self, run: Run) -> str:
        """Why a run does not count; empty where it does, or no seal is asked for."""
        if not self._keys:
            return ""
        found, _, checked = self._checked(run.id)
        if line(run_data(found)) != line(run_data(run)):
            return "it is being written"
        return checked.why_not

    def note(self, run: Run) -> list[str]:
        """Who sealed a run, or why its evidence does not count."""
        if not self._keys:
            return []
        why = self.why_not(run)
        if why:
            return [f"the evidence of run {run.id} does not count: {why}"]
        checked = self._checked(run.id)[2]
        assert checked.signed_by
        return [f"run {run.id} is sealed by {checked.signed_by.shown} ({checked.signed_by.id[:12]}), and unchanged"]

    def _checked(self, run_id: str) -> tuple[Run, list[Record], SealCheck]:
        if run_id not in self._known:
            found = self._store.evidence(run_id)
            checked = check_seal(found.seal, found.lines, run_id, self._keys)
            self._known[run_id] = found.run, found.records, checked
        return self._known[run_id]
