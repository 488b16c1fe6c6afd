"""Compiling ahead, with real worker processes and a kernel that keeps what it compiles on disk."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from cli_process import call, write_card, write_cards, write_matrix

from qualify.facts.case import Case
from qualify.fleet.request import Asked, make_request
from qualify.run.process.child import Program, worker
from qualify.run.process.compile_ahead import (
    COMPILER_BYTES,
    Compiling,
    Queue,
    compile_ahead,
    compilers,
    specialisation,
)
from qualify.run.process.setup import Settings

LIBRARY = """
import os, pathlib, time
import third_party

def attend(call):
    compiled = pathlib.Path(os.environ["JIT_CACHE"]) / f"{call.q.dtype}"
    with (compiled.parent / "calls").open("a") as log:
        log.write(f"{os.getpid()} {compiled.exists()}\\n")
    if not compiled.exists():
        time.sleep(0.2)
        compiled.touch()
    return third_party.attend(call)

def varies(call):
    compiled = pathlib.Path(os.environ["JIT_CACHE"]) / "several"
    if len(call.cu_seqlens_q) > 2 and not compiled.exists():
        time.sleep(6)
        compiled.touch()
    return third_party.attend(call)

def trips(call):
    if len(call.cu_seqlens_q) > 2:
        raise ValueError("one sequence only")
    return third_party.attend(call)

def dies(call):
    os._exit(7)

def fails(call):
    raise MemoryError

def eats(call):
    compiled = pathlib.Path(os.environ["JIT_CACHE"]) / f"{call.q.dtype}"
    with (compiled.parent / "calls").open("a") as log:
        log.write(f"{os.getpid()} {compiled.exists()}\\n")
    if not compiled.exists():
        eaten, until = b"1" * (5 << 28), time.monotonic() + 20
        while len((compiled.parent / "calls").read_text().splitlines()) < 2 and time.monotonic() < until:
            time.sleep(0.05)  # until another one eats, too
        time.sleep(1)
        compiled.touch()
    return third_party.attend(call)

def kills(call):
    if "MAX_JOBS" in os.environ:
        os.kill(os.getppid(), 9)
    return third_party.attend(call)

