"""What the process that runs a matrix writes into its run, and how it keeps others from writing there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from sqlalchemy import Connection, case, literal

from qualify.errors import StoreError
from qualify.facts.canary import Lease
from qualify.facts.case import Case
from qualify.facts.run import Record, Run, RunState, Writer
from qualify.facts.seal import Seal
from qualify.facts.stack import Ceilings, Stack
from qualify.store import (
    leases,
    names,
    writers,
    writing,
)
from qualify.store.clock import now_of
from qualify.store.database import Database
from qualify.store.mapping.row import Row
from qualify.store.tables import runs
from qualify.store.types import UtcTime

PATIENCE_S = 5
"""seconds for which a commit whose end is unknown may take, once its connection is lost"""


class RunWriting:
    """The part of a store that writes runs. Each method is one transaction, which begins with the run's lease."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._claimed: dict[str, Lease] = {}
        """leases of the runs that this store writes"""
        self._tried: dict[str, tuple[tuple[Record, ...], Sequence[int]]] = {}
        """by run, outcomes that nobody knows to be stored, and the ids that they got in the last attempt"""

    def claim(self, run_id: str, writer: Writer, ttl_s: float, dead: Lease | None = None) -> None:
        """Makes this store the run's only writer for ``ttl_s`` seconds.

        :meth:`renew` prolongs this time, and :meth:`release` ends it.

        Args:
            dead: the lease as :meth:`writer` gave it, of a process that is known to have ended.

        Raises:
            RunBusy: another process has the run; the message says which.
        """
        with self._database.writing() as connection:
            self._claimed[run_id] = writers.claim(connection, run_id, writer, timedelta(seconds=ttl_s), dead=dead)

    def renew(self, run_id: str, ttl_s: float) -> None:
        """Keeps a claimed run for another ``ttl_s`` seconds.

        Raises LeaseLost where another process took it over or removed it.
        """
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

    def dated_ahead(self, run_id: str, ttl_s: float) -> Lease | None:
        """The run's lease if a wrong clock dated it: it ends later than one of ``ttl_s`` seconds can. Else None."""
        with self._database.reading() as connection:
            return writers.dated_ahead(connection, run_id, timedelta(seconds=ttl_s))

    def begin(self, run: Run) -> None:
        """Adds a run; one that is stored already is a StoreError."""
        with self._writing(run.id, in_file=True) as connection:
            writing.insert_run(connection, run)

    def set_stack(self, run_id: str, stack: Stack, ceilings: Ceilings | None) -> None:
        """Stores the stack and the ceilings of a run, once its first worker has reported them.

        What was set first stays. A stack with another fingerprint is a UsageError: a run is evidence about one stack.
        """
        with self._writing(run_id) as connection:
            self._check_run(connection, run_id)
            writing.attach_stack(connection, run_id, stack)
            if ceilings:
                writing.attach_ceilings(connection, run_id, ceilings)

    def set_environments(self, run_id: str, stacks: Mapping[str, Stack]) -> None:
        """Stores the stacks of the run's environments, by name, as their hosts report them; a call may have only some.

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
            count = writing.insert_cases(connection, run_id, planned)
            writing.update_run(connection, run_id, {"planned": count})

    def add(self, run_id: str, records: Sequence[Record]) -> None:
        """Commits outcomes of planned cases in one transaction: all of them, or none.

        Where the connection is lost during the commit, it looks whether they are stored, and raises StoreError where
        they are not, or where nobody can tell. Whoever tries again with the same records stores nothing twice.
        """
        if not records:
            return
        ids = self._ids_of_last_try(run_id, records)
        try:
            with self._writing(run_id, after_lost=bool(ids)) as connection:
                self._check_run(connection, run_id)
                if not ids or not writing.has_outcome(connection, run_id, ids[-1]):
                    ids = writing.insert_records(connection, run_id, records)
        except BaseException as error:
            if not isinstance(error, StoreError) or not ids or not self._has_outcome(run_id, ids[-1]):
                self._tried[run_id] = tuple(records), ids
                raise

    def _ids_of_last_try(self, run_id: str, records: Sequence[Record]) -> Sequence[int]:
        """The ids of these records in an attempt that may have been committed or not; none where there was none."""
        tried, ids = self._tried.pop(run_id, ((), ()))
        same = len(tried) == len(records) and all(one is other for one, other in zip(tried, records, strict=True))
        return ids if same else ()

    def set_seal(self, run_id: str, seal: Seal) -> None:
        """Seals a run that has ended."""
        with self._writing(run_id) as connection:
            self._check_run(connection, run_id)
            writing.set_seal(connection, run_id, seal)

    def finish(self, run_id: str, state: RunState, finished_at: datetime, clock_skew_s: float | None = None) -> None:
        """Ends a run.

        Args:
            clock_skew_s: by how much the clock of its machine was ahead; None = keep what was noted.
        """
        with self._writing(run_id, in_file=True) as connection:
            self._check_run(connection, run_id)
            # One that came from another store and went on here has parts that were made since.
            came = case((runs.c.received_at.is_not(None), literal(now_of(connection), UtcTime)))
            ended: Row = {"state": state, "finished_at": finished_at, "received_at": came}
            writing.update_run(connection, run_id, ended | _noted(clock_skew_s))

    def resume(self, run_id: str, clock_skew_s: float | None = None) -> None:
        """Puts an ended run back to running, and removes its seal, which covers only the earlier evidence.

        Args:
            clock_skew_s: by how much the clock of the machine that goes on is ahead; None = keep what was noted.
        """
        with self._writing(run_id, in_file=True) as connection:
            self._check_run(connection, run_id)
            again: Row = {"state": "running", "finished_at": None}
            writing.update_run(connection, run_id, again | _noted(clock_skew_s))
            writing.set_seal(connection, run_id, None)

    def _has_outcome(self, run_id: str, outcome_id: int) -> bool:
        """Whether the transaction that added the outcome was committed; waits for its end. False where nobody knows."""
        with suppress(StoreError), self._database.writing() as connection:
            writers.lock(connection, run_id, PATIENCE_S)
            return writing.has_outcome(connection, run_id, outcome_id)
        return False

    @contextmanager
    def _writing(self, run_id: str, *, after_lost: bool = False, in_file: bool = False) -> Iterator[Connection]:
        """A write transaction of the run's writer: it begins with the check of the run's lease.

        Args:
            after_lost: the end of an earlier one is unknown; wait for it.
            in_file: as for :meth:`Database.writing`.
        """
        with self._database.writing(in_file=in_file) as connection:
            if after_lost:
                writers.lock(connection, run_id, PATIENCE_S)
            writers.check(connection, run_id, self._claimed.get(run_id))
            yield connection

    def _check_run(self, connection: Connection, run_id: str) -> None:
        names.check_run(connection, self._database.where, run_id)


def _noted(clock_skew_s: float | None) -> Row:
    return {} if clock_skew_s is None else {"clock_skew_s": clock_skew_s}
