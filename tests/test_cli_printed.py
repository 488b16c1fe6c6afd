"""Every command that qualify prints can be pasted: it finds the cards, the store and the matrix of the one before."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_process import advice, call, paste, write_cards, write_matrix
from stored_runs import MATRIX, NOW, make_stack, store_run, write_waivers
from typer.testing import CliRunner

from qualify.cli.entry import _parser
from qualify.cli.shared import typed
from qualify.facts.typed import OPTIONS, Typed
from qualify.store.address import passwordless
from qualify.store.store import Store


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a run of a third party's wrong kernel, with folders whose names need quotes; the run's text."""
    folder = tmp_path_factory.mktemp("printed")
    write_cards(folder / "my cards", "correct", "wrong_numbers")
    write_matrix(folder / "my matrix.yaml", "correct", "wrong-numbers")
    text = (folder / "my matrix.yaml").read_text().replace("matrix: my matrix", "matrix: mine")
    (folder / "my matrix.yaml").write_text(text)
    ended = call("run", "./my matrix.yaml", "--cards", "my cards", "--db", "my evidence.db", cwd=folder)
    assert 1 == ended.code, ended.err
    return folder, ended.out


def test_the_advice_after_a_failure_can_be_pasted(failed: tuple[Path, str]) -> None:
    """`repro` and `report`, from the run and from the gate; no command looks into another store."""
    folder, text = failed
    options = ["--cards", "my cards", "--db", "my evidence.db"]
    gated = call("gate", *options, cwd=folder).out
    assert advice(text) == advice(gated)
    assert ["repro", "report"] == [shlex.split(line)[1] for line in advice(text)]
    for line in advice(text):
        assert options == shlex.split(line)[-4:]
        ended = paste(line, folder)
        assert 0 == ended.code, ended.err
    assert not (folder / ".qualify").exists()


def test_the_command_within_a_repro_script_can_be_pasted(failed: tuple[Path, str]) -> None:
    """From any folder: its paths are absolute. Exit 1, as the case still fails."""
    folder, text = failed
    script = paste(advice(text)[0], folder).out
    line = next(line for line in script.splitlines() if "under qualify: " in line).partition("under qualify: ")[2]
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    ended = paste(line, elsewhere)
    assert (1, "") == (ended.code, ended.err.partition("Traceback")[1])
    assert not (elsewhere / ".qualify").exists()


def test_a_run_that_is_narrowed_passes_and_advises_the_whole(failed: tuple[Path, str]) -> None:
    """Exit 0 says that what was selected passed, and the text says so; the gate on it is no verdict."""
    folder, _ = failed
    options = ["--cards", "my cards", "--db", "part.db"]
    ended = call("run", "./my matrix.yaml", "--kernel", "correct", *options, cwd=folder)
    assert 0 == ended.code
    assert ended.out.startswith("mine: passed, in the selected part of the matrix (")
    assert "do: promote nothing on a part of the matrix; run all of it: qualify run" in ended.out
    assert 5 == call("gate", *options, cwd=folder).code
    (line,) = advice(ended.out)
    assert 1 == paste(line, folder).code


def stored(folder: Path, **changes: Any) -> str:
    """A run of the matrix `serving` in that folder, an hour old."""
    (folder / "serving.yaml").write_text(MATRIX)
    with Store.open(str(folder / "e.db")) as store:
        age = NOW - datetime.now(UTC) + timedelta(hours=1)
        return store_run(store, folder / "serving.yaml", age=age, **changes).id


def test_the_advice_to_make_evidence_makes_evidence_that_counts(tmp_path: Path, empty_sqlite: str) -> None:
    """The level and the freshness that the gate asks for are in the command."""
    (tmp_path / "e.db").write_bytes((Path(empty_sqlite)).read_bytes())
    stored(tmp_path)
    full = call("gate", "--matrix", "serving.yaml", "--level", "full", "--db", "e.db", cwd=tmp_path)
    assert ["qualify run serving.yaml --level full --device cpu --db e.db"] == advice(full.out)
    old = call("gate", "--matrix", "serving.yaml", "--max-age", "30m", "--db", "e.db", cwd=tmp_path)
    (line,) = advice(old.out)
    assert "qualify run serving.yaml --device cpu --fresh --db e.db" == line
    assert 0 == paste(line, tmp_path).code
    again = call(
        "gate", "--matrix", "serving.yaml", "--max-age", "30m", "--stack", "here", "--db", "e.db", cwd=tmp_path
    )
    assert 0 == again.code, again.out


