"""Runs cases on one device by a judge process, and says what happened as it happens.

Kernels run in hosts, which the judge starts, watches and replaces. If the judge itself ends, that becomes the outcome
of the case at hand, and another judge goes on with the other cases.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock

from qualify.errors import DeviceError
from qualify.facts.outcome import Crashed, Finding, Outcome, TimedOut
from qualify.facts.run import Record
from qualify.facts.stack import Ceilings, Stack
from qualify.run.process.child import JUDGE_S, START_TIMEOUT_S, Child, Gone, not_started, worker
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
    Repeats,
    Task,
    again,
    failed,
    failed_to_load,
    of_a_fresh_process,
    unproven,
    with_history,
)
from qualify.run.process.setup import Settings

AT_ONCE = 96
"""most cases that a judge is given at once: it runs those first whose host is ready"""
TURNS = 2
"""where cards share a queue, each takes so much of it at once that all could take so many times as much"""
REPEAT_CASES = 4
"""a case that runs alone takes about as long as so many others: it needs a process of its own"""
JUDGE_BYTES = 4 << 30
"""host memory that a judge and all its hosts may take beyond what one host may take"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A worker is up; what it says of its machine."""

    stack: Stack
    environments: Mapping[str, Stack]
    """stacks of other environments, by name"""
    ceilings: Ceilings
    card: str = ""
    """the card that it must be on; empty = the first"""


@dataclass(frozen=True, kw_only=True, slots=True)
class At:
    """A case reached a stage; an empty case id means the start of a worker."""

    case_id: str
    stage: str
    card: str = ""
    """UUID of the card that is there; empty = the run has one card"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A case has an outcome; ``final`` is False where it will be repeated alone."""

    record: Record
    final: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """Nothing happened for a moment; a chance to commit what is waiting."""


Event = Started | At | Done | Tick


