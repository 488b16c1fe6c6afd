"""The parent's side of a worker: start it, feed it, watch it, blame it, replace it.

A crash, a hang or a lost CUDA context is the outcome of the case that caused it; the other cases of its
chunk are run again in the next process. A case that failed is repeated alone in a fresh process: if it
passes there, what failed was its history.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from qualify.cards.kernel import KernelCard
from qualify.errors import DeviceError
from qualify.facts import codec
from qualify.facts.case import Case, DeviceKind, Level
from qualify.facts.outcome import Crashed, Finding, Measured, Outcome, TimedOut, evidence_of, findings_of
from qualify.facts.run import Record
from qualify.facts.stack import Ceilings, Stack

CHUNK = {"cpu": 8, "cuda": 16}
"""cases that share a profiler session"""
ATTEMPTS = 3
"""processes in which a trace may be incomplete before the case is UNPROVEN"""
REPEATS_PER_KERNEL = 8
"""failed cases of one kernel that are repeated alone; further ones keep their first outcome"""
START_TIMEOUT_S = 300.0
MEMORY_SHARE = 0.85
"""share of the machine's free memory that a worker may take"""
SLOW_STAGES = {"", "load", "prepare"}
"""stages in which a library may be compiling"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What all workers of a run have in common."""

    device: DeviceKind
    level: Level
    reference: str
    timeout_s: float
    compile_timeout_s: float
    hash_cache: Path
    cards: Mapping[str, KernelCard]


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A worker is up; what it says of its machine."""

    stack: Stack
    ceilings: Ceilings
    start_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class At:
    """A case reached a stage."""

    case_id: str
    stage: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A case has an outcome; ``final`` is False where it will be repeated alone."""

    record: Record
    final: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """Nothing happened for a moment; a chance to commit what is waiting."""


