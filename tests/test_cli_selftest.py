"""``qualify selftest`` as a process."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from cli_process import Begun, call

from qualify.selftest.workloads import SHAPES


def test_a_few_faults(tmp_path):
    """It prints the contract's JSON, writes both files, stores the result, and exits 0 where the floors hold."""
    ended = call("selftest", "--fault", "lse-*", "--runs", "1", "--level", "smoke", "--json", cwd=tmp_path)
    assert 0 == ended.code, ended.err
    assert "qualify.selftest/1" == ended.data["schema"]
    assert (4, 4, [], len(SHAPES), []) == tuple(
        ended.data[name] for name in ("faults", "caught", "missed", "correct_runs", "false_alarms")
    )
    assert 4 == json.loads((tmp_path / "out" / "selftest.json").read_text())["faults"]
    assert (tmp_path / "out" / "selftest.html").exists()
    assert (tmp_path / ".qualify" / "evidence.db").exists()
    assert "USDT" not in ended.err


def test_nothing_matches(tmp_path):
    """A glob that matches no fault exits 3 and leaves nothing behind."""
    ended = call("selftest", "--fault", "nothing-like-it", cwd=tmp_path)
    assert 3 == ended.code
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(("more", "code"), [(["--fault", "nothing-like-it"], 3), (["--db", "."], 4)], ids=str)
def test_no_old_result_is_left_where_there_is_none(tmp_path: Path, more: list[str], code: int) -> None:
    """Where it fails or is killed, nobody takes the page of an earlier selftest for this one's."""
    for name in ("selftest.html", "selftest.json", "report.html"):
        (tmp_path / name).write_text("of yesterday")
    assert code == call("selftest", "--runs", "0", "--out", ".", *more, cwd=tmp_path).code
    assert ["report.html"] == [path.name for path in tmp_path.iterdir()]


def test_its_processes_end_with_it(tmp_path):
    """However it ends: nothing is left that holds a gigabyte and waits for tasks.

    A process of the battery follows its parent before it lets its messages go nowhere.
    """
    log = tmp_path / "stderr"
    with (
        log.open("wb") as stderr,
        Begun("selftest", cwd=tmp_path, stderr=stderr, forks=False) as ended,
    ):
        children = Path(f"/proc/{ended.pid}/task/{ended.pid}/children")
        begun: list[str] = []
        until = time.monotonic() + 60
        while len(begun) < 2 and time.monotonic() < until:
            time.sleep(0.1)
            workers = [pid for pid in children.read_text().split() if "spawn_main" in _command_line(pid)]
            begun = [pid for pid in workers if Path(f"/proc/{pid}/fd/2").readlink() == Path(os.devnull)]
        ended.kill()
    assert 2 == len(begun)
    until = time.monotonic() + 30
    while any("spawn_main" in _command_line(pid) for pid in begun) and time.monotonic() < until:
        time.sleep(0.1)
    assert ["", ""] == [_command_line(pid) for pid in begun]


def _command_line(pid: str) -> str:
    """What the process was started with; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
