"""Duels in the store: they come back as they were, and their seal notices every edit."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import store_examples as examples
from cli_process import call
from sealing import KeyPair, new_pair
from sqlalchemy import Table, create_engine, event, text

from qualify.errors import QualifyError, StoreError
from qualify.facts.baseline import Baseline
from qualify.seal.duel_form import duel_lines, seal_duel
from qualify.seal.sealed import check_seal
from qualify.store import Store, tables
from qualify.store.address import parse

EVIDENCE = (tables.duels, tables.duel_cells, tables.duel_ratios, tables.duel_blocks)
ORDER = {("duel_cells", "position"), ("duel_ratios", "position")}
"""columns that order rows, or join them"""
MOMENTS = ("started_at", "finished_at")


def test_a_duel_comes_back_as_it_was(empty_store: str) -> None:
    """With its stacks, its ratios and every block, on both databases."""
    with Store.open(empty_store) as store:
        store.add_duel(examples.duel())
        assert [examples.duel()] == store.duels()
        assert store.duel(examples.duel().id).seal is None
        with pytest.raises(StoreError):
            store.add_duel(examples.duel())


def test_the_newest_comes_first(empty_store: str) -> None:
    """One that is dated in the future comes last; another matrix has its own."""
    ahead = datetime.now(UTC) + timedelta(days=400)
    later = examples.duel(2, started_at=examples.STARTED + timedelta(hours=1))
    with Store.open(empty_store) as store:
        for each in (examples.duel(1), later, examples.duel(3, started_at=ahead), examples.duel(4, matrix="other")):
            store.add_duel(each)
        assert [later.id, examples.duel(1).id, examples.duel(3).id] == [found.id for found in store.duels("smoke")]
        assert [later.id] == [found.id for found in store.duels("smoke", limit=1)]
        assert [examples.duel(3).id] == [found.id for found in store.duels("smoke", limit=1, ahead=True)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    """The runner's keys."""
    return new_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def sealed(empty_sqlite: str, pair: KeyPair) -> str:
    """A store with a sealed duel, and another one on other stacks."""
    with Store.open(empty_sqlite) as store:
        store.add_duel(examples.duel(), seal_duel(examples.duel(), pair.signing))
        store.add_duel(examples.duel(2, stack_a=examples.stack("GPU-9", driver="999")))
    return empty_sqlite


def why_not(address: str, pair: KeyPair) -> str:
    """What a gate finds in the stored duel; also where it cannot be read any more."""
    try:
        with Store.open(address) as store:
            found = next(duel for duel in store.duels() if duel.id == examples.duel().id)
            seal = store.duel(found.id).seal
    except (QualifyError, StopIteration) as error:
        return f"unreadable: {error!r}"
    return check_seal(seal, duel_lines(found), found.id, pair.trusted).why_not


def test_an_untouched_duel_is_as_it_was_sealed(sealed: str, pair: KeyPair) -> None:
    """And by whom."""
    assert "" == why_not(sealed, pair)


def cells() -> list[tuple[Table, str]]:
    """Every column that holds something of a duel."""
    return [
        (table, column.name)
        for table in EVIDENCE
        for column in table.columns
        if (table.name, column.name) not in ORDER and column.name != "duel_id"
    ]


@pytest.mark.parametrize(("table", "name"), cells(), ids=lambda value: getattr(value, "name", value))
def test_every_edit_is_noticed(table: Table, name: str, sealed: str, pair: KeyPair) -> None:
    """Whichever column it is in, the seal does not hold any more, or nobody can read the duel."""
    key = "id" if table is tables.duels else "duel_id"
    engine = create_engine(parse(sealed))
    with engine.begin() as connection:
        connection.execute(text("PRAGMA ignore_check_constraints = ON"))
        connection.execute(text("PRAGMA foreign_keys = OFF"))
        wanted = text(f'SELECT "{name}" FROM {table.name} WHERE {key} = :id')
        value = connection.execute(wanted, {"id": examples.duel().id}).first()[0]
        plain = value + 1 if isinstance(value, int | float) else f"{value}1"
        special = dict.fromkeys(("stack_a_id", "stack_b_id"), 3) | dict.fromkeys(MOMENTS, "2020-01-01 00:00:00.000000")
        other = special.get(name, plain)
        changing = text(f'UPDATE {table.name} SET "{name}" = :new WHERE {key} = :id AND "{name}" IS :old')
        connection.execute(changing, {"new": other, "old": value, "id": examples.duel().id})
    engine.dispose()
    assert why_not(sealed, pair)


def test_a_removed_block_is_noticed(sealed: str, pair: KeyPair) -> None:
    """Rows that are gone show, too."""
    engine = create_engine(parse(sealed))
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM duel_blocks WHERE way = 'host'"))
    engine.dispose()
    assert "4 sealed, 2 here" in why_not(sealed, pair)


