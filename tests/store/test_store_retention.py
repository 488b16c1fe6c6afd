"""Old runs go as a whole; what something holds, and what is new, stays."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dumps
import pytest
import store_examples as examples
from cli_process import call
from sqlalchemy import Column, ForeignKey, Table, Text, create_engine, func, insert, inspect, select
from sqlalchemy.exc import IntegrityError

from qualify.errors import LeaseLost, UsageError
from qualify.facts.baseline import Baseline
from qualify.facts.outcome import Crashed, ended
from qualify.facts.run import Record, Writer
from qualify.store import Store, retention
from qualify.store.address import parse
from qualify.store.baselines import insert_baseline
from qualify.store.retention import holds
from qualify.store.tables import metadata, runs

NOW = datetime.now(UTC)
NOTE = {"by": "jane", "how": "prune", "reason": "old"}
WRITER = Writer(host="gpu-7", pid=4711, since=NOW, machine="another", born=1)
OF_RUNS = ("runs", "ceilings", "matmul_ceilings", "cases", "outcomes", "findings", "statistics", "launches", "samples")


def _ended(store: Store, number: int, days_ago: float, matrix: str = "m", **changes: object) -> str:
    """A run that ended so many days ago."""
    ended = NOW - timedelta(days=days_ago)
    run = examples.run(number, matrix=matrix, started_at=ended - timedelta(hours=1), finished_at=ended, **changes)
    store.begin(run)
    return run.id


def _ids(pair: tuple[list, list]) -> tuple[list[str], list[str]]:
    old, held = pair
    return [run.id for run in old], [run.id for run in held]


def _counts(address: str) -> dict[str, int]:
    engine = create_engine(parse(address))
    with engine.connect() as connection:
        found = {
            name: connection.execute(select(func.count()).select_from(metadata.tables[name])).scalar_one()
            for name in OF_RUNS
        }
    engine.dispose()
    return found


def test_a_run_goes_with_all_that_belongs_to_it(empty_store: str) -> None:
    """Every table has afterwards what it had before the run was added; the stack stays, other runs may share it."""
    with Store.open(empty_store) as store:
        store.begin(examples.run(3))
        store.add_cases(examples.run(3).id, examples.cases(2))
        store.add(examples.run(3).id, [examples.simple(examples.case(0))])
        before = _counts(empty_store)
        dumps.fill_runs(store)
        assert [] == [name for name, count in _counts(empty_store).items() if count == before[name]]
        assert [True, True, False] == [
            store.retention.remove_run(examples.run(number).id, **NOTE) for number in (1, 2, 1)
        ]
        assert before == _counts(empty_store)
        assert 2 == len(store.records(examples.run(3).id))


def test_old_runs_are_those_that_ended_before(store: Store) -> None:
    """Oldest first; the newest of each matrix stay where that is asked for; a run that never ended has its start."""
    ids = {
        number: _ended(store, number, days, matrix)
        for number, days, matrix in ((1, 40, "m"), (2, 31, "m"), (3, 29, "m"), (4, 50, "other"), (5, 45, "m"))
    }
    killed = examples.run(6, matrix="m", started_at=NOW - timedelta(days=33))
    store.begin(killed)
    before = NOW - timedelta(days=30)
    assert ([ids[4], ids[5], ids[1], killed.id, ids[2]], []) == _ids(store.retention.old_runs(before, 0))
    assert ([ids[5], ids[1], killed.id], []) == _ids(store.retention.old_runs(before, 2))
    assert ([], []) == _ids(store.retention.old_runs(before, 5))
    assert 6 == len(store.runs())


def test_a_killed_run_is_as_old_as_its_last_case(store: Store) -> None:
    """It began long ago, and its evidence of yesterday counts still: a gate looks at when each case ended."""
    killed = examples.run(6, matrix="m", started_at=NOW - timedelta(days=33))
    store.begin(killed)
    store.add_cases(killed.id, examples.cases(2))
    for day, number in ((32, 0), (29, 1)):
        outcome = ended(Crashed(stage="call", error="e", log="", attempt=1), NOW - timedelta(days=day))
        store.add(killed.id, [Record(case=examples.case(number), outcome=outcome)])
    assert ([], []) == _ids(store.retention.old_runs(NOW - timedelta(days=30), 0))
    assert ([killed.id], []) == _ids(store.retention.old_runs(NOW - timedelta(days=28), 0))


@pytest.fixture
def signed(store: Store, empty_store: str) -> Iterator[Table]:
    """A table of today's program whose rows name runs that somebody relies on."""
    table = Table("signatures", metadata, Column("run_id", Text, ForeignKey("runs.id"), nullable=False))
    engine = create_engine(parse(empty_store))
    table.create(engine)
    yield table
    table.drop(engine)
    metadata.remove(table)
    engine.dispose()


