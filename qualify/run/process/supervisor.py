"""Runs cases on one device, one worker process after another, and says what happened as it happens.

A crash, a hang or a lost CUDA context is the outcome of the case that caused it; the other cases of its
chunk are run again in the next process. The kernel's own module decides nothing here: whatever it does to its
process, the run goes on.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from qualify.errors import DeviceError
from qualify.facts.devices import KINDS
from qualify.facts.outcome import Crashed, Finding, Outcome, TimedOut, evidence_of
from qualify.facts.run import Record
from qualify.facts.stack import Ceilings, Stack
from qualify.run.process.child import Child, Gone
from qualify.run.process.messages import (
    CaseEnded,
    CaseRequest,
    Chunk,
    ChunkDone,
    ContextLost,
    Described,
    StageBegun,
    Unusable,
)
from qualify.run.process.repeats import (
    ATTEMPTS,
    REPEATS_PER_KERNEL,
    Task,
    again,
    failed,
    failed_to_load,
    unproven,
    with_history,
)
from qualify.run.process.setup import Settings

START_TIMEOUT_S = 300.0
FRESH_TOGETHER = 6
"""workers for repeats that start side by side: importing every library keeps a core busy for seconds. One that waits
holds a CUDA context, and so device memory: none starts before everything that may share a process has run."""
CORES_EACH = 2
"""cores for each of them; fewer start together on a smaller machine"""
SLOW_STAGES = {"", "load", "prepare"}
"""stages in which a library may be compiling"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A worker is up; what it says of its machine."""

    stack: Stack
    ceilings: Ceilings
    start_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class At:
    """A case reached a stage; an empty case id means the start of a worker."""

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


