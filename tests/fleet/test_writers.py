"""One process writes a run: a second one says who does, a killed one is succeeded, a stopped one writes no more."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from cli_process import Begun, write_cards, write_matrix
from outages import Outage
from stored_runs import make_run

from qualify.facts.outcome import NotRun
from qualify.facts.run import Writer
from qualify.fleet import writers
from qualify.store.store import Store

IMPATIENT = Path(__file__).with_name("impatient.py")
STOPPED_IN_A_WRITE = Path(__file__).with_name("stopped_in_a_write.py")
LENGTHS = tuple(range(8, 14))


class Process:
    """A `qualify` in a process group of its own, with its output in files."""

    def __init__(self, folder: Path, *arguments: object, script: Path | None = None) -> None:
        self.process = Begun(
            *arguments,
            cwd=folder,
            script=script,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def signal(self, number: signal.Signals) -> None:
        """To it and to its workers."""
        os.killpg(self.process.pid, number)

    def wait_until_stopped(self, within_s: float = 120) -> None:
        """Until none of its threads runs on: a signal reaches them one after another."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            threads = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
            if {"T"} == {thread.read_text().rpartition(")")[2].split()[0] for thread in threads}:
                return
            time.sleep(0.01)
        raise AssertionError(f"process {self.process.pid} was not stopped within {within_s:g} s")

    def stop_between_writes(self, address: str) -> None:
        """Stop it where it holds no lock of an SQLite file: nobody else could write as long as it is stopped."""
        while True:
            self.signal(signal.SIGSTOP)
            self.wait_until_stopped()
            if "://" in address or not is_locked(address):
                return
            self.signal(signal.SIGCONT)
            time.sleep(0.01)

    def end(self) -> tuple[int, str]:
        """Waits; exit code and stderr."""
        _, err = self.process.communicate(timeout=240)
        assert "Traceback" not in err, err
        return self.process.returncode, err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with six cases of half a second."""
    write_cards(tmp_path / "cards", "slow")
    write_matrix(tmp_path / "chain.yaml", "slow", seqlens=LENGTHS, timeout_s=240)
    return tmp_path


@pytest.fixture
def started(folder: Path, address: str) -> Iterator[Callable[..., Process]]:
    """Starts `qualify run` on that folder and store; whatever is left at the end is killed."""
    with ExitStack() as ending:

        def start(*options: object, script: Path | None = None) -> Process:
            begin = ("run", "chain.yaml", "--cards", "cards", "--db", address, "--fresh")
            made = Process(folder, *begin, *options, script=script)
            ending.callback(lambda: made.process.poll() is None and made.signal(signal.SIGKILL))
            return made

        yield start


def wait_for(address: str, done: int, within_s: float = 120) -> str:
    """Until so many cases of the newest run have an outcome; the run's id."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        with Store.open(address) as store:
            found = store.runs(limit=1)
            if found and len(store.done(found[0].id)) >= done:
                return found[0].id
        time.sleep(0.1)
    raise AssertionError(f"not {done} outcomes within {within_s:g} s")


def is_locked(file: str) -> bool:
    """Whether a process is in the middle of a write into that SQLite file."""
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
    return False


def wait_for_holder(address: str, run_id: str, holder: Process, within_s: float = 120) -> None:
    """Until that process has claimed the run; one that ends without it says why."""
    pid, until = holder.process.pid, time.monotonic() + within_s
    with Store.open(address) as store:
        while time.monotonic() < until:
            ended = holder.process.poll() is not None
            found = store.writer(run_id)
            if found is not None and found[1].pid == pid:
                return
            assert not ended, holder.end()
            time.sleep(0.1)
    raise AssertionError(f"process {pid} has not taken the run within {within_s:g} s: {found}")


def outcomes(address: str, run_id: str, folder: Path) -> Counter[str]:
    """How many outcomes were stored for each case of the run."""
    with Store.open(address) as store:
        file = folder / "moved.jsonl.gz"
        moved = store.export_run(run_id, file)
        assert [] == [record for record in store.records(run_id) if isinstance(record.outcome, NotRun)]
    return Counter({"cases": moved.cases, "outcomes": moved.outcomes})


ONCE = Counter({"cases": len(LENGTHS), "outcomes": len(LENGTHS)})


