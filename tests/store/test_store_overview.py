"""Lists of a store: a fixed number of queries whatever it holds, every run reachable, on both databases."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import store_examples as examples
from sqlalchemy import event, insert, select

from qualify.facts.overview import RunQuery
from qualify.store import Store
from qualify.store.address import parse
from qualify.store.database import Database
from qualify.store.tables import runs

MANY = 2_000
MATRICES = 4


def fill(address: str, many: int = MANY) -> None:
    """Many runs on two stacks over four matrices; the first has cases, the last is dated in the future."""
    with Store.open(address) as store:
        plan = examples.cases(3)
        for number, stack in ((1, examples.stack()), (2, examples.stack(driver="590.1"))):
            run = examples.run(number)
            store.begin(run)
            store.set_stack(run.id, stack, None)
            store.add_cases(run.id, plan)
            store.add(run.id, [examples.simple(case) for case in plan])
            store.finish(run.id, "completed", run.started_at)
        future = replace(examples.run(3), started_at=store.canaries.now() + timedelta(days=9))
        store.begin(future)
    database = Database(parse(address), busy_timeout_s=1)
    with database.writing() as connection:
        found = connection.execute(select(runs).where(runs.c.id == examples.run(1).id)).mappings().one()
        rows: list[dict[str, Any]] = [
            dict(found)
            | {
                "id": f"many-{number:06}",
                "matrix": f"matrix_{number % MATRICES}",
                "started_at": found["started_at"] - timedelta(minutes=number + 1),
            }
            for number in range(many)
        ]
        connection.execute(insert(runs), rows)
    database.close()


@contextmanager
def counted(store: Store) -> Iterator[list[str]]:
    """The statements that the store sends meanwhile."""
    sent: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    engine = store._database.engine
    event.listen(engine, "before_cursor_execute", note)
    yield sent
    event.remove(engine, "before_cursor_execute", note)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with many runs, open."""
    folder = tmp_path_factory.mktemp("overview")
    address = str(folder / "e.db") if request.param == "sqlite" else request.getfixturevalue("module_postgres")
    fill(address)
    with Store.open(address) as store:
        yield store


def test_every_run_is_reachable(filled):
    """Page after page gives every run once, the newest first, and one that is dated in the future last."""
    seen: list[str] = []
    total = filled.overview.runs(RunQuery(limit=1)).total
    for offset in range(0, total, 700):
        seen += [head.id for head in filled.overview.runs(RunQuery(limit=700, offset=offset)).heads]
    newest = [run.id for run in filled.runs(limit=MANY + 3)]
    assert (MANY + 3, newest) == (total, seen)
    assert examples.run(3).id == seen[-1]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        (RunQuery(text="MANY-0000"), 100),
        (RunQuery(text="many matrix_3"), MANY // MATRICES),
        (RunQuery(text="%"), 0),
        (RunQuery(text="matrix_"), MANY),
        (RunQuery(text="matrix-"), 0),
        (RunQuery(matrix="matrix_1"), MANY // MATRICES),
        (RunQuery(stack=examples.stack(driver="590.1").fingerprint), 1),
        (RunQuery(text="'; DROP TABLE runs; --"), 0),
    ],
)
def test_search(filled, query, count):
    """Words are looked for in any case, all of them, and none of their characters is a wildcard."""
    assert count == filled.overview.runs(query).total


def test_latest_of_each_pair(filled):
    """The newest runs of each matrix on each device model; the run before each; none that is unfinished or future."""
    latest = filled.overview.latest(3)
    names = {matrix for matrix, _ in latest}
    assert {*(f"matrix_{number}" for number in range(MATRICES)), examples.run(1).matrix} == names
    device = examples.stack().device.variant
    heads = latest["matrix_0", device]
    assert ["many-000000", "many-000004", "many-000008"] == [head.id for head in heads]
    assert {"many-000000": "many-000004", "many-000004": "many-000008"} == filled.overview.before(heads[:2])


def test_case_history_and_stacks(filled):
    """A case in the runs that have it, newest first, with its outcome; the stacks with their runs."""
    case = examples.case(0).id
    history = filled.overview.case_history(case, 10)
    assert [examples.run(2).id, examples.run(1).id] == [it.head.id for it in history]
    assert [examples.simple(examples.case(0))] * 2 == [it.record for it in history]
    assert {1, MANY + 1} == {it.runs for it in filled.overview.stacks()}


def test_nothing_is_asked_for_each_row(filled):
    """As many statements for 100 rows as for 4, for each list; beyond 500 ids there is one more for each 500."""
    overview, numbers = filled.overview, []
    for limit in (4, 100):
        with counted(filled) as sent:
            heads = overview.runs(RunQuery(limit=limit)).heads
            overview.before(heads)
            filled.people.signoffs([head.id for head in heads])
            overview.latest(limit)
            overview.stacks()
            overview.case_history(examples.case(0).id, limit)
        numbers.append(len(sent))
    assert numbers[0] == numbers[1] < 40