def builds(call):
    folder = pathlib.Path(os.environ["JIT_CACHE"])
    (folder / f"jobs-{os.getpid()}").write_text(os.environ.get("MAX_JOBS", "as many as there are cores"))
    return third_party.attend(call)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: None) -> Path:
    """Cards of eight just-in-time kernels and of one that is not, and a matrix of two dtypes and three lengths."""
    cards = write_cards(tmp_path / "cards", "correct")
    (cards / "jit_library.py").write_text(LIBRARY)
    for name in ("attend", "varies", "trips", "dies", "fails", "eats", "kills", "builds"):
        write_card(cards, f"jit-{name}", "jit_library", name)
        path = cards / f"jit-{name}.yaml"
        path.write_text(path.read_text().replace("\nrequires:", "\njit: kernels\nrequires:"))
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("JIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def prepare(folder: Path, *kernels: str, dtypes: tuple[str, ...] = ("fp32", "bf16")) -> tuple[Settings, list[Case]]:
    """Settings and cases of a run of these kernels."""
    matrix = write_matrix(folder / "m.yaml", *kernels, seqlens=(8, 9, 10), dtypes=dtypes)
    request = make_request(Asked(matrix=str(matrix), cards=(folder / "cards",), device="cpu"))
    names = {case.kernel for case in request.plan.cases}
    settings = Settings(
        device="cpu",
        device_name="a CPU",
        level="smoke",
        reference="fp64",
        timeout_s=60,
        compile_timeout_s=60,
        hash_cache=folder / "home" / "sha256.json",
        cards={name: request.kernels[name].card for name in names},
        import_paths=request.import_paths,
        memory_bytes=8 << 30,
    )
    return settings, list(request.plan.cases)


def compiled(settings: Settings, cases: list[Case]) -> list[Compiling]:
    """Everything that was compiled."""
    return [step for step in compile_ahead(settings, cases) if isinstance(step, Compiling)]


def test_just_in_time_kernels_are_compiled_once(folder: Path) -> None:
    """Each of their calls is made once, with its cost; the second run has nothing to do."""
    settings, cases = prepare(folder, "correct", "jit-attend")
    own = [case for case in cases if case.kernel == "jit-attend"]
    steps = compiled(settings, cases)
    assert {case.id for case in own} == {step.case_id for step in steps}
    assert list(range(1, len(own) + 1)) == [step.done for step in steps]
    assert {len(own)} == {step.total for step in steps}
    slowest = max(step.first_call_us or 0 for step in steps)
    assert slowest > 200_000
    calls = (folder / "cache" / "calls").read_text().splitlines()
    assert len({case.dtype for case in own}) == sum(line.endswith("False") for line in calls)
    assert [] == compiled(settings, cases)


def test_another_device_compiles_again(folder: Path) -> None:
    """What was compiled for one card says nothing about another."""
    settings, cases = prepare(folder, "jit-attend")
    count = len(compiled(settings, cases))
    assert count == len(compiled(replace(settings, device_name="another CPU"), cases))


def test_runs_beside_each_other_remember_what_both_compiled(folder: Path) -> None:
    """The one that ends last does not forget what the other wrote meanwhile."""
    settings, cases = prepare(folder, "jit-attend")
    slow = compile_ahead(settings, cases[:2])
    next(slow)
    compiled(settings, cases[2:])
    assert [] != [step for step in slow if isinstance(step, Compiling)]
    assert [] == compiled(settings, cases)


def test_a_kernel_that_dies_is_left_to_the_run(folder: Path) -> None:
    """Its calls have no cost, the others do, and nothing waits for ever."""
    settings, cases = prepare(folder, "jit-attend", "jit-dies", dtypes=("fp32",))
    costs = {step.case_id: step.first_call_us for step in compiled(settings, cases)}
    assert {case.id for case in cases} == set(costs)
    assert {"jit-dies"} == {case.kernel for case in cases if costs[case.id] is None}


def test_a_call_that_failed_is_tried_again(folder: Path) -> None:
    """By the next run: it may have found the card full."""
    settings, cases = prepare(folder, "jit-fails")
    failed = [(step.case_id, step.first_call_us) for step in compiled(settings, cases)]
    assert {(case.id, None) for case in cases} == set(failed)
    assert len(cases) == len(compiled(settings, cases))


def test_a_library_may_start_as_many_compilers_as_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the memory of its process, and as its user allows."""
    monkeypatch.delenv("MAX_JOBS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert [1, 1, min(2, cores), cores] == [compilers(size) for size in (1 << 30, 5 << 30, 6 << 30, 1 << 50)]
    settings, cases = prepare(folder, "jit-builds", dtypes=("fp32",))
    monkeypatch.setattr("qualify.run.process.compile_ahead.PROCESSES", 1)
    for memory_bytes, allowed, jobs in ((1 << 50, "", str(cores)), (1 << 50, "1", "1")):
        if allowed:
            monkeypatch.setenv("MAX_JOBS", allowed)
        compiled(replace(settings, device_name=f"{memory_bytes} {allowed}", memory_bytes=memory_bytes), cases)
        (told,) = (folder / "cache").glob("jobs-*")
        assert jobs == told.read_text()
        told.unlink()


def test_one_module_gets_the_compilers_of_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes that want one module, one waits: the other one's compilers may use the memory of both."""
    monkeypatch.setattr("qualify.run.process.compile_ahead.CORES_SHARE", 2.0)
    monkeypatch.delenv("MAX_JOBS", raising=False)
    settings, (case, *_) = prepare(folder, "jit-builds", dtypes=("fp32",))
    scaled = [replace(case, workload=replace(case.workload, scale=scale)) for scale in (0.5, 0.25)]
    compiled(replace(settings, memory_bytes=2 * COMPILER_BYTES), scaled)
    jobs = min(2, len(os.sched_getaffinity(0)))
    assert {str(jobs)} == {told.read_text() for told in (folder / "cache").glob("jobs-*")}


def test_processes_share_the_memory_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One may take nearly all of it; where several do not fit side by side, they come one after another.

    Compilers of FlashInfer's FA3 took more than a twelfth of 128 GB. All were killed, and the run compiled alone.
    """
    monkeypatch.setattr("qualify.run.process.compile_ahead.PROCESSES", 2)
    monkeypatch.setattr("qualify.run.process.compile_ahead.CORES_SHARE", 2.0)
    settings, cases = prepare(folder, "jit-eats")
    costs = {step.case_id: step.first_call_us for step in compiled(replace(settings, memory_bytes=2 << 30), cases)}
    assert {case.id for case in cases} == set(costs)
    assert None not in costs.values()
    calls = (folder / "cache" / "calls").read_text().splitlines()
    assert len({case.dtype for case in cases}) < sum(line.endswith("False") for line in calls)  # one came again


def test_a_run_says_that_compiling_ahead_was_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With how the last process ended; otherwise nobody knew why a run compiled for so long."""
    monkeypatch.delenv("MAX_JOBS", raising=False)
    matrix = write_matrix(folder / "m.yaml", "jit-kills", seqlens=tuple(range(8, 17)), dtypes=("fp32",))
    ended = call("run", matrix, "--cards", folder / "cards", "--device", "cpu", "--db", folder / "e.db", cwd=folder)
    told = "compiling ahead was given up, the run compiles the rest: killed by signal 9 (SIGKILL), by"
    assert [told] == [line[: len(told)] for line in ended.err.splitlines() if "given up" in line]
    print(ended.err)
    assert 0 == ended.code


def test_one_call_of_each_specialisation_comes_first(folder: Path) -> None:
    """The other lengths wait until it is done: two processes must not compile the same kernel."""
    _, cases = prepare(folder, "jit-attend")
    queue = Queue(cases)
    first = list(queue.ready)
    assert len({specialisation(case) for case in cases}) == len(first)
    queue.finish(first[0])
    rest = [case for case in cases if specialisation(case) == specialisation(first[0]) and case != first[0]]
    assert rest == list(queue.ready)[len(first) :]


def test_neighbours_hardly_share_a_module(folder: Path) -> None:
    """Specialisations that differ in a scale alone come apart: a library may build one module for both."""
    _, cases = prepare(folder, "jit-attend")
    scaled = [replace(case, workload=replace(case.workload, scale=scale)) for case in cases for scale in (0.5, 0.25)]
    ready = [case.dtype for case in Queue(scaled).ready]
    assert ["fp32", "bf16", "fp32", "bf16"] == ready, ready


def test_a_run_counts_compilation_apart(folder: Path) -> None:
    """The stored first call is the one that compiled; the log says how long compiling took."""
    matrix = write_matrix(folder / "m.yaml", "jit-attend")
    ended = call("run", matrix, "--cards", folder / "cards", "--device", "cpu", "--db", folder / "e.db", cwd=folder)
    assert " of compiling ahead" in ended.err
    with closing(sqlite3.connect(folder / "e.db")) as store, store:
        ((slowest,),) = store.execute("SELECT max(first_call_us) FROM outcomes")
    assert slowest > 200_000


def test_a_check_may_compile(folder: Path) -> None:
    """It asks for several sequences, for which the library compiles once more, longer than a stage may take.

    The driver compiles FlashAttention-2 of vLLM for an H100: a check took over 60 s, was ended, and nothing was kept.
    Where a library cannot do what a check asks for, the reason names the check and the lengths.
    """
    matrix = write_matrix(folder / "m.yaml", "jit-varies", "jit-trips", dtypes=("fp32",), timeout_s=5)
    matrix.write_text(matrix.read_text().replace("compile_timeout_s: 5", "compile_timeout_s: 60"))
    shown = ("--device", "cpu", "--db", folder / "e.db", "--level", "full")
    ended = call("run", matrix, "--cards", folder / "cards", *shown, cwd=folder)
    assert "no sign of life" not in ended.out
    assert (folder / "cache" / "several").exists()
    tripped = r"while degenerate was checked: ValueError: one .* only \(jit_library.py:\d+\), with seqlens_q \[\d+, "
    assert re.search(tripped, ended.out)


def test_a_device_that_does_not_work_is_the_runs_to_tell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled for it, and only one process is asked: each takes seconds to start.

    Where the driver was too old, a run compiled for minutes before it said so.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("qualify.run.process.compile_ahead.PROCESSES", 1)
    started: list[Mapping[str, str]] = []

    def counted(variables: Mapping[str, str]) -> Program:
        started.append(variables)
        return worker(variables)

    monkeypatch.setattr("qualify.run.process.compile_ahead.worker", counted)
    settings, cases = prepare(folder, "jit-attend")
    assert [] == compiled(replace(settings, device="cuda"), cases)
    assert 1 == len(started)
    assert [] != compiled(settings, cases)


def test_a_process_that_finds_no_device_ends_no_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a card that serves one process alone: the one that has it compiles everything."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("qualify.run.process.compile_ahead.PROCESSES", 2)
    monkeypatch.setattr("qualify.run.process.compile_ahead.CORES_SHARE", 2.0)
    settings, cases = prepare(folder, "jit-attend")
    devices = iter(["cuda", *["cpu"] * 9])
    usual = Settings.compile_setup
    monkeypatch.setattr(Settings, "compile_setup", lambda given: replace(usual(given), device=next(devices)))
    assert {case.id for case in cases} == {step.case_id for step in compiled(settings, cases)}
    assert 2 == 10 - len([*devices])