class SharedQueue:
    """What the supervisors of several cards share: a queue, from which whoever is free takes the next cases."""

    def __init__(self, tasks: Iterable[Task], cards: Iterable[str] = ("",)) -> None:
        """Nothing is taken yet.

        Args:
            tasks: of the run; those that run alone are no part of the queue.
            cards: UUIDs of the cards that take from it.
        """
        given = list(tasks)
        self.queue = deque(task for task in given if not task.alone)
        """each takes some, and gives back what it cannot end"""
        self.repeats = Repeats(given)
        self.owed = dict.fromkeys(cards, 0)
        """how many cases each card that is at work has still to run alone"""
        self._lock = Lock()

    def take(self, card: str, owed: int) -> list[Task]:
        """The next tasks of a card; none where the queue is empty, or the others do the rest.

        Args:
            card: its UUID.
            owed: how many cases it has still to run alone. Whoever owes more than the others leaves the end of the
                queue to them, so that all end at about the same time.
        """
        with self._lock:
            self.owed[card] = owed
            others = [count for other, count in self.owed.items() if other != card]
            if others and len(self.queue) <= REPEAT_CASES * (owed - min(others)):
                return []
            turns = TURNS * len(self.owed) if others else 1
            size = min(AT_ONCE, -(-len(self.queue) // turns))
            return [self.queue.popleft() for _ in range(size)]

    def leave(self, card: str) -> None:
        """The card takes no more."""
        with self._lock:
            self.owed.pop(card, None)


def begin_judge(settings: Settings) -> Child:
    """A judge that begins to describe its machine, and has not been listened to.

    Raises:
        OSError: the machine has no room for another process.
    """
    child = Child(settings.memory_bytes + JUDGE_BYTES, worker(settings.place))
    with suppress(Gone):  # it has ended, and whoever listens to it hears why
        child.send(settings.run_setup(), START_TIMEOUT_S)
    return child


class Supervisor:
    """Runs tasks on one device by a judge, which has a process of its own and is replaced if it ends."""

    def __init__(
        self,
        settings: Settings,
        tasks: Iterable[Task],
        shared: SharedQueue | None = None,
        begun: Callable[[], Child | None] = lambda: None,
    ) -> None:
        """Nothing runs yet.

        Args:
            shared: with supervisors of other cards; None = this one has its card, and all tasks, to itself.
            begun: hands out a judge that has begun with these settings; None where there is none (any more).
        """
        self.settings = settings
        given = list(tasks)
        self.shared = shared or SharedQueue(given, [settings.card])
        self.queue = self.shared.queue
        self.alone = deque(task for task in given if task.alone)
        self.trials: deque[Task] = deque()
        """cases whose kernel failed to load among others: alone, and before any other case of that kernel"""
        self.settled: set[str] = set()
        """cases that got an outcome elsewhere; whoever hears of the first start may fill it"""
        self.failed: dict[str, str] = {}
        """why nothing more shall run on a card, by its UUID in the settings; whoever hears of its errors may fill it"""
        self.child: Child | None = None
        self.begun = begun

    def events(self) -> Generator[Event, None, None]:
        """What happens, until every case has a final outcome. Closing the generator ends the judge.

        Raises:
            DeviceError: the device cannot be used at all, it failed meanwhile, or no judge can be started.
        """
        try:
            while self.trials or self.queue or self.alone:
                if self.child is None:
                    yield from self._start()
                chunk = self._next_chunk()
                chunk = [task for task in chunk if task.case.id not in self.settled]
                if chunk:
                    yield from self._run_chunk(chunk)
        finally:
            self.shared.leave(self.settings.card)
            self._drop_child()

    def _next_chunk(self) -> list[Task]:
        """Trials first, then everything that may share a process, then all repeats, whose hosts start together."""
        if self.trials:
            return [self.trials.popleft()]
        if taken := self.shared.take(self.settings.card, len(self.alone)):
            return taken
        repeats, self.alone = list(self.alone), deque()
        return repeats

    def _drop_child(self) -> None:
        if self.child is not None:
            self.child.stop()
            self.child = None

    def _start(self) -> Iterator[Event]:
        """Start a judge, and wait until it has described its machine.

        Raises:
            DeviceError: it cannot.
        """
        try:
            self.child = child = self.begun() or begin_judge(self.settings)
        except OSError as error:
            raise DeviceError(f"no worker process can be started: {not_started(error)}") from error
        yield At(case_id="", stage="start")
        try:
            yield from self._hear(child)
        except Gone as gone:
            tail = " | ".join(child.log_tail().strip().splitlines()[-3:])
            self._drop_child()
            raise DeviceError(
                f"the worker process could not start (at {child.stage or 'its start'}: {gone.error}). Its last "
                f"words: {tail or 'none'}. `qualify doctor` checks the machine."
            ) from None

    def _hear(self, child: Child) -> Iterator[Event]:
        """What a judge says of its start."""
        while True:
            match message := child.receive(self.settings.compile_timeout_s + START_TIMEOUT_S):
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
        self.settings = replace(self.settings, ceilings=message.ceilings)
        yield Started(
            stack=message.stack,
            environments=message.environments,
            ceilings=message.ceilings,
            card=self.settings.card,
        )

    def _run_chunk(self, chunk: list[Task]) -> Iterator[Event]:
        """Run tasks in the present judge; tasks that are left without an outcome go back into the queue."""
        child = self.child
        assert child is not None, "a chunk runs in a started judge"
        waiting = {task.case.id: task for task in chunk}
        child.case, child.stage = chunk[0].case.id, ""
        requests = tuple(CaseRequest(case=task.case, attempt=task.attempt, alone=task.alone) for task in chunk)
        limit_s = self.settings.compile_timeout_s + self.settings.timeout_s + JUDGE_S
        try:
            child.send(Chunk(requests=requests), limit_s)
            while True:
                match message := child.receive(limit_s):
                    case None:
                        yield Tick()
                    case StageBegun():
                        yield At(case_id=message.case, stage=message.stage)
                    case CaseEnded() if message.case in waiting:
                        yield self._judge(waiting.pop(message.case), message.outcome, fresh=message.fresh)
                        self._check_card()
                    case Unusable():
                        raise DeviceError(message.message)
                    case ContextLost():
                        raise Gone(f"the CUDA context of the judge is lost: {message.error}")
                    case ChunkDone() if not waiting:
                        return
                    case _:
                        raise child.unexpected(message)
        except DeviceError:
            self.queue.extendleft(reversed(waiting.values()))
            raise
        except Gone as gone:
            culprit = waiting.pop(child.case, None)
            log = child.log_tail()
            self._drop_child()
            self.queue.extendleft(reversed(waiting.values()))
            if culprit is not None:
                yield self._judge(culprit, _blame(gone, culprit, child.stage, log), fresh=culprit.alone)
                self._check_card()

    def _check_card(self) -> None:
        """Raises DeviceError where the card failed: nothing that it measures would count."""
        if why := self.failed.get(self.settings.card):
            raise DeviceError(why)

    def _judge(self, task: Task, outcome: Outcome, *, fresh: bool) -> Done:
        """Is this outcome final, or will the case be repeated alone in a fresh process?

        Args:
            fresh: no case ran before in the process of its kernel.
        """
        if failed_to_load(outcome):
            return _settled(task, outcome, fresh=fresh) if fresh else self._repeat(task, outcome, self.trials)
        if unproven(outcome) and task.attempt < ATTEMPTS:
            seen = with_history(outcome, task.before)  # whoever resumes the run knows it too
            self.alone.append(again(task, task.before or (outcome if failed(outcome) else None)))
            return Done(record=Record(case=task.case, outcome=seen), final=False)
        if failed(outcome) and not task.alone and not fresh:
            return self._repeat(task, outcome, self.alone)
        return _settled(task, outcome, fresh=fresh)

    def _repeat(self, task: Task, outcome: Outcome, queue: deque[Task]) -> Done:
        """Repeat it alone, unless its kernel has had enough of that, or nobody claims that it works."""
        if task.case.unclaimed or not self.shared.repeats.allow(task.case.kernel):
            return _final(task, outcome)
        queue.append(again(task, outcome))
        return Done(record=Record(case=task.case, outcome=outcome), final=False)


def _settled(task: Task, outcome: Outcome, *, fresh: bool) -> Done:
    """The final outcome of a case, with what earlier attempts say about it; or that there was none before it."""
    if failed(outcome) and fresh and task.attempt == 1:
        return _final(task, of_a_fresh_process(outcome))
    return _final(task, with_history(outcome, task.before))


def _final(task: Task, outcome: Outcome) -> Done:
    return Done(record=Record(case=task.case, outcome=outcome), final=True)


def _blame(gone: Gone, task: Task, stage: str, log: str) -> Outcome:
    """What the end of its process means for the case that was running."""
    stage = stage or "start"
    if gone.limit_s is None:
        return Crashed(stage=stage, error=gone.error, log=log, attempt=task.attempt)
    note = Finding(check="watchdog", verdict="note", detail=f"killed after {gone.error}")
    return TimedOut(stage=stage, limit_s=gone.limit_s, attempt=task.attempt, findings=(note,))
