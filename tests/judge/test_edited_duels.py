"""The verdicts of a duel are computed again from its times wherever they count; an edited duel counts nowhere."""

from __future__ import annotations

import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_process import call
from duels import make_cell, make_duel
from exported import changed
from sealing import new_pair
from stored_runs import CELL, MATRIX, NOW, accept_run, shipped_kernels, store_run

from qualify.errors import UsageError
from qualify.facts.duel import Duel
from qualify.facts.run import Run
from qualify.facts.typed import Typed
from qualify.fleet.ingest import ingest
from qualify.judge.duels import DuelCheck
from qualify.judge.exchange import receive, send
from qualify.judge.judged import Judged, judge
from qualify.judge.timed import with_performance
from qualify.report.verdict_text import to_text
from qualify.seal.duel_form import seal_duel
from qualify.statistics import estimate, power
from qualify.store import Store
from qualify.verdict.duelled import duel_contradictions

NAMES = [f"{CELL.format(size)}/tiled-torch" for size in (8, 9)]
OLDER = "duel-20261121T020000Z-000000"
POLICY = "policy: {performance: {budgets: [{of: cell, percent: 5}]}}\n"


@pytest.fixture
def run(store: Store, tmp_path: Path) -> Run:
    """A run that passed, of a matrix with a budget."""
    (tmp_path / "serving.yaml").write_text(MATRIX + POLICY)
    return store_run(store, tmp_path / "serving.yaml")


def fought(run: Run, **changes: Any) -> Duel:
    """A duel that finds one of two cells slower than its budget allows."""
    return make_duel(run, make_cell(NAMES[0], 0.08, verdict="SLOWER"), make_cell(NAMES[1]), **changes)


def judged(store: Store, run: Run, keys: Any = ()) -> Judged:
    """The verdict as the gate makes it."""
    found = judge(store, run.id, shipped_kernels(), now=NOW, typed=Typed(db=store.where))
    return with_performance(store, found, now=NOW, max_age=timedelta(hours=24), keys=keys)


def edit(path: str, *statements: str) -> None:
    """Somebody writes into the database."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


EDITS: dict[str, tuple[tuple[str, ...], str]] = {
    "a verdict": (
        ("UPDATE duel_cells SET verdict = 'SAME'", "UPDATE duel_ratios SET verdict = 'SAME'"),
        "verdict is SAME, but its times give SLOWER",
    ),
    "an interval": (
        ("UPDATE duel_ratios SET change = 0.0, low = -0.01, high = 0.01",),
        "graph change is 0, but its times give 0.08",
    ),
    "a margin": (("UPDATE duel_ratios SET margin = 0.5",), "verdict is SLOWER, but its times give SAME"),
    "no times": (("DELETE FROM duel_blocks",), "it says SLOWER of a cell, and no time is stored with it"),
    "times of one cell": (
        (f"DELETE FROM duel_blocks WHERE cell = '{NAMES[0]}'",),
        f"{NAMES[0]} says SLOWER, and no stored times give that",
    ),
}


@pytest.mark.parametrize("edited", EDITS)
def test_an_edited_duel_is_no_evidence(store: Store, run: Run, empty_sqlite: str, edited: str) -> None:
    """The gate gives no verdict, says which value is not that of the times, and what to type."""
    store.add_duel(fought(run))
    assert ("FAIL", 1) == ((sound := judged(store, run).conclusion).verdict, sound.exit_code)
    statements, told = EDITS[edited]
    edit(empty_sqlite, *statements)
    found = judged(store, run)
    assert ("INCONCLUSIVE", 5) == (found.conclusion.verdict, found.conclusion.exit_code)
    text = to_text(found, NOW)
    assert f"does not count: it contradicts itself: {told}" in text.replace(f"{NAMES[0]}: ", "")
    assert f"What differs: qualify verify {fought(run).id} --db {empty_sqlite}" in text
    assert "do: " in text


def test_no_older_duel_takes_the_place_of_an_edited_one(store: Store, run: Run, empty_sqlite: str) -> None:
    """The older one was green. A new duel ends the doubt."""
    store.add_duel(make_duel(run, *map(make_cell, NAMES), id=OLDER, started_at=NOW - timedelta(hours=1)))
    store.add_duel(fought(run))
    edit(empty_sqlite, "UPDATE duel_cells SET verdict = 'SAME' WHERE verdict = 'SLOWER'")
    assert 5 == judged(store, run).conclusion.exit_code
    store.add_duel(make_duel(run, *map(make_cell, NAMES), id="duel-20261121T025500Z-000002", started_at=NOW))
    assert 0 == judged(store, run).conclusion.exit_code


def test_a_broken_seal_hides_no_slowdown(store: Store, run: Run, empty_sqlite: str, tmp_path: Path) -> None:
    """Nor does an older sealed duel take the place of one that was changed after it was sealed."""
    pair = new_pair(tmp_path)
    older = make_duel(run, *map(make_cell, NAMES), id=OLDER, started_at=NOW - timedelta(hours=1))
    for duel in (older, fought(run)):
        store.add_duel(duel, seal_duel(duel, pair.signing))
    edit(empty_sqlite, f"UPDATE duels SET a = 'other' WHERE id = '{fought(run).id}'")
    found = judged(store, run, keys=pair.trusted)
    assert 5 == found.conclusion.exit_code
    assert "it is not what was sealed" in to_text(found, NOW)


def test_a_duel_in_which_nothing_was_timed_is_no_duel(store: Store, run: Run) -> None:
    """Also where a duel is all that is asked for."""
    cells = [replace(make_cell(name), verdict="INCONCLUSIVE", ratios={}, way=None, reason="B died") for name in NAMES]
    store.add_duel(make_duel(run, *cells))
    found = judge(store, run.id, shipped_kernels(), now=NOW)
    found = with_performance(store, found, now=NOW, max_age=None, required=True)
    assert 5 == found.conclusion.exit_code
    assert "does not count: no cell of it was timed" in to_text(found, NOW)


def test_without_scipy_no_duel_is_believed(store: Store, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base install says what to install."""
    store.add_duel(make_duel(run, *map(make_cell, NAMES)))
    monkeypatch.setattr("qualify.statistics.installed.NEEDED", ("scipy_is_not_here",))
    found = judged(store, run)
    assert 5 == found.conclusion.exit_code
    assert "were not computed again: scipy_is_not_here is missing. Install it: pip install" in to_text(found, NOW)


