"""The evidence store: what a run writes, and what everything else reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from sqlalchemy import ColumnElement, func, select

from qualify.errors import StoreError, UsageError
from qualify.facts.baseline import Baseline
from qualify.facts.case import Level
from qualify.facts.duel import Duel
from qualify.facts.people import AuditEntry
from qualify.facts.run import Record, Run
from qualify.facts.seal import Seal
from qualify.facts.selftest import SelfTest
from qualify.store import (
    archive,
    clock,
    duels,
    moving,
    names,
    reading,
    retention,
    tables,
    transfer,
    writing,
)
from qualify.store.address import check_place, parse
from qualify.store.archive import Archive, Attached, DuelArchive, Exported, Moved, RunArchive
from qualify.store.baselines import insert_baseline, load_baselines
from qualify.store.canaries import Canaries
from qualify.store.database import Database
from qualify.store.failures import DamagedError, explained, store_error
from qualify.store.fleets import Fleets
from qualify.store.late import LateDatabase, can_wait
from qualify.store.overview import Overview
from qualify.store.people import People, insert_entry, said_of
from qualify.store.records import Depth, load_calls, load_done, load_last_end, load_records
from qualify.store.retention import Retention
from qualify.store.run_writing import RunWriting
from qualify.store.schema import check_current, prepare, wrong_schema
from qualify.store.selftests import insert_selftest, load_selftest
from qualify.store.tables import cases, runs


class Store(RunWriting):
    """Evidence in one database. Use it as a context manager, or call :meth:`close`.

    Every method is one transaction. It raises StoreError where the database fails, and UsageError where the given run
    or case does not exist. A method that writes has committed when it returns. Where another process has a run
    (:meth:`claim`), a method that writes into that run raises RunBusy or LeaseLost, and writes nothing.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._tried_duel = ""
        """id of a duel that nobody knows to be stored"""

    @classmethod
    def open(
        cls,
        url: str,
        *,
        create: bool | Literal["late"] = True,
        migrate: bool = True,
        busy_timeout_s: float = 30.0,
    ) -> Self:
        """Opens the store, and brings its schema to this program's.

        Args:
            url: a SQLAlchemy URL, or the path of an SQLite file.
            create: whether a missing or empty database becomes a store; otherwise it is a StoreError. ``late``: the
                first write makes a missing file.
            migrate: whether an older schema is brought to this program's; otherwise it is a StoreError.
            busy_timeout_s: how long SQLite waits for another writer.
        """
        place = parse(url)
        if create == "late" and can_wait(place):
            return cls(LateDatabase(place, busy_timeout_s=busy_timeout_s))
        check_place(place, create=bool(create))
        database = Database(place, busy_timeout_s=busy_timeout_s)
        try:
            prepare(database, create=bool(create), migrate=migrate)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection."""
        self._database.close()

    def hurry(self) -> None:
        """The command was told to end: it waits only a moment more where another process writes an SQLite file."""
        self._database.hurry()

    @property
    def secret_address(self) -> str:
        """The address with its password: for a pipe to a process of qualify's own, and for no message."""
        database = self._database
        return database.address if database.sqlite else database.url.render_as_string(hide_password=False)

    @property
    def where(self) -> str:
        """The place as messages name it; without a password."""
        return self._database.where

    def check(self) -> str:
        """The revision of the schema. Raises StoreError where the database cannot be read or is at another one."""
        return check_current(self._database)

    def wrong_schema(self) -> StoreError | None:
        """Why this program must leave the store alone, since another one migrated it; None where it need not."""
        return wrong_schema(self._database)

    def mark(self) -> str | None:
        """A mark that equals an earlier one of this store only where nobody wrote in between; None where unknown."""
        with explained(self.where):
            return self._database.changes.mark()

    @property
    def canaries(self) -> Canaries:
        """The state of the canary service."""
        return Canaries(self._database)

    @property
    def fleets(self) -> Fleets:
        """The fleets, their cards, and the cards' votes about bits."""
        return Fleets(self._database)

    @property
    def overview(self) -> Overview:
        """Lists of runs, stacks and the history of cases, without whole runs."""
        return Overview(self._database)

    @property
    def retention(self) -> Retention:
        """Lists what may be removed and what was, and removes it."""
        return Retention(self._database)

    @property
    def people(self) -> People:
        """Sign-offs, comments, what people do about holds, and the audit log."""
        return People(self._database)

    def resolve(self, run: str) -> str:
        """The full id of the run that ``run`` means: an id, a beginning that only one run's id has, or ``latest``.

        A run that is dated in the future is the latest only where there is no other.

        Raises NoVerdict where nothing is stored yet, UsageError where it means no run, several, or a deleted one.
        """
        with self._database.reading() as connection:
            ids = reading.run_ids(connection)
            return names.resolved(connection, self.where, "run", run, ids, "`qualify run` with a matrix")

    def resolve_duel(self, duel: str) -> str:
        """The same for a duel."""
        with self._database.reading() as connection:
            return names.resolved(connection, self.where, "duel", duel, duels.duel_ids(connection), "`qualify duel`")

    def run(self, run_id: str) -> Run:
        """The run of that full id."""
        with self._database.reading() as connection:
            self._check_run(connection, run_id)
            return reading.load_runs(connection, runs.c.id == run_id)[0]

    def runs_of(self, run_ids: Sequence[str]) -> dict[str, Run]:
        """The runs of these full ids that are stored, by id, in a few statements for all of them."""
        with self._database.reading() as connection:
            found = (reading.load_runs(connection, runs.c.id.in_(some)) for some in reading.chunks(run_ids))
            return {run.id: run for some in found for run in some}

    def evidence(self, run_id: str, *, even_edited: bool = False) -> RunArchive:
        """All of a run with its seal, as one transaction sees it.

        Args:
            even_edited: also where somebody edited one of its stacks; the caller says so. Raises StoreError otherwise.
        """
        with self._database.reading() as connection:
            self._check_run(connection, run_id)
            found = archive.load(connection, run_id)
            assert found is not None
            if found.edited and not even_edited:
                raise DamagedError(f"run {run_id}: {found.edited}")
        return found

    def clock_skew_s(self) -> float:
        """By how many seconds this machine's clock is ahead of the store's. For an SQLite file both are one clock."""
        with self._database.reading() as connection:
            return clock.skew_s(connection)

    def runs(self, matrix: str | None = None, limit: int | None = 50) -> list[Run]:
        """The newest runs, of one matrix or of all, newest first; those that are dated in the future last."""
        return self._runs(*([] if matrix is None else [runs.c.matrix == matrix]), limit=limit)

    def whole_runs(self, matrix: str, level: Level, until: datetime, limit: int) -> list[Run]:
        """The newest runs of a whole matrix at a level that began by a moment, newest first."""
        own = (runs.c.matrix == matrix, runs.c.level == level, runs.c.started_at <= until)
        return self._runs(*own, runs.c.select == "", runs.c.kernel == "", limit=limit)

    def latest(self, matrix: str) -> Run | None:
        """The newest run of the matrix, finished or not; None where there is none."""
        return next(iter(self.runs(matrix, limit=1)), None)

    def unfinished(self) -> list[Run]:
        """The runs that are running or were interrupted, newest first: what --resume may go on with."""
        return self._runs(runs.c.state != "completed")

    def records(self, run_id: str, depth: Depth = "whole", like: Iterable[Record] = ()) -> list[Record]:
        """All cases of the run in the order of its plan, each with its last outcome, or with part of it.

        A case without any outcome has ``NotRun(reason="the run goes on, or ended before its turn")``.

        Args:
            like: records of another run. Cases that are equal to its cases become the same objects, so both runs need
                little more memory than one.
        """
        with self._database.reading() as connection:
            self._check_run(connection, run_id)
            return load_records(connection, run_id, depth=depth, like=like)

    def done(self, run_id: str) -> set[str]:
        """The ids of the cases whose last outcome is something other than NotRun."""
        with self._database.reading() as connection:
            self._check_run(connection, run_id)
            return load_done(connection, run_id)

    def last_end(self, run_id: str) -> datetime | None:
        """When the last case of a run ended, by its machine's clock; None where no outcome says so."""
        with self._database.reading() as connection:
            self._check_run(connection, run_id)
            return load_last_end(connection, run_id)

    def calls(self, run_id: str) -> dict[str, str]:
        """The content hash of each case of a run, by the case's id."""
        with self._database.reading() as connection:
            self._check_run(connection, run_id)
            return load_calls(connection, run_id)

    def case_ids(self, run_id: str) -> list[str]:
        """The cases of a run, also those that have no outcome."""
        with self._database.reading() as connection:
            return names.case_ids(connection, run_id)

    def edited(self, run: Run) -> str:
        """A sentence that says that somebody edited rows of a run's plan or stacks; empty where nothing shows this."""
        found = select(func.count(), func.coalesce(func.max(cases.c.position), -1)).where(cases.c.run_id == run.id)
        with self._database.reading() as connection:
            count, last = connection.execute(found).one()
            stored = reading.fingerprints_of(connection, run.id)
        return "; ".join(filter(None, (run.lost_cases(count, last + 1), run.edited_stacks(stored))))

    def find_case(
        self, case_id: str, run_id: str | None = None, command: Callable[[str, str], str] | None = None
    ) -> tuple[Run, Record]:
        """The case with its last outcome, and the run that it is from: the given one, or the newest that has it.

        Args:
            command: what a person types for a case and a run that has it; None = the message names no command.

        Raises UsageError where no run has it, or not the given one, with a run that has it or one like it.
        """
        holds = select(cases.c.run_id).where(cases.c.case_id == case_id)
        conditions = [runs.c.id.in_(holds)] if run_id is None else [runs.c.id.in_(holds), runs.c.id == run_id]
        with self._database.reading() as connection:
            found = reading.load_runs(connection, *conditions, limit=1)
            if not found:
                raise UsageError(names.unknown_case(connection, case_id, run_id, self.where, command))
            (record,) = load_records(connection, found[0].id, case_id)
            return found[0], record

    def accept(self, baseline: Baseline, entry: AuditEntry | None = None) -> None:
        """Adds a baseline, which is the current one of its matrix, variant and name from now on.

        Args:
            entry: the line of the audit log that says who accepted it; None = the acceptance was imported from a file.

        Raises UsageError, and adds nothing, where the run has been removed meanwhile.
        """
        with self._database.writing(in_file=True) as connection:
            retention.lock(connection, baseline.run_id)
            self._check_run(connection, baseline.run_id)
            insert_baseline(connection, baseline)
            if entry:
                insert_entry(connection, entry)

    def baselines(self, matrix: str | None = None, name: str | None = None) -> list[Baseline]:
        """Every acceptance, of one matrix or name or of all, newest first; what is dated in the future last."""
        with self._database.reading() as connection:
            return load_baselines(connection, matrix=matrix, name=name)

    def baseline(self, matrix: str, variant: str, name: str = "") -> Baseline | None:
        """The current baseline of a matrix on a device model under that name; None where nobody accepted one."""
        with self._database.reading() as connection:
            found = load_baselines(connection, matrix=matrix, variant=variant, name=name, limit=1)
        return next(iter(found), None)

    def add_duel(self, duel: Duel, seal: Seal | None = None) -> None:
        """Adds a duel with everything that was timed; one that is stored already is a StoreError.

        Who got an error may try again: a duel that an attempt has stored all the same is not stored twice.
        """
        tried, self._tried_duel = self._tried_duel, ""
        try:
            with self._database.writing(in_file=True) as connection:
                if tried != duel.id or not duels.has_duel(connection, duel.id):
                    writing.add_stacks(connection, (duel.stack_a, duel.stack_b))
                    duels.insert_duel(connection, duel, seal)
        except StoreError as error:
            self._tried_duel = duel.id if error.passing else ""
            raise

    def duels(
        self, matrix: str | None = None, limit: int | None = None, *, times: bool = True, ahead: bool = False
    ) -> list[Duel]:
        """The newest duels, of one matrix or of all, newest first; those that are dated in the future last.

        Args:
            times: whether each comes with all its samples, which are far more than everything else.
            ahead: whether only those come that are dated in the future.
        """
        where = [] if matrix is None else [tables.duels.c.matrix == matrix]
        with self._database.reading() as connection:
            where += [duels.ahead(connection)] if ahead else []
            return duels.load_duels(connection, *where, limit=limit, times=times)

    def add_selftest(self, result: SelfTest) -> None:
        """Adds a result of the selftest."""
        with self._database.writing() as connection:
            insert_selftest(connection, result)

    def selftest(self, check_version: int) -> SelfTest | None:
        """The newest result of the whole selftest for that version of the checks; None where there is none."""
        with self._database.reading() as connection:
            return load_selftest(connection, check_version)

    def duel(self, duel_id: str) -> DuelArchive:
        """The duel of that full id, with its seal, as one transaction sees it."""
        with self._database.reading() as connection:
            found = archive.load_duel(connection, duel_id)
            if found is None:
                raise UsageError(names.unknown("duel", duel_id, duels.duel_ids(connection), self.where))
            return found

    def export_run(
        self,
        run_id: str,
        path: Path,
        *,
        duels: Iterable[str] = (),
        people: bool = True,
        vouch: Callable[[Archive], object] | None = None,
    ) -> Moved:
        """Writes the run with all its outcomes into one file, with duels beside it where some are named.

        Args:
            people: whether sign-offs of the run and comments on it go along, with the names of who gave them.
            vouch: gets the run and each duel, also where somebody edited it, and raises what says that it shall not be
                written.

        Raises InfrastructureError where the file cannot be written, StoreError where cases of its plan were deleted.
        """
        evidence = self.evidence(run_id, even_edited=vouch is not None)
        if vouch:
            vouch(evidence)
        if evidence.lost:
            happened = f"run {run_id} contradicts itself: {evidence.lost}"
            raise store_error(self.where, happened, "Somebody changed it: restore the database from a backup.")
        with self._database.reading() as connection:
            signoffs, comments = said_of(connection, run_id) if people else ([], [])
        beside = Attached(signoffs=tuple(signoffs), comments=tuple(comments), duels=self._vouched_duels(duels, vouch))
        return moving.moved(Exported(run=evidence, beside=beside), transfer.write(evidence, path, beside))

    def export_duels(
        self, duel_ids: Iterable[str], path: Path, vouch: Callable[[Archive], object] | None = None
    ) -> Moved:
        """Writes duels into one file; ``vouch`` as for :meth:`export_run`.

        Raises InfrastructureError where it cannot be written.
        """
        beside = Attached(duels=self._vouched_duels(duel_ids, vouch))
        return moving.moved(Exported(run=None, beside=beside), transfer.write(None, path, beside))

    def _vouched_duels(
        self, duel_ids: Iterable[str], vouch: Callable[[Archive], object] | None
    ) -> tuple[DuelArchive, ...]:
        found = tuple(map(self.duel, duel_ids))
        if vouch:
            for duel in found:
                vouch(duel)
        return found

    def import_run(self, path: Path, vouch: Callable[[Archive, str], object] | None = None) -> Moved:
        """Adds the run and the duels of a file, where the store does not have them already.

        An unfinished run gets what the file has more, where the file has all of it.

        The seal of their origin comes with them; it is also added to a run or a duel that is there without one.
        Sign-offs and comments are added as imported ones.

        Args:
            vouch: gets a run or a duel with its sha256, and raises UsageError where it shall not be added.

        Raises UsageError, and adds nothing, where the file is damaged, where a seal does not fit the content, or where
        the store has the run or a duel with other content.
        """
        return moving.receive(self._database, path, vouch)

    def _runs(self, *where: ColumnElement[bool], limit: int | None = None) -> list[Run]:
        with self._database.reading() as connection:
            return reading.load_runs(connection, *where, limit=limit)
