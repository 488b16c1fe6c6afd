"""The lease of a run, on both databases: one store writes a run, and its successor fences it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from threading import Event, Thread

import pytest
import store_examples as examples
from sqlalchemy import text

from qualify.errors import LeaseLost, RunBusy, StoreError
from qualify.facts.run import Writer
from qualify.fleet import writers as module
from qualify.fleet.writers import claimed, has_ended, this_process
from qualify.store import Store, database
from qualify.store.address import parse
from qualify.store.writers import lock

RUN = examples.run()
HERE = this_process()
THERE = Writer(host="gpu-7", pid=4711, since=datetime(2026, 11, 22, 3, 0, tzinfo=UTC), machine="another", born=1)
WRITES = (
    lambda store: store.add(RUN.id, [examples.simple(examples.case(0))]),
    lambda store: store.add_cases(RUN.id, examples.cases(12)[10:]),
    lambda store: store.set_stack(RUN.id, examples.stack(), None),
    lambda store: store.resume(RUN.id),
    lambda store: store.finish(RUN.id, "completed", examples.STARTED),
)


@pytest.fixture
def other(planned: Store, empty_store: str):
    """The same store as another process has it."""
    with Store.open(empty_store) as opened:
        yield opened


def test_a_claimed_run_is_refused_to_others(planned: Store, other: Store) -> None:
    """Who else wants the run learns who has it, and cannot write into it; after its release it can."""
    planned.claim(RUN.id, THERE, 60)
    with pytest.raises(RunBusy, match=r"by process 4711 on gpu-7 since 2026-11-22 03:00:00 UTC\. Nothing was run"):
        other.claim(RUN.id, HERE, 60)
    for write in WRITES:
        with pytest.raises(RunBusy, match=r"process 4711 on gpu-7"):
            write(other)
    assert planned.run(RUN.id) == other.run(RUN.id) == replace(RUN, planned=10)
    planned.release(RUN.id)
    other.claim(RUN.id, HERE, 60)
    WRITES[0](other)


@pytest.mark.parametrize("write", WRITES)
def test_a_successor_fences_the_writer_before(planned: Store, other: Store, write) -> None:
    """A writer that was silent beyond its lease writes nothing after another one took the run over."""
    planned.claim(RUN.id, THERE, 0.0)
    other.claim(RUN.id, HERE, 60)
    before = other.run(RUN.id), other.records(RUN.id)
    with pytest.raises(LeaseLost, match=f"run {RUN.id} was taken over by process {HERE.pid} on "):
        write(planned)
    with pytest.raises(LeaseLost, match="taken over"):
        planned.renew(RUN.id, 60)
    planned.release(RUN.id)
    assert (before, HERE) == ((other.run(RUN.id), other.records(RUN.id)), other.writer(RUN.id)[1])
    other.renew(RUN.id, 60)
    WRITES[0](other)


def test_a_writer_that_stands_still_in_a_transaction_is_succeeded(
    empty_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped while it had locked its lease: its successor waited until it went on, or ended."""
    monkeypatch.setattr(database, "STOPPED_S", 1)
    stopped = database.Database(parse(empty_postgres), busy_timeout_s=1)

    def stand_still(successor: Store) -> None:
        with stopped.writing() as connection:
            lock(connection, RUN.id)
            successor.claim(RUN.id, HERE, 60)
            connection.execute(text("SELECT 1"))

    with Store.open(empty_postgres) as successor, closing(stopped):
        successor.begin(RUN)
        successor.claim(RUN.id, THERE, 0.0)
        with pytest.raises(StoreError, match="stood still") as ended:
            stand_still(successor)
        assert ended.value.passing
        assert HERE == successor.writer(RUN.id)[1]


def test_a_silent_writer_without_a_successor_goes_on(planned: Store) -> None:
    """A lease that ran out and that nobody took is still the writer's."""
    planned.claim(RUN.id, THERE, 0.0)
    WRITES[0](planned)
    planned.renew(RUN.id, 60)


def test_a_dead_writer_is_succeeded_at_once(planned: Store, other: Store) -> None:
    """Where the process is known to have ended, nobody waits for its lease."""
    planned.claim(RUN.id, THERE, 60)
    lease, _ = other.writer(RUN.id)
    other.claim(RUN.id, HERE, 60, dead=lease)
    with pytest.raises(LeaseLost):
        WRITES[0](planned)


def test_a_run_that_a_wrong_clock_keeps_busy(planned: Store, other: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer lives as long as it renews its lease. Silent for that long, it is succeeded and writes no more."""
    monkeypatch.setattr(module, "LEASE_S", 2.0)
    planned.claim(RUN.id, THERE, 3 * 86400)
    over = Event()

    def renew() -> None:
        while not over.wait(0.2):
            planned.renew(RUN.id, 3 * 86400)

    renewing = Thread(target=renew)
    renewing.start()
    with pytest.raises(RunBusy, match="gpu-7"), claimed(other, RUN.id):
        pass
    over.set()
    renewing.join()
    WRITES[3](planned)
    with claimed(other, RUN.id):
        with pytest.raises(LeaseLost):
            WRITES[3](planned)
        WRITES[3](other)


def test_what_is_known_of_a_process() -> None:
    """A process ended where its id is free or another's; of another machine nothing is known."""
    assert [False, True, True, False, False] == [
        has_ended(HERE),
        has_ended(replace(HERE, born=HERE.born - 1)),
        has_ended(replace(HERE, pid=2**22 + 1)),
        has_ended(replace(HERE, machine="another boot")),
        has_ended(replace(HERE, machine="")),
    ]


def test_leases_of_runs_are_not_the_canary_services(planned: Store) -> None:
    """The service's overview and metrics show its own leases only; a removed run leaves none."""
    planned.claim(RUN.id, THERE, 60)
    assert planned.canaries.acquire("canary", "a", 60) is not None
    assert ["canary"] == [lease.name for lease in planned.canaries.leases()]
    planned.release(RUN.id)
    assert planned.retention.remove_run(RUN.id, by="jane", how="prune", reason="old")
    assert planned.writer(RUN.id) is None