def _sign(address: str, table: Table, run_id: str) -> None:
    engine = create_engine(parse(address))
    with engine.begin() as connection:
        connection.execute(insert(table), {"run_id": run_id})
    engine.dispose()


def test_a_held_run_stays(store: Store, empty_store: str, signed: Table) -> None:
    """A row that names a run keeps it, also where it was written after the list was made."""
    first, second = _ended(store, 1, 40), _ended(store, 2, 39)
    _sign(empty_store, signed, first)
    before = NOW - timedelta(days=30)
    assert ([second], [first]) == _ids(store.retention.old_runs(before, 0))
    _sign(empty_store, signed, second)
    assert [False, False] == [store.retention.remove_run(first, **NOTE), store.retention.remove_run(second, **NOTE)]
    assert 2 == len(store.runs())


def test_the_database_refuses_as_well(store: Store, empty_store: str, signed: Table) -> None:
    """Without qualify, too, a held run cannot be deleted."""
    run_id = _ended(store, 1, 40)
    _sign(empty_store, signed, run_id)
    engine = create_engine(parse(empty_store))
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA foreign_keys = ON")
        with pytest.raises(IntegrityError):
            connection.execute(runs.delete())
    engine.dispose()


def _baseline(run_id: str) -> Baseline:
    return Baseline(matrix="m", variant="CPU", run_id=run_id, accepted_by="jane", reason="r", accepted_at=NOW)


def test_a_baseline_that_is_being_accepted_holds_its_run(store: Store) -> None:
    """A removal that begins meanwhile waits, sees the baseline, and removes nothing."""
    run_id = _ended(store, 1, 40)
    with ThreadPoolExecutor() as pool:
        with store._database.writing() as connection:
            assert retention.lock(connection, run_id)
            removing = pool.submit(store.retention.remove_run, run_id, **NOTE)
            with pytest.raises(TimeoutError):
                removing.result(timeout=0.3)
            insert_baseline(connection, _baseline(run_id))
        assert removing.result(timeout=20) is False
    assert [run_id] == [run.id for run in store.runs()]


def test_a_run_that_is_being_removed_cannot_be_accepted(store: Store) -> None:
    """An acceptance that begins meanwhile waits, and is told that there is no such run any more."""
    run_id = _ended(store, 1, 40)
    with ThreadPoolExecutor() as pool:
        with store._database.writing() as connection:
            assert retention.remove(connection, run_id, **NOTE)
            accepting = pool.submit(store.accept, _baseline(run_id))
            with pytest.raises(TimeoutError):
                accepting.result(timeout=0.3)
        with pytest.raises(UsageError, match=f"run {run_id} of m was deleted on .* by jane with `prune`: old"):
            accepting.result(timeout=20)
    assert ([], []) == (store.runs(), store.baselines())


