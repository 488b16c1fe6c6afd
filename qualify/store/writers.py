"""Who writes a run: one process at a time, under a lease. Every function works inside its connection's transaction.

A run's lease stands beside those of the canary service, under a name of its own. Every transaction that writes into a
run checks it first (:func:`check`), so that a process that was stopped and has a successor writes no more.
"""

from __future__ import annotations

import json
from datetime import timedelta

from sqlalchemy import Connection, delete, select, text, update

from qualify.errors import LeaseLost, RunBusy
from qualify.facts import codec
from qualify.facts.canary import Lease
from qualify.facts.run import Writer
from qualify.store import leases
from qualify.store.clock import lasts, now_of
from qualify.store.deletions import gone
from qualify.store.tables import leases as leases_table


def claim(connection: Connection, run_id: str, writer: Writer, ttl: timedelta, *, dead: Lease | None) -> Lease:
    """Makes the process the run's only writer; ``dead``: the lease of one that is known to have ended.

    Raises:
        RunBusy: another process has the run.
    """
    holder = json.dumps(codec.to_data(writer))
    taken = leases.acquire(connection, _name(run_id), holder, ttl, dead)
    if taken is None:
        raise _busy(connection, run_id, ttl)
    return taken


def find(connection: Connection, run_id: str) -> tuple[Lease, Writer] | None:
    """The run's lease, free or not, and who took it last; None where nobody ever did."""
    lease = leases.find(connection, _name(run_id))
    return None if lease is None else (lease, codec.from_data(Writer, json.loads(lease.holder)))


def lock(connection: Connection, run_id: str, patience_s: int = 0) -> None:
    """Locks the run's lease until the transaction ends: nobody writes the run meanwhile, or goes on with it.

    Args:
        patience_s: seconds for which PostgreSQL waits for whoever writes the run; 0 = as for every lock. An SQLite
            transaction has waited at its start.
    """
    if patience_s and connection.dialect.name == "postgresql":
        connection.execute(text(f"SET LOCAL lock_timeout = '{patience_s}s'"))
    leases.find(connection, _name(run_id), lock=True)


def being_run(connection: Connection) -> set[str]:
    """The ids of the runs that a process writes now: their leases last."""
    its, now = leases_table.c, now_of(connection)
    rows = connection.execute(select(its.name, its.expires_at).where(its.name.startswith(leases.OF_RUNS)))
    return {row.name.removeprefix(leases.OF_RUNS) for row in rows if lasts(row.expires_at, now)}


def dated_ahead(connection: Connection, run_id: str, ttl: timedelta) -> Lease | None:
    """The run's lease if a wrong clock dated it: it ends later than one of length ``ttl`` can. Else None."""
    return leases.dated_ahead(connection, _name(run_id), ttl)


def check(connection: Connection, run_id: str, mine: Lease | None) -> None:
    """Refuses a write into a run of another process; locks the caller's lease until the transaction ends.

    Args:
        mine: the caller's lease; None where it never claimed the run, and may write as long as nobody has.

    Raises:
        LeaseLost: the lease was the caller's, and another process took the run over or removed it.
        RunBusy: the caller has no lease, and another process has.
    """
    if mine is None:
        found = leases.find(connection, _name(run_id))
        if found is not None and now_of(connection) < found.expires_at:
            raise _busy(connection, run_id, None)
        return
    try:
        leases.fence(connection, mine)
    except LeaseLost as error:
        raise _lost(connection, run_id) from error


def shut_out(connection: Connection, run_id: str) -> None:
    """Has whoever wrote the run until now write no more: what comes next is of another store.

    Raises RunBusy where a process writes it.
    """
    lock(connection, run_id)
    check(connection, run_id, None)
    its = leases_table.c
    connection.execute(update(leases_table).where(its.name == _name(run_id)).values(epoch=its.epoch + 1))


def renew(connection: Connection, run_id: str, mine: Lease, ttl: timedelta) -> None:
    """Keeps the run for another ``ttl``. Raises LeaseLost where another process took it over or removed it."""
    try:
        leases.renew(connection, mine, ttl, "")
    except LeaseLost as error:
        raise _lost(connection, run_id) from error


def remove(connection: Connection, run_id: str) -> None:
    """Removes the run's lease with the run."""
    connection.execute(delete(leases_table).where(leases_table.c.name == _name(run_id)))


def _name(run_id: str) -> str:
    return f"{leases.OF_RUNS}{run_id}"


def _who(connection: Connection, run_id: str) -> str:
    found = find(connection, run_id)
    return str(found[1]) if found else "a process that has ended since"


def _busy(connection: Connection, run_id: str, ttl: timedelta | None) -> RunBusy:
    silence = f" A process that died on another machine frees it {ttl.total_seconds():g} s later." if ttl else ""
    return RunBusy(
        f"run {run_id} is being run by {_who(connection, run_id)}. Nothing was run or written here. Wait for that "
        f"process, or end it and type this command again.{silence}"
    )


def _lost(connection: Connection, run_id: str) -> LeaseLost:
    because = (
        "because this process gave no sign of life for too long: it was probably stopped. What it measured since was "
        "not stored"
    )
    if find(connection, run_id) is None:
        told = gone(connection, run_id) or f"run {run_id} is not stored any more."
        return LeaseLost(f"{told} It could be removed {because}. Start a new run.")
    return LeaseLost(
        f"run {run_id} was taken over by {_who(connection, run_id)}, {because}; that process goes on with the run."
    )