class Supervisor:
    """Runs tasks on one device, one worker after another."""

    def __init__(self, settings: Settings, tasks: Iterable[Task]) -> None:
        self.settings = settings
        given = list(tasks)
        self.queue = deque(task for task in given if not task.alone)
        self.alone = deque(task for task in given if task.alone)
        self.trials: deque[Task] = deque()
        """cases whose kernel failed to load among others: alone, and before any other case of that kernel"""
        self.repeats = Counter(task.case.kernel for task in self.alone)
        self.preload = [name for name, card in settings.cards.items() if card.adapter != "call"]
        """libraries that a worker loads before it takes its fingerprint; never a third party's entry"""
        self.unloadable: set[str] = set()
        """kernels whose library did not load in the present worker before any case ran"""
        self.dead: dict[str, Outcome] = {}
        """kernels whose library could not be loaded, and how that ended"""
        self.ceilings = settings.ceilings
        self.settled: set[str] = set()
        """cases that got an outcome elsewhere; whoever hears of the first start may fill it"""
        self.child: Child | None = None
        self.spares: deque[Child] = deque()
        """workers that nothing ran in, for the next repeats"""

    def events(self) -> Generator[Event, None, None]:
        """What happens, until every case has a final outcome. Closing the generator ends the worker.

        Raises:
            DeviceError: the device cannot be used at all, or no worker can be started.
        """
        try:
            while self.trials or self.queue or self.alone:
                yield from self._bury()
                chunk = self._next_chunk()
                if not chunk:
                    continue
                if chunk[0].alone and self.child is not None and self.child.ran:
                    self._drop_child()
                if self.child is None:
                    yield from self._start(fresh=len(self.alone) if chunk[0].alone and not self.queue else 0)
                chunk = [task for task in chunk if task.case.id not in self.settled]
                if chunk:
                    yield from self._run_chunk(chunk)
        finally:
            self._drop_child()
            self._drop_spares()

    def _bury(self) -> Iterator[Event]:
        """Cases of a kernel whose library cannot be loaded share its outcome, without a process each."""
        for queue in (self.trials, self.queue, self.alone):
            for task in [task for task in queue if task.case.kernel in self.dead]:
                queue.remove(task)
                yield Done(record=Record(case=task.case, outcome=self.dead[task.case.kernel]), final=True)

    def _next_chunk(self) -> list[Task]:
        """Trials first, then everything that may share a process, then the repeats."""
        if self.trials:
            return [self.trials.popleft()]
        if self.queue:
            size = min(KINDS[self.settings.device].session_cases, len(self.queue))
            return [self.queue.popleft() for _ in range(size)]
        return [self.alone.popleft()] if self.alone else []

    def _drop_child(self) -> None:
        if self.child is not None:
            self.child.stop()
            self.child = None

    def _drop_spares(self) -> None:
        while self.spares:
            self.spares.pop().stop()

    def _start(self, *, fresh: int) -> Iterator[Event]:
        """Take a worker that waits, or start some, without the libraries that end them, until all are up.

        Args:
            fresh: further cases that each need a process of their own. Their workers start together, and no case runs
                until all are up, so that no start disturbs a measurement.
        """
        while self.child is None and self.spares:
            self.child = self.spares.popleft()
            if self.child.process.poll() is not None:
                self._drop_child()
        while self.child is None:
            self._spawn(1 if self.ceilings is None else self._together(1 + fresh))
            yield At(case_id="", stage="start")
            try:
                yield from self._greet()
            except Gone as gone:
                self._leave_out(gone)
            else:
                self.child = self.spares.popleft()

    def _together(self, wanted: int) -> int:
        return max(1, min(wanted, FRESH_TOGETHER, len(os.sched_getaffinity(0)) // CORES_EACH))

    def _spawn(self, count: int) -> None:
        """Start worker processes: as many as asked, or as the machine has room for."""
        try:
            while len(self.spares) < count:
                self.spares.append(Child(self.settings.memory_bytes))
        except OSError as error:
            if not self.spares:
                raise DeviceError(
                    f"no worker process can be started: {error}. The machine has probably run out of processes, memory "
                    "or room for temporary files; what was measured is stored."
                ) from error

    def _greet(self) -> Iterator[Event]:
        """Send the new workers their settings, and wait until each has described its machine.

        Raises:
            Gone: one of them ended; it is the first of the spares then.
        """
        began = time.monotonic()
        for _ in range(len(self.spares)):
            self.spares[0].send(self.settings.run_setup(self.preload, self.ceilings), START_TIMEOUT_S)
            self.spares.rotate(-1)
        for _ in range(len(self.spares)):
            yield from self._hear(self.spares[0], began)
            self.spares.rotate(-1)

    def _hear(self, child: Child, began: float) -> Iterator[Event]:
        """What a worker says of its start."""
        while True:
            match message := child.receive(START_TIMEOUT_S):
                case None:
                    yield Tick()
                case StageBegun():
                    yield At(case_id="", stage=message.stage)
                case Unusable():
                    raise DeviceError(message.message)
                case Described():
                    break
                case _:
                    raise child.unexpected(message)
        self.unloadable = set(message.unloadable)
        self.ceilings = message.ceilings
        yield Started(stack=message.stack, ceilings=message.ceilings, start_s=time.monotonic() - began)

    def _leave_out(self, gone: Gone) -> None:
        """The next workers do without the library that ended the first of these at its start.

        Raises:
            DeviceError: it was no library.
        """
        child = self.spares[0]
        kind, _, name = child.stage.partition(":")
        tail = " | ".join(child.log_tail().strip().splitlines()[-3:])
        self._drop_spares()
        if kind != "load" or name not in self.preload:
            raise DeviceError(
                f"the worker process could not start (at {child.stage or 'its start'}: {gone.error}). Its last "
                f"words: {tail or 'none'}. `qualify doctor` checks the machine."
            ) from None
        self.preload.remove(name)

    def _run_chunk(self, chunk: list[Task]) -> Iterator[Event]:
        """Run tasks in the present worker; whoever is left without an outcome goes back into the queue."""
        child = self.child
        assert child is not None, "a chunk runs in a started worker"
        waiting = {task.case.id: task for task in chunk}
        ran: Task | None = None
        fresh = chunk[0] if child.ran == 0 else None
        child.ran += len(chunk)
        child.case, child.stage = chunk[0].case.id, ""
        requests = tuple(CaseRequest(case=task.case, attempt=task.attempt) for task in chunk)
        try:
            child.send(Chunk(requests=requests), self.settings.timeout_s)
            while True:
                match message := child.receive(self._limit_s(child.stage)):
                    case None:
                        yield Tick()
                    case StageBegun():
                        yield At(case_id=message.case, stage=message.stage)
                    case CaseEnded() if message.case in waiting:
                        task = waiting.pop(message.case)
                        ran = task if evidence_of(message.outcome) else None
                        yield self._judge(task, message.outcome, fresh=task is fresh)
                    case ContextLost():
                        if ran is not None and ran.case.id == child.case:
                            waiting[child.case] = ran  # it seemed to have run, and only now the damage shows
                        raise Gone(f"the CUDA context is lost: {message.error}")
                    case ChunkDone() if not waiting:
                        return
                    case _:
                        raise child.unexpected(message)
        except Gone as gone:
            culprit = waiting.pop(child.case, None)
            log = child.log_tail()
            self._drop_child()
            self.queue.extendleft(reversed(waiting.values()))
            if culprit is not None:
                yield self._judge(culprit, _blame(gone, culprit, child.stage, log), fresh=culprit is fresh)

    def _limit_s(self, stage: str) -> float:
        return self.settings.compile_timeout_s if stage in SLOW_STAGES else self.settings.timeout_s

    def _judge(self, task: Task, outcome: Outcome, *, fresh: bool) -> Done:
        """Is this outcome final, or will the case be repeated alone in a fresh process?

        Args:
            fresh: nothing else ran in the process before this case.
        """
        kernel = task.case.kernel
        if failed_to_load(outcome):
            if fresh or kernel in self.unloadable:
                self.dead[kernel] = outcome
            return self._repeat(task, outcome, self.trials) if kernel not in self.dead else _final(task, outcome)
        if unproven(outcome) and task.attempt < ATTEMPTS:
            self.alone.append(again(task, task.before))
            return Done(record=Record(case=task.case, outcome=outcome), final=False)
        if failed(outcome) and not task.alone and not fresh:
            return self._repeat(task, outcome, self.alone)
        return _final(task, with_history(outcome, task.before))

    def _repeat(self, task: Task, outcome: Outcome, queue: deque[Task]) -> Done:
        """Repeat it alone, unless its kernel has had enough of that, or nobody claims that it works."""
        kernel = task.case.kernel
        if task.case.unclaimed or self.repeats[kernel] >= REPEATS_PER_KERNEL:
            return _final(task, outcome)
        self.repeats[kernel] += 1
        queue.append(again(task, outcome))
        return Done(record=Record(case=task.case, outcome=outcome), final=False)


def _final(task: Task, outcome: Outcome) -> Done:
    return Done(record=Record(case=task.case, outcome=outcome), final=True)


def _blame(gone: Gone, task: Task, stage: str, log: str) -> Outcome:
    """What the end of its process means for the case that was running."""
    stage = stage or "start"
    if gone.limit_s is None:
        return Crashed(stage=stage, error=gone.error, log=log, attempt=task.attempt)
    note = Finding(check="watchdog", verdict="note", detail=f"killed after {gone.error}")
    return TimedOut(stage=stage, limit_s=gone.limit_s, attempt=task.attempt, findings=(note,))
