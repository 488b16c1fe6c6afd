"""A duel leaves a store as a file, alone or beside a run, and enters another one as it was sealed, or not at all."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import store_examples as examples
from cli_process import call
from exported import changed
from sealing import KeyPair, new_pair
from stored_runs import sound_run
from typer.testing import CliRunner

from qualify.cli.entry import _parser
from qualify.errors import UsageError
from qualify.facts.duel import Duel
from qualify.seal.duel_form import duel_lines, seal_duel
from qualify.seal.sealed import check_seal
from qualify.store import Store
from qualify.store.transfer import read
from qualify.verdict.duelled import decided_again


def fought(number: int = 1, **changes: object) -> Duel:
    """The duel of that number, with cells that say what its times give."""
    duel = examples.duel(number, **changes, complete=False)
    samples = {name: tuple(replace(pair, confirming=False) for pair in pairs) for name, pairs in duel.samples.items()}
    duel = replace(duel, samples=samples, cells=tuple(replace(cell, ratios={}) for cell in duel.cells))
    cells = {cell.name: cell for cell in decided_again(duel, left_early=True).reports()}
    return replace(duel, cells=tuple(cells.get(cell.name, cell) for cell in duel.cells))


RUN, DUEL = examples.run(1).id, examples.duel().id
SECOND = fought(2, stack_a=examples.stack(driver="999"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    """The runner's keys."""
    return new_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def filled_once(runs_sqlite: Path, pair: KeyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two runs, a sealed duel, and one without a seal; to be copied."""
    path = Path(shutil.copy(runs_sqlite, tmp_path_factory.mktemp("filled") / "filled.db"))
    with Store.open(str(path)) as store:
        store.add_duel(fought(), seal_duel(fought(), pair.signing))
        store.add_duel(SECOND)
    return path


@pytest.fixture
def filled(filled_once: Path, tmp_path: Path) -> Path:
    """That store."""
    return Path(shutil.copy(filled_once, tmp_path))


def test_a_duel_comes_back_through_both_databases(
    filled: Path, new_postgres: str, pair: KeyPair, tmp_path: Path
) -> None:
    """SQLite to PostgreSQL to SQLite: the same bytes each time, the same duel, and its origin's signature."""
    files = [tmp_path / f"{number}.gz" for number in range(3)]
    with Store.open(str(filled)) as store:
        store.export_duels([DUEL, SECOND.id], files[0])
    for number, address in enumerate((new_postgres, str(tmp_path / "last.db"))):
        with Store.open(address) as store:
            moved = store.import_run(files[number])
            assert [(DUEL, 2, True, True), (SECOND.id, 2, False, True)] == [
                (it.duel, it.cells, it.sealed, it.new) for it in moved.duels
            ]
            assert [False, False] == [it.new for it in store.import_run(files[number]).duels]
            store.export_duels([DUEL, SECOND.id], files[number + 1])
            assert [SECOND, fought()] == [replace(it, received_at=None) for it in store.duels()]
            assert [] == store.runs()
            seal = store.duel(DUEL).seal
        assert check_seal(seal, duel_lines(fought()), DUEL, pair.trusted).trusted
    assert files[0].read_bytes() == files[1].read_bytes() == files[2].read_bytes()


def test_a_run_and_its_duels_are_one_file(filled: Path, tmp_path: Path) -> None:
    """The digest of the run is that which it has without them."""
    alone, file = tmp_path / "alone.gz", tmp_path / "both.gz"
    with Store.open(str(filled)) as store:
        first = store.export_run(RUN, alone)
        both = store.export_run(RUN, file, duels=[DUEL])
    assert (first.sha256, [DUEL]) == (both.sha256, [it.duel for it in both.duels])
    with Store.open(str(tmp_path / "other.db")) as store:
        moved = store.import_run(file)
        assert ((RUN, True), [True]) == ((moved.run, moved.new), [it.new for it in moved.duels])
        assert ([RUN], [DUEL]) == ([run.id for run in store.runs()], [duel.id for duel in store.duels()])


def test_other_content_of_the_same_duel_is_refused(filled: Path, tmp_path: Path) -> None:
    """Evidence that is stored is not replaced, and nothing else of the file is taken."""
    file = tmp_path / "both.gz"
    with Store.open(str(filled)) as store:
        store.export_run(RUN, file, duels=[SECOND.id])
    with Store.open(str(tmp_path / "other.db")) as store:
        store.add_duel(examples.duel(2, b="other"))
        with pytest.raises(UsageError, match=f"has duel {SECOND.id} with other content"):
            store.import_run(file)
        assert [] == store.runs()


def test_a_seal_reaches_a_duel_that_is_there_without_one(filled: Path, tmp_path: Path) -> None:
    """As that of a run does."""
    file = tmp_path / "duel.gz"
    with Store.open(str(filled)) as store:
        store.export_duels([DUEL], file)
    with Store.open(str(tmp_path / "other.db")) as store:
        store.add_duel(fought())
        assert [False] == [it.new for it in store.import_run(file).duels]
        assert store.duel(DUEL).seal == read(file).beside.duels[0].seal


def test_the_commands(filled: Path, pair: KeyPair, tmp_path: Path) -> None:
    """Export one duel or a run with duels, import them, and verify: in the store and in the file, sealed or not."""
    out = call("db", "export", "--duel", DUEL, "--db", "filled.db", "--json", cwd=tmp_path)
    assert (0, "", None, f"{DUEL}.jsonl.gz") == (out.code, out.err, out.data["run"], out.data["file"])
    assert [DUEL] == [it["duel"] for it in out.data["duels"]]
    run = sound_run(filled)
    both = call(
        "db", "export", run, "--duel", DUEL, "--out", "b.gz", "--duel", SECOND.id, "--db", "filled.db", cwd=tmp_path
    )
    assert (0, True) == (both.code, f"duel {SECOND.id}, 2 cells, not sealed" in both.out), both.err
    into = call("db", "import", "b.gz", "--db", "team.db", cwd=tmp_path)
    assert (0, True) == (into.code, f"duel {DUEL} added, 2 cells, sealed" in into.out), into.err
    signed = ("--signed-by", pair.public)
    for what, db in ((DUEL, "filled.db"), (DUEL[:23], "team.db"), (f"{DUEL}.jsonl.gz", "none.db")):
        told = call("verify", what, *signed, "--db", db, cwd=tmp_path)
        assert (0, True) == (told.code, f"duel {DUEL} is as it was sealed at" in told.out), told
    told = call("verify", SECOND.id, "--db", "team.db", "--json", cwd=tmp_path)
    assert (5, None, SECOND.id, "it is not sealed") == (
        told.code,
        told.data["run"],
        told.data["duels"][0]["duel"],
        told.data["duels"][0]["why_not"],
    )
    file = call("verify", "b.gz", *signed, "--json", cwd=tmp_path)
    assert (5, run, [True, False]) == (file.code, file.data["run"], [it["sealed"] for it in file.data["duels"]])
    unknown = call("verify", "duel-2020", "--db", "team.db", cwd=tmp_path)
    assert (2, True) == (unknown.code, "no duel 'duel-2020' in " in unknown.err)
    nothing = call("db", "export", "--db", "filled.db", cwd=tmp_path)
    assert (2, True) == (nothing.code, "give RUN, or --duel ID" in nothing.err)


def test_an_edited_duel_is_refused_and_says_what_differs(filled: Path, pair: KeyPair, tmp_path: Path) -> None:
    """In the store after an UPDATE, and in a file whose digest was written again."""
    file = tmp_path / "duel.jsonl.gz"
    with Store.open(str(filled)) as store:
        store.export_duels([DUEL], file)
    with closing(sqlite3.connect(filled)) as connection, connection:
        connection.execute("UPDATE duel_cells SET verdict = 'SAME' WHERE position = 0")
        connection.execute("UPDATE duels SET b = 'other'")
    told = call("verify", DUEL, "--signed-by", pair.public, "--db", "filled.db", cwd=tmp_path)
    assert (5, True) == (told.code, f"duel {DUEL} is not what" in told.out), told
    assert "  the duel b changed" in told.out
    assert f"  {examples.duel().cells[0].name} case.verdict changed" in told.out
    changed(file, lambda lines: lines[2]["case"].update(verdict="SAME"))
    told = call("verify", "duel.jsonl.gz", "--signed-by", pair.public, cwd=tmp_path)
    assert (5, True) == (told.code, "case.verdict changed" in told.out), told
    refused = call("db", "import", "duel.jsonl.gz", "--db", "team.db", cwd=tmp_path)
    assert (2, True) == (refused.code, "What differs: qualify verify duel.jsonl.gz" in refused.err), refused


def test_a_duel_that_was_edited_before_it_was_sealed_is_refused(pair: KeyPair, tmp_path: Path) -> None:
    """Its verdicts are computed again from its times: in the store, in a file, and as a store takes the file."""
    cell = fought().cells[0]
    edited = replace(fought(), cells=(replace(cell, verdict="SAME", reason=""), *fought().cells[1:]))
    with Store.open(str(tmp_path / "evil.db")) as store:
        store.add_duel(edited, seal_duel(edited, pair.signing))
        store.export_duels([DUEL], tmp_path / "evil.jsonl.gz")
    told = f"contradicts itself: {cell.name}: verdict is SAME, but its times give AMBIGUOUS"
    for what in (DUEL, "evil.jsonl.gz"):
        ended = call("verify", what, "--signed-by", pair.public, "--db", "evil.db", cwd=tmp_path)
        assert (5, True) == (ended.code, told in ended.out), ended
    ended = call("db", "import", "evil.jsonl.gz", "--db", "team.db", cwd=tmp_path)
    assert (2, True) == (ended.code, told in ended.err), ended
    with Store.open(str(tmp_path / "team.db")) as store:
        assert [] == store.duels()


def test_what_was_deleted_here_comes_back_with_a_note(filled: Path, tmp_path: Path) -> None:
    """An import adds the run, and says who deleted it; where the run is stored, it says nothing."""
    run = sound_run(filled)
    with Store.open(str(filled)) as store:
        store.export_run(run, tmp_path / "run.jsonl.gz")
        assert store.retention.remove_run(run, by="jane", how="qualify db prune", reason="it was wrong")
    back = call("db", "import", "run.jsonl.gz", "--db", "filled.db", cwd=tmp_path)
    assert (0, True) == (back.code, f"run {run} added" in back.out), back
    assert f"note: run {run} of " in back.err
    assert "by jane with `qualify db prune`: it was wrong" in back.err
    assert "It comes back with this import." in back.err
    again = call("db", "import", "run.jsonl.gz", "--db", "filled.db", cwd=tmp_path)
    assert (0, "") == (again.code, again.err), again


@pytest.mark.parametrize("what", [DUEL, "duel.jsonl.gz"])
def test_without_scipy_nothing_is_believed(
    filled: Path, pair: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A base install says what to install; an import says so in a note."""
    with Store.open(str(filled)) as store:
        store.export_duels([DUEL], tmp_path / "duel.jsonl.gz")
    monkeypatch.setattr("qualify.statistics.installed.NEEDED", ("numpy", "scipy_is_not_here"))
    monkeypatch.chdir(tmp_path)
    told = (
        "its verdicts were not computed again: scipy_is_not_here is missing. "
        "Install it: pip install 'attn-qualify[run]'"
    )
    ended = CliRunner().invoke(
        _parser("verify"), ["verify", what, "--signed-by", str(pair.public), "--db", "filled.db"]
    )
    assert (5, True) == (ended.exit_code, f"duel {DUEL}: {told}" in ended.output), ended
    ended = CliRunner().invoke(_parser("db"), ["db", "import", "duel.jsonl.gz", "--db", "team.db"])
    assert (0, True) == (ended.exit_code, f"note: duel {DUEL}: {told}" in ended.output), ended


DAMAGES: dict[str, Callable[[list[Any]], object]] = {
    "id": lambda lines: lines[-2]["run"].update(id="duel-../../x") if "run" in lines[-2] else None,
    "name": lambda lines: lines[2]["case"].update(id="x"),
    "no record": lambda lines: lines[2].update(case=7),
    "no cell": lambda lines: lines[4]["outcome"].update(cell="x"),
    "twice": lambda lines: lines.insert(2, lines[2]),
    "no duel": lambda lines: lines.pop(-2),
    "nothing": lambda lines: lines.__delitem__(slice(1, None)),
    "two": lambda lines: lines.extend(lines[1:]),
    "not one": lambda lines: lines[1].update(duel=7),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_duel_adds_nothing(filled: Path, damage: str, tmp_path: Path) -> None:
    """It is a usage error that names the file."""
    file = tmp_path / "duel.gz"
    with Store.open(str(filled)) as store:
        store.export_duels([DUEL], file)
    changed(file, DAMAGES[damage])
    with Store.open(str(tmp_path / "target.db")) as store:
        with pytest.raises(UsageError, match="its records cannot be read") as caught:
            store.import_run(file)
        assert [] == store.duels()
    assert str(caught.value).startswith(f"{file}: ")
