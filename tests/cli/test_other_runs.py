"""`qualify repro` and `qualify profile` of a case that is not where somebody looks for it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from cli_process import call
from stored_runs import IDS, MATRIX, store_run

from qualify.store.store import Store

OTHER = "other.tp1"


@pytest.fixture
def runs(store: Store, tmp_path: Path) -> tuple[str, str]:
    """The ids of an older run and of a newer one of another model."""
    ids = []
    for name, hours in (("toy", 2), (OTHER.partition(".")[0], 1)):
        matrix = tmp_path / f"{name}.yaml"
        matrix.write_text(MATRIX.replace("model: toy", f"model: {name}").replace("toy.tp1", f"{name}.tp1"))
        ids.append(store_run(store, matrix, age=timedelta(hours=hours)).id)
    return ids[0], ids[1]


@pytest.mark.parametrize("command", ["repro", "profile"])
def test_a_mistyped_case_may_be_one_of_any_run(
    command: str, runs: tuple[str, str], tmp_path: Path, empty_sqlite: str
) -> None:
    """The run that has what was probably meant is named, with the command for it: it need not be the newest."""
    ended = call(command, IDS[0].replace("causal", "casual"), "--db", empty_sqlite, cwd=tmp_path)
    assert (2, "") == (ended.code, ended.out)
    assert f"Perhaps you meant {IDS[0]}" in ended.err
    assert f"Run {runs[0]} has the first: qualify {command} {IDS[0]} --run {runs[0]} --db {empty_sqlite}" in ended.err


@pytest.mark.parametrize("named", ["latest", "id"])
def test_a_case_of_another_run_is_found(named: str, runs: tuple[str, str], tmp_path: Path, empty_sqlite: str) -> None:
    """Where the named run does not have it; a mistyped one may be another case of the named run."""
    asked = ("--run", runs[1] if named == "id" else named, "--db", empty_sqlite)
    ended = call("repro", IDS[0], *asked, cwd=tmp_path)
    assert (2, "") == (ended.code, ended.out)
    elsewhere = f"run {runs[1]} has no case {IDS[0]!r}; run {runs[0]} has it: "
    assert f"{elsewhere}qualify repro {IDS[0]} --run {runs[0]} --db {empty_sqlite}" in ended.err
    own = IDS[0].replace("toy.tp1", OTHER)
    ended = call("repro", own.replace("causal", "casual"), *asked, cwd=tmp_path)
    assert f"Run {runs[1]} has the first: qualify repro {own} --run {runs[1]} " in ended.err
