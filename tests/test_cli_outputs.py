"""`qualify gate` with several outputs: one verdict, every file whole or absent, and an exit code that hides nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import make_evidence, make_timing
from cli_process import ROOT, Ended, call, environment
from stored_runs import IDS, MATRIX, NOW, PASSED, WRONG, accept_run, make_stack, store_run

from qualify.cli.earlier import no_part_left, remove_outputs, remove_verdicts
from qualify.facts.outcome import Measured
from qualify.report.formats import FORMATS
from qualify.report.replacing import remove_output, write_output
from qualify.store.store import Store

SUBJECT = "image@sha256:" + "0" * 64
FILES = {form.option: f"gate.{form.name}" for form in FORMATS if form.option}
EVERY = [word for option, name in FILES.items() for word in (option, name)]


@pytest.fixture
def folder(tmp_path: Path, empty_sqlite: str) -> Path:
    """A folder with a matrix and an empty store."""
    (tmp_path / "serving.yaml").write_text(MATRIX)
    return tmp_path


def stored(folder: Path, outcome: Any = PASSED, **changes: Any) -> str:
    """A run in the folder's store, "2 h old" for the next half hour, so that every output says so; returns its id."""
    age = NOW - datetime.now(UTC) + timedelta(hours=2.5)
    with Store.open(str(folder / "evidence.db")) as store:
        return store_run(store, folder / "serving.yaml", outcome, age=age, **changes).id


def failing(case: Any) -> Any:
    """One failure among passes."""
    return WRONG if case.id == IDS[0] else PASSED


def gate(folder: Path, *more: object, env: dict[str, str] | None = None) -> Ended:
    """The gate in that folder."""
    return call("gate", "--db", "evidence.db", *more, cwd=folder, env=env)


@pytest.mark.parametrize(("outcome", "code"), [(PASSED, 0), (failing, 1)])
def test_one_verdict_in_every_format(folder: Path, outcome: Any, code: int) -> None:
    """Each file holds what --format prints, byte for byte; stdout has the text, and the exit code is the verdict's."""
    stored(folder, outcome)
    ended = gate(folder, *EVERY, "--subject", SUBJECT)
    assert (code, "") == (ended.code, ended.err)
    assert ended.out == gate(folder).out
    for form in FORMATS:
        if form.option:
            subject = ["--subject", SUBJECT] if form.name == "in-toto" else []
            printed = gate(folder, "--format", form.name, *subject)
            assert (code, printed.out) == (printed.code, (folder / FILES[form.option]).read_text()), form.name
    assert [] == [path.name for path in folder.iterdir() if path.name.startswith(".gate")]


def test_json_stands_alone_or_names_a_file(folder: Path) -> None:
    """`--json` prints, as everywhere; `--json FILE` and `--json=FILE` write, and the text is printed."""
    stored(folder)
    alone = gate(folder, "--json")
    assert "qualify.run/1" == alone.data["schema"]
    assert alone.out == gate(folder, "--json", "--run", "latest").out
    for words in (["--json", "a.json"], ["--json=a.json"]):
        assert gate(folder, *words).out.startswith("serving: qualified (")
        assert alone.data == json.loads((folder / "a.json").read_text())
    assert alone.out == gate(folder, "--json", "--format", "json").out
    for words in (["--json", "--format", "text"], ["--format=text", "--json"]):
        refused = gate(folder, *words)
        assert 2 == refused.code
        assert refused.data["error"].startswith("--json and --format text: both print to stdout.")


def test_what_cannot_be_written_is_exit_4_and_hides_no_verdict(folder: Path) -> None:
    """The verdict is printed, the other files are there, and the message has both exit codes."""
    stored(folder, failing)
    ended = gate(folder, "--junit", "serving.yaml/gate.xml", "--markdown", "new/gate.md")
    assert (4, 2) == (ended.code, len(ended.err.splitlines()))
    assert ended.err.startswith("qualify: --junit serving.yaml/gate.xml cannot be written: Not a directory.")
    assert "The verdict is not qualified, exit 1; the gate ends with exit 4." in ended.err
    assert ended.out.startswith("serving: not qualified (")
    assert (folder / "new" / "gate.md").read_text().startswith("## ✗ serving: ")
    stored(folder)
    passed = gate(folder, "--json", ".qualify", "--junit", "new")
    assert (4, True) == (passed.code, passed.out.startswith("serving: qualified ("))
    assert "--junit new cannot be written: Is a directory. Free the place" in passed.err


