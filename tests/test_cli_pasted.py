"""More commands that qualify prints, each pasted into a shell as printed, among names with spaces, <>, quotes and $."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_process import PRINTED, Ended, advice, call, environment, paste, write_cards, write_matrix
from stored_runs import IDS, MATRIX, NOW, PASSED, WRONG, make_stack, store_run

from qualify.cli.run import resumed
from qualify.store.address import parse
from qualify.store.database import Database
from qualify.store.schema import upgrade
from qualify.store.store import Store
from qualify.text import shell_line

PLACE = """it's <my> "place" $HOME;#"""
"""a folder for everything"""
FILE = """it's <mine> & "x".yaml"""
DB = "my evidence's.db"


@pytest.fixture
def place(tmp_path: Path, empty_sqlite: str) -> Path:
    """A folder with such a name, and a store in it."""
    folder = tmp_path / PLACE
    folder.mkdir()
    shutil.move(empty_sqlite, folder / DB)
    return folder


def stored(place: Path, text: str = MATRIX, **changes: Any) -> str:
    """A run of an hour ago of that matrix, in the file with the odd name."""
    (place / FILE).write_text(text)
    with Store.open(str(place / DB)) as store:
        age = NOW - datetime.now(UTC) + timedelta(hours=changes.pop("hours", 1))
        return store_run(store, place / FILE, age=age, **changes).id


def ask(place: Path, *words: str) -> Ended:
    """A command on that store."""
    return call(*words, "--db", DB, cwd=place)


def accept(place: Path, run: str) -> None:
    """The run becomes the baseline."""
    ended = ask(place, "baseline", "accept", run, "--by", "jane", "--reason", "release 7")
    assert 0 == ended.code, ended.err


def printed(text: str) -> str:
    """The one command in a message."""
    (line,) = [found[0] for line in text.splitlines() if (found := PRINTED.search(line))]
    return line


def pasted(line: str, place: Path, code: int = 0) -> Ended:
    """What became of the command; it looked into the store that was named."""
    ended = paste(line, place, USER="jane o'neill")
    assert code == ended.code, (line, ended.out, ended.err)
    assert not (place / ".qualify").exists()
    return ended


def test_less_is_accepted_by_the_command_that_the_gate_prints(place: Path) -> None:
    """In the name of whoever pastes it; the next gate is green."""
    accept(place, stored(place, hours=2))
    less = stored(place, MATRIX.replace("      - 9\n", ""))
    gate = ask(place, "gate", "--run", less)
    assert 1 == gate.code
    (line,) = advice(gate.out)
    done = pasted(line, place).out
    assert "jane o'neill" in done
    assert "WEAKER       shape b1.q9.k9: then 2 cases, now none" in done
    assert 0 == ask(place, "gate", "--run", less).code


def test_a_matrix_that_shrank_runs_and_is_accepted(place: Path) -> None:
    """Both commands, one after the other, on kernels that run here."""
    (place / FILE).write_text(MATRIX)
    first = ask(place, "run", FILE)
    assert 0 == first.code, first.err
    accept(place, "latest")
    (place / FILE).write_text(MATRIX.replace("      - 9\n", ""))
    gate = ask(place, "gate", "--matrix", FILE)
    assert 1 == gate.code
    for line in advice(gate.out):
        again = pasted(line, place, code=1 if " run " in line else 0)
    assert "current" in again.out
    assert 0 == ask(place, "gate", "--matrix", FILE).code
    note = next(line for line in ask(place, "gate").out.splitlines() if "To run everything: " in line)
    assert 0 == pasted(printed(note), place).code
    data = json.loads(next((place / "out").glob("*/report.json")).read_text())
    assert 0 == paste(data["parameters"]["repeat"], place).code  # a page travels: it does not say where the evidence is


def test_a_run_of_each_card_is_reported_by_the_command_that_is_printed(place: Path) -> None:
    """Whoever pastes it names the run; the store is named already."""
    (place / FILE).write_text(MATRIX)
    ended = ask(place, "run", FILE, "--device", "cpu:1", "--spread", "repeat")
    assert 0 == ended.code, ended.err
    (line,) = [line for line in ended.err.splitlines() if " report RUN" in line]
    pasted(printed(line).replace("RUN", "latest"), place)


