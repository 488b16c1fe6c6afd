"""The supervisor with real worker processes: limits, failed starts, and what it does with a process that is stuck."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_case
from cli_process import descendants, gone, write_cards, write_matrix

from qualify.assets import digest_cache
from qualify.errors import DeviceError
from qualify.facts.outcome import Crashed, Measured, findings_of
from qualify.fleet.request import Asked, make_request
from qualify.run.process.child import Child, Gone
from qualify.run.process.messages import Chunk, CompileSetup, HostLimits
from qualify.run.process.repeats import Task, again, failed, tasks_to_resume
from qualify.run.process.setup import Settings
from qualify.run.process.supervisor import At, Done, Event, SharedQueue, Started, Supervisor

GIGABYTE = 1 << 30


def make_settings(folder: Path, *functions: str, seqlens: tuple[int, ...] = (8,)) -> tuple[Settings, list[Task]]:
    """Settings and tasks for tiny prefills by each of these functions of third_party.py."""
    cards = write_cards(folder / "cards", *functions)
    matrix = write_matrix(folder / "m.yaml", *(function.replace("_", "-") for function in functions), seqlens=seqlens)
    request = make_request(Asked(matrix=str(matrix), cards=(cards,), device="cpu"))
    settings = Settings(
        device="cpu",
        device_name="a CPU",
        level="smoke",
        reference="fp64",
        timeout_s=60,
        compile_timeout_s=60,
        hash_cache=digest_cache(),
        cards={name: request.kernels[name].card for name in {case.kernel for case in request.plan.cases}},
        import_paths=request.import_paths,
        memory_bytes=4 * GIGABYTE,
    )
    return settings, [Task(case=case) for case in request.plan.cases]


def run(settings: Settings, tasks: list[Task]) -> list[Event]:
    """All events of a run."""
    return list(Supervisor(settings, tasks).events())


def test_a_card_among_others_sends_its_repeats_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: None
) -> None:
    """Their hosts start together then; one after another took a third of the time of two cards."""
    settings, tasks = make_settings(tmp_path, "correct", seqlens=(8, 9, 10))
    sent: list[int] = []
    send = Child.send

    def count(child: Child, message: Any, limit_s: float) -> None:
        if isinstance(message, Chunk):
            sent.append(len(message.requests))
        send(child, message, limit_s)

    monkeypatch.setattr(Child, "send", count)
    repeats = [again(task, None) for task in tasks]
    events = list(Supervisor(settings, repeats, SharedQueue(repeats, ["", "another"])).events())
    assert 3 == len([event for event in events if isinstance(event, Done) and event.final])
    assert [3] == sent


def tasks_of(count: int) -> list[Task]:
    """So many cases."""
    return [Task(case=make_case("correct", f"m/prefill/b1.q{number}.k{number}/bf16/causal")) for number in range(count)]


def test_cards_share_a_queue_so_that_all_have_work_to_the_end() -> None:
    """Each case is taken once, in order; at once at most a quarter of it by two cards, and all of it by one."""
    tasks = tasks_of(64)
    shared = SharedQueue(tasks, ["A", "B"])
    taken = [shared.take(card, 0) for card in "ABABABABABABABABABABABAB"]
    assert [16, 12, 9, 7, 5, 4, 3, 2, 2] == [len(some) for some in taken][:9]
    assert tasks == [task for some in taken for task in some]
    single = SharedQueue(tasks_of(100))
    assert [96, 4, 0] == [len(single.take("", 0)) for _ in range(3)]


def test_who_owes_more_repeats_leaves_the_end_of_the_queue_to_the_others() -> None:
    """Two cards ended five seconds apart, because the failures were on one of them."""
    shared = SharedQueue(tasks_of(25), ["A", "B"])
    assert 7 == len(shared.take("A", 6))
    assert not shared.take("A", 5)
    assert 5 == len(shared.take("B", 1))
    assert not shared.take("A", 5)  # of 13, which are not more than four for each of four repeats
    assert 4 == len(shared.take("A", 4))
    shared.leave("B")
    assert 9 == len(shared.take("A", 4))


def test_a_kernel_that_fills_memory_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page, so that no allocation fails: the watch ends its process only, and the next case is measured.

    The working folder holds modules that would break the worker, if it imported from there.
    """
    settings, tasks = make_settings(tmp_path, "fills_memory", "correct")
    for name in ("torch", "statistics", "qualify"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported from the working folder')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    events = run(replace(settings, memory_bytes=GIGABYTE), tasks)
    records = [event.record for event in events if isinstance(event, Done) and event.final]
    last = {record.case.kernel: record.outcome for record in records}
    assert isinstance(last["correct"], Measured)
    killed = last["fills-memory"]
    assert isinstance(killed, Crashed)
    assert "prepare" == killed.stage
    assert killed.error.startswith("killed: it used 1.")
    assert killed.error.endswith("GB of host memory, more than the 1.1 GB it may take")
    assert 1 == sum(isinstance(event, Started) for event in events)


def test_a_judge_outlives_its_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: None) -> None:
    """Whatever five of them do to their processes, one judge tells of all ten cases.

    What fails where nothing else ran is final; what fails among others is repeated alone.
    """
    names = ("wrong_numbers", "writes_inputs", "segfaults", "raises", "wrong_shape")
    settings, tasks = make_settings(tmp_path, *names, seqlens=(8, 9))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    events = run(settings, tasks)
    assert 1 == sum(isinstance(event, Started) for event in events)
    done = [event for event in events if isinstance(event, Done)]
    assert {task.case.id for task in tasks} == {event.record.case.id for event in done if event.final}
    assert 10 == sum(event.final for event in done)
    repeated = [event.record.case.kernel for event in done if not event.final]
    assert {"wrong-numbers", "writes-inputs", "raises", "wrong-shape"} == set(repeated)
    assert 1 == repeated.count("raises")
    outcomes = [event.record.outcome for event in done if event.final]
    assert all(failed(outcome) for outcome in outcomes)
    assert not [finding for outcome in outcomes for finding in findings_of(outcome) if finding.check == "history"]
    assert not tasks_to_resume(event.record for event in done if event.final)


