"""Ctrl-C, SIGTERM and SIGKILL at any moment: what was measured is stored, nothing survives, and the run goes on."""

from __future__ import annotations

import os
import pty
import random
import re
import select
import shlex
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cli_process import Begun, call, command, descendants, environment, gone, write_cards, write_matrix

from qualify.facts.outcome import ended_at_of, ran_code
from qualify.store.store import Store

LENGTHS = tuple(range(8, 24))
IMPATIENT = Path(__file__).with_name("impatient.py")
COUNT = re.compile(rb"(\d+)/(\d+) ")


class Running:
    """A `qualify run` in a process group of its own, with a terminal for its stderr."""

    def __init__(self, folder: Path, *arguments: object, started: bool = False, script: Path | None = None) -> None:
        """Begin it; ``started`` as in :func:`cli_process.call`, ``script`` as in :class:`cli_process.Begun`."""
        # The background job of a shell ignores Ctrl-C, and so would its children.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.terminal, end = pty.openpty()
        self.out = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in end()
        """its stdout; a pipe that nobody empties would hold it up"""
        how: dict[str, Any] = {
            "cwd": folder,
            "env": environment(TERM="xterm-256color", NO_COLOR="1", COLUMNS="200"),
            "stdin": subprocess.DEVNULL,
            "stdout": self.out,
            "stderr": end,
            "start_new_session": True,
        }
        self.process = (
            subprocess.Popen(command(*arguments), **how) if started else Begun(*arguments, script=script, **how)
        )
        os.close(end)
        self.text = b""
        self.reported = 0
        """cases that the display called done"""

    def watch(self, *, done: int | None = None, seconds: float = 120, mark: bytes | None = None) -> None:
        """Reads the display until so many cases are done, or a text appears, or the time is over, or it ends."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if select.select([self.terminal], [], [], 0.02)[0]:
                try:
                    data = os.read(self.terminal, 1 << 16)
                except OSError:  # the last one at the other end has gone
                    return
                self.text += data
                self.reported = max([self.reported, *(int(match[1]) for match in COUNT.finditer(data))])
            if done is not None and self.reported >= done:
                return
            if mark is not None and mark in self.text:
                return

    def workers(self) -> list[int]:
        """Process ids of what it started: judges and their hosts."""
        return descendants(self.process.pid)

    def end(self) -> tuple[int, str]:
        """Waits; exit code and stdout."""
        self.watch()
        code = self.process.wait(timeout=60)
        os.close(self.terminal)
        with self.out:
            self.out.seek(0)
            return code, self.out.read()

    @property
    def message(self) -> str:
        """What stood on the terminal, without cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text.decode())


@dataclass
class Story:
    """What happened to one run that was ended four times before it could complete."""

    run: str = ""
    codes: list[int] = field(default_factory=list)
    outs: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    raw: str = ""
    survivors: list[int] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    integrity: list[str] = field(default_factory=list)


