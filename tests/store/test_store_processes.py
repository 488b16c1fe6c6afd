"""Several processes on one store, and a writer that dies."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import store_examples as examples

import qualify
from qualify.store import Store

SCRIPT = Path(__file__).with_name("store_process.py")
COUNT = 100


def _start(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(qualify.__file__).parents[1])}
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def test_two_writers_and_a_reader(address: str) -> None:
    """Two processes make the store and write a run each while a third reads: nothing is lost, nobody is locked out."""
    processes = [_start("write", address, 1, COUNT), _start("write", address, 2, COUNT), _start("read", address, 2)]
    ended = [(process.communicate()[1], process.returncode) for process in processes]
    assert [("", 0)] * 3 == ended
    with Store.open(address, create=False) as store:
        stored = [store.records(examples.run(number).id) for number in (1, 2)]
        uuids = [run.stack.device.uuid for run in store.runs() if run.stack]
    assert [[examples.simple(case) for case in examples.cases(COUNT)]] * 2 == stored
    assert ["GPU-2", "GPU-1"] == uuids


def test_a_killed_writer_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    """After SIGKILL in the middle of writing, every acknowledged outcome is there and the file is intact."""
    path = tmp_path / "evidence.db"
    with _start("write", path, 1, 20_000) as writer:
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(20)]
        writer.kill()
        acknowledged += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
    with Store.open(str(path), create=False) as store:
        done = store.done(examples.run(1).id)
        states = [run.state for run in store.unfinished()]
    assert ["running"] == states
    assert set() == {case.id for case in examples.cases(acknowledged[-1])} - done
    assert len(done) < 20_000
    with closing(sqlite3.connect(path)) as connection:
        assert ("ok",) == connection.execute("PRAGMA integrity_check").fetchone()


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """What a killed run did not reach is known, and the run can be finished."""
    path = tmp_path / "evidence.db"
    with _start("write", path, 1, 20_000) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.kill()
    run_id = examples.run(1).id
    with Store.open(str(path)) as store:
        done = store.done(run_id)
        rest = [record.case for record in store.records(run_id) if record.case.id not in done]
        store.resume(run_id)
        store.add(run_id, [examples.simple(case) for case in rest])
        store.finish(run_id, "completed", examples.STARTED)
        assert 20_000 == len(store.done(run_id))
        assert [] == store.unfinished()