def test_a_judge_that_dies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked: None) -> None:
    """Its hosts end with it; the case at hand is tried again, and nobody measures the ceilings anew."""
    settings, tasks = make_settings(tmp_path, "correct", "slow")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    supervisor = Supervisor(settings, tasks)
    events, hosts = [], []
    for event in supervisor.events():
        events.append(event)
        if isinstance(event, At) and event.case_id.endswith("/slow") and event.stage.startswith("checks") and not hosts:
            judge = supervisor.child
            assert judge is not None
            hosts += descendants(judge.process.pid)
            os.kill(judge.process.pid, signal.SIGKILL)
    assert len(hosts) >= 2
    assert gone(hosts)
    ceilings = [event.ceilings for event in events if isinstance(event, Started)]
    assert 2 == len(ceilings)
    assert 1 == len({repr(measured) for measured in ceilings})
    first, *_ = [event for event in events if isinstance(event, Done) and event.record.case.kernel == "slow"]
    assert isinstance(first.record.outcome, Crashed)
    assert first.record.outcome.error.startswith("killed by signal 9 (SIGKILL)")
    last = {event.record.case.kernel: event.record.outcome for event in events if isinstance(event, Done)}
    assert [Measured, Measured] == [type(last[name]) for name in ("correct", "slow")]


def test_no_work_needs_no_process(tmp_path: Path) -> None:
    """Without cases nothing is started."""
    settings, _ = make_settings(tmp_path, "correct")
    assert [] == run(settings, [])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a usable GPU")
def test_a_device_that_is_not_there_is_an_error(tmp_path: Path, forked: None) -> None:
    """The worker says why, and the supervisor passes it on."""
    settings, tasks = make_settings(tmp_path, "correct")
    with pytest.raises(DeviceError, match="no CUDA device: "):
        run(replace(settings, device="cuda"), tasks)


