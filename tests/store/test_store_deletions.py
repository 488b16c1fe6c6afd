"""A deleted run leaves a trace that stays: who, when, how and why, also where somebody deleted it by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import store_examples as examples
from cli_process import call
from sealing import seal_run
from sqlalchemy import create_engine, text
from stored_runs import MATRIX, NOW, PASSED, store_run

from qualify.errors import UsageError
from qualify.facts.deletion import BY_HAND
from qualify.seal.sealed import own_digest
from qualify.store import Store
from qualify.store.address import parse
from qualify.store.archive import DuelArchive

RUN, DUEL = examples.run(1).id, examples.duel().id
NOTE = {"by": "jane", "how": "qualify db prune --keep-days 9", "reason": "it is old"}


def by_hand(address: str, *statements: str) -> None:
    """Somebody deletes rows, and the database checks no reference, as sqlite3 does not."""
    engine = create_engine(parse(address))
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("ALTER TABLE baselines DROP CONSTRAINT fk_baselines_run_id_runs"))
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def test_a_removed_run_is_noted(filled: Store) -> None:
    """Its id, matrix and sealed digest, who removed it, how and why; whoever asks for it is told."""
    seal = filled.evidence(RUN).seal
    assert seal
    assert filled.retention.remove_run(RUN, **NOTE)
    (found,) = filled.retention.deletions()
    assert ("run", RUN, "jane", "it is old", own_digest(seal)) == (
        found.what, found.name, found.by, found.reason, found.sha256
    )  # fmt: skip
    assert abs(found.at - datetime.now(UTC)) < timedelta(minutes=1)
    told = f"run {RUN} of .* was deleted on {found.at:%Y-%m-%d} by jane with `qualify db .*`: it is old; "
    for ask in (filled.resolve, filled.run, filled.evidence):
        with pytest.raises(UsageError, match=told):
            ask(RUN)
    with pytest.raises(UsageError, match=told):
        filled.resolve(RUN[:-2])
    with pytest.raises(UsageError, match="no run 'nonsense'"):
        filled.resolve("nonsense")


def test_a_run_that_is_deleted_by_hand_is_noted(empty_store: str) -> None:
    """The database does it: a run, and a duel; what qualify deletes is noted once."""
    with Store.open(empty_store) as store:
        for number in (1, 2):
            store.begin(examples.run(number))
        store.add_duel(examples.duel())
        store.retention.remove_run(examples.run(2).id, **NOTE)
    tables = ("duel_seals", "duel_blocks", "duel_ratios", "duel_cells", "duels", "run_environments", "runs")
    by_hand(empty_store, *(f"DELETE FROM {table}" for table in tables))
    with Store.open(empty_store) as store:
        found = store.retention.deletions()
        assert {("run", RUN, BY_HAND), ("duel", DUEL, BY_HAND), ("run", examples.run(2).id, NOTE["how"])} == {
            (it.what, it.name, it.how) for it in found
        }
        assert len(found) == 3
        assert examples.run(1).started_at == next(it.started_at for it in found if it.name == RUN)
        with pytest.raises(UsageError, match=f"run {RUN} of .* by hand: somebody removed its row with SQL"):
            store.resolve(RUN)
        with pytest.raises(UsageError, match=f"duel {DUEL} of smoke was deleted on .* by hand"):
            store.resolve_duel(DUEL[:24])


def test_a_run_that_comes_back_is_there(filled: Store, tmp_path: Path) -> None:
    """An import ends the trouble; the note stays."""
    filled.export_run(RUN, tmp_path / "run.gz")
    filled.retention.remove_run(RUN, **NOTE)
    filled.import_run(tmp_path / "run.gz")
    assert (RUN, [RUN]) == (filled.resolve(RUN), [it.name for it in filled.retention.deletions()])


def _as_they_were(store: Store) -> tuple[str, DuelArchive]:
    """The run and the duel without when they came; as text, because a NaN in the evidence does not equal itself."""
    run, duel = store.evidence(RUN), store.duel(DUEL)
    return (
        repr(replace(run, run=replace(run.run, received_at=None))),
        replace(duel, duel=replace(duel.duel, received_at=None)),
    )


def test_what_was_deleted_by_hand_comes_back(sqlite_of_runs: str, tmp_path: Path) -> None:
    """Only its own row was deleted, as `sqlite3 FILE "DELETE FROM runs …"` does: an import gives all of it back."""
    with Store.open(sqlite_of_runs) as store:
        store.add_duel(examples.duel())
        store.export_run(RUN, tmp_path / "run.gz", duels=[DUEL])
        before = _as_they_were(store)
    by_hand(sqlite_of_runs, f"DELETE FROM runs WHERE id = '{RUN}'", f"DELETE FROM duels WHERE id = '{DUEL}'")
    with Store.open(sqlite_of_runs) as store:
        moved = store.import_run(tmp_path / "run.gz")
        assert (True, [True]) == (moved.new, [it.new for it in moved.duels])
        assert before == _as_they_were(store)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a matrix."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path


def stored(folder: Path, address: str, hours: float) -> str:
    """A sealed run that passed so many hours ago."""
    age = NOW - datetime.now(UTC) + timedelta(hours=hours)
    with Store.open(address) as store:
        run = store_run(store, folder / "serving.yaml", PASSED, age=age).id
        seal_run(store, run)
    return run


def ask(folder: Path, address: str, *arguments: object) -> Any:
    """A command on the store."""
    return call(*arguments, "--db", address, cwd=folder)


OF_A_RUN = ("seals", "run_environments", "ceilings", "matmul_ceilings")


def test_a_baseline_without_its_run_gives_no_verdict(folder: Path, empty_store: str) -> None:
    """Not a comparison less: whoever deleted the accepted run by hand must not make the gate green."""
    first, second = (stored(folder, empty_store, hours) for hours in (3, 1))
    assert 0 == ask(folder, empty_store, "baseline", "accept", first, "--by", "jane", "--reason", "7").code
    parts = ("findings", "statistics", "launches", "samples")
    cases = f"SELECT key FROM cases WHERE run_id = '{first}'"
    outcomes = f"SELECT id FROM outcomes WHERE case_key IN ({cases})"
    by_hand(
        empty_store,
        *(f"DELETE FROM {part} WHERE outcome_id IN ({outcomes})" for part in parts),
        f"DELETE FROM outcomes WHERE case_key IN ({cases})",
        *(f"DELETE FROM {table} WHERE run_id = '{first}'" for table in ("cases", *OF_A_RUN)),
        f"DELETE FROM runs WHERE id = '{first}'",
    )
    for asked in (("gate",), ("gate", "--against", "baseline"), ("gate", "--matrix", "serving.yaml")):
        told = ask(folder, empty_store, *asked)
        assert (5, True) == (told.code, f"run {first} of serving was deleted on" in told.out + told.err), told
        assert "a baseline of serving that jane accepted" in told.out + told.err
    for asked in (("gate", "--run", first), ("verify", first), ("report", first), ("baseline", "show", "serving")):
        told = ask(folder, empty_store, *asked)
        assert (2, True) == (told.code, "by hand: somebody removed its row with SQL" in told.err), told
    listed = ask(folder, empty_store, "baseline", "list")
    assert (0, True) == (listed.code, first in listed.out), second


def test_a_newer_run_that_was_deleted_is_noted_with_the_verdict(folder: Path, empty_sqlite: str) -> None:
    """The gate on `latest` says that there was a later run; `db deletions` lists it."""
    first, second = (stored(folder, empty_sqlite, hours) for hours in (3, 1))
    assert "newer run is missing" not in ask(folder, empty_sqlite, "gate", "--run", first).out
    with Store.open(empty_sqlite) as store:
        store.retention.remove_run(second, **NOTE | {"reason": "too\nold"})
    for asked in (("gate",), ("gate", "--matrix", "serving.yaml")):
        told = ask(folder, empty_sqlite, *asked)
        assert (0, True) == (told.code, f"a newer run is missing: run {second} of serving was deleted" in told.out), (
            told
        )
    listed = ask(folder, empty_sqlite, "db", "deletions", "--json")
    assert [second] == [it["name"] for it in listed.data["deletions"]]
    (line,) = ask(folder, empty_sqlite, "db", "deletions").out.splitlines()
    assert line.startswith(f"run {second} of serving was deleted on")


def test_prune_notes_who_and_why(store: Store, empty_store: str, tmp_path: Path) -> None:
    """The policy and the age, unless a reason is given."""
    ended = datetime.now(UTC) - timedelta(days=40)
    for number in (1, 2):
        store.begin(examples.run(number, started_at=ended - timedelta(hours=number), finished_at=ended))
    prune = ("db", "prune", "--keep-days", "30", "--yes", "--db", empty_store)
    assert 0 == call(*prune, "--keep-last", "1", "--by", "joe", cwd=tmp_path).code
    assert 0 == call(*prune, "--reason", "disk is full", cwd=tmp_path).code
    second, first = store.retention.deletions()
    assert ("joe", "qualify db prune --keep-days 30 --keep-last 1", "it ended more than 30 days before") == (
        first.by, first.how, first.reason
    )  # fmt: skip
    assert (True, "qualify db prune --keep-days 30", "disk is full") == (bool(second.by), second.how, second.reason)