def test_what_is_sealed_is_what_was_fought(pair: KeyPair, tmp_path: Path) -> None:
    """A seal of another duel is none of this one."""
    seal = seal_duel(replace(examples.duel(), b="other"), pair.signing)
    assert check_seal(seal, duel_lines(examples.duel()), examples.duel().id, pair.trusted).why_not


def test_a_list_of_duels_can_leave_their_times_where_they_are(store: Store) -> None:
    """A gate looks at fifty duels, and at the times of none."""
    store.add_duel(examples.duel())
    asked: list[str] = []
    event.listen(store._database.engine, "before_cursor_execute", lambda *it: asked.append(it[2]))
    assert [replace(examples.duel(), samples={})] == store.duels(times=False)
    assert not any("duel_blocks" in text for text in asked)
    assert [examples.duel()] == store.duels()


def test_old_duels_go_with_a_note_and_needed_ones_stay(store: Store) -> None:
    """A baseline needs the duels of its run's matrix and stack; what goes leaves who, how and why."""
    kept = examples.run(1)
    store.begin(kept)
    store.set_stack(kept.id, examples.stack(), None)
    store.add_duel(examples.duel(1, matrix_hash=kept.matrix_hash, stack_b=examples.stack()))
    store.add_duel(examples.duel(2))
    needed, other = examples.duel(1).id, examples.duel(2).id
    now, note = datetime.now(UTC) + timedelta(days=1), {"by": "jane", "how": "prune", "reason": "old"}
    assert ([needed, other], []) == tuple([it.id for it in some] for some in store.retention.old_duels(now, 0))
    assert ([needed], []) == tuple([it.id for it in some] for some in store.retention.old_duels(now, 1))
    store.accept(
        Baseline(matrix="m", variant="v", run_id=kept.id, accepted_by="jo", reason="", accepted_at=examples.STARTED)
    )
    assert ([other], [needed]) == tuple([it.id for it in some] for some in store.retention.old_duels(now, 0))
    assert [False, True, False] == [store.retention.remove_duel(name, **note) for name in (needed, other, other)]
    assert [needed] == [it.id for it in store.duels()]
    assert [("duel", other, "jane", "old")] == [
        (it.what, it.name, it.by, it.reason) for it in store.retention.deletions()
    ]


def test_prune_of_duels(empty_store: str, tmp_path: Path) -> None:
    """The command lists runs and duels on stderr, says how many of each, and removes duels too; a needed one stays."""
    needed, other, new = (examples.duel(number) for number in (1, 2, 3))
    kept = replace(examples.run(1), started_at=datetime.now(UTC))
    with Store.open(empty_store) as store:
        store.begin(kept)
        store.set_stack(kept.id, examples.stack(), None)
        ended = datetime.now(UTC) - timedelta(days=40)
        for duel in (needed, other):
            changes = {"matrix_hash": kept.matrix_hash, "stack_b": examples.stack()} if duel is needed else {}
            store.add_duel(replace(duel, started_at=ended, finished_at=ended, **changes))
        store.add_duel(replace(new, started_at=datetime.now(UTC), finished_at=datetime.now(UTC)))
        store.accept(
            Baseline(matrix="m", variant="v", run_id=kept.id, accepted_by="jo", reason="", accepted_at=examples.STARTED)
        )
    prune = ("db", "prune", "--keep-days", "30", "--db", empty_store)
    looked = call(*prune, "--dry-run", cwd=tmp_path)
    assert (0, True) == (
        looked.code, looked.out.endswith(": 0 runs and 1 duel would be removed, 0 runs and 1 duel held\n")
    ), looked  # fmt: skip
    listed = [(line[:9].strip(), line[9:].split("  ")[0]) for line in looked.err.splitlines()]
    assert [("would go", other.id), ("held", needed.id)] == listed
    unsure = call(*prune, cwd=tmp_path)
    assert (2, True) == (unsure.code, "nobody is here to confirm the removal of 0 runs and 1 duel" in unsure.err)
    last = call(*prune, "--keep-last", "9", "--yes", cwd=tmp_path)
    assert last.out.endswith(": 0 runs removed, 0 held\n"), last
    done = call(*prune, "--yes", "--json", "--by", "jane", "--reason", "disk is full", cwd=tmp_path)
    told = [done.data[key] for key in ("removed", "held", "duels_removed", "duels_held", "dry_run")]
    assert [[], [], [other.id], [needed.id], False] == told
    again = call(*prune, "--yes", cwd=tmp_path)
    assert again.out.endswith(": 0 runs and 0 duels removed, 0 runs and 1 duel held\n"), again
    with Store.open(empty_store) as store:
        assert {needed.id, new.id} == {it.id for it in store.duels()}
    noted = call("db", "deletions", "--db", empty_store, cwd=tmp_path).out
    assert f"duel {other.id} of smoke was deleted on " in noted
    assert "by jane with `qualify db prune --keep-days 30`: disk is full" in noted