def test_an_output_behind_a_loop_of_links_is_exit_4(folder: Path) -> None:
    """Nothing can be written there, and the link stays."""
    stored(folder)
    (folder / "loop.json").symlink_to("loop.json")
    ended = gate(folder, "--json", "loop.json")
    assert (4, True) == (ended.code, (folder / "loop.json").is_symlink())
    assert "--json loop.json cannot be written: Too many levels of symbolic links. Free the place" in ended.err


def test_a_statement_that_cannot_be_made_is_no_promotion(folder: Path) -> None:
    """The gate passed and its statement is missing: exit 5; a failure stays exit 1; no file is there."""
    stored(folder)
    ended = gate(folder, "--statement", "s.json")
    assert (5, True) == (ended.code, ended.err.startswith("qualify: --statement s.json is not written: run "))
    asked = "Name what you promote, with --subject NAME@sha256:HEX; `sha256sum FILE` prints the digest of a file."
    assert f"{asked}\nThe verdict is qualified, exit 0; the gate ends with exit 5." in ended.err
    stored(folder, failing)
    alone = gate(folder, "--format", "in-toto")
    assert (1, "", True) == (alone.code, alone.out, f"{asked}\nThe verdict is not qualified, exit 1." in alone.err)
    failed = gate(folder, "--statement", "s.json", "--junit", "gate.xml")
    assert (1, False, True) == (failed.code, (folder / "s.json").exists(), (folder / "gate.xml").exists())


def test_no_old_file_is_left_where_there_is_no_verdict(folder: Path) -> None:
    """A runner that is not cleaned would publish the green report of yesterday."""
    stored(folder)
    assert 0 == gate(folder, *EVERY, "--subject", SUBJECT).code
    for more, code in ((["--matrix", "smoke"], 5), (["--stack", "here"], 2), (["--max-age", "soon"], 2)):
        for name in FILES.values():
            (folder / name).write_text("of yesterday")
        ended = gate(folder, *EVERY, "--subject", SUBJECT, *more)
        assert (code, "") == (ended.code, ended.out)
        assert [] == [name for name in FILES.values() if (folder / name).exists()]


@pytest.mark.parametrize(
    "more",
    [
        ["--matrx", "smoke"],
        ["--level", "none"],
        ["--max-age", ""],
        ["--db", ""],
        ["--cards", "nowhere"],
        ["--format", "json", "--github"],
    ],
    ids=" ".join,
)
def test_no_old_file_is_left_where_the_command_line_is_refused(folder: Path, more: list[str]) -> None:
    """An unset variable or a mistyped option ends the gate before it begins; what no gate may replace stays."""
    run = stored(folder)
    shutil.copy(folder / "evidence.db", folder / "other.db")
    words = [f"--junit={folder / 'gate.xml'}", "--json", "gate.json", "--sarif", "other.db", "--markdown"]
    for name in ("gate.xml", "gate.json"):
        (folder / name).write_text("of yesterday")
    before = sorted(path.name for path in folder.iterdir())
    assert 0 == gate(folder, *words, "serving.yaml", "--help").code
    assert before == sorted(path.name for path in folder.iterdir())
    ended = gate(folder, *words, "serving.yaml", *more)
    assert (2, "--github" in more) == (ended.code, ended.out.startswith("::error title=qualify gate::"))
    assert sorted({*before} - {"gate.xml", "gate.json"}) == sorted(path.name for path in folder.iterdir())
    assert run in gate(folder, "--json").out


def test_no_old_times_are_left_where_there_is_no_history(folder: Path) -> None:
    """Otava would find no regression in the times of yesterday."""
    (folder / "otava").mkdir()
    (folder / "history.csv").write_text("time,of yesterday")
    (folder / "otava" / "otava.yaml").write_text('{\n "tests": {}\n}\n')
    words = ("--csv", "history.csv", "--otava", "otava", "--db", "nowhere.db")
    assert 4 == call("history", "--matrix", "serving", *words, cwd=folder).code
    assert [False, False] == [(folder / name).exists() for name in ("history.csv", "otava/otava.yaml")]


@pytest.mark.parametrize(("command", "left"), [("gate", False), ("history", True)])
def test_no_file_is_left_where_an_interrupt_ends_the_gate(tmp_path: Path, command: str, left: bool) -> None:
    """One that it has written may lack others beside it; another command names no such file."""
    file = tmp_path / "gate.xml"

    def interrupted() -> None:
        file.write_text("of today, and the next file is not there yet")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), no_part_left([command, "--junit", str(file)]):
        interrupted()
    assert left == file.exists()