def forge(lines: list[Any]) -> None:
    """The slower cell of an exported duel becomes the same."""
    cell = next(line["case"] for line in lines if line.get("case", {}).get("verdict") == "SLOWER")
    cell["verdict"] = "SAME"


def test_an_edited_duel_enters_by_no_file(store: Store, run: Run, tmp_path: Path) -> None:
    """`ingest` and `db import` refuse it, and name the value; a baseline's file holds no duel at all."""
    file, told = tmp_path / "both.jsonl.gz", "verdict is SAME, but its times give SLOWER"
    duel = fought(run)
    store.add_duel(duel)
    store.export_run(run.id, file, duels=[duel.id])
    changed(file, forge)
    with Store.open(str(tmp_path / "team.db")) as team:
        with pytest.raises(UsageError, match=told) as caught:
            ingest(team, file)
        assert f"{file}: duel {duel.id} contradicts itself: " in str(caught.value)
        alone = f"forged.zip: it holds duel {duel.id}, and an exported baseline holds its run alone"
        with pytest.raises(UsageError, match=alone):
            receive(team, with_duel(store, run, tmp_path, file), now=NOW)
        assert ([], []) == (team.runs(), team.duels())
    ended = call("db", "import", file, "--db", "team.db", cwd=tmp_path)
    assert (2, True) == (ended.code, told in ended.err), ended


@pytest.mark.parametrize("beside", [False, True])
def test_an_edited_duel_leaves_in_no_file(
    store: Store, run: Run, empty_sqlite: str, tmp_path: Path, beside: bool
) -> None:
    """Alone or beside its run: whoever moves it is told here what does not fit, not where it shall arrive."""
    duel = fought(run)
    store.add_duel(duel)
    words = ("db", "export", *([run.id] if beside else []), "--duel", duel.id, "--db", empty_sqlite)
    assert 0 == call(*words, "--out", "sound.gz", cwd=tmp_path).code
    edit(empty_sqlite, *EDITS["a verdict"][0])
    ended = call(*words, "--out", "edited.gz", cwd=tmp_path)
    assert 5 == ended.code, ended
    assert f"duel {duel.id} contradicts itself: {NAMES[0]}: verdict is SAME, but its times give SLOWER" in ended.err
    assert f"What does not fit: qualify verify {duel.id} --db {empty_sqlite}. Nothing was written." in ended.err
    assert not (tmp_path / "edited.gz").exists()


def with_duel(store: Store, run: Run, folder: Path, evidence: Path) -> Path:
    """A file of a baseline whose evidence is another file."""
    accept_run(store, run)
    send(store, run.matrix, "*", "", folder / "sound.zip")
    with zipfile.ZipFile(folder / "sound.zip") as sound, zipfile.ZipFile(folder / "forged.zip", "w") as forged:
        forged.writestr("baseline.json", sound.read("baseline.json"))
        forged.writestr("run.jsonl.gz", evidence.read_bytes())
    return folder / "forged.zip"


def test_of_many_contradictions_the_first_is_told_and_the_others_are_counted() -> None:
    """One line, also where every cell was edited."""
    told = [DuelCheck(contradictions=tuple("abc"[:count]), unchecked="").why_not for count in range(4)]
    assert ["", "a", "a, and 1 more", "a, and 2 more"] == [why.removeprefix("it contradicts itself: ") for why in told]
    assert "scipy is missing" == DuelCheck(unchecked="scipy is missing").why_not


def _nudged(function: Callable[..., Any], share: float) -> Callable[..., Any]:
    return lambda *arguments: function(*arguments) * (1 + share)


@pytest.mark.parametrize("share", [1e-12, -1e-12, 1e-9, -1e-9])
def test_other_roundings_are_no_contradiction(run: Run, monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Another scipy, numpy or libm may give the last digits otherwise, in every step."""
    cells = [make_cell(f"m/decode/b{n}.q1.k8/bf16/causal/x", n / 1000, width=0.004) for n in range(5)]
    cells += [make_cell(f"m/decode/b{n}.q1.k8/bf16/causal/x", n / 100, verdict="SLOWER") for n in range(5, 9)]
    duel = make_duel(run, *cells)
    assert [] == duel_contradictions(duel)
    for module, names in {estimate: ("stdtr", "stdtrit", "ndtr", "fmean", "share"), power: ("stdtrit",)}.items():
        for name in names:
            monkeypatch.setattr(module, name, _nudged(getattr(module, name), share))
    assert [] == duel_contradictions(duel)
    slower = duel.cells[-1]
    assert slower.ratio is not None
    edited = replace(slower, ratios={"graph": replace(slower.ratio, change=slower.ratio.change * (1 + 1e-4))})
    assert duel_contradictions(replace(duel, cells=(*duel.cells[:-1], edited)))
