"""What the canary service writes and reads: one transaction for each method.

Methods that take a lease are the leader's: they check its epoch in the transaction that writes, and raise LeaseLost,
having written nothing, where another process leads by now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from sqlalchemy import Connection

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
    Schedule,
    Served,
    Watched,
)
from qualify.store import fires, leases, outbox
from qualify.store.clock import now_of
from qualify.store.database import Database
from qualify.store.tables import fires as fires_table
from qualify.store.tables import holds as holds_table
from qualify.store.tables import watched_stacks as watched_table


class Canaries:
    """The state of the canary service in one database; :attr:`qualify.store.Store.canaries`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def now(self) -> datetime:
        """The moment, by the database's clock."""
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
        """Takes a free lease with a new epoch; None where somebody else has it (the rest: :func:`leases.acquire`)."""
        with self._database.writing() as connection:
            return leases.acquire(connection, name, holder, timedelta(seconds=ttl_s), dead, node)

    def renew(self, lease: Lease, ttl_s: float, trouble: str = "", looked_ago_s: float | None = None) -> datetime:
        """Keeps the lease for another while; returns until when, by the database's clock."""
        ago = None if looked_ago_s is None else timedelta(seconds=looked_ago_s)
        with self._database.writing() as connection:
            return leases.renew(connection, lease, timedelta(seconds=ttl_s), trouble, ago)

    def release(self, lease: Lease) -> None:
        """Ends the lease now."""
        with self._database.writing() as connection:
            leases.release(connection, lease)

    def know_schedules(self, lease: Lease, crons: Mapping[str, str]) -> dict[str, Schedule]:
        """The times of the given canaries; those that are new or changed count from now on."""
        with self._leading(lease) as connection:
            return fires.know_schedules(connection, lease, crons)

    def plan(self, lease: Lease, following: Mapping[str, datetime | None]) -> None:
        """Says when canaries are due next: whoever watches the service sees when one is overdue."""
        with self._leading(lease) as connection:
            fires.plan(connection, lease, following)

    def owed(self) -> dict[tuple[str, str], datetime]:
        """By lease and canary: the first moment, passed or to come, whose fire has not ended."""
        with self._database.reading() as connection:
            return fires.load_owed(connection)

    def file(self, lease: Lease, due: Iterable[Due]) -> list[int]:
        """Adds fires to the lease, each at most once for its canary and moment; returns the ids of the new ones."""
        with self._leading(lease) as connection:
            return fires.file(connection, lease.name, due)

    def ask(self, canary: str, matrix: str, reason: str, lease: str) -> Fire:
        """Files a fire by hand, for now; whoever leads by that lease takes it."""
        with self._database.writing() as connection:
            now = now_of(connection)
            due = Due(canary=canary, scheduled_for=now, trigger="manual", reason=reason, matrix=matrix)
            fires.file(connection, lease, [due])
            mine = (fires_table.c.lease == lease, fires_table.c.canary == canary, fires_table.c.scheduled_for == now)
            (fire,) = fires.load(connection, *mine)
            return fire

    def take(self, lease: Lease, node: str, served: Served | None = None, only: int | None = None) -> Fire | None:
        """Takes the fire of the lease that is owed longest, or the one of that id. The caller runs one at a time.

        It is nobody's yet, was left by an earlier leader, or by the caller, where the database failed it in between.

        Args:
            served: whose fires; None = those of all canaries.
        """
        with self._database.reading() as connection:  # most of the time there is none, and nothing to write
            if fires.next_open(connection, lease, served, only) is None:
                return None
        with self._leading(lease) as connection:
            fire = fires.next_open(connection, lease, served, only)
            if fire is None:
                return None
            fires.claim(connection, lease, fire.id, node)
            (taken,) = fires.load(connection, fires_table.c.id == fire.id)
            return taken

    def set_run(self, lease: Lease, fire_id: int, run_id: str) -> None:
        """Says which run a running fire makes."""
        with self._leading(lease) as connection:
            fires.change(connection, lease, fire_id, {"run_id": run_id})

    def put_back(self, lease: Lease, fire_id: int, reason: str, after_s: float) -> None:
        """Makes a running fire pending again, for another attempt after a while."""
        with self._leading(lease) as connection:
            fires.put_back(connection, lease, fire_id, reason, timedelta(seconds=after_s))

    def finish(self, lease: Lease, fire_id: int, result: FireResult, letters: Iterable[Letter]) -> None:
        """Ends a running fire: its result, its holds and its alerts are there together, or not at all."""
        with self._leading(lease) as connection:
            fires.finish(connection, lease, fire_id, result)
            (fire,) = fires.load(connection, fires_table.c.id == fire_id)
            outbox.add(connection, fire.canary, fire_id, letters)

    def fire(self, fire_id: int) -> Fire | None:
        """The fire of that id."""
        with self._database.reading() as connection:
            return next(iter(fires.load(connection, fires_table.c.id == fire_id)), None)

    def fires(self, canary: str | None = None, limit: int = 50) -> list[Fire]:
        """Fires of one canary or of all, the latest moment first."""
        with self._database.reading() as connection:
            where = [] if canary is None else [fires_table.c.canary == canary]
            return fires.load(connection, *where, limit=limit)

    def open_fires(self) -> list[Fire]:
        """What is pending or running, the latest moment first."""
        with self._database.reading() as connection:
            return fires.load(connection, fires_table.c.state.in_(OPEN))

    def latest(self) -> dict[str, Fire]:
        """The latest fire of every canary."""
        with self._database.reading() as connection:
            return fires.load_latest(connection)

    def latest_ended(self, advice: Advice | None = None) -> dict[str, Fire]:
        """The latest fire of every canary that ended, with any advice or with that one."""
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
        """The stacks as the canaries saw them last, under a machine's own lease or under all."""
        with self._database.reading() as connection:
            where = [] if lease is None else [watched_table.c.lease == lease]
            return fires.load_watched(connection, *where)

    def watch(self, lease: Lease, seen: Sequence[Watched], due: Iterable[Due]) -> list[int]:
        """Replaces what the canaries saw, and files the fires that follow from it; returns the ids of the new ones."""
        with self._leading(lease) as connection:
            fires.save_watched(connection, seen)
            return fires.file(connection, lease.name, due)

    def claim_alerts(self, limit: int, lasts_s: float, served: Served | None = None) -> list[Alert]:
        """Takes alerts whose time has come; nobody else gets them for that while. The attempt is counted already.

        Args:
            served: whose alerts; None = everybody's.
        """
        with self._database.writing() as connection:
            return outbox.claim(connection, limit, timedelta(seconds=lasts_s), served)

    def settle_alert(self, alert_id: str, state: AlertState, error: str = "", after_s: float = 0.0) -> None:
        """Says what became of an attempt: ``sent``, ``dead``, or ``pending`` for another one after a while."""
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
    def _leading(self, lease: Lease) -> Iterator[Connection]:
        """A write transaction of the leader: it begins with the check of the epoch."""
        with self._database.writing() as connection:
            leases.fence(connection, lease)
            yield connection
