"""Many files into one store: by several processes, once each, whatever ends one of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import stored_runs as stored
from cli_process import Begun, call
from sealing import KeyPair, new_pair

from qualify.errors import InfrastructureError
from qualify.fleet import intake
from qualify.fleet.ingest import files_of
from qualify.fleet.intake import Intake
from qualify.fleet.patience import Patience
from qualify.seal.parts import parts_of
from qualify.seal.sealed import make_seal
from qualify.store import transfer
from qualify.store.store import Store

COUNT = 40


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    """Of the nodes."""
    return new_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def made(pair: KeyPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sealed runs, as many nodes leave them."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "serving.yaml").write_text(stored.MATRIX)
    with Store.open(str(folder / "s.db")) as store:
        run = stored.store_run(store, folder / "serving.yaml")
        found = store.evidence(run.id)
    runs = folder / "runs"
    runs.mkdir()
    for number in range(COUNT):
        own = replace(found, run=replace(run, id=f"{run.id}-{number}"))
        seal = make_seal(own.run.id, run.state, own.sha256, parts_of(own.lines), pair.signing)
        transfer.write(replace(own, seal=seal), runs / f"{own.run.id}.jsonl.gz")
    return runs


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A copy of the folder."""
    return Path(shutil.copytree(made, tmp_path / "runs"))