def test_the_version_of_a_run(filled):
    """It changes with the run and with what is around it, and only then."""
    run = examples.run(2).id
    first = filled.overview.version(run)
    assert first == filled.overview.version(run)
    filled.resume(run)
    assert first != filled.overview.version(run)
    assert filled.overview.version("nope") is None


def _read_between_equal_marks(store) -> bool:
    before = store.mark()
    store.overview.latest(3)
    return before is not None and before == store.mark()


def test_a_mark_changes_with_what_is_stored(filled):
    """Reading leaves the mark alone; whatever anybody commits changes it, and an open transaction does not."""
    assert any(_read_between_equal_marks(filled) for _ in range(50)), "on a server others may commit meanwhile"
    before = filled.mark()
    database, wanted = Database(filled._database.url, busy_timeout_s=1), runs.c.id == "many-000001"
    with database.writing() as connection:
        connection.execute(runs.update().where(wanted).values(state="interrupted"))
        during = filled.mark()
        assert "completed" == filled.overview.head("many-000001").state
    seen = filled.mark()
    assert "interrupted" == filled.overview.head("many-000001").state
    with database.writing() as connection:
        connection.execute(runs.update().where(wanted).values(state="completed"))
    database.close()
    assert filled.mark() not in (before, during, seen)
    assert seen not in (before, during)


def test_a_mark_changes_with_the_file(empty_sqlite: str, tmp_path: Path) -> None:
    """Somebody restores a backup while the site runs: nothing that was read from the earlier file counts any more."""
    other, aside = str(shutil.copy(empty_sqlite, tmp_path / "other.db")), tmp_path / "aside.db"
    with Store.open(other) as store:
        store.begin(examples.run())
    with Store.open(empty_sqlite) as store:
        marks = [store.mark()]
        assert marks == [store.mark()], "nothing was committed"
        Path(empty_sqlite).rename(aside)
        assert None is store.mark()
        Path(other).rename(empty_sqlite)
        marks.append(store.mark())
        assert 1 == len(store.runs())
        aside.rename(empty_sqlite)
        marks.append(store.mark())
        assert [] == store.runs()
    assert 3 == len({*marks})
    assert None not in marks


def test_a_mark_changes_with_a_write_of_its_own_store(empty_store):
    """Also what the program itself writes through the same store changes the mark."""
    with Store.open(empty_store) as store:
        marks = [store.mark()]
        store.begin(examples.run())
        marks.append(store.mark())
        store.finish(examples.run().id, "completed", examples.run().started_at)
        marks.append(store.mark())
        assert 3 == len({*marks})


def test_nobody_knows_the_mark_of_a_file_that_may_not_be_written(tmp_path, monkeypatch):
    """SQLite sees no change of such a file, so nothing may be kept that was read from it."""
    with Store.open(str(tmp_path / "e.db")) as store:
        store.begin(examples.run())
    monkeypatch.setattr("qualify.store.database.is_guest", lambda path: True)
    with Store.open(str(tmp_path / "e.db"), create=False, migrate=False) as store:
        assert store.mark() is None


def test_whether_a_run_is_dated_in_the_future(filled, empty_store):
    """Lists then change while nobody writes."""
    assert filled.overview.has_future()
    with Store.open(empty_store) as store:
        store.begin(examples.run())
        assert not store.overview.has_future()


def test_a_search_for_what_no_database_takes_finds_what_was_stored_with_it(store: Store) -> None:
    """A zero byte is a character like any other: it matches only where it stands."""
    store.begin(replace(examples.run(1), matrix="plain"))
    store.begin(replace(examples.run(2), matrix="zero\0byte"))
    found = [store.overview.runs(RunQuery(text=text)).total for text in ("\0", "o\0b", "plain", "\0plain")]
    assert [1, 1, 1, 0] == found


def test_the_newest_whole_run_follows_narrowed_ones(empty_store):
    """However many of a part are newer; a whole run among the newest stays where it is."""
    with Store.open(empty_store) as store:
        for number in range(5):
            run = examples.run(number, kernel="flash-attn-3" if number > 1 else "")
            store.begin(run)
            store.set_stack(run.id, examples.stack(), None)
            store.finish(run.id, "completed", run.started_at)
        newest = [examples.run(number).id for number in (4, 3, 2, 1, 0)]
        for depth, expected in ((1, [*newest[:1], newest[3]]), (3, newest[:4]), (4, newest[:4]), (5, newest)):
            (found,) = store.overview.latest(depth).values()
            assert expected == [head.id for head in found]