@pytest.mark.parametrize(("module", "number"), [("typer", signal.SIGTERM), ("sqlalchemy", signal.SIGKILL)])
def test_no_old_file_is_left_where_the_gate_ends_while_it_is_imported(
    tmp_path: Path, empty_sqlite: str, module: str, number: signal.Signals
) -> None:
    """Nothing large is imported before they go: a signal ends the process at the first line of such a module."""
    (tmp_path / f"{module}.py").write_text(f"import os\nos.kill(os.getpid(), {number})\n")
    outputs = [*EVERY, f"--json={tmp_path / 'again.json'}"]
    for name in (*FILES.values(), "again.json"):
        (tmp_path / name).write_text("of yesterday")
    ended = call(
        "gate", *outputs, "--db", "evidence.db", cwd=tmp_path, env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}")
    )
    assert (-number, "", "") == (ended.code, ended.out, ended.err)
    assert {"evidence.db", f"{module}.py"} == {path.name for path in tmp_path.iterdir()} - {"__pycache__"}


@pytest.mark.parametrize("words", [("history", "--csv=h.csv", "--otava", "o"), ("selftest", "--out", "o")], ids=str)
def test_no_old_file_is_left_where_another_command_ends_while_it_is_imported(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """As those of a gate; what another program wrote stays."""
    (tmp_path / "typer.py").write_text(f"import os\nos.kill(os.getpid(), {signal.SIGKILL})\n")
    (tmp_path / "o").mkdir()
    old = {"h.csv": "time,", "o/otava.yaml": '{\n "tests": {}\n}', "o/selftest.json": "{}", "o/selftest.html": "<"}
    for name, content in old.items():
        (tmp_path / name).write_text(content)
    ended = call(*words, cwd=tmp_path, env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}"))
    assert (-signal.SIGKILL, "", "") == (ended.code, ended.out, ended.err)
    left = [name for name in old if (tmp_path / name).exists()]
    assert (list(old)[2:] if words[0] == "history" else list(old)[:2]) == left
    for name in ("h.csv", "o/otava.yaml"):
        (tmp_path / name).write_text("of somebody")
    remove_outputs(["history", "--csv", str(tmp_path / "h.csv"), "--otava", str(tmp_path / "o")])
    assert (tmp_path / "h.csv").exists()
    assert (tmp_path / "o" / "otava.yaml").exists()


def test_what_is_no_verdict_stays(tmp_path: Path, empty_sqlite: str) -> None:
    """Cards, and whatever belongs to a database: also its log, which holds what is committed."""
    kept = {"serving.yaml": b"matrix: serving", "link.json": b"", "new.db": b"", "evidence.db-wal": b"7\x7f\x06\x82"}
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "link.json").unlink()
    (tmp_path / "link.json").symlink_to("serving.yaml")
    for name in ("gate.json", "gate-wal"):
        (tmp_path / name).write_text("of yesterday")
    named = [tmp_path / name for name in (*kept, "evidence.db", "gate.json", "gate-wal", "missing.json")]
    remove_verdicts(["gate", *(f"--json={path}" for path in named)])
    assert {*kept, "evidence.db"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("address", ["sqlite:///evidence.db?timeout=5", "sqlite+pysqlite:///evidence.db", "link.db"])
def test_no_output_of_the_gate_replaces_its_store(folder: Path, address: str) -> None:
    """However --db spells the file, and however the output does."""
    run = stored(folder)
    (folder / "link.db").symlink_to("evidence.db")
    for file in ("evidence.db", f"../{folder.name}/link.db"):
        ended = gate(folder, "--json", file, "--db", address)
        assert (2, "", f"qualify: --json {file}: the gate reads that file.") == (
            ended.code,
            ended.out,
            ended.err.partition(" Give")[0],
        )
    assert run in gate(folder, "--json").out


WRITERS = {
    "export": (("db", "export", "latest", "--out"), b"\x1f\x8b"),
    "baseline": (("baseline", "export", "serving", "--out"), b"PK"),
    "history": (("history", "--matrix", "serving", "--csv"), b"time,"),
    "gate": (("gate", "--json"), b""),
}


@pytest.mark.parametrize(("words", "begins"), WRITERS.values(), ids=WRITERS)
def test_no_command_writes_over_what_it_reads(folder: Path, words: tuple[str, ...], begins: bytes) -> None:
    """The store, cards and files of other kinds stay as they are; a file of the command's own is replaced."""
    run = stored(folder, Measured(evidence=replace(make_evidence(), timing=make_timing(70.0))))
    with Store.open(str(folder / "evidence.db")) as store:
        accept_run(store, store.run(run))
    (folder / "link.csv").symlink_to("serving.yaml")
    shutil.copy(folder / "evidence.db", folder / "other.db")
    (folder / "notes").write_text("of somebody")
    kept = ["evidence.db", "serving.yaml", "link.csv", "other.db", *(["notes"] if begins else [])]
    before = {name: (folder / name).read_bytes() for name in kept}
    for name in kept:
        ended = call(*words, name, "--db", "evidence.db", cwd=folder)
        assert (2, "", 1) == (ended.code, ended.out, len(ended.err.splitlines())), name
        assert ended.err.startswith(f"qualify: {words[-1]} {name}: "), ended.err
        assert before == {each: (folder / each).read_bytes() for each in kept}
    (folder / "own").touch()
    for _ in range(2):
        assert 0 == call(*words, "own", "--db", "evidence.db", cwd=folder).code
        assert (folder / "own").read_bytes().startswith(begins or b"{")


def test_a_name_of_two_lines_is_printed_in_one(folder: Path) -> None:
    """What follows a line break in the path of an output looks like no line of qualify's."""
    runs = [stored(folder, Measured(evidence=replace(make_evidence(), timing=make_timing(us)))) for us in (70.0, 71.0)]
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    written = {
        "a\nQUALIFIED.csv": ("wrote", "history", "--matrix", "serving", "--db", "evidence.db", "--csv"),
        "a\nQUALIFIED.yaml": ("wrote", "model", "config.json", "--matrix"),
        "a\nQUALIFIED": ("wrote", "init", "--model", "qwen3-0.6b", "--yes"),
        "b\nQUALIFIED": ("report:", "diff", *runs, "--db", "evidence.db", "--out"),
    }
    for name, (says, *words) in written.items():
        ended = call(*words, name, cwd=folder)
        assert (0, True) == (ended.code, (folder / name).exists()), ended.err
        assert f"{says} {name.replace(chr(10), ' ')}" in ended.err + ended.out
        assert not [line for line in (ended.err + ended.out).splitlines() if line.startswith("QUALIFIED")]


@pytest.mark.parametrize("words", [words for words, _ in WRITERS.values() if words[0] != "gate"], ids=str)
def test_a_dash_is_no_file(folder: Path, words: tuple[str, ...]) -> None:
    """Other programs take it for stdout; a file of that name would be hard to remove."""
    stored(folder)
    ended = call(*words, "-", "--db", "evidence.db", cwd=folder)
    assert (2, "") == (ended.code, ended.out)
    assert ended.err.startswith(f"qualify: {words[-1]} -: would be a file of that name. Give a file, such as "), (
        ended.err
    )
    assert not (folder / "-").exists()


def test_a_file_is_no_folder_for_otava(folder: Path) -> None:
    """It stays as it is, and the message says so instead of an error number."""
    (folder / "notes").write_text("of somebody")
    ended = call("history", "--matrix", "serving", "--otava", "notes", "--db", "evidence.db", cwd=folder)
    assert (2, "of somebody") == (ended.code, (folder / "notes").read_text())
    assert "qualify: --otava notes: is a file. Give a folder, which need not exist.\n" == ended.err
    stored(folder, Measured(evidence=replace(make_evidence(), timing=make_timing(70.0))))
    ended = call("history", "--matrix", "serving", "--otava", "x" * 5000, "--db", "evidence.db", cwd=folder)
    assert (4, True) == (ended.code, ": the history cannot be written: File name too long" in ended.err), ended.err


def github(folder: Path) -> dict[str, str]:
    """The variables that GitHub's runner sets."""
    (folder / "summary.md").write_text("# before\n")
    (folder / "output").write_text("mine=1\n")
    return environment(
        GITHUB_STEP_SUMMARY=str(folder / "summary.md"),
        GITHUB_OUTPUT=str(folder / "output"),
        GITHUB_WORKSPACE=str(folder),
    )


def test_github_gets_annotations_summary_and_outputs(folder: Path) -> None:
    """What the runner reads is written beside the files; what was there before stays."""
    stored(folder, failing)
    ended = gate(folder, "--github", "--markdown", "gate.md", env=github(folder))
    assert 1 == ended.code
    assert ended.out.startswith("::error file=serving.yaml,title=qualify serving::serving: not qualified (")
    assert "# before\n" + (folder / "gate.md").read_text() == (folder / "summary.md").read_text()
    assert "mine=1\nverdict=FAIL\nexit-code=1\n" == (folder / "output").read_text()
    plain = gate(folder, "--github")
    assert (1, ended.out.splitlines()[0].replace("file=", f"file={folder}/")) == (plain.code, plain.out.splitlines()[0])


def test_github_is_told_why_there_is_no_verdict(folder: Path) -> None:
    """The error is an annotation; the outputs hold its exit code, and no verdict. So where the statement is missing."""
    stored(folder)
    ended = gate(folder, "--github", "--matrix", "smoke", env=github(folder))
    assert (5, "::error title=qualify gate::no run of smoke") == (ended.code, ended.out[:43])
    assert "mine=1\nverdict=\nexit-code=5\n" == (folder / "output").read_text()
    keyless = gate(folder, "--github", "--require-signed-by", "no-keys", env=github(folder))
    assert (2, "::error title=qualify gate::no-keys: the key cannot be read") == (keyless.code, keyless.out[:59])
    assert "mine=1\nverdict=\nexit-code=2\n" == (folder / "output").read_text()
    stated = gate(folder, "--github", "--statement", "s.json", env=github(folder))
    assert (5, "mine=1\nverdict=\nexit-code=5\n") == (stated.code, (folder / "output").read_text())
    gone = environment(GITHUB_OUTPUT=str(folder / "no" / "output"))
    missing = gate(folder, "--github", env=gone)
    assert 4 == missing.code
    assert "GITHUB_OUTPUT=" in missing.err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--matrx", "smoke"], "No such option: --matrx"),
        (["--level", "none"], "Invalid value for '--level': 'none' is not one of"),
        (["--run"], "Option '--run' requires an argument"),
        (["latest"], "Got unexpected extra argument"),
        (["--max-age", ""], "--max-age is empty: the variable that it comes from is probably not set"),
        (["--cards", "nowhere"], "--cards nowhere: no such folder"),
        (["--format", "text"], "--github and --format text: both print to stdout"),
        (["--junit", "gate.xml", "--sarif", "gate.xml"], "--junit and --sarif: both name gate.xml"),
        (["--matrix", "nowhere.yaml"], "nowhere.yaml:"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_github_is_told_that_a_command_line_is_refused(folder: Path, more: list[str], told: str) -> None:
    """Whatever refuses it, the engineer sees why beside the red step, once, and a later step reads the exit code."""
    stored(folder)
    ended = gate(folder, "--github", *more, env=github(folder))
    assert 2 == ended.code
    (line,) = ended.out.splitlines()
    assert line.startswith(f"::error title=qualify gate::{told}"), line
    assert "mine=1\nverdict=\nexit-code=2\n" == (folder / "output").read_text()


def test_github_is_told_of_no_other_command_and_never_in_an_object(folder: Path) -> None:
    """A word of another command is none of the gate's; with --json stdout is one object, for a program."""
    other = call("report", "nowhere", "--github", cwd=folder, env=github(folder))
    assert (2, "") == (other.code, other.out)
    data = gate(folder, "--github", "--json", "--level", "none", env=github(folder)).data
    assert ("qualify.error/1", 2) == (data["schema"], data["exit_code"])
    assert "mine=1\n" == (folder / "output").read_text()


def test_a_pipe_stays_a_pipe_and_a_link_a_link(tmp_path: Path) -> None:
    """What a user names is never replaced by another kind of file."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "deep" / "target"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_output(pipe, "text")
    assert (b"text", True) == (os.read(reader, 10), stat.S_ISFIFO(pipe.stat().st_mode))
    os.close(reader)
    link.symlink_to(target)
    write_output(link, "one")
    write_output(link, "two")
    assert ("two", True) == (target.read_text(), link.is_symlink())
    for path in (pipe, link, tmp_path / "absent"):
        remove_output(path)
    assert (True, True, False) == (pipe.exists(), link.is_symlink(), target.exists())


def test_json_survives_every_control_character(folder: Path) -> None:
    """A device whose name holds a delete character: stdout and file are JSON, and no terminal sees it."""
    from dataclasses import replace

    stack = make_stack()
    stored(folder, stack=replace(stack, device=replace(stack.device, name="del\x7f nel\x85")))
    printed = gate(folder, "--format", "json", "--json", "a.json")
    assert "del\x7f nel\x85" == printed.data["device"] == json.loads((folder / "a.json").read_text())["device"]
    assert "\x7f" not in printed.out
