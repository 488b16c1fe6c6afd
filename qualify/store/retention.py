"""Which runs may go, and how one goes. Every function works inside the transaction of its connection.

A run goes as a whole or stays as a whole. It stays as long as a row of another table (a baseline, a sign-off) holds
it: every foreign key to ``runs.id`` is a hold, for which the database refuses as well, unless it says what else shall
happen (``ondelete`` CASCADE or SET NULL).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import Column, Connection, delete, select, union

from qualify.facts.deletion import Deletion
from qualify.facts.run import Run
from qualify.seal.sealed import own_digest
from qualify.store import reading, tables, writers
from qualify.store.clock import now_of
from qualify.store.deletions import insert_deletion
from qualify.store.tables import cases, metadata, outcomes, runs

_OF_OUTCOMES = (tables.findings, tables.statistics, tables.launches, tables.samples)
_OF_RUNS = (cases, tables.run_environments, tables.matmul_ceilings, tables.ceilings, tables.seals, tables.comments)
"""tables whose rows belong to a run and go with it, after the parts of its outcomes and its outcomes"""
_NO_HOLD = {"CASCADE", "SET NULL"}


def holds() -> Iterator[Column[str]]:
    """The columns whose rows hold a run."""
    for table in metadata.sorted_tables:
        for key in table.foreign_keys if table not in _OF_RUNS else ():
            if key.column is runs.c.id and key.ondelete not in _NO_HOLD:
                yield key.parent


def held(connection: Connection) -> set[str]:
    """The ids of the runs that a row holds."""
    found = [select(column).where(column.is_not(None)) for column in holds()]
    return set(connection.execute(union(*found)).scalars()) if found else set()


def old_runs(connection: Connection, before: datetime, keep_last: int) -> list[Run]:
    """The runs that ended before that moment, oldest first, without the newest ``keep_last`` of each matrix.

    A run that was never ended counts from its start.
    """
    seen: Counter[str] = Counter()
    old = []
    for run in reading.load_runs(connection):
        seen[run.matrix] += 1
        if seen[run.matrix] > keep_last and (run.finished_at or run.started_at) < before:
            old.append(run)
    return old[::-1]


def lock(connection: Connection, run_id: str) -> bool:
    """Locks the run until the transaction ends: nobody else removes it, holds it or goes on with it. False: it is gone.

    SQLite needs no such lock: there is one writer at a time.
    """
    return connection.execute(select(runs.c.id).where(runs.c.id == run_id).with_for_update()).first() is not None


def remove(connection: Connection, run_id: str, *, by: str, how: str, reason: str) -> bool:
    """Removes the run with all that belongs to it, and notes who did so; False where it is held, or gone already.

    Args:
        by: who removes it.
        how: the command, with its policy.
    """
    if not lock(connection, run_id) or run_id in held(connection):
        return False
    run = connection.execute(select(runs.c.matrix, runs.c.started_at).where(runs.c.id == run_id)).one()
    seal = reading.load_seal(connection, run_id)
    keys = select(cases.c.key).where(cases.c.run_id == run_id)
    ids = select(outcomes.c.id).where(outcomes.c.case_key.in_(keys))
    for table in _OF_OUTCOMES:
        connection.execute(delete(table).where(table.c.outcome_id.in_(ids)))
    connection.execute(delete(outcomes).where(outcomes.c.case_key.in_(keys)))
    for table in _OF_RUNS:
        connection.execute(delete(table).where(table.c.run_id == run_id))
    noted = Deletion(
        what="run",
        name=run_id,
        matrix=run.matrix,
        started_at=run.started_at,
        sha256=own_digest(seal) if seal else "",
        by=by,
        how=how,
        reason=reason,
        at=now_of(connection),
    )
    insert_deletion(connection, noted)
    connection.execute(delete(runs).where(runs.c.id == run_id))
    writers.remove(connection, run_id)
    return True