def test_a_worker_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken torch is the machine's fault: the message has the process's last words."""
    settings, tasks = make_settings(tmp_path, "correct")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text("raise ImportError('libcuda_is_missing.so')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    with pytest.raises(DeviceError, match=r"could not start \(at its start: .*ImportError: libcuda_is_missing\.so"):
        run(settings, tasks)


CHATTERS = """
import os, sys, time
out = int(sys.argv[3])
while True:
    os.write(out, {text!r})
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "text",
    [
        b"x",
        b'{"event":"at","case":"a","stage":"prepare"}\n',
        b'{"event":"at","case":"a","stage":"prepare"}\n{"event":"at","case":"a","stage":"load"}\n',
    ],
    ids=["no-end-of-line", "one-stage", "two-stages-in-turn"],
)
def test_a_worker_that_only_chatters_is_ended(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, and messages that announce nothing new, do not renew the limit of a stage."""
    gone = end_of_chatter(text, 1, monkeypatch)
    assert gone.error.startswith("no progress for 1 s")
    assert 1 == gone.limit_s


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"x" * 1000, "a line of more than 5000 bytes"),
        (b"[" * 4000 + b"\n", "b'" + "[" * 40 + "'"),
        (b'{"stage":"load"}\n', """b'{"stage":"load"}'"""),
        (b'{"event":["at"]}\n', """b'{"event":["at"]}'"""),
        (b'{"event":"chunk","requests":[]}\n', "unknown event 'chunk'"),
        (b'{"event":"at","case":"a"}\n', "event 'at', stage: Field required"),
        (b'{"event":"at","case":"a","stage":7}\n', "event 'at', stage: Input should be a valid string"),
        (b'{"event":"compiled","case":"a","first_call_us":"soon"}\n', "event 'compiled', first_call_us: "),
    ],
    ids=["line", "nested", "no-event", "list", "not-a-child's", "missing", "string", "number"],
)
def test_what_is_no_message_ends_the_worker(text: bytes, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason says what was wrong with it; a line without end does not fill the parent's memory."""
    monkeypatch.setattr("qualify.run.process.child.LINE_BYTES", 5000)
    gone = end_of_chatter(text, 20, monkeypatch)
    assert gone.error.startswith(f"something in the process wrote into qualify's own pipe ({what}")
    assert gone.limit_s is None


def end_of_chatter(text: bytes, limit_s: float, monkeypatch: pytest.MonkeyPatch) -> Gone:
    """How the life of a worker ends that writes this again and again."""
    monkeypatch.setattr("qualify.run.process.child.BOOT", CHATTERS.format(text=text))
    child = Child(GIGABYTE)
    until = time.monotonic() + 20
    try:
        while time.monotonic() < until:
            child.receive(limit_s)
    except Gone as gone:
        assert child.process.returncode is not None
        return gone
    finally:
        child.stop()
    raise AssertionError("it lives for ever")


@pytest.fixture
def child(tmp_path: Path):
    """A worker that waits for its setup."""
    child = Child(GIGABYTE)
    yield child
    child.stop()


def test_a_process_that_reads_nothing_is_given_up(child: Child) -> None:
    """A message larger than a pipe does not block for ever when the other end is stopped."""
    os.kill(child.process.pid, signal.SIGSTOP)
    hosts = HostLimits(timeout_s=60, compile_timeout_s=60, memory_bytes=GIGABYTE)
    with pytest.raises(
        Gone, match=r"^no sign of life for 0\.5 s; its process was stopped \(kill -STOP, or a debugger\)"
    ):
        child.send(CompileSetup(device="cpu", import_paths=("x" * (1 << 20),), cards={}, hosts=hosts), 0.5)
    assert -signal.SIGKILL == child.process.returncode


def test_a_process_that_dies_says_how(child: Child) -> None:
    """Whoever sends to it or waits for it learns the signal."""
    child.process.send_signal(signal.SIGTERM)
    child.process.wait()
    with pytest.raises(Gone, match=r"killed by signal 15 \(SIGTERM\)"):
        child.receive(10)