Event = Started | At | Done | Tick


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A case in the queue."""

    case: Case
    attempt: int = 1
    alone: bool = False
    before: Outcome | None = None
    """outcome of the attempt that this one repeats"""


class Gone(Exception):
    """The worker died or was killed."""

    def __init__(self, error: str, *, timed_out: bool = False) -> None:
        self.error = error
        self.timed_out = timed_out
        super().__init__(error)


class Worker:
    """One child process and the two pipes to it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.log: IO[bytes] = tempfile.TemporaryFile(prefix="qualify-worker-")  # noqa: SIM115 - closed in stop()
        self.ran = 0
        self.stage = ""
        self.case = ""
        self.last_sign = time.monotonic()
        child_in, own_out = os.pipe()
        own_in, child_out = os.pipe()
        environment = {"KINETO_LOG_LEVEL": "6", "TOKENIZERS_PARALLELISM": "false", **os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "qualify.run.worker", str(child_in), str(child_out)],
            pass_fds=(child_in, child_out),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env=environment,
        )
        os.close(child_in)
        os.close(child_out)
        self.outgoing = os.fdopen(own_out, "w", encoding="utf-8")
        self.incoming = own_in
        self.buffer = b""
        self.selector = selectors.DefaultSelector()
        self.selector.register(own_in, selectors.EVENT_READ)
        self.memory_limit = int(_available_memory() * MEMORY_SHARE)

    def send(self, message: dict[str, Any]) -> None:
        """Write one message. Raises Gone if nobody reads it any more."""
        self.last_sign = time.monotonic()
        try:
            self.outgoing.write(json.dumps(message, separators=(",", ":")) + "\n")
            self.outgoing.flush()
        except BrokenPipeError:
            raise Gone(self._epitaph()) from None

    def receive(self, limit_s: float) -> dict[str, Any] | None:
        """The next message, or None after a quarter of a second without one.

        Raises:
            Gone: the process ended, was silent for longer than its limit, or took too much memory.
        """
        if b"\n" not in self.buffer:
            if self.selector.select(timeout=0.25):
                data = os.read(self.incoming, 1 << 16)
                if not data:
                    raise Gone(self._epitaph())
                self.buffer += data
            self._watch(limit_s)
        if b"\n" not in self.buffer:
            return None
        line, self.buffer = self.buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        self.last_sign = time.monotonic()
        if message["event"] == "at":
            self.case, self.stage = message["case"], message["stage"]
        return message

    def _watch(self, limit_s: float) -> None:
        if time.monotonic() - self.last_sign > limit_s:
            self.kill()
            raise Gone(f"no sign of life for {limit_s:g} s", timed_out=True)
        used = _resident_bytes(self.process.pid)
        if used > self.memory_limit:
            self.kill()
            raise Gone(
                f"killed: it used {used / 1e9:.1f} GB of host memory, more than {self.memory_limit / 1e9:.1f} GB"
            )

    def _epitaph(self) -> str:
        """How the process ended, in words."""
        try:
            status = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its pipe and had to be killed"
        if status < 0:
            return f"killed by signal {-status} ({signal.Signals(-status).name})"
        return f"exited with status {status}"

    def log_tail(self) -> str:
        """End of what the process printed."""
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - 4000))
        return self.log.read().decode("utf-8", errors="replace")

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the process and release its pipes."""
        self.kill()
        self.selector.close()
        os.close(self.incoming)
        with contextlib.suppress(BrokenPipeError):
            self.outgoing.close()
        self.log.close()


class Supervisor:
    """Runs cases on one device, one worker after another."""

    def __init__(self, settings: Settings, cases: Sequence[Case]) -> None:
        self.settings = settings
        self.queue = deque(Task(case=case) for case in cases)
        self.alone: deque[Task] = deque()
        self.repeats: dict[str, int] = {}
        self.preload = [name for name, card in settings.cards.items() if card.adapter != "call"]
        """libraries that a worker loads before it takes its fingerprint; never a third party's entry"""
        self.dead: dict[str, Outcome] = {}
        """kernels whose library could not be loaded, and how that ended"""
        self.worker: Worker | None = None

    def events(self) -> Generator[Event, None, None]:
        """What happens, until every case has a final outcome. Closing the generator ends the worker.

        Raises:
            DeviceError: the device cannot be used at all.
        """
        try:
            while self.queue or self.alone:
                yield from self._bury()
                chunk = self._next_chunk()
                if not chunk:
                    continue
                fresh = chunk[0].alone
                if fresh and self.worker is not None and self.worker.ran:
                    self._drop_worker()
                if self.worker is None:
                    yield from self._start()
                yield from self._run_chunk(chunk)
        finally:
            self._drop_worker()

    def _bury(self) -> Iterator[Event]:
        """Cases of a kernel whose library cannot be loaded share its outcome, without a process each."""
        for queue in (self.queue, self.alone):
            for task in [task for task in queue if task.case.kernel in self.dead]:
                queue.remove(task)
                yield Done(record=Record(case=task.case, outcome=self.dead[task.case.kernel]), final=True)

    def _next_chunk(self) -> list[Task]:
        if not self.queue:
            return [self.alone.popleft()] if self.alone else []
        size = min(CHUNK[self.settings.device], len(self.queue))
        return [self.queue.popleft() for _ in range(size)]

    def _drop_worker(self) -> None:
        if self.worker is not None:
            self.worker.stop()
            self.worker = None

    def _start(self) -> Iterator[Event]:
        """Start a worker, without the libraries that end it, until one has described its machine."""
        while True:
            try:
                yield from self._start_once()
                return
            except Gone as gone:
                worker = self.worker
                assert worker is not None
                kind, _, name = worker.stage.partition(":")
                tail = " | ".join(worker.log_tail().strip().splitlines()[-3:])
                self._drop_worker()
                if kind == "load" and name in self.preload:
                    self.preload.remove(name)
                    continue
                raise DeviceError(
                    f"the worker process could not start (at {worker.stage or 'its start'}: {gone.error}). Its last "
                    f"words: {tail or 'none'}. `qualify doctor` checks the machine."
                ) from None

    def _start_once(self) -> Iterator[Event]:
        """Start a worker and wait until it has described its machine."""
        began = time.monotonic()
        settings = self.settings
        self.worker = worker = Worker(settings)
        worker.send(
            {
                "device": settings.device,
                "level": settings.level,
                "reference": settings.reference,
                "hash_cache": str(settings.hash_cache),
                "cards": {
                    name: card.model_dump(mode="json", exclude_unset=True) for name, card in settings.cards.items()
                },
                "preload": self.preload,
            }
        )
        while True:
            message = worker.receive(START_TIMEOUT_S)
            if message is None:
                yield Tick()
            elif message["event"] == "at":
                yield At(case_id="", stage=message["stage"])
            elif message["event"] == "unusable":
                raise DeviceError(message["message"])
            else:
                break
        yield Started(
            stack=codec.from_data(Stack, message["stack"]),
            ceilings=codec.from_data(Ceilings, message["ceilings"]),
            start_s=time.monotonic() - began,
        )

    def _run_chunk(self, chunk: list[Task]) -> Iterator[Event]:
        """Run tasks in the present worker; whoever is left without an outcome goes back into the queue."""
        worker = self.worker
        assert worker is not None
        waiting = {task.case.id: task for task in chunk}
        first = worker.ran == 0
        worker.ran += len(chunk)
        worker.case, worker.stage = chunk[0].case.id, ""
        try:
            worker.send({"requests": [{"case": codec.to_data(task.case), "attempt": task.attempt} for task in chunk]})
            while True:
                message = worker.receive(self._limit_s(worker.stage))
                if message is None:
                    yield Tick()
                elif message["event"] == "at":
                    yield At(case_id=message["case"], stage=message["stage"])
                elif message["event"] == "outcome":
                    task = waiting.pop(message["case"])
                    outcome: Outcome = codec.from_data(Outcome, message["outcome"])
                    yield self._judge(task, outcome, fresh=first and task is chunk[0])
                elif message["event"] == "sick":
                    raise Gone(f"the CUDA context is lost: {message['error']}")
                else:
                    return
        except Gone as gone:
            culprit = waiting.pop(worker.case, None)
            log = worker.log_tail()
            self._drop_worker()
            self.queue.extendleft(reversed(waiting.values()))
            if culprit is not None:
                outcome = self._blame(gone, culprit, worker.stage, log)
                yield self._judge(culprit, outcome, fresh=first and culprit is chunk[0])

    def _limit_s(self, stage: str) -> float:
        return self.settings.compile_timeout_s if stage in SLOW_STAGES else self.settings.timeout_s

    def _blame(self, gone: Gone, task: Task, stage: str, log: str) -> Outcome:
        if gone.timed_out:
            return TimedOut(stage=stage, limit_s=self._limit_s(stage), attempt=task.attempt)
        return Crashed(stage=stage or "start", error=gone.error, log=log, attempt=task.attempt)

    def _judge(self, task: Task, outcome: Outcome, *, fresh: bool) -> Done:
        """Is this outcome final, or will the case be repeated alone in a fresh process?

        Args:
            fresh: nothing else ran in the process before this case.
        """
        evidence = evidence_of(outcome)
        unproven = evidence is not None and evidence.witness.state == "unproven"
        if unproven and task.attempt < ATTEMPTS:
            self.alone.append(Task(case=task.case, attempt=task.attempt + 1, alone=True, before=task.before))
            return Done(record=Record(case=task.case, outcome=outcome), final=False)
        failed = _failed(outcome)
        if isinstance(outcome, Crashed) and outcome.stage == "load":
            self.dead[task.case.kernel] = outcome
            return Done(record=Record(case=task.case, outcome=outcome), final=True)
        count = self.repeats.get(task.case.kernel, 0)
        if failed and not task.alone and not fresh and count < REPEATS_PER_KERNEL:
            self.repeats[task.case.kernel] = count + 1
            self.alone.append(Task(case=task.case, attempt=task.attempt + 1, alone=True, before=outcome))
            return Done(record=Record(case=task.case, outcome=outcome), final=False)
        if task.before is not None and not failed and isinstance(outcome, Measured):
            outcome = _with_history(outcome, task.before)
        return Done(record=Record(case=task.case, outcome=outcome), final=True)


def _failed(outcome: Outcome) -> bool:
    if isinstance(outcome, Crashed | TimedOut):
        return True
    return any(finding.verdict == "fail" for finding in findings_of(outcome))


def _with_history(outcome: Measured, before: Outcome) -> Measured:
    """It failed among others and passes alone: what failed is its history."""
    if isinstance(before, Crashed):
        cause = f"it crashed ({before.error})"
    elif isinstance(before, TimedOut):
        cause = f"it timed out in {before.stage}"
    else:
        failed = [finding for finding in findings_of(before) if finding.verdict == "fail"]
        cause = "; ".join(f"{finding.check}: {finding.detail}" for finding in failed)
    detail = f"history-dependent: it passes alone in a fresh process; after other cases {cause}"
    finding = Finding(check="history", verdict="fail", detail=detail)
    evidence = replace(outcome.evidence, findings=(*outcome.evidence.findings, finding))
    return replace(outcome, evidence=evidence)


def _resident_bytes(pid: int) -> int:
    """Host memory that a process has touched, without files; 0 where the kernel does not tell."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
