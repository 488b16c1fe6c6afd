"""Says which runs and duels may be removed, removes one, and lists what was removed.

Every method is one transaction; every function works inside the transaction of its connection.

A run is removed as a whole or not at all. It stays as long as a process writes it, or a row of another table holds it,
such as a baseline or a sign-off. Every foreign key to ``runs.id`` is such a hold, and the database itself refuses the
removal, too. A key with ``ondelete`` CASCADE or SET NULL is no hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from functools import cache

from sqlalchemy import BindParameter, Column, Connection, Delete, bindparam, delete, select, union

from qualify.facts.deletion import Deletion, deletion_words
from qualify.facts.duel import Duel
from qualify.facts.run import Run
from qualify.seal.sealed import own_digest
from qualify.store import reading, tables, writers
from qualify.store.clock import now_of
from qualify.store.database import Database
from qualify.store.deletions import gone, insert_deletion, load_deletions, newer_deletion
from qualify.store.duels import has_duel, load_duel_seal, load_duels
from qualify.store.records import load_last_end
from qualify.store.tables import cases, metadata, outcomes, runs

_OF_OUTCOMES = (tables.findings, tables.statistics, tables.launches, tables.samples)
_EVIDENCE = (cases, tables.run_environments, tables.matmul_ceilings, tables.ceilings, tables.seals)
"""tables whose rows are evidence of a run, after the parts of its outcomes and its outcomes"""
_OF_RUNS = (*_EVIDENCE, tables.comments)
"""tables whose rows belong to a run and go with it"""
_OF_DUELS = (tables.duel_blocks, tables.duel_ratios, tables.duel_cells, tables.duel_seals)
"""tables whose rows belong to a duel and go with it"""
_NO_HOLD = {"CASCADE", "SET NULL"}


class Retention:
    """What may be removed from one database, and what was; :attr:`qualify.store.Store.retention`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def old_runs(self, before: datetime, keep_last: int) -> tuple[list[Run], list[Run]]:
        """The runs that ended before that moment, oldest first: those that may go, and those that something holds.

        The newest ``keep_last`` of each matrix are in neither.
        """
        with self._database.reading() as connection:
            old, keep = old_runs(connection, before, keep_last), held(connection)
        return [run for run in old if run.id not in keep], [run for run in old if run.id in keep]

    def being_run(self) -> set[str]:
        """The ids of the runs that a process writes now, which holds them."""
        with self._database.reading() as connection:
            return writers.being_run(connection)

    def remove_run(self, run_id: str, *, by: str, how: str, reason: str) -> bool:
        """Removes a run with all its evidence; False where something holds it, or it has gone already.

        A note stays that says who removed it, how and why (:meth:`deletions`).
        """
        with self._database.writing() as connection:
            return remove(connection, run_id, by=by, how=how, reason=reason)

    def old_duels(self, before: datetime, keep_last: int) -> tuple[list[Duel], list[Duel]]:
        """The same for duels, which come without their times."""
        with self._database.reading() as connection:
            return old_duels(connection, before, keep_last)

    def remove_duel(self, duel_id: str, *, by: str, how: str, reason: str) -> bool:
        """Removes a duel with its times; False where something needs it, or it has gone already."""
        with self._database.writing() as connection:
            return remove_duel(connection, duel_id, by=by, how=how, reason=reason)

    def deletions(self, limit: int | None = None) -> list[Deletion]:
        """The newest deletions of runs and duels, newest first."""
        with self._database.reading() as connection:
            return load_deletions(connection, limit=limit)

    def deleted(self, name: str) -> str:
        """Who deleted a run or a duel of that full id, when and why; empty where it is stored, or nobody did."""
        with self._database.reading() as connection:
            if reading.has_run(connection, name) or has_duel(connection, name):
                return ""
            found = [it for it in load_deletions(connection, beginning=name) if it.name == name]
            return deletion_words(found[0]) if found else ""

    def newer_deletion(self, run_id: str) -> Deletion | None:
        """The newest run of the same matrix that began after this one and was deleted; None where there is none."""
        with self._database.reading() as connection:
            return newer_deletion(connection, run_id)

    def gone(self, run_id: str) -> str:
        """Why a run that something refers to is not stored, in words; empty where it is stored."""
        with self._database.reading() as connection:
            if reading.has_run(connection, run_id):
                return ""
            return gone(connection, run_id) or f"run {run_id} is not stored in {self._database.where}"


def holds() -> Iterator[Column[str]]:
    """The columns whose rows hold a run."""
    for table in metadata.sorted_tables:
        for key in table.foreign_keys if table not in _OF_RUNS else ():
            if key.column is runs.c.id and key.ondelete not in _NO_HOLD:
                yield key.parent


def held(connection: Connection) -> set[str]:
    """The ids of the runs that a row holds, or a process that writes them now."""
    found = [select(column).where(column.is_not(None)) for column in holds()]
    return set(connection.execute(union(*found)).scalars()) | writers.being_run(connection)