@pytest.mark.usefixtures("forked_commands")
def test_several_processes_take_each_file_once(
    address: str, runs: Path, pair: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged file is refused and named, a run in two files is added once, and nothing is added a second time."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(intake, "WORTH_A_PROCESS", 1)
    files = sorted(runs.iterdir())
    files[7].write_bytes(files[7].read_bytes()[:-9])
    twin = shutil.copy(files[0], runs / "twin.jsonl.gz")
    with Store.open(address) as store:
        with Intake(store, pair.trusted, Patience()) as many:
            found = list(many.take([files[0], twin, *files[1:]]))
            again = list(many.take(files[:3]))
        assert [files[7]] == [one.file for one in found if one.refused]
        assert COUNT - 1 == len(store.runs(limit=None)) == sum(one.moved.new for one in found if one.moved)
        assert [False] * 3 == [one.moved.new for one in again if one.moved]


def test_a_folder_stands_for_its_runs(runs: Path, pair: KeyPair, tmp_path: Path) -> None:
    """Without interim files, which a node may still write; with --interim those whose run did not end."""
    files = sorted(runs.iterdir())
    run = files[0].name.removesuffix(".jsonl.gz")
    interim = [files[0].rename(runs / f"{run}.interim.jsonl.gz"), runs / files[1].name.replace(".", ".interim.", 1)]
    shutil.copy(files[1], interim[1])
    given = ("ingest", "runs", "--signed-by", pair.public, "--db", "s.db")
    ended = call(*given, "--json", cwd=tmp_path)
    assert (0, COUNT - 1, [f"runs/{interim[0].name}"]) == (ended.code, ended.data["new"], ended.data["left_out"])
    assert "its node has not ended the run" in ended.err
    ended = call(*given, "--interim", cwd=tmp_path)
    assert (0, f"s.db: 1 run added, {COUNT - 1} runs there already, 0 files refused\n") == (ended.code, ended.out)
    (tmp_path / "empty").mkdir()
    ended = call("ingest", "empty", cwd=tmp_path)
    assert (2, True) == (ended.code, "no exported run is in this folder" in ended.err)


@pytest.mark.parametrize(("age", "told"), [(timedelta(days=-1), True), (timedelta(minutes=2), False)])
def test_a_run_that_is_dated_in_the_future_is_told(tmp_path: Path, age: timedelta, told: bool) -> None:
    """Its node's clock is a day ahead. Tomorrow nothing shows any more that the evidence is older than it says."""
    (tmp_path / "serving.yaml").write_text(stored.MATRIX)
    with Store.open(str(tmp_path / "node.db")) as store:
        began = datetime.now(UTC) - age
        run = stored.store_run(store, tmp_path / "serving.yaml", age=stored.NOW - began, finished_at=began)
        store.export_run(run.id, tmp_path / "run.jsonl.gz")
    for command in (["ingest"], ["db", "import"]):
        ended = call(*command, "run.jsonl.gz", "--db", f"{command[-1]}.db", cwd=tmp_path)
        assert (0, told) == (ended.code, f"run {run.id} is dated {began:%Y-%m-%d %H:%M} UTC" in ended.err)


def test_interim_files_count_only_where_the_whole_run_is_not_there(tmp_path: Path) -> None:
    """Whoever names them without the option is told which were left out."""
    whole, part, lost = (tmp_path / name for name in ("a.jsonl.gz", "a.interim.jsonl.gz", "b.interim.jsonl.gz"))
    given = files_of([part, whole, lost, whole])
    assert ((whole,), (lost,)) == (given.files, given.unfinished)
    given = files_of([part, whole, lost], interim=True)
    assert ((whole, lost), ()) == (given.files, given.unfinished)


def test_a_killed_ingest_goes_on(empty_postgres: str, runs: Path, pair: KeyPair, tmp_path: Path) -> None:
    """SIGKILL in the middle, PostgreSQL: whole runs only, no process is left, and the next call adds the others."""
    arguments = ("ingest", runs, "--signed-by", pair.public, "--db", empty_postgres)
    process = Begun(*arguments, cwd=tmp_path, stderr=subprocess.DEVNULL)
    with Store.open(empty_postgres) as store:
        while process.poll() is None and len(store.runs(limit=None)) < 5:
            time.sleep(0.01)
        children = list(_children(process.pid))
        process.kill()
        process.wait()
        until = time.monotonic() + 10
        while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < until:
            time.sleep(0.05)
        assert [] == [child for child in children if Path(f"/proc/{child}").exists()]
        before = store.runs(limit=None)
        assert 5 <= len(before) < COUNT
        assert {""} == {store.evidence(run.id).seal and "" for run in before}
        ended = call(*arguments, "--json", cwd=tmp_path)
        assert (0, COUNT - len(before)) == (ended.code, ended.data["new"])
        assert COUNT == len(store.runs(limit=None))


def _children(pid: int) -> Iterator[int]:
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        yield from map(int, path.read_text().split())


def test_a_process_that_dies_is_told(
    empty_sqlite: str, runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the file that it was at; what was taken before stays. The store may have any name.

    The processes are started as users start them.
    """
    odd = shutil.copy(empty_sqlite, tmp_path / "odd name?x=1#2%3f.db")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    files, before = sorted(runs.iterdir()), {*_children(os.getpid())}
    with Store.open(str(odd)) as store, Intake(store, (), Patience()) as many:
        taking = many.take(files)
        next(taking)
        for child in {*_children(os.getpid())} - before:
            os.kill(child, signal.SIGKILL)
        with pytest.raises(InfrastructureError, match=r"ended with exit code -9 at .*jsonl.gz.*give the same files"):
            list(taking)
        assert store.runs(limit=None)


@pytest.mark.usefixtures("forked_commands")
def test_a_process_that_died_while_it_had_nothing_to_do_costs_nothing(
    empty_sqlite: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet's leader keeps them for hours: what was killed meanwhile is started again, and no file is refused."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    files, before = sorted(runs.iterdir()), {*_children(os.getpid())}
    with Store.open(empty_sqlite) as store, Intake(store, (), Patience()) as many:
        taken = list(many.take(files[:32]))
        first, second = (child for child in _children(os.getpid()) if child not in before)
        os.kill(first, signal.SIGSTOP)  # so that the other one runs out of files
        taking = many.take(files[32:])
        taken += [next(taking) for _ in files[34:]]
        _kill(second)
        os.kill(first, signal.SIGCONT)
        taken += taking
        assert files == sorted(it.file for it in taken if it.moved)
        _kill(first)
        assert files[:2] == sorted(it.file for it in many.take(files[:2]) if it.moved)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
