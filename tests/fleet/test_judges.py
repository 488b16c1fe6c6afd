"""Judges begin before there is anything to judge, and none is left where nothing comes of it."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from cli_process import Begun, descendants, gone, write_cards, write_matrix

from qualify.errors import DeviceError
from qualify.facts.outcome import Measured
from qualify.fleet import judges as module
from qualify.fleet.judges import Judges, begin_judges, settings_of
from qualify.fleet.request import Asked, Request, make_request
from qualify.run.process.child import Child
from qualify.run.process.repeats import Task
from qualify.run.process.supervisor import Done, Started, Supervisor


def begun(*arguments: object, cwd: Path) -> Begun:
    """A command that starts its judges: one that forks them has a process for that from its start."""
    return Begun(*arguments, cwd=cwd, forks=False, stderr=subprocess.DEVNULL)


def is_stored(path: Path) -> bool:
    """Whether a run stands in this store."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return bool(connection.execute("SELECT 1 FROM runs").fetchone())
    return False


@pytest.fixture
def request_of_one(tmp_path: Path) -> Request:
    """One tiny case on the CPU."""
    cards = write_cards(tmp_path / "cards", "correct")
    matrix = write_matrix(tmp_path / "m.yaml", "correct", seqlens=(8,))
    return make_request(Asked(matrix=str(matrix), cards=(cards,), device="cpu"))


@pytest.mark.parametrize(
    "words",
    [
        ("run", "m.yaml", "--cards", "cards"),
        ("check", "qwen3-8b", "--engine", "transformers", "--backend", "sdpa"),
    ],
    ids=["run", "check"],
)
def test_the_judge_begins_before_the_store_answers(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Importing torch takes seconds, and so may a database. Ctrl-C meanwhile ends the judge, too."""
    write_cards(tmp_path / "cards", "correct")
    write_matrix(tmp_path / "m.yaml", "correct", seqlens=(8,))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        db = f"postgresql://somebody@127.0.0.1:{silent.getsockname()[1]}/evidence"
        with begun(*words, "--device", "cpu", "--db", db, cwd=tmp_path) as running:
            asking, _ = silent.accept()
            with asking:
                started = descendants(running.pid)
                assert started
                running.send_signal(signal.SIGINT)
                assert 130 == running.wait(timeout=60)
    assert gone(started)


def test_one_that_goes_on_with_a_run_starts_nothing_before_it_has_it(tmp_path: Path) -> None:
    """Whoever has the run measures times on the same device."""
    write_cards(tmp_path / "cards", "correct", "slow")
    write_matrix(tmp_path / "m.yaml", "correct", "slow", seqlens=tuple(range(8, 20)))
    begin = ("run", "m.yaml", "--cards", "cards", "--device", "cpu", "--db", "evidence.db", "--quiet")
    first = Begun(*begin, cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not is_stored(tmp_path / "evidence.db"):
        assert first.poll() is None
        time.sleep(0.02)
    with begun(*begin, "--resume", "latest", cwd=tmp_path) as second:
        started: list[int] = []
        while second.poll() is None:
            started += descendants(second.pid)
            time.sleep(0.02)
    first.kill()
    first.wait(timeout=60)
    assert 4 == second.returncode
    assert not started


def test_the_judge_that_began_is_the_one_that_judges(request_of_one: Request, forked: None) -> None:
    """No other starts beside it, and whoever took it ends it."""
    with begin_judges(request_of_one) as judges:
        (first,) = judges._begun.values()
        tasks = [Task(case=case) for case in request_of_one.plan.cases]
        events = list(Supervisor(judges.settings, tasks, begun=lambda: judges.take("")).events())
        assert first.process.returncode is not None
        assert judges.take("") is None
    assert 1 == sum(isinstance(event, Started) for event in events)
    (done,) = [event for event in events if isinstance(event, Done)]
    assert isinstance(done.record.outcome, Measured)


def test_whoever_nobody_takes_is_ended(request_of_one: Request, forked: None) -> None:
    """One for each card, with all that they started."""
    cards = ("CPU-here-0", "CPU-here-1")
    with Judges(settings_of(request_of_one), cards) as judges:
        pids = [child.process.pid for child in judges._begun.values()]
        assert 2 == len({*pids})
    assert gone(pids)
    assert [None, None] == [judges.take(card) for card in cards]


def test_one_that_died_meanwhile_is_what_a_run_says_of_it(request_of_one: Request, forked: None) -> None:
    """Its death is told like that of any judge at its start, and nothing hangs."""
    with begin_judges(request_of_one) as judges:
        (first,) = judges._begun.values()
        os.kill(first.process.pid, signal.SIGKILL)
        supervisor = Supervisor(judges.settings, [], begun=lambda: judges.take(""))
        with pytest.raises(DeviceError):
            list(supervisor._start())


def test_nothing_begins_while_a_library_compiles(request_of_one: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host would load what is not there yet; nor where nothing is to run."""

    def never(settings: object) -> Child:
        raise AssertionError("a judge begins")

    monkeypatch.setattr(module, "begin_judge", never)
    (name,) = request_of_one.kernels.keys() & {case.kernel for case in request_of_one.plan.cases}
    known = request_of_one.kernels[name]
    compiled = {name: replace(known, card=known.card.model_copy(update={"jit": "kernels"}))}
    with begin_judges(replace(request_of_one, kernels=compiled)) as judges:
        assert judges.take("") is None
    nothing = replace(request_of_one, plan=replace(request_of_one.plan, cases=()))
    with begin_judges(nothing) as judges:
        assert judges.take("") is None
    with pytest.raises(AssertionError, match="a judge begins"):
        begin_judges(request_of_one)