def old_runs(connection: Connection, before: datetime, keep_last: int) -> list[Run]:
    """The runs that ended before that moment, oldest first, without the newest ``keep_last`` of each matrix.

    A run that was never ended counts from the end of its last case, or from its start where no outcome says when.
    """
    seen: Counter[str] = Counter()
    old = []
    for run in reading.load_runs(connection):
        seen[run.matrix] += 1
        if seen[run.matrix] > keep_last and _last_of(connection, run) < before:
            old.append(run)
    return old[::-1]


def _last_of(connection: Connection, run: Run) -> datetime:
    return run.finished_at or load_last_end(connection, run.id) or run.started_at


def old_duels(connection: Connection, before: datetime, keep_last: int) -> tuple[list[Duel], list[Duel]]:
    """The duels that ended before that moment, oldest first: those that may go, and those that something needs.

    The newest ``keep_last`` of each matrix are in neither. A hold needs the duel of its fire. A held run needs each
    duel of its matrix in which side B is the run's stack.
    """
    seen: Counter[str] = Counter()
    old = []
    for duel in load_duels(connection, times=False):
        seen[duel.matrix] += 1
        if seen[duel.matrix] > keep_last and duel.finished_at < before:
            old.append(duel)
    needed = _needed_duels(connection)
    return [it for it in old[::-1] if it.id not in needed], [it for it in old[::-1] if it.id in needed]


def _needed_duels(connection: Connection) -> set[str]:
    fires, duels, kept = tables.fires.c, tables.duels.c, held(connection)
    of_holds = select(fires.duel_id).join(tables.holds, tables.holds.c.fire_id == fires.id)
    found = {name for name in connection.execute(of_holds).scalars() if name}
    part, same = tables.run_environments.c, runs.c.matrix_hash == duels.matrix_hash
    own = select(duels.id, runs.c.id).join(runs, same & (runs.c.stack_id == duels.stack_b_id))
    other = select(duels.id, part.run_id).join(tables.run_environments, part.stack_id == duels.stack_b_id)
    other = other.join(runs, same & (runs.c.id == part.run_id))
    pairs = [*connection.execute(own), *connection.execute(other)]
    return found | {duel for duel, run in pairs if run in kept}


def remove_duel(connection: Connection, duel_id: str, *, by: str, how: str, reason: str) -> bool:
    """Removes the duel with its times and its seal, and notes who did so; False where it is needed, or gone already."""
    which = tables.duels.c.id == duel_id
    row = connection.execute(select(tables.duels).where(which).with_for_update()).mappings().first()
    if row is None or duel_id in _needed_duels(connection):
        return False
    seal = load_duel_seal(connection, duel_id)
    clear_duel(connection, duel_id)
    noted = Deletion(
        what="duel",
        name=duel_id,
        matrix=row["matrix"],
        started_at=row["started_at"],
        sha256=own_digest(seal) if seal else "",
        by=by,
        how=how,
        reason=reason,
        at=now_of(connection),
    )
    insert_deletion(connection, noted)
    connection.execute(delete(tables.duels).where(which))
    return True


def lock(connection: Connection, run_id: str) -> bool:
    """Locks the run until the transaction ends: nobody else removes it, holds it or goes on with it.

    Returns False where the run is gone.

    SQLite needs no such lock: there is one writer at a time.
    """
    return connection.execute(select(runs.c.id).where(runs.c.id == run_id).with_for_update()).first() is not None


def remove(connection: Connection, run_id: str, *, by: str, how: str, reason: str) -> bool:
    """Removes the run with all that belongs to it, and notes who did so; False where it is held, or gone already.

    Args:
        by: who removes it.
        how: the command, with its policy.
    """
    writers.lock(connection, run_id)  # before the run, as whoever writes it does: else both could wait for each other
    if not lock(connection, run_id) or run_id in held(connection):
        return False
    run = connection.execute(select(runs.c.matrix, runs.c.started_at).where(runs.c.id == run_id)).one()
    seal = reading.load_seal(connection, run_id)
    clear_run(connection, run_id)
    connection.execute(delete(tables.comments).where(tables.comments.c.run_id == run_id))
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


def clear_run(connection: Connection, run_id: str) -> None:
    """Removes all evidence of a run except its own row; what people said of the run stays."""
    for wanted in _clearing():
        connection.execute(wanted, {"run": run_id})


@cache
def _clearing() -> tuple[Delete, ...]:
    """Built once: every run that is added from a file is cleared before."""
    run: BindParameter[str] = bindparam("run")
    keys = select(cases.c.key).where(cases.c.run_id == run)
    ids = select(outcomes.c.id).where(outcomes.c.case_key.in_(keys))
    return (
        *(delete(table).where(table.c.outcome_id.in_(ids)) for table in _OF_OUTCOMES),
        delete(outcomes).where(outcomes.c.case_key.in_(keys)),
        *(delete(table).where(table.c.run_id == run) for table in _EVIDENCE),
    )


def clear_duel(connection: Connection, duel_id: str) -> None:
    """Removes the times and the seal of a duel."""
    for table in _OF_DUELS:
        connection.execute(delete(table).where(table.c.duel_id == duel_id))