def test_nobody_is_sent_back_to_the_stack_that_is_there(tmp_path: Path, empty_sqlite: str) -> None:
    """On the accepted stack the advice says that no other stack would help; on another one it names the accepted."""
    from stored_runs import IDS, PASSED, WRONG

    def failing(case: Any) -> Any:
        return WRONG if case.id == IDS[0] else PASSED

    (tmp_path / "e.db").write_bytes((Path(empty_sqlite)).read_bytes())
    before = stored(tmp_path)
    accept = ("baseline", "accept", before, "--by", "a", "--reason", "b", "--db", "e.db")
    assert 0 == call(*accept, cwd=tmp_path).code
    stored(tmp_path, outcome=failing)
    same = call("gate", "--against", "baseline", "--db", "e.db", cwd=tmp_path)
    assert 1 == same.code
    assert "go back" not in same.out
    assert f"do: the stack is that of run {before}, so no other stack would help" in same.out
    assert ["repro", "report", "diff"] == [shlex.split(line)[1] for line in advice(same.out)]
    stored(tmp_path, outcome=failing, code={"tiled-torch": {"mine.py": "2"}})
    edited = call("gate", "--against", "baseline", "--db", "e.db", cwd=tmp_path)
    assert "so no other stack would help: look first at what changed in the code of tiled-torch\n" in edited.out
    stored(tmp_path, outcome=failing, stack=make_stack(torch="2.12.0"))
    other = call("gate", "--against", "baseline", "--db", "e.db", cwd=tmp_path)
    assert f"do: or go back to the accepted stack of run {before} (torch 2.12.0 → 2.11.0)" in other.out
    for line in advice(other.out)[1:]:
        assert 0 == paste(line, tmp_path).code
    write_waivers(tmp_path / "w.yaml")
    itself = call("gate", "--run", before, "--against", "baseline", "--waivers", "w.yaml", "--db", "e.db", cwd=tmp_path)
    assert "go back" not in itself.out


def test_a_plan_of_which_everything_is_refused_is_exit_3(tmp_path: Path) -> None:
    """It prints the refusals, and says on stderr that nothing can run and why."""
    write_matrix(tmp_path / "large.yaml", "tiled-torch")
    text = (tmp_path / "large.yaml").read_text().replace("head_dim: 32", "head_dim: 4096")
    (tmp_path / "large.yaml").write_text(text)
    ended = call("plan", "large.yaml", cwd=tmp_path)
    assert 3 == ended.code
    assert "refused: head_dim=4096" in ended.out
    assert "nothing of large can run, 1 case refused: head_dim=4096" in ended.err
    assert (3, []) == ((data := call("plan", "large.yaml", "--json", cwd=tmp_path)).code, data.data["cases"])


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("postgresql+psycopg://u:secret@h/d", "postgresql+psycopg://u@h/d"),
        ("postgresql://u@h/d?password=secret&sslmode=require", "postgresql://u@h/d?sslmode=require"),
        ("postgresql://u@h/d?sslmode=require&password=secret", "postgresql://u@h/d?sslmode=require"),
        ("evidence.db", "evidence.db"),
        ("*q8?", "*q8?"),
    ],
)
def test_no_password_is_printed(monkeypatch: pytest.MonkeyPatch, given: str, printed: str) -> None:
    """It is left out; and where QUALIFY_DB has the address already, so is the whole option."""
    assert printed == passwordless(given)
    monkeypatch.delenv("QUALIFY_DB", raising=False)
    assert printed == typed(db=given).db
    monkeypatch.setenv("QUALIFY_DB", given)
    assert ("" if "secret" in given else printed) == typed(db=given).db


def test_every_printed_option_exists() -> None:
    """What a printed command repeats, that command takes."""
    everything = Typed(cards=("c",), db="d", waivers="w", environments=("n=p",))
    within = {"baseline": ["accept"], "canary": ["serve"], "db": ["upgrade"]}
    for command in OPTIONS:
        words = [command, *within.get(command, [])]
        usage = CliRunner().invoke(_parser(), [*words, "--help"]).output
        for option in (word for word in everything.words(command) if word.startswith("--")):
            assert option in usage, (command, option)
