"""Lease and fires as a state machine: any order of replicas, deaths, clocks and fires, on a real SQLite store."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from canary_examples import due, letter, result, says
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from qualify.canary.slots import Slots
from qualify.errors import LeaseLost
from qualify.facts.canary import Fire, Lease
from qualify.store import Store, canaries, fires, leases, outbox

BEGIN = datetime(2026, 11, 21, 12, 0, 30, tzinfo=UTC)
TTL_S = 15.0
CRON = "*/10 * * * *"
HOLDERS = ("a", "b", "c")

holders = st.sampled_from(HOLDERS)


class Replicas(RuleBasedStateMachine):
    """Three replicas. A replica that is silent keeps believing in its lease: that is what fencing is for."""

    def __init__(self) -> None:
        super().__init__()
        self.now = BEGIN
        self.highest = BEGIN
        self.folder = tempfile.TemporaryDirectory()
        self.patch = pytest.MonkeyPatch()
        for module in (leases, fires, outbox, canaries):
            self.patch.setattr(module, "now_of", lambda _: self.now)
        self.store = Store.open(str(Path(self.folder.name) / "evidence.db"))
        self.believed: dict[str, Lease] = {}
        self.slots: dict[str, Slots] = {}
        self.running: dict[str, Fire] = {}
        self.epochs: list[int] = []
        self.finished: list[int] = []

    def teardown(self) -> None:
        """The store goes with its folder."""
        self.store.close()
        self.patch.undo()
        self.folder.cleanup()

    @initialize()
    def begin(self) -> None:
        """One replica leads at first."""
        self.campaign("a")

    @rule(holder=holders)
    def campaign(self, holder: str) -> None:
        """A replica tries to lead; only where nobody else's lease holds."""
        before = self.store.canaries.lease("canary")
        held = before is not None and before.holder != holder and self.now < before.expires_at
        lease = self.store.canaries.acquire("canary", holder, TTL_S)
        assert held == (lease is None)
        if lease is not None:
            self.epochs.append(lease.epoch)
            self.believed[holder] = lease
            self.running.pop(holder, None)
            slots = self.slots[holder] = Slots()
            slots.set(self.store.canaries.know_schedules(lease, {"c": CRON}).values())

    @rule(holder=holders)
    def overtake(self, holder: str) -> None:
        """The leader is silent for longer than its lease; another replica succeeds it, and it does not know."""
        self.wait(TTL_S + 1)
        self.campaign(holder)

    @rule()
    def tick(self) -> None:
        """The newest leader files what is due."""
        for holder, lease in list(self.believed.items()):
            if lease.epoch == self.epochs[-1]:
                self.file(holder)

    @rule(there=st.floats(600, 7200), back=st.floats(600, 7200))
    def correct(self, there: float, back: float) -> None:
        """A clock that was wrong for a moment in which the leader filed."""
        self.jump(there)
        self.tick()
        self.jump(-back)
        self.tick()
        self.wait(660)
        self.tick()

    @rule(holder=holders)
    def renew(self, holder: str) -> None:
        """Works for the newest epoch alone."""
        self._as_leader(holder, lambda lease: self.store.canaries.renew(lease, TTL_S))

    @rule(holder=holders)
    def die(self, holder: str) -> None:
        """It forgets everything; its lease and its fire stay in the tables."""
        self.believed.pop(holder, None)
        self.running.pop(holder, None)

    @rule(seconds=st.floats(0.1, 3000))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += timedelta(seconds=seconds)
        self.highest = max(self.highest, self.now)

    @rule(seconds=st.floats(-7200, 7200))
    def jump(self, seconds: float) -> None:
        """The database's clock is set."""
        self.wait(seconds)

    @rule(holder=holders)
    def file(self, holder: str) -> None:
        """What is due is filed, by whoever believes to lead; the tables know whether it may."""

        def act(lease: Lease) -> None:
            moments = self.slots[holder].due(self.now)
            self.store.canaries.file(lease, [due(name, moment) for name, moment in moments.items()])
            self.slots[holder].done(moments)

        if self._as_leader(holder, act):
            known = self.store.canaries.know_schedules(self.believed[holder], {"c": CRON})["c"]
            found = [fire.scheduled_for for fire in self.store.canaries.fires("c", limit=10_000)]
            last = self.now.replace(minute=self.now.minute // 10 * 10, second=0, microsecond=0)
            assert last <= known.since or last in found, "the moment before now is not lost"

    @rule(holder=holders)
    def take(self, holder: str) -> None:
        """A leader takes what is owed; it runs one fire at a time."""
        if holder in self.running:
            return

        def act(lease: Lease) -> None:
            fire = self.store.canaries.take(lease, holder)
            if fire is not None:
                assert lease.epoch == fire.epoch
                self.running[holder] = fire

        self._as_leader(holder, act, may_be_quiet=True)

    @rule(holder=holders, advice=st.sampled_from(["promote", "hold"]))
    def finish(self, holder: str, advice: str) -> None:
        """A result is filed once, with its alert, by the leader that runs it."""
        fire = self.running.pop(holder, None)
        if fire is None:
            return

        def act(lease: Lease) -> None:
            self.store.canaries.finish(lease, fire.id, result(advice=advice), says(letter(kind=advice)))
            self.finished.append(fire.id)

        self._as_leader(holder, act)

    @invariant()
    def epochs_rise(self) -> None:
        """Every leader has a higher epoch than all before it."""
        assert sorted(set(self.epochs)) == self.epochs

    @invariant()
    def nothing_twice(self) -> None:
        """A moment is one fire; a fire ends once and is told once; only one can be running under the newest epoch."""
        found = self.store.canaries.fires(limit=10_000)
        assert len({(fire.canary, fire.scheduled_for) for fire in found}) == len(found)
        assert len(set(self.finished)) == len(self.finished)
        assert sorted(self.finished) == sorted(alert.fire_id for alert in self.store.canaries.alerts(limit=10_000))
        assert sum(fire.state == "running" and fire.epoch == self.epochs[-1] for fire in found) <= 1 if found else True

    def _as_leader(self, holder: str, act, *, may_be_quiet: bool = False) -> bool:
        """Acts where the replica believes to lead: it succeeds with the newest epoch, and is refused with another."""
        lease = self.believed.get(holder)
        if lease is None:
            return False
        newest = lease.epoch == self.epochs[-1]
        try:
            act(lease)
        except LeaseLost:
            assert not newest
            del self.believed[holder]
            self.running.pop(holder, None)
            return False
        assert newest or may_be_quiet
        return newest


Replicas.TestCase.settings = settings(max_examples=15, stateful_step_count=30, deadline=None, phases=(Phase.generate,))
test_lease_and_fires = Replicas.TestCase