def test_a_run_goes_on_by_the_command_that_the_gate_prints(place: Path) -> None:
    """A run that was interrupted, also one with an environment variable's store."""
    (place / FILE).write_text(MATRIX)
    assert 0 == ask(place, "run", FILE).code
    with Store.open(str(place / DB)) as store:
        run = store.resolve("latest")
        store.finish(run, "interrupted", datetime.now(UTC))
    gate = ask(place, "gate")
    assert 5 == gate.code
    line = next(line for line in advice(gate.out) if "--resume" in line)
    pasted(line, place)
    assert 0 == ask(place, "gate").code


def test_times_are_looked_at_and_accepted(place: Path) -> None:
    """With `policy.drift.times: fail`: diff, and accept."""
    from dataclasses import replace

    from builders import make_evidence, make_timing

    from qualify.facts.outcome import Measured

    def timed(us: float) -> Measured:
        return Measured(evidence=replace(make_evidence(), timing=make_timing(us)))

    text = MATRIX + "policy: {drift: {times: fail}}\n"
    accept(place, stored(place, text, hours=2, outcome=timed(100)))
    stored(place, text, outcome=timed(300))
    gate = ask(place, "gate")
    assert 1 == gate.code
    diff, again, accepts = advice(gate.out)
    assert [FILE, "--fresh"] == [Path(word).name for word in shlex.split(again) if word.endswith(("yaml", "fresh"))]
    assert "slower" in pasted(diff, place).out
    pasted(accepts, place)
    assert 0 == ask(place, "gate").code


def failing(case: Any) -> Any:
    """The first case fails."""
    return WRONG if case.id == IDS[0] else PASSED


def test_a_bisection_prints_what_can_be_run(place: Path) -> None:
    """The run on the stack to test, the bisection again, and the plan where --select matches nothing."""
    before = stored(place, hours=2)
    after = stored(place, outcome=failing, stack=make_stack(torch="2.12.0", vllm="0.24"))
    bisect = ask(place, "bisect", before, after, "--plan")
    lines = [found[0] for line in bisect.out.splitlines() if (found := PRINTED.search(line))]
    assert lines, bisect.out + bisect.err
    *runs, again = lines
    assert 1 <= len(runs)
    pasted(runs[0], place)
    pasted(again, place)
    nothing = ask(place, "bisect", before, after, "--plan", "--select", "none<>")
    assert 3 == nothing.code
    assert IDS[0] in pasted(printed(nothing.err), place).out


def test_where_nobody_accepted_a_baseline(place: Path) -> None:
    """`gate --against baseline` and `baseline show` print how one is accepted; a diff with itself names another run."""
    first = stored(place, hours=2)
    stored(place)
    shown = ask(place, "baseline", "show", "serving")
    assert 5 == shown.code
    gate = ask(place, "gate", "--run", first, "--against", "baseline")
    assert 5 == gate.code
    pasted(printed(gate.err), place)
    pasted(printed(shown.err), place)
    same = ask(place, "diff", "latest")
    assert 2 == same.code
    pasted(printed(same.err), place)


def test_a_part_is_judged_whole(place: Path) -> None:
    """The gate of a narrowed run, and the statement that is refused of it."""
    stored(place, hours=2)
    run = stored(place, select="*k8*")
    gate = ask(place, "gate", "--run", run)
    pasted(advice(gate.out)[0], place)
    refused = ask(place, "gate", "--run", run, "--format", "in-toto")
    assert 5 == refused.code
    ended = paste(printed(refused.err), place)
    assert (
        "has nothing that a statement could name" in ended.err
    )  # the stack of a test has none; the command itself is right


def test_the_whole_of_a_cut_summary(place: Path) -> None:
    """What does not fit into a summary is shown by a command that finds the store."""
    from qualify.facts.typed import Typed
    from qualify.report.formats.markdown import _limited

    run = stored(place)
    text = _limited([], ["x" * 2_000_000], Typed(db=DB).command("report", run))
    import html

    line = html.unescape(text.splitlines()[-1]).partition("<code>")[2].removesuffix("</code>")
    pasted(line, place)