def test_a_run_that_goes_on_is_not_resumed(started: Callable[..., Process], address: str, folder: Path) -> None:
    """A --resume of a run whose process still works says who that is, and runs no case."""
    hold = folder / "cards" / "hold"
    hold.touch()
    first = started()
    run_id = wait_for(address, 0)
    wait_for_holder(address, run_id, first)
    code, err = started("--resume", run_id).end()
    hold.unlink()
    assert 4 == code
    assert f"run {run_id} is being run by process {first.process.pid} on {socket.gethostname()} since 20" in err
    assert "Go on with" not in err
    assert 0 == first.end()[0]
    assert outcomes(address, run_id, folder) == ONCE


def test_one_of_two_resumes_works(started: Callable[..., Process], address: str, folder: Path) -> None:
    """Of two resumes at once one goes on, the other names it and ends with exit 4; no case is run twice."""
    first = started()
    run_id = wait_for(address, 1)
    first.signal(signal.SIGKILL)
    first.process.communicate()
    both = [started("--resume", run_id) for _ in range(2)]
    ended = [process.end() for process in both]
    assert [0, 4] == sorted(code for code, _ in ended), ended
    loser = next(number for number, (code, _) in enumerate(ended) if code)
    assert f"is being run by process {both[1 - loser].process.pid} on " in ended[loser][1]
    assert outcomes(address, run_id, folder) == ONCE


def test_a_stopped_process_writes_no_more(started: Callable[..., Process], address: str, folder: Path) -> None:
    """A process that was stopped beyond its lease finds its run taken over, says so, and leaves the run alone."""
    first = started(script=IMPATIENT)
    run_id = wait_for(address, 1)
    first.stop_between_writes(address)
    time.sleep(2)
    second = started("--resume", run_id, script=IMPATIENT)
    wait_for_holder(address, run_id, second)
    first.signal(signal.SIGCONT)
    code, err = first.end()
    assert 4 == code
    assert f"run {run_id} was taken over by process {second.process.pid} on " in err
    assert "Go on with" not in err
    assert 0 == second.end()[0]
    assert outcomes(address, run_id, folder) == ONCE


def test_a_process_that_is_stopped_in_a_write(started: Callable[..., Process], address: str, folder: Path) -> None:
    """PostgreSQL lets its successor write. SQLite does not: the other one says so in time, and the first goes on."""
    first = started(script=STOPPED_IN_A_WRITE)
    run_id = wait_for(address, 0)
    first.wait_until_stopped()
    time.sleep(2)
    second = started("--resume", run_id, script=IMPATIENT)
    code, err = second.end()
    first.signal(signal.SIGCONT)
    locked = "://" not in address
    assert (code, first.end()[0]) == ((4, 0) if locked else (0, 4)), err
    named = rf"Process {first.process.pid} \(.+\) holds the lock and is stopped .*: let it go on \(kill -CONT \d+\)"
    assert locked == bool(re.search(named, err)), err
    assert outcomes(address, run_id, folder) == ONCE


def test_ctrl_c_while_the_store_refuses(started: Callable[..., Process], address: str, folder: Path) -> None:
    """The run ends at once with exit 130 and says what is not stored; the run that goes on makes that good."""
    first = started()
    run_id = wait_for(address, 1)
    with Outage(address) as outage:
        outage.begin()
        first.signal(signal.SIGINT)
        code, err = first.end()
    assert 130 == code
    said = r"interrupted\. (\d+ outcomes? could not be stored and|The run could not be marked as interrupted: the data)"
    assert re.search(said, err), err
    assert "Go on with: qualify run" in err
    assert "What was measured is stored" not in err
    assert 0 == started("--resume", run_id).end()[0]
    assert outcomes(address, run_id, folder) == ONCE


def test_a_run_that_was_claimed_ahead_is_told_of(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer was killed on another machine whose clock ran a day ahead: the wait for it has a reason."""
    run = make_run()
    store.begin(run)
    elsewhere = Writer(host="n9", pid=1, since=run.started_at, machine="another", born=1)
    store.claim(run.id, elsewhere, 86_400.0, None)
    monkeypatch.setattr(writers, "LEASE_S", 0.05)
    told = list[str]()
    with writers.claimed(store, run.id, told.append):
        pass
    assert [told[0]] == told
    assert told[0].startswith(
        f"process 1 on n9 since {run.started_at:%Y-%m-%d %H:%M:%S} UTC holds what this process needs"
    )
    assert "UTC, as a wrong clock dated it: waiting for a sign of life of it, at most 0.05 s" in told[0]
