"""Reads evidence that must be sealed by one of some keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qualify.facts.run import Record, Run
from qualify.seal.form import line, run_data
from qualify.seal.keys import PublicKey
from qualify.seal.sealed import SealCheck, check_seal
from qualify.store.store import Store


class Seals:
    """The evidence of a store. With keys, only evidence that one of them has sealed counts; without keys all counts.

    A run is read once, so the records that are judged are those that were compared with the seal.
    """

    def __init__(self, store: Store, keys: Sequence[PublicKey] = ()) -> None:
        self._store = store
        self._keys = keys
        self._known: dict[str, tuple[Run, list[Record], SealCheck]] = {}

    def run(self, run_id: str) -> Run:
        """A run, whether its seal counts or not."""
        return self._checked(run_id)[0] if self._keys else self._store.run(run_id)

    def records(self, run_id: str, like: Iterable[Record] = ()) -> list[Record]:
        """Its records; without keys, equal cases share the memory of those in ``like``."""
        return self._checked(run_id)[1] if self._keys else self._store.records(run_id, like=like)

    def edited(self, run: Run) -> str:
        """How rows of a run's plan or stacks were edited, which shows even without a seal; else empty."""
        return self._store.edited(run)

    def why_not(self, run: Run) -> str:
        """Why a run does not count; empty where it counts, or no seal is required."""
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