def test_a_model_is_planned_next(place: Path) -> None:
    """`qualify model` names the matrix that it wrote."""
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "vocab_size": 8,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip
    (place / "config.json").write_text(json.dumps(config))
    made = call("model", "config.json", "--name", "mine", "--matrix", "my 'own'.yaml", cwd=place)
    assert 0 == made.code, made.err
    ended = paste(printed(made.err), place)
    assert 0 == ended.code, ended.err


def test_an_older_store_is_brought_forward(place: Path) -> None:
    """A program that may not migrate prints the command that does."""
    old = Database(parse(str(place / "old's.db")), busy_timeout_s=1)
    with old.migrating() as connection:
        upgrade(connection, "0011")
    old.close()
    web = call("web", "--db", "old's.db", "--port", "0", cwd=place)
    assert 4 == web.code, web.out
    pasted(printed(web.err), place)
    with Store.open(str(place / "old's.db"), create=False, migrate=False) as store:
        assert [] == store.runs()


def test_an_environment_without_torch_is_examined(place: Path, tmp_path: Path) -> None:
    """The command that looks at it has its name and its interpreter."""
    bare = tmp_path / "a bare one's"
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(bare)], check=True)
    (place / FILE).write_text(MATRIX)
    words = ("plan", FILE, "--here", "--environment", f"bare={bare}/bin/python")
    planned = call(*words, cwd=place)
    ran = ask(place, "run", *words[1:2], *words[3:])
    message = ran.err if "doctor" in ran.err else planned.err
    ended = paste(printed(message), place)
    assert "bare" in ended.out


def test_a_canary_prints_its_own_commands(tmp_path: Path) -> None:
    """`explain` how it fires, the fire how its run becomes the baseline, `list` and `health` how the service starts."""
    place = tmp_path / PLACE
    place.mkdir()
    cards = write_cards(place / "my cards'", "correct")
    write_matrix(cards / "tiny.yaml", "correct")
    (cards / "by-hand.yaml").write_text("canary: by-hand\nmatrix: ./tiny.yaml\nlevel: smoke\ndevice: cpu\n")
    options = ("--cards", "my cards'", "--db", DB)
    listed = call("canary", "list", *options, cwd=place)
    explained = call("canary", "explain", "by-hand", *options, cwd=place)
    fire = next(line for line in explained.out.splitlines() if "by hand only: " in line).partition("only: ")[2]
    fired = pasted(fire, place, code=5)
    pasted(printed(fired.out), place)
    assert "promote" in pasted(fire, place).out
    serve = next(line for line in listed.out.splitlines() if "none yet: " in line).partition("none yet: ")[2]
    healthy = ("canary", "health", "--db", DB)
    ill = call(*healthy, cwd=place)
    assert 4 == ill.code
    assert shlex.split(serve)[-2:] == shlex.split(printed(ill.err))[-2:] == ["--db", DB]
    with serving(serve, place):
        assert 0 == call(*healthy, cwd=place).code


@contextmanager
def serving(line: str, place: Path) -> Iterator[None]:
    """The service that a printed command starts, once it leads; a real process, which signals reach."""
    program = place / "real" / "qualify"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m qualify "$@"\n')
    program.chmod(0o755)
    env = environment()
    env["PATH"] = f"{program.parent}:{env['PATH']}"
    words = ["/bin/sh", "-c", f"exec {line}"]
    service = subprocess.Popen(words, cwd=place, env=env, stderr=subprocess.PIPE, text=True)
    assert service.stderr is not None
    try:
        assert any("leads with epoch" in told for told in service.stderr), "it ended"
        yield
    finally:
        service.terminate()
        service.communicate(timeout=60)


def test_a_matrix_whose_name_begins_with_a_dash_runs_as_printed(place: Path) -> None:
    """Its path is no option: in the command that makes more evidence, and in the one that goes on after two dashes."""
    write_matrix(place / "m.yaml").rename(place / "-m.yaml")
    begun = ["qualify", "run", "--db", DB, "--", "-m.yaml"]
    assert 0 == call(*begun[1:], cwd=place).code
    low = ask(place, "gate", "--level", "full")
    assert 5 == low.code, low.out
    pasted(printed(low.out), place)
    assert "is complete: nothing is left to run" in pasted(shell_line(resumed(begun, "latest")), place).err