def test_a_run_that_is_being_run_stays(store: Store, empty_store: str, tmp_path: Path) -> None:
    """An old run that somebody goes on with is held as long as its lease lasts, and the list says why."""
    run_id = _ended(store, 1, 40)
    store.claim(run_id, WRITER, 60)
    before = NOW - timedelta(days=30)
    assert ([], [run_id]) == _ids(store.retention.old_runs(before, 0))
    assert not store.retention.remove_run(run_id, **NOTE)
    done = call("db", "prune", "--db", empty_store, "--keep-days", "30", "--yes", "--json", cwd=tmp_path)
    assert (0, [], [run_id]) == (done.code, done.data["removed"], done.data["held"])
    assert f"held     {run_id}  m  " in done.err
    assert done.err.endswith("  being run\n")
    store.release(run_id)
    assert ([run_id], []) == _ids(store.retention.old_runs(before, 0))
    assert store.retention.remove_run(run_id, **NOTE)


def test_a_silent_writer_is_told_that_its_run_was_removed(store: Store) -> None:
    """A renewal that begins during the removal waits for it. Then every write says who deleted the run, and when."""
    run_id = _ended(store, 1, 40)
    store.claim(run_id, WRITER, 0)
    with ThreadPoolExecutor() as pool:
        with store._database.writing() as connection:
            assert retention.remove(connection, run_id, **NOTE)
            renewing = pool.submit(store.renew, run_id, 60)
            with pytest.raises(TimeoutError):
                renewing.result(timeout=0.1)
        with pytest.raises(LeaseLost, match=f"run {run_id} of m was deleted on .* by jane with `prune`: old"):
            renewing.result(timeout=20)
    with pytest.raises(LeaseLost, match="was deleted on"):
        store.resume(run_id)


def test_prune_keeps_baselines(empty_store: str, tmp_path: Path) -> None:
    """The command lists an accepted run as held, an earlier baseline too, and removes the others."""
    with Store.open(empty_store) as store:
        ids = [_ended(store, number, 40) for number in (1, 2, 3)]
        for run_id in ids[:2]:
            store.accept(_baseline(run_id))
    done = call("db", "prune", "--db", empty_store, "--keep-days", "30", "--yes", "--json", cwd=tmp_path)
    assert (0, ids[2:], ids[:2]) == (done.code, done.data["removed"], done.data["held"])
    assert ids[:2] == [line.split()[1] for line in done.err.splitlines() if line.startswith("held ")]
    with Store.open(empty_store) as store:
        assert ids[:2] == sorted(run.id for run in store.runs())


def test_every_reference_to_a_run_belongs_to_it_or_holds_it(empty_store: str) -> None:
    """What the database itself knows to refer to a run is what retention removes, or a hold."""
    engine = create_engine(parse(empty_store))
    inspector = inspect(engine)
    referring = {
        name
        for name in inspector.get_table_names()
        for key in inspector.get_foreign_keys(name)
        if key["referred_table"] == "runs"
    }
    engine.dispose()
    assert {"ceilings", "matmul_ceilings", "run_environments", "cases", "seals", "comments"} | {
        column.table.name for column in holds()
    } == referring


def test_the_command(empty_store: str, tmp_path: Path) -> None:
    """It lists on stderr, asks for a word, removes with --yes, and says how many."""
    with Store.open(empty_store) as store:
        old, new = _ended(store, 1, 40), _ended(store, 2, 2)
    prune = ("db", "prune", "--db", empty_store, "--keep-days", "30")
    looked = call(*prune, "--dry-run", "--json", cwd=tmp_path)
    assert (0, [old], [], True) == (looked.code, *(looked.data[key] for key in ("removed", "held", "dry_run")))
    unsure = call(*prune, cwd=tmp_path)
    assert (2, "") == (unsure.code, unsure.out)
    assert "--dry-run, then give --yes" in unsure.err
    kept = call(*prune, "--keep-last", "2", "--yes", cwd=tmp_path)
    assert ": 0 runs removed, 0 held\n" in kept.out
    done = call(*prune, "--yes", cwd=tmp_path)
    assert 0 == done.code
    assert done.out.endswith(": 1 run removed, 0 held\n")
    assert old in done.err
    with Store.open(empty_store) as store:
        assert [new] == [run.id for run in store.runs()]
    assert 2 == call("db", "prune", "--db", empty_store, "--keep-days", "0", cwd=tmp_path).code
