"""The evidence store: what a run writes, and what everything else reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import ColumnElement, Connection, select

from qualify.errors import NoVerdict, StoreError, UsageError
from qualify.facts.baseline import Baseline
from qualify.facts.canary import Lease
from qualify.facts.case import Case
from qualify.facts.deletion import Deletion, deletion_words
from qualify.facts.duel import Duel
from qualify.facts.run import Record, Run, RunState, Writer
from qualify.facts.seal import Seal
from qualify.facts.selftest import SelfTest
from qualify.facts.stack import Ceilings, Stack
from qualify.store import archive, clock, duels, leases, moving, reading, retention, tables, transfer, writers, writing
from qualify.store.archive import Archive, Attached, DuelArchive, Exported, Moved, RunArchive
from qualify.store.baselines import insert_baseline, load_baselines
from qualify.store.canaries import Canaries
from qualify.store.database import Database, check_place, parse
from qualify.store.deletions import gone, load_deletions, newer_deletion
from qualify.store.failures import explained
from qualify.store.fleets import Fleets
from qualify.store.overview import Overview
from qualify.store.people import People, said_of
from qualify.store.records import Depth, latest_outcomes, load_records
from qualify.store.schema import check_current, prepare
from qualify.store.selftests import insert_selftest, load_selftest
from qualify.store.tables import cases, outcomes, runs

LATEST = "latest"
_NAMED = 5


class Store:
    """Evidence in one database. Use it as a context manager, or call :meth:`close`.

    Every method is one transaction and raises StoreError where the database fails, UsageError where a run or
    a case that was asked for does not exist. A method that writes has committed when it returns. One that writes into a
    run raises RunBusy or LeaseLost, and writes nothing, where another process has the run (:meth:`claim`).
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._claimed: dict[str, Lease] = {}
        """leases of the runs that this store writes"""

    @classmethod
    def open(cls, url: str, *, create: bool = True, migrate: bool = True, busy_timeout_s: float = 30.0) -> Self:
        """Opens the store, and brings its schema to this program's.

        Args:
            url: a SQLAlchemy URL, or the path of an SQLite file.
            create: whether a missing or empty database becomes a store; otherwise it is a StoreError.
            migrate: whether an older schema is brought to this program's; otherwise it is a StoreError.
            busy_timeout_s: how long SQLite waits for another writer.
        """
        place = parse(url)
        check_place(place, create=create)
        database = Database(place, busy_timeout_s=busy_timeout_s)
        try:
            prepare(database, create=create, migrate=migrate)
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

    def mark(self) -> str | None:
        """Equal to an earlier mark of this store only where nobody wrote in between; None where nobody can tell."""
        with explained(self.where):
            return self._database.changes.mark()

    @property
    def canaries(self) -> Canaries:
        """The state of the canary service."""
        return Canaries(self._database)

    @property
    def fleets(self) -> Fleets:
        """The fleets, their cards and what these voted for."""
        return Fleets(self._database)

    @property
    def overview(self) -> Overview:
        """Lists of runs, stacks and the history of cases, without whole runs."""
        return Overview(self._database)

    @property
    def people(self) -> People:
        """Sign-offs, comments, what people do about holds, and the audit log."""
        return People(self._database)

    def claim(self, run_id: str, writer: Writer, ttl_s: float, dead: Lease | None = None) -> None:
        """Makes this store the run's only writer for a while. :meth:`renew` prolongs that, and :meth:`release` ends it.

        Args:
            dead: the lease as :meth:`writer` gave it, of a process that is known to have ended.

        Raises:
            RunBusy: another process has the run; the message says which.
        """
        with self._database.writing() as connection:
            self._claimed[run_id] = writers.claim(connection, run_id, writer, timedelta(seconds=ttl_s), dead=dead)

    def renew(self, run_id: str, ttl_s: float) -> None:
        """Keeps a claimed run for another while. Raises LeaseLost where another process took it over."""
        with self._database.writing() as connection:
            writers.renew(connection, run_id, self._claimed[run_id], timedelta(seconds=ttl_s))

    def release(self, run_id: str) -> None:
        """Lets a claimed run go; one that another process took over stays that process's."""
        with self._database.writing() as connection:
            leases.release(connection, self._claimed.pop(run_id))

    def writer(self, run_id: str) -> tuple[Lease, Writer] | None:
        """The run's lease, free or not, and who took it last; None where nobody claimed it."""
        with self._database.reading() as connection:
            return writers.find(connection, run_id)

    def begin(self, run: Run) -> None:
        """Adds a run; one that is stored already is a StoreError."""
        with self._writing(run.id) as connection:
            writing.insert_run(connection, run)

    def set_stack(self, run_id: str, stack: Stack, ceilings: Ceilings | None) -> None:
        """Says what the run runs on, once its first worker has reported.

        What was set first stays. A stack with another fingerprint is a UsageError: a run is evidence about one.
        """
        with self._writing(run_id) as connection:
            self._check_run(connection, run_id)
            writing.attach_stack(connection, run_id, stack)
            if ceilings:
                writing.attach_ceilings(connection, run_id, ceilings)

    def set_environments(self, run_id: str, stacks: Mapping[str, Stack]) -> None:
        """Says what the run's environments run on, by name, as their hosts report it; some of them at a time.

        What was set first stays. An environment that the run does not have, or a stack with another fingerprint, is a
        UsageError.
        """
        with self._writing(run_id) as connection:
            self._check_run(connection, run_id)
            writing.attach_environments(connection, run_id, stacks)

    def add_cases(self, run_id: str, planned: Iterable[Case]) -> None:
        """Adds the whole plan of a run, in its order; a case that is in it already is a StoreError."""
        with self._writing(run_id) as connection:
            self._check_run(connection, run_id)
            writing.insert_cases(connection, run_id, planned)

    def add(self, run_id: str, records: Sequence[Record]) -> None:
        """Commits outcomes of planned cases in one transaction: all of them, or none."""
        if not records:
            return
        with self._writing(run_id) as connection:
            self._check_run(connection, run_id)
            writing.insert_records(connection, run_id, records)

    def set_seal(self, run_id: str, seal: Seal) -> None:
        """Seals a run that has ended."""
        with self._writing(run_id) as connection:
            self._check_run(connection, run_id)
            writing.set_seal(connection, run_id, seal)

    def finish(self, run_id: str, state: RunState, finished_at: datetime) -> None:
        """Ends a run."""
        with self._writing(run_id) as connection:
            self._check_run(connection, run_id)
            writing.update_run(connection, run_id, {"state": state, "finished_at": finished_at})

    def resume(self, run_id: str, clock_skew_s: float | None = None) -> None:
        """Puts an ended run back to running, and removes its seal, which covers only the earlier evidence.

        Args:
            clock_skew_s: of the machine that goes on; None = that which was noted.
        """
        with self._writing(run_id) as connection:
            self._check_run(connection, run_id)
            skew = {} if clock_skew_s is None else {"clock_skew_s": clock_skew_s}
            writing.update_run(connection, run_id, {"state": "running", "finished_at": None, **skew})
            writing.set_seal(connection, run_id, None)

    def resolve(self, run: str) -> str:
        """The full id of a run given by its id, the beginning of it that only one run has, or ``latest``.

        A run that is dated in the future is the latest only where there is no other.

        Raises NoVerdict where nothing is stored yet, UsageError where it means no run, several, or a deleted one.
        """
        with self._database.reading() as connection:
            ids = reading.run_ids(connection)
            return self._resolved(connection, "run", run, ids, "`qualify run` with a matrix")

    def resolve_duel(self, duel: str) -> str:
        """The same for a duel."""
        with self._database.reading() as connection:
            return self._resolved(connection, "duel", duel, duels.duel_ids(connection), "`qualify duel`")

    def _resolved(self, connection: Connection, what: str, typed: str, ids: Sequence[str], maker: str) -> str:
        """The id that was meant, of those that are stored, newest first."""
        if typed == LATEST and ids:
            return ids[0]
        if typed in ids:
            return typed
        matches = [known for known in ids if typed and known.startswith(typed)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UsageError(_several(what, typed, matches))
        if typed and typed != LATEST and (told := gone(connection, typed)):
            raise UsageError(f"{self.where}: {told}")
        if not ids:
            raise NoVerdict(f"no {what} in {self.where} yet: {maker} makes one")
        raise UsageError(_unknown(what, typed, ids, self.where))

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

    def evidence(self, run_id: str) -> RunArchive:
        """All of a run with its seal, as one transaction sees it."""
        with self._database.reading() as connection:
            self._check_run(connection, run_id)
            found = archive.load(connection, run_id)
        assert found is not None
        return found

    def clock_skew_s(self) -> float:
        """By how many seconds this machine's clock is ahead of the store's. For an SQLite file both are one clock."""
        with self._database.reading() as connection:
            return clock.skew_s(connection)

    def runs(self, matrix: str | None = None, limit: int | None = 50) -> list[Run]:
        """The newest runs, of one matrix or of all, newest first; those that are dated in the future last."""
        return self._runs(*([] if matrix is None else [runs.c.matrix == matrix]), limit=limit)

    def latest(self, matrix: str) -> Run | None:
        """The newest run of the matrix, finished or not; None where there is none."""
        return next(iter(self.runs(matrix, limit=1)), None)

    def unfinished(self) -> list[Run]:
        """The runs that are running or were interrupted, newest first: what --resume may go on with."""
        return self._runs(runs.c.state != "completed")

    def records(self, run_id: str, depth: Depth = "whole", like: Iterable[Record] = ()) -> list[Record]:
        """All cases of the run in the order of its plan, each with its last outcome, or with part of it.

        A case without any outcome has ``NotRun(reason="the run ended before its turn")``.

        Args:
            like: records of another run. Its cases stand for equal ones: both runs need little more memory than one.
        """
        with self._database.reading() as connection:
            self._check_run(connection, run_id)
            return load_records(connection, run_id, depth=depth, like=like)

    def done(self, run_id: str) -> set[str]:
        """The ids of the cases whose last outcome is something other than NotRun."""
        latest = latest_outcomes(cases.c.run_id == run_id)
        wanted = (
            select(cases.c.case_id)
            .join(outcomes, outcomes.c.case_key == cases.c.key)
            .where(outcomes.c.id.in_(latest), outcomes.c.outcome != "not_run")
        )
        with self._database.reading() as connection:
            self._check_run(connection, run_id)
            return set(connection.execute(wanted).scalars())

    def case_ids(self, run_id: str) -> list[str]:
        """The cases of a run, also those that have no outcome."""
        with self._database.reading() as connection:
            return _case_ids(connection, run_id)

    def find_case(self, case_id: str, run_id: str | None = None) -> tuple[Run, Record]:
        """The case with its last outcome, and the run that it is from: the given one, or the newest that has it."""
        holds = select(cases.c.run_id).where(cases.c.case_id == case_id)
        conditions = [runs.c.id.in_(holds)] if run_id is None else [runs.c.id.in_(holds), runs.c.id == run_id]
        with self._database.reading() as connection:
            found = reading.load_runs(connection, *conditions, limit=1)
            if not found:
                raise UsageError(_unknown("case", case_id, _case_ids(connection, run_id), self.where))
            (record,) = load_records(connection, found[0].id, case_id)
            return found[0], record

    def accept(self, baseline: Baseline) -> None:
        """Adds a baseline, which is the current one of its matrix, variant and name from now on.

        Raises UsageError, and adds nothing, where the run has been removed meanwhile.
        """
        with self._database.writing() as connection:
            retention.lock(connection, baseline.run_id)
            self._check_run(connection, baseline.run_id)
            insert_baseline(connection, baseline)

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
        """Adds a duel with everything that was timed; one that is stored already is a StoreError."""
        with self._database.writing() as connection:
            duels.insert_duel(connection, duel, seal)

    def duels(self, matrix: str | None = None, limit: int | None = None, *, times: bool = True) -> list[Duel]:
        """The newest duels, of one matrix or of all, newest first; those that are dated in the future last.

        Args:
            times: whether each comes with all its samples, which are far more than everything else.
        """
        where = [] if matrix is None else [tables.duels.c.matrix == matrix]
        with self._database.reading() as connection:
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
                raise UsageError(_unknown("duel", duel_id, duels.duel_ids(connection), self.where))
            return found

    def export_run(self, run_id: str, path: Path, *, duels: Iterable[str] = (), people: bool = True) -> Moved:
        """Writes the run with all its outcomes into one file, with duels beside it where some are named.

        Args:
            people: whether sign-offs of the run and comments on it go along, with the names of who gave them.

        Raises InfrastructureError where the file cannot be written.
        """
        evidence = self.evidence(run_id)
        with self._database.reading() as connection:
            signoffs, comments = said_of(connection, run_id) if people else ([], [])
        beside = Attached(signoffs=tuple(signoffs), comments=tuple(comments), duels=tuple(map(self.duel, duels)))
        return moving.moved(Exported(run=evidence, beside=beside), transfer.write(evidence, path, beside))

    def export_duels(self, duel_ids: Iterable[str], path: Path) -> Moved:
        """Writes duels into one file. Raises InfrastructureError where it cannot be written."""
        beside = Attached(duels=tuple(map(self.duel, duel_ids)))
        return moving.moved(Exported(run=None, beside=beside), transfer.write(None, path, beside))

    def import_run(self, path: Path, vouch: Callable[[Archive, str], None] | None = None) -> Moved:
        """Adds the run and the duels of a file, where the store does not have them already.

        The seal of their origin comes with them; it is also added to a run or a duel that is there without one.
        Sign-offs and comments are added as imported ones.

        Args:
            vouch: gets a run or a duel with its sha256, and raises UsageError where it shall not be added.

        Raises UsageError, and adds nothing, where the file is damaged, where a seal is of other content, or the store
        has the run or a duel with other content.
        """
        given = transfer.read(path)
        digests = moving.digests_of(path, given, vouch)
        try:
            new, said = self._add(path, given, digests)
        except StoreError:
            with self._database.reading() as connection:
                if not any(archive.is_there(connection, one) for one in given.archives):
                    raise
            new, said = self._add(path, given, digests)  # another process was faster
        return moving.moved(given, digests, new, said)

    def _add(self, path: Path, given: Exported, digests: Sequence[str]) -> tuple[list[bool], tuple[int, int]]:
        """Adds what the store does not have.

        Returns for the run and each duel whether it is new, and how many sign-offs and comments are.
        """
        with self._database.writing() as connection:
            new = moving.add(connection, path, self.where, given, digests)
            return new, moving.add_people(connection, path, given)

    def old_runs(self, before: datetime, keep_last: int) -> tuple[list[Run], list[Run]]:
        """The runs that ended before that moment, oldest first: those that may go, and those that something holds.

        The newest ``keep_last`` of each matrix are in neither.
        """
        with self._database.reading() as connection:
            old, held = retention.old_runs(connection, before, keep_last), retention.held(connection)
        return [run for run in old if run.id not in held], [run for run in old if run.id in held]

    def remove_run(self, run_id: str, *, by: str, how: str, reason: str) -> bool:
        """Removes a run with all its evidence; False where something holds it, or it has gone already.

        Who removed it, how and why stays (:meth:`deletions`).
        """
        with self._database.writing() as connection:
            return retention.remove(connection, run_id, by=by, how=how, reason=reason)

    def old_duels(self, before: datetime, keep_last: int) -> tuple[list[Duel], list[Duel]]:
        """The same of duels, which come without their times."""
        with self._database.reading() as connection:
            return retention.old_duels(connection, before, keep_last)

    def remove_duel(self, duel_id: str, *, by: str, how: str, reason: str) -> bool:
        """Removes a duel with its times; False where something needs it, or it has gone already."""
        with self._database.writing() as connection:
            return retention.remove_duel(connection, duel_id, by=by, how=how, reason=reason)

    def deletions(self, limit: int | None = None) -> list[Deletion]:
        """The newest deletions of runs and duels, newest first."""
        with self._database.reading() as connection:
            return load_deletions(connection, limit=limit)

    def deleted(self, name: str) -> str:
        """Who deleted a run or a duel of that full id, when and why; empty where it is stored, or nobody did."""
        with self._database.reading() as connection:
            if reading.has_run(connection, name) or duels.has_duel(connection, name):
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
            if connection.execute(select(runs.c.id).where(runs.c.id == run_id)).first():
                return ""
            return gone(connection, run_id) or f"run {run_id} is not stored in {self.where}"

    @contextmanager
    def _writing(self, run_id: str) -> Iterator[Connection]:
        """A write transaction of the run's writer: it begins with the check of the run's lease."""
        with self._database.writing() as connection:
            writers.check(connection, run_id, self._claimed.get(run_id))
            yield connection

    def _check_run(self, connection: Connection, run_id: str) -> None:
        if not reading.has_run(connection, run_id):
            if run_id and (told := gone(connection, run_id)):
                raise UsageError(f"{self.where}: {told}")
            raise UsageError(_unknown("run", run_id, reading.run_ids(connection), self.where))

    def _runs(self, *where: ColumnElement[bool], limit: int | None = None) -> list[Run]:
        with self._database.reading() as connection:
            return reading.load_runs(connection, *where, limit=limit)


def _case_ids(connection: Connection, run_id: str | None) -> list[str]:
    """The cases that a mistyped id may mean: those of the run, or of the newest run."""
    run_id = run_id or next(iter(reading.run_ids(connection)), "")
    return list(connection.execute(select(cases.c.case_id).where(cases.c.run_id == run_id)).scalars())


def _several(what: str, typed: str, matches: list[str]) -> str:
    more = ", …" if len(matches) > _NAMED else ""
    return f"{what} {typed!r} may be any of {len(matches)}: {', '.join(matches[:_NAMED])}{more}. Type more of its id."


def _unknown(what: str, value: str, known: Sequence[str], where: str) -> str:
    if near := get_close_matches(value, known, n=_NAMED, cutoff=0.5):
        hint = f"Perhaps you meant {', '.join(near)}."
    elif known:
        hint = f"It has {', '.join(known[:_NAMED])}{', …' if len(known) > _NAMED else ''}."
    else:
        hint = "Nothing is stored there yet; `qualify run` with a matrix stores something"
    return f"no {what} {value!r} in {where}. {hint}"
