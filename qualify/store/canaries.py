"""What the canary service writes and reads: one transaction for each method.

Methods with a lease are the leader's. They check its epoch in the transaction that writes. Where another process leads
by now, they raise LeaseLost and write nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, or_

from qualify.facts.canary import (
    OPEN,
    Advice,
    Alert,
    AlertState,
    Due,
    Fire,
    FireResult,
    Hold,
    Lease,
    Letter,
    Node,
    Rollout,
    RolloutState,
    Schedule,
    Served,
    Watched,
)
from qualify.facts.duel import Duel
from qualify.facts.seal import Seal
from qualify.store import fires, leases, outbox, rollouts
from qualify.store.clock import now_of
from qualify.store.database import Database
from qualify.store.duels import insert_duel, load_duels
from qualify.store.tables import duels as duels_table
from qualify.store.tables import fires as fires_table
from qualify.store.tables import holds as holds_table
from qualify.store.tables import rollouts as rollouts_table
from qualify.store.tables import watched_stacks as watched_table

Letters = Callable[[Fire, Sequence[Hold]], Iterable[Letter]]
"""the alerts of a fire as it ended, from the open holds of all canaries and those that the fire has ended. It is called
in the transaction that ends the fire, so that what two fires of one node say of it does not cross"""


class Canaries:
    """The state of the canary service in one database; :attr:`qualify.store.Store.canaries`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> datetime:
        """The current time, by the database's clock."""
        with self._database.reading() as connection:
            return now_of(connection)

    def lease(self, name: str) -> Lease | None:
        """The lease of that name, whether it has run out or not; None where nobody ever led."""
        with self._database.reading() as connection:
            return leases.find(connection, name)

    def leases(self) -> list[Lease]:
        """Every lease, whether it has run out or not."""
        with self._database.reading() as connection:
            return leases.load(connection)

    def acquire(self, name: str, holder: str, ttl_s: float, dead: Lease | None = None, node: str = "") -> Lease | None:
        """Takes a free lease with a new epoch; None where somebody else has it. See :func:`leases.acquire`."""
        with self._database.writing() as connection:
            return leases.acquire(connection, name, holder, timedelta(seconds=ttl_s), dead, node)

    def renew(self, lease: Lease, ttl_s: float, trouble: str = "", looked_ago_s: float | None = None) -> datetime:
        """Keeps the lease for another ``ttl_s`` seconds; returns when it ends, by the database's clock."""
        ago = None if looked_ago_s is None else timedelta(seconds=looked_ago_s)
        with self._database.writing() as connection:
            return leases.renew(connection, lease, timedelta(seconds=ttl_s), trouble, ago)

    def release(self, lease: Lease) -> None:
        """Ends the lease now."""
        with self._database.writing() as connection:
            leases.release(connection, lease)

    def know_schedules(self, lease: Lease, crons: Mapping[str, str]) -> dict[str, Schedule]:
        """The schedules of the given canaries. A new or changed schedule counts from now on."""
        with self._leading(lease) as connection:
            return fires.know_schedules(connection, lease, crons)

    def plan(self, lease: Lease, following: Mapping[str, datetime | None]) -> None:
        """Stores when each canary is due next, so that whoever watches the service sees an overdue one."""
        with self._leading(lease) as connection:
            fires.plan(connection, lease, following)

    def owed(self) -> dict[tuple[str, str], datetime]:
        """By lease and canary: the earliest moment, past or future, whose fire has not ended."""
        with self._database.reading() as connection:
            return fires.load_owed(connection)

    def file(self, lease: Lease, due: Iterable[Due]) -> list[int]:
        """Adds fires to the lease, each at most once for its canary and moment; returns the ids of the new ones."""
        with self._leading(lease) as connection:
            return fires.file(connection, lease.name, due)

    def have_fired(self, service: str, moments: Mapping[str, datetime]) -> set[str]:
        """Those canaries for whose moment the service, on any machine, has filed a fire."""
        with self._database.reading() as connection:
            return fires.have_fired(connection, service, moments)

    def ask(self, canary: str, matrix: str, reason: str, lease: str) -> Fire:
        """Files a fire by hand, due now; the leader under that lease takes it."""
        return self._ask(lease, lambda now: [_by_hand(canary, matrix, reason, now)])[0]

    def ask_nodes(self, canary: str, matrix: str, reason: str, nodes: Iterable[Node], *, waves: bool) -> list[Fire]:
        """Files a fire by hand, due now, for each machine, under the machine's own lease.

        Args:
            waves: whether the fires wait for their wave of a rollout.
        """

        def due(now: datetime) -> list[Due]:
            key = f"manual {now:%Y-%m-%dT%H:%M:%S.%fZ}" if waves else ""
            one = _by_hand(canary, matrix, reason, now)
            return [replace(one, node=node.node, lease=node.lease, rollout=key) for node in nodes]

        return self._ask("", due)

    def _ask(self, lease: str, due: Callable[[datetime], list[Due]]) -> list[Fire]:
        with self._database.writing() as connection:
            ids = fires.file(connection, lease, due(now_of(connection)))
            return fires.load(connection, fires_table.c.id.in_(ids))[::-1]

    def owes(self, lease: Lease, served: Served | None = None, only: int | None = None) -> bool:
        """Whether :meth:`take` would find a fire. Most of the time there is none, and nothing to write."""
        with self._database.reading() as connection:
            return fires.next_open(connection, lease, served, only) is not None

    def take(self, lease: Lease, node: str, served: Served | None = None, only: int | None = None) -> Fire | None:
        """Takes the lease's fire that has been due longest, or the fire ``only``. The caller runs one at a time.

        Either nobody has taken that fire yet, or an earlier leader left it unfinished, or the caller itself did when
        the database failed.

        Args:
            served: the canaries whose fires it may take; None = all canaries.
        """
        with self._leading(lease) as connection:
            fire = fires.next_open(connection, lease, served, only)
            if fire is None:
                return None
            fires.claim(connection, lease, fire.id, node)
            (taken,) = fires.load(connection, fires_table.c.id == fire.id)
            return taken

    def set_run(self, lease: Lease, fire_id: int, run_id: str) -> None:
        """Stores the id of the run that a running fire makes."""
        with self._leading(lease) as connection:
            fires.change(connection, lease, fire_id, {"run_id": run_id})

    def put_back(self, lease: Lease, fire_id: int, reason: str, after_s: float) -> None:
        """Makes a running fire pending again, for another attempt after ``after_s`` seconds."""
        with self._leading(lease) as connection:
            fires.put_back(connection, lease, fire_id, reason, timedelta(seconds=after_s))

    def finish(self, lease: Lease, fire_id: int, result: FireResult, letters: Letters) -> None:
        """Ends a running fire; stores its result, its holds and its alerts together, or none of them."""
        with self._ending(lease) as connection:
            fires.finish(connection, lease, fire_id, result)
            _tell(connection, fire_id, letters)

    def file_duel(self, lease: Lease, duel: Duel, seal: Seal | None) -> bool:
        """Adds the duel of a fire that runs under the lease; False where an earlier attempt has added it already."""
        with self._leading(lease, in_file=True) as connection:
            if load_duels(connection, duels_table.c.id == duel.id):
                return False
            insert_duel(connection, duel, seal)
            return True

    def duel(self, duel_id: str) -> Duel | None:
        """The duel of that id."""
        with self._database.reading() as connection:
            return next(iter(load_duels(connection, duels_table.c.id == duel_id)), None)

    def fire(self, fire_id: int) -> Fire | None:
        """The fire of that id."""
        with self._database.reading() as connection:
            return next(iter(fires.load(connection, fires_table.c.id == fire_id)), None)

    def fires(self, canary: str | None = None, limit: int = 50) -> list[Fire]:
        """Fires of one canary or of all, the latest moment first."""
        with self._database.reading() as connection:
            where = [] if canary is None else [fires_table.c.canary == canary]
            return fires.load(connection, *where, limit=limit)

    def runs_of(self, fire_ids: Sequence[int]) -> dict[int, str]:
        """The runs of some fires, by the id of the fire; those without a run are left out."""
        with self._database.reading() as connection:
            return fires.load_runs(connection, fire_ids)

    def open_fires(self) -> list[Fire]:
        """The fires that are pending or running, the latest moment first."""
        with self._database.reading() as connection:
            return fires.load(connection, fires_table.c.state.in_(OPEN))

    def latest(self) -> dict[str, Fire]:
        """The latest fire of every canary."""
        with self._database.reading() as connection:
            return fires.load_latest(connection)

    def latest_ended(self, advice: Advice | None = None) -> dict[str, Fire]:
        """By canary, its latest fire that ended; where ``advice`` is given, its latest that ended with that advice."""
        with self._database.reading() as connection:
            ended = [fires_table.c.finished_at.is_not(None)]
            return fires.load_latest(connection, *ended, *([fires_table.c.advice == advice] if advice else []))

    def holds(self, canary: str | None = None, *, released: bool = False) -> list[Hold]:
        """Open holds of one canary or of all, the newest first; with ``released`` also those that ended."""
        with self._database.reading() as connection:
            where = [] if canary is None else [holds_table.c.canary == canary]
            if not released:
                where.append(holds_table.c.released_at.is_(None))
            return fires.load_holds(connection, *where)

    def watched(self, lease: str | None = None) -> list[Watched]:
        """The stacks as the canaries saw them last, under one lease or under all."""
        with self._database.reading() as connection:
            where = [] if lease is None else [watched_table.c.lease == lease]
            return fires.load_watched(connection, *where)

    def watch(self, lease: Lease, seen: Sequence[Watched], due: Iterable[Due]) -> list[int]:
        """Replaces the watched stacks, and files the fires that follow from them; returns the ids of the new fires."""
        with self._leading(lease) as connection:
            fires.save_watched(connection, seen)
            return fires.file(connection, lease.name, due)

    def tell(self, lease: Lease, node: Node) -> None:
        """Stores what a machine reports about itself, under its own lease, in place of its earlier report."""
        with self._leading(lease) as connection:
            rollouts.tell(connection, node)

    def nodes(self, service: str | None = None) -> list[Node]:
        """The machines of a service, or of all services, by name; also those whose lease ran out."""
        with self._database.reading() as connection:
            return rollouts.load_nodes(connection, service)

    def watch_for_many(self, lease: Lease, seen: Watched, due: Due, service: str, stack_key: str, seats: int) -> bool:
        """Replaces a watched stack; files the fire only where the machine is one of the first ``seats`` with it."""
        with self._leading(lease) as connection:
            fires.save_watched(connection, [seen])
            first = rollouts.take_seat(connection, service, due.canary, stack_key, seats, due.node)
            return bool(first and fires.file(connection, lease.name, [due]))

    def rollouts(self, canary: str | None = None, lease: str | None = None, *, opened: bool = False) -> list[Rollout]:
        """Rollouts of a canary or all, of a service or all, the newest first; with ``opened`` only those under way."""
        with self._database.reading() as connection:
            where = [] if canary is None else [rollouts_table.c.canary == canary]
            where += [] if lease is None else [rollouts_table.c.lease == lease]
            where += [rollouts_table.c.state == "open"] if opened else []
            return rollouts.load_rollouts(connection, *where)

    def rollout_fires(self, rollout: Rollout) -> list[Fire]:
        """The fires of the rollout's nodes, the latest first."""
        with self._database.reading() as connection:
            return rollouts.fires_of(connection, rollout)

    def waiting(self, service: str) -> list[Fire]:
        """Fires of a service's machines that wait for their wave."""
        with self._database.reading() as connection:
            return rollouts.waiting(connection, service)

    def open_rollout(self, lease: Lease, rollout: Rollout) -> None:
        """Begins a rollout; one that has begun already stays as it is."""
        with self._leading(lease) as connection:
            rollouts.open_rollout(connection, rollout)

    def let_go(self, lease: Lease, waits: Iterable[Fire], wave: int) -> None:
        """Lets the fires begin that waited for this wave."""
        with self._leading(lease) as connection:
            rollouts.let_go(connection, waits, wave)

    def turn_away(self, lease: Lease, waits: Sequence[Fire], result: FireResult) -> None:
        """Ends fires whose wave will not come, and holds each of their machines."""
        with self._ending(lease) as connection:
            rollouts.end_without_run(connection, waits, result)

    def end_wave(
        self, lease: Lease, rollout: Rollout, result: FireResult, state: RolloutState, letters: Letters
    ) -> None:
        """Files a wave's advice and alerts, once. In the same transaction the next wave begins, or the rollout ends."""
        with self._ending(lease) as connection:
            (now,) = rollouts.load_rollouts(connection, *_same_rollout(rollout))
            if (now.wave, now.state) == (rollout.wave, "open"):
                _tell(connection, rollouts.end_wave(connection, lease, rollout, result, state), letters)

    def shorten_leases(self, lease: Lease) -> None:
        """Shortens machines' leases that a wrong clock dated days ahead: unless renewed, they end within hours."""
        with self._leading(lease) as connection:
            rollouts.shorten(connection, lease.name)

    def abandoned(self, service: str, patience: timedelta) -> list[Fire]:
        """Open fires of those machines of the service that gave no sign of life for ``patience``."""
        with self._database.reading() as connection:
            return rollouts.abandoned(connection, service, patience)

    def abandon(self, lease: Lease, fire: Fire, result: FireResult, letters: Letters) -> bool:
        """Ends a fire of a machine that is gone, and files its alerts; False where the fire went on meanwhile."""
        with self._ending(lease) as connection:
            ended = rollouts.end_without_run(connection, [fire], result)
            if ended:
                _tell(connection, fire.id, letters)
            return bool(ended)

    def claim_alerts(
        self, limit: int, lasts_s: float, served: Served | None = None, turns: outbox.Turns = outbox.NO_TURNS
    ) -> list[Alert]:
        """Takes up to ``limit`` due alerts, and counts the attempt. Nobody else gets them for ``lasts_s`` seconds.

        Args:
            served: the canaries whose alerts it may take; None = all canaries.
            turns: the targets that must get a node's alerts in the order of the events.
        """
        with self._database.writing() as connection:
            return outbox.claim(connection, limit, timedelta(seconds=lasts_s), served, turns)

    def settle_alert(self, alert_id: str, state: AlertState, error: str = "", after_s: float = 0.0) -> None:
        """Stores how an attempt ended: ``sent``, ``dead``, or ``pending`` for another after ``after_s`` seconds."""
        with self._database.writing() as connection:
            outbox.settle(connection, alert_id, state, error, timedelta(seconds=after_s))

    def alerts(self, state: AlertState | None = None, limit: int = 100) -> list[Alert]:
        """Alerts, of one state or of all, the newest first."""
        with self._database.reading() as connection:
            return outbox.load(connection, state, limit)

    def alert_counts(self) -> dict[AlertState, int]:
        """How many alerts are in which state."""
        with self._database.reading() as connection:
            return outbox.counts(connection)

    @contextmanager
    def _leading(self, lease: Lease, *, in_file: bool = False) -> Iterator[Connection]:
        """A write transaction of the leader: it begins with the check of the epoch."""
        with self._database.writing(in_file=in_file) as connection:
            leases.fence(connection, lease)
            yield connection

    @contextmanager
    def _ending(self, lease: Lease) -> Iterator[Connection]:
        """A write transaction of the leader in which fires end: nobody else ends one, or releases a hold, meanwhile."""
        with self._leading(lease, in_file=True) as connection:
            fires.lock_holds(connection)
            yield connection


def _tell(connection: Connection, fire_id: int, letters: Letters) -> None:
    """Files the alerts of a fire that has just ended."""
    (fire,) = fires.load(connection, fires_table.c.id == fire_id)
    about = or_(holds_table.c.released_at.is_(None), holds_table.c.released_by == fire_id)
    outbox.add(connection, fire.canary, fire_id, letters(fire, fires.load_holds(connection, about)))


def _by_hand(canary: str, matrix: str, reason: str, now: datetime) -> Due:
    return Due(canary=canary, scheduled_for=now, trigger="manual", reason=reason, matrix=matrix)


def _same_rollout(rollout: Rollout) -> tuple[ColumnElement[bool], ...]:
    columns = rollouts_table.c
    return columns.lease == rollout.lease, columns.canary == rollout.canary, columns.key == rollout.key
