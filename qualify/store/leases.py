"""Who leads the canary service, and who writes a run. Every function works inside the transaction of its connection.

A leader writes only in transactions that check its epoch first (:func:`fence`). On PostgreSQL the check holds a lock on
the lease until the transaction ends, on SQLite there is one writer at a time: nobody can take over in between.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, select, update

from qualify.errors import LeaseLost
from qualify.facts.canary import Lease
from qualify.facts.clock import NOTED_SKEW_S
from qualify.store.bulk import inserting
from qualify.store.clock import now_of
from qualify.store.tables import leases

OF_RUNS = "run:"
"""the name of a run's lease begins so (writers.py)"""
OF_FLEETS = "fleet:"
"""the name of a fleet's lease begins so (fleets.py)"""
OF_CARDS = "card:"
"""the name of a card's lease begins so. One fire holds it while it uses the card. Every other lease elects a leader, or
gives its holder a run, a fleet or the fires of a machine"""
_FIELDS = tuple(Lease.__dataclass_fields__)


def find(connection: Connection, name: str, *, lock: bool = False) -> Lease | None:
    """The lease of that name, free or not."""
    wanted = select(leases).where(leases.c.name == name)
    row = connection.execute(wanted.with_for_update() if lock else wanted).mappings().one_or_none()
    return Lease(**{field: row[field] for field in _FIELDS}) if row else None


def dated_ahead(connection: Connection, name: str, ttl: timedelta) -> Lease | None:
    """The lease of that name if a wrong clock dated it: it ends later than one of length ``ttl`` can. Else None."""
    found = find(connection, name)
    latest = now_of(connection) + ttl + timedelta(seconds=NOTED_SKEW_S)
    return found if found and found.expires_at > latest else None


def load(connection: Connection) -> list[Lease]:
    """Every lease of the canary service, free or not, by name."""
    others = (leases.c.name.not_like(f"{begin}%") for begin in (OF_RUNS, OF_FLEETS, OF_CARDS))
    wanted = select(leases).where(*others).order_by(leases.c.name)
    rows = connection.execute(wanted).mappings()
    return [Lease(**{field: row[field] for field in _FIELDS}) for row in rows]


def acquire(
    connection: Connection, name: str, holder: str, ttl: timedelta, dead: Lease | None, node: str = ""
) -> Lease | None:
    """Takes the lease with a new epoch where it is free, or the caller's own; None where somebody else has it.

    Args:
        dead: a lease that did not change while the caller watched it for its whole length, by a clock that cannot jump.
            It counts as free even where the database's clock says that it lasts: that clock may have been set back.
        node: the machine, where this is the machine's own lease; else empty. Where the machine has not looked at its
            stack yet, ``looked_at`` is now.
    """
    now = now_of(connection)
    found = find(connection, name, lock=True)
    theirs = found is not None and found.holder != holder and now < found.expires_at
    if found and theirs and (dead is None or _sign(found) != _sign(dead)):
        return None
    taken = Lease(
        name=name,
        holder=holder,
        epoch=found.epoch + 1 if found else 1,
        beats=found.beats + 1 if found else 1,
        expires_at=now + ttl,
        trouble="",
        node=node,
        looked_at=(found and found.looked_at) or now if node else None,
    )
    row = {field: getattr(taken, field) for field in _FIELDS}
    if found:
        connection.execute(update(leases).where(leases.c.name == name).values(row))
        return taken
    added = inserting(connection)(leases).on_conflict_do_nothing().values(row).returning(leases.c.name)
    if connection.execute(added).first():
        return taken
    return acquire(connection, name, holder, ttl, dead, node)  # another process was the first to take it


def _sign(lease: Lease) -> tuple[int, int]:
    return lease.epoch, lease.beats


def renew(
    connection: Connection, lease: Lease, ttl: timedelta, trouble: str, looked_ago: timedelta | None = None
) -> datetime:
    """Keeps the lease for another ``ttl`` from now on; returns when it ends. Raises LeaseLost where it was taken over.

    Args:
        looked_ago: time since the holder last saw its machine's whole stack; None = it has not seen it yet.
    """
    now = now_of(connection)
    until = now + ttl
    mine = (leases.c.name == lease.name, leases.c.epoch == lease.epoch)
    values = {"beats": leases.c.beats + 1, "expires_at": until, "trouble": trouble}
    if looked_ago is not None:
        values["looked_at"] = now - looked_ago
    if not connection.execute(update(leases).where(*mine).values(values)).rowcount:
        raise _lost(connection, lease)
    return until


def release(connection: Connection, lease: Lease) -> None:
    """Ends the lease now, so that a follower need not wait. A lease that somebody else took over stays.

    It also forgets the last look: nobody watches the machine's stack any more, so nobody shall expect the next look.
    """
    mine = (leases.c.name == lease.name, leases.c.epoch == lease.epoch)
    connection.execute(update(leases).where(*mine).values(expires_at=now_of(connection), looked_at=None))


def fence(connection: Connection, lease: Lease) -> None:
    """Raises LeaseLost where somebody else has the lease by now; else locks it until the transaction ends."""
    wanted = select(leases.c.epoch).where(leases.c.name == lease.name).with_for_update(read=True)
    if connection.execute(wanted).scalar_one_or_none() != lease.epoch:
        raise _lost(connection, lease)


def _lost(connection: Connection, lease: Lease) -> LeaseLost:
    found = find(connection, lease.name)
    now = f"{found.holder} took it over with epoch {found.epoch}" if found else "it was deleted"
    return LeaseLost(
        f"lease {lease.name}: {lease.holder} had it with epoch {lease.epoch}, but {now}. Nothing was written."
    )
