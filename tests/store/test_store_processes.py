"""Several processes on one store, and a writer that dies."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path

import store_examples as examples
from cli_process import Begun, call
from store_process import record

from qualify.store import Store

SCRIPT = Path(__file__).with_name("store_process.py")
COUNT = 60
WRITERS = 8
RUNS = 40
MANY = 4_000
"""outcomes of a run whose writer is killed long before its last one"""


def _start(*arguments: object) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return Begun(*arguments, script=SCRIPT, cwd=SCRIPT.parent, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_eight_writers_while_gates_and_reports_read(address: str, tmp_path: Path) -> None:
    """Eight processes make the store and write a run each while others read: nothing is lost, nobody is locked out."""
    with ExitStack() as started:
        writers = [started.enter_context(_start("write", address, number, COUNT)) for number in range(1, WRITERS + 1)]
        readers = [started.enter_context(_start(what, address, WRITERS)) for what in ("read", "judge")]
        assert writers[0].stdout is not None
        writers[0].stdout.readline()
        asked = [call(what, "--db", address, cwd=tmp_path) for what in ("gate", "report")]
        ended = [(*process.communicate(), process.returncode) for process in writers]
        if any(code for _, _, code in ended):
            for process in readers:  # they wait for all runs
                process.kill()
        ended += [(*process.communicate(), process.returncode) for process in readers]
    assert [("", 0)] * (WRITERS + 2) == [(err, code) for _, err, code in ended]
    gate, report = asked
    assert (True, "") == (gate.code in {0, 1, 5}, gate.err)
    # These runs are made up, and a report says that they contradict themselves.
    assert (5, True) == (report.code, " contradicts itself: " in report.err), report.err
    assert [str(WRITERS * COUNT), str(WRITERS * COUNT // 2)] == [out.strip() for out, _, _ in ended[WRITERS:]]
    expected = repr([record(case) for case in examples.cases(COUNT)])
    with Store.open(address, create=False) as store:
        assert [] == [number for number in range(1, WRITERS + 1) if repr(store.records(_id(number))) != expected]
        uuids = [run.stack.device.uuid for run in store.runs() if run.stack]
    assert [f"GPU-{number}" for number in range(WRITERS, 0, -1)] == uuids


def test_a_run_is_removed_or_accepted_and_never_both(empty_store: str) -> None:
    """One process accepts all runs, another removes them from the other end: both say the same of each, so it is."""
    with Store.open(empty_store) as store:
        for number in range(1, RUNS + 1):
            store.begin(examples.run(number))
            store.add_cases(_id(number), examples.cases(3))
            store.add(_id(number), [examples.simple(case) for case in examples.cases(3)])
    with ExitStack() as started:
        both = [started.enter_context(_start(what, empty_store, RUNS)) for what in ("accept", "prune")]
        assert ["ready\n"] * 2 == [process.stdout.readline() for process in both if process.stdout]
        for process in both:
            print("go", file=process.stdin, flush=True)
        ended = [(*process.communicate(), process.returncode) for process in both]
    assert [("", 0), ("", 0)] == [(err, code) for _, err, code in ended]
    accepting, pruning = (out.split() for out, _, _ in ended)
    assert (RUNS, accepting) == (len(accepting), pruning[::-1])
    kept = [_id(number) for number, word in enumerate(accepting, 1) if word == "accepted"]
    with Store.open(empty_store, create=False) as store:
        assert kept == [baseline.run_id for baseline in reversed(store.baselines())]
        assert set(kept) == {run.id for run in store.runs(limit=2 * RUNS)}
        assert [3] * len(kept) == [len(store.done(run_id)) for run_id in kept]


def _id(number: int) -> str:
    return examples.run(number).id


def test_a_killed_writer_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    """After SIGKILL in the middle of writing, every acknowledged outcome is there and the file is intact."""
    path = tmp_path / "evidence.db"
    with _start("write", path, 1, MANY) as writer:
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(20)]
        writer.kill()
        acknowledged += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
    with Store.open(str(path), create=False) as store:
        done = store.done(examples.run(1).id)
        states = [run.state for run in store.unfinished()]
    assert ["running"] == states
    assert set() == {case.id for case in examples.cases(acknowledged[-1])} - done
    assert len(done) < MANY
    with closing(sqlite3.connect(path)) as connection:
        assert ("ok",) == connection.execute("PRAGMA integrity_check").fetchone()


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """What a killed run did not reach is known, and the run can be finished."""
    path = tmp_path / "evidence.db"
    with _start("write", path, 1, MANY) as writer:
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
        assert MANY == len(store.done(run_id))
        assert [] == store.unfinished()