def stored(path: Path) -> tuple[str, int]:
    """The result of the integrity check, and the number of cases with an outcome that ran."""
    with closing(sqlite3.connect(path)) as connection:
        (intact,) = connection.execute("PRAGMA integrity_check").fetchone()
        (count,) = connection.execute(
            "SELECT count(DISTINCT case_key) FROM outcomes WHERE outcome NOT IN ('refused', 'not_run')"
        ).fetchone()
    return intact, count


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a matrix of some twenty cases, most of them slow and two wrong."""
    folder = tmp_path_factory.mktemp("interrupts")
    write_cards(folder / "cards", "slow", "raises")
    few = {"tiled-torch": {8, 9, 20, 23}, "raises": {9, 20}}
    exclude = tuple(
        f"*/b1.q{length}.*/{kernel}" for kernel, kept in few.items() for length in LENGTHS if length not in kept
    )
    write_matrix(folder / "chain.yaml", "tiled-torch", "slow", "raises", seqlens=LENGTHS, exclude=exclude)
    return folder


BEGIN = ("run", "chain.yaml", "--cards", "cards", "--db", "evidence.db")


@pytest.fixture(scope="module")
def story(folder: Path) -> Story:
    """One run: Ctrl-C, three SIGKILLs at random moments, SIGTERM, and at last the end."""
    story = Story()
    chance = random.Random()
    first = Running(folder, *BEGIN, "--select", "*/fp32/*", "--level", "smoke")
    first.watch(done=4)
    _interrupt(story, first, signal.SIGINT)
    matched = re.search(r"run (\S+): ", first.message)
    assert matched, first.message
    story.run = matched[1]
    for wait_s, mark in ((1.5, b"process"), (1.5, b"prefill slow"), (2.5, b"prefill slow")):
        again = Running(folder, *BEGIN, "--resume", story.run)
        again.watch(mark=mark)
        again.watch(seconds=chance.uniform(0, wait_s))
        _kill(story, again, folder)
    third = Running(folder, *BEGIN, "--resume", story.run)
    third.watch(mark=b"prefill slow")
    _interrupt(story, third, signal.SIGTERM)
    last = Running(folder, *BEGIN, "--resume", story.run, "--json")
    code, out = last.end()
    story.codes.append(code)
    story.outs.append(out)
    return story


def _interrupt(story: Story, running: Running, number: signal.Signals) -> None:
    workers = running.workers()
    assert len(workers) >= 2, "a judge and a host"
    os.killpg(running.process.pid, number)
    code, out = running.end()
    story.codes.append(code)
    story.outs.append(out)
    story.messages.append(running.message)
    story.raw += running.text.decode()
    story.survivors += [] if gone(workers) else workers


def _kill(story: Story, running: Running, folder: Path) -> None:
    workers = running.workers()
    running.process.kill()
    running.end()
    story.survivors += [] if gone(workers) else workers
    intact, count = stored(folder / "evidence.db")
    story.integrity.append(intact)
    if count < running.reported:
        story.lost.append(f"{running.reported} reported, {count} stored")


def test_an_interrupt_is_exit_130(story: Story) -> None:
    """Ctrl-C and SIGTERM alike; stdout stays empty, and no traceback is shown."""
    assert [130, 130] == story.codes[:2]
    assert ["", ""] == story.outs[:2]
    assert "Traceback" not in "".join(story.messages)


def test_the_message_names_the_command_that_goes_on(story: Story) -> None:
    """It can be typed as it stands: quoted, with the run's id, and once."""
    first = ["qualify", *BEGIN, "--select", "*/fp32/*", "--level", "smoke", "--resume", story.run]
    second = ["qualify", *BEGIN, "--resume", story.run]
    for message, expected in zip(story.messages, (first, second), strict=True):
        flat = message.replace("\r\n", "\n")
        assert "qualify: interrupted. What was measured is stored. Go on with: " in flat
        assert expected == shlex.split(flat.rpartition("Go on with: ")[2])


def test_nobody_survives(story: Story) -> None:
    """The worker ends with its parent, also where that had no chance to end it."""
    assert [] == story.survivors


def test_nothing_reported_is_lost(story: Story) -> None:
    """What the display called done before SIGKILL is stored, and the file is whole."""
    assert [] == story.lost
    assert ["ok"] * 3 == story.integrity


@pytest.mark.slow
def test_nothing_reported_is_lost_at_random_moments(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """SIGKILL at any moment, from the first millisecond on: every case that was called done is stored.

    What is killed while it starts is started as users start it. Two moments by default. This shows more:
    ``pytest tests/fleet/test_interrupts.py -k random_moments --kills 100 -rP``
    """
    moments, chance, path = request.config.getoption("kills"), random.Random(), tmp_path / "kills.db"
    lengths = tuple(range(8, 160 + 12 * moments))
    write_matrix(tmp_path / "many.yaml", "tiled-torch", seqlens=lengths, dtypes=("fp32", "bf16"))
    run, before, fresh, lost, survivors = "", 0, 0, [], []
    for number in range(moments):
        words = ("run", "many.yaml", "--db", path, *(["--resume", run] if run else []))
        early = not number % 4
        running = Running(tmp_path, *words, started=early)
        if not early:
            running.watch(mark=b"tiled-torch")
        if number == moments - 1 and not fresh:
            running.watch(done=before + 1)
        running.watch(seconds=chance.uniform(0, 3))
        workers = running.workers()
        running.process.kill()
        running.end()
        survivors += [] if gone(workers) else workers
        run = begun(path)
        intact, count = stored(path)
        fresh += running.reported > before
        if intact != "ok" or count < running.reported:
            lost.append(f"{running.reported} reported, {count} stored, integrity: {intact}")
        before = count
    print(f"{moments} kills, {before} cases stored; in {fresh} the display had called new cases done; {lost=}")
    assert ([], []) == (lost, survivors)
    assert fresh


def begun(path: Path) -> str:
    """The one run of the store, which has not come to its end; empty where it was killed before it began."""
    with Store.open(str(path)) as store:
        runs = store.unfinished()
        assert len(store.runs()) == len(runs) <= 1
        return runs[0].id if runs else ""


def test_every_outcome_says_when_its_case_ended(folder: Path, story: Story) -> None:
    """Also those before a SIGKILL, which leaves no end of the run; each as it was, whoever resumed."""
    with Store.open(str(folder / "evidence.db")) as store:
        run, outcomes = store.run(story.run), store.evidence(story.run).outcomes
    ends = [ended_at_of(record.outcome) for record in outcomes if ran_code(record.outcome)]
    assert run.finished_at is not None
    assert [True] * len(ends) == [end is not None and run.started_at < end < run.finished_at for end in ends]
    assert sorted(filter(None, ends)) == ends


def test_no_case_that_passed_is_run_again(folder: Path, story: Story) -> None:
    """Every passing case has one outcome; a failing one also that of its repeat, unless nothing ran before it."""
    with closing(sqlite3.connect(folder / "evidence.db")) as connection:
        rows = connection.execute(
            "SELECT kernel, count(*) FROM outcomes JOIN cases ON key = case_key WHERE run_id = ? GROUP BY key",
            [story.run],
        ).fetchall()
    counts = Counter(rows)
    assert 2 == counts.pop(("raises", 1), 0) + counts.pop(("raises", 2), 0)
    assert {("tiled-torch", 1): 4, ("slow", 1): 16} == dict(counts)


def test_the_verdict_is_that_of_an_undisturbed_run(folder: Path, story: Story) -> None:
    """The gate sees no difference between a run that was ended five times and one that was left alone."""
    undisturbed = call(*BEGIN[:-1], "calm.db", "--json", cwd=folder)
    assert undisturbed.code == story.codes[-1] == 1
    disturbed = call("gate", "--db", "evidence.db", "--cards", "cards", "--json", cwd=folder).data
    assert essence(undisturbed.data) == essence(disturbed)


def essence(data: Any) -> Any:
    """The JSON of a gate without what differs between any two runs: ids, numbers, times."""
    cases = [(item["id"], item["outcome"], item["verdict"], item["reasons"]) for item in data["cases"]]
    return data["state"], data["verdict"], data["counts"], data["cells"], cases


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--level", "full"], "that run has --level smoke, and this command has --level full. Leave out --level"),
        (["--select", "*q9*"], "that run has --select */fp32/*, and this command has --select *q9*"),
        (["--kernel", "slow"], "that run has no --kernel, and this command has --kernel slow"),
    ],
)
def test_resume_with_another_option_is_exit_2(folder: Path, story: Story, options: list[str], message: str) -> None:
    """A run keeps its own options; what contradicts them is refused. No page of it is left that would look new."""
    page = folder / "out" / story.run / "report.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("of yesterday")
    ended = call(*BEGIN, "--resume", story.run, *options, cwd=folder)
    assert (2, "", False) == (ended.code, ended.out, page.exists())
    assert message in ended.err


def test_resume_with_another_matrix_is_exit_2(folder: Path, story: Story, tmp_path: Path) -> None:
    """A changed matrix, or one of another name, needs a new run."""
    changed = tmp_path / "chain.yaml"
    changed.write_text((folder / "chain.yaml").read_text() + "\n# changed\n")
    for matrix, what in ((changed, "another version of this matrix"), ("smoke", "a matrix of another name")):
        ended = call("run", matrix, *BEGIN[2:], "--resume", story.run, cwd=folder)
        assert (2, "") == (ended.code, ended.out)
        assert f"--resume {story.run}: that run used {what} (chain, sha256 " in ended.err


def test_the_terminal_is_plain_where_color_is_unwanted(story: Story) -> None:
    """NO_COLOR on a terminal leaves a bar without a single color."""
    assert "/22" in story.messages[0]
    assert not re.search(r"\x1b\[[0-9;]*m", story.raw)


@pytest.fixture
def small_disk(tmp_path: Path):
    """A disk of eight megabytes: room for SQLite's log of a slow run, which commits more often than a fast one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.slow
def test_a_full_disk_is_exit_4_and_loses_nothing(small_disk: Path, folder: Path) -> None:
    """What was committed stays, the message says how to go on, and once there is room that works."""
    arguments = ("run", "chain.yaml", "--cards", "cards", "--db", small_disk / "evidence.db")
    running = Running(folder, *arguments, script=IMPATIENT)
    running.watch(done=3)
    with suppress(OSError), (small_disk / "filler").open("wb") as filler:
        while True:
            filler.write(bytes(4096))
            filler.flush()
    code, out = running.end()
    promised = running.reported
    flat = running.message.replace("\r\n", "\n")
    assert (4, "") == (code, out)
    assert "the disk is full" in running.message
    assert "It is tried again for 1 s." in running.message
    assert "could not be stored and will run again.\nWhat was stored before is kept. Go on with: " in flat
    assert "Traceback" not in running.message
    go_on = shlex.split(flat.rpartition("Go on with: ")[2])
    (small_disk / "filler").unlink()
    intact, count = stored(small_disk / "evidence.db")
    assert "ok" == intact
    assert promised <= count < 22
    code, out = Running(folder, *go_on[1:], script=IMPATIENT).end()
    assert 1 == code
    assert "22 cases: 20 PASS, 2 FAIL" in out
