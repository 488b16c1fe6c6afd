"""One run on several equal cards: a judge on each takes cases from one queue, and whoever is free takes the next.

Every judge has a supervisor in a thread of its own; what they say comes out as one sequence of events. A card that
cannot go on gives its cases back, and the others run them. All cards run on the stack of the first one: another card
model, firmware or library is left out, because a run is evidence about one stack.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event as Signal
from threading import Lock, Thread

from qualify.errors import DeviceError
from qualify.facts.differing import stack_words
from qualify.facts.outcome import on_card
from qualify.facts.stack import Stack
from qualify.run.process.child import Child
from qualify.run.process.repeats import Task
from qualify.run.process.setup import Settings
from qualify.run.process.supervisor import At, Done, Event, SharedQueue, Started, Supervisor, Tick

WAIT_S = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ended:
    """A card has no more to do, or cannot go on."""

    uuid: str
    error: BaseException | None


class Spread:
    """Runs tasks on several cards. The code that files the events sees one supervisor."""

    def __init__(
        self, settings: Settings, tasks: Iterable[Task], uuids: Sequence[str], begun: Callable[[str], Child | None]
    ) -> None:
        """Nothing runs yet.

        Args:
            begun: hands out the judge of a card that has begun; None where there is none (any more).
        """
        given = list(tasks)
        self._settings = settings
        self._begun = begun
        self._shared = SharedQueue(given, uuids)
        self._alone = [task for task in given if task.alone]
        self._cards = list(uuids)
        self._said: SimpleQueue[Event | _Ended] = SimpleQueue()
        self._stop = Signal()
        self._lock = Lock()
        self._stack: Stack | None = None
        self.lost: dict[str, str] = {}
        """why a card could not go on, by its UUID"""
        self.settled: set[str] = set()
        """cases that got an outcome elsewhere"""
        self.failed: dict[str, str] = {}
        """why nothing more shall run on a card, by its UUID; whoever hears of its errors may fill it"""

    def events(self) -> Generator[Event, None, None]:
        """What happens on all cards, until every case has a final outcome. Closing the generator ends the judges.

        Raises:
            DeviceError: no card is left for the cases that wait.
        """
        try:
            while self._shared.queue or self._alone:
                cards = [uuid for uuid in self._cards if uuid not in self.lost]
                if not cards:
                    raise DeviceError("; ".join(f"card {uuid}: {why}" for uuid, why in self.lost.items()))
                yield from self._turn(cards)
        finally:
            self._stop.set()

    def _turn(self, cards: Sequence[str]) -> Generator[Event, None, None]:
        """Let the cards work until none has anything more to do."""
        alone, self._alone = self._alone, []
        threads = {
            uuid: Thread(target=self._work, args=(uuid, alone[place :: len(cards)]), name=uuid, daemon=True)
            for place, uuid in enumerate(cards)
        }
        for thread in threads.values():
            thread.start()
        try:
            while threads:
                try:
                    said = self._said.get(timeout=WAIT_S)
                except Empty:
                    yield Tick()
                    continue
                if not isinstance(said, _Ended):
                    yield said
                    continue
                threads.pop(said.uuid).join()
                if isinstance(said.error, DeviceError):
                    self.lost[said.uuid] = str(said.error)
                    yield At(case_id="", stage=f"card {said.uuid} is left out: {said.error}")
                elif said.error is not None:
                    raise said.error
        finally:
            self._stop.set()
            for thread in threads.values():
                thread.join()
            self._stop.clear()

    def _work(self, uuid: str, alone: list[Task]) -> None:
        """What one thread does: all that its supervisor says is said, with the card."""
        supervisor = Supervisor(replace(self._settings, card=uuid), alone, self._shared, partial(self._begun, uuid))
        supervisor.settled, supervisor.failed = self.settled, self.failed
        events = supervisor.events()
        error: BaseException | None = None
        try:
            for event in events:
                if isinstance(event, Started):
                    self._agree(event)
                self._said.put(_of_card(event, uuid))
                if self._stop.is_set():
                    break
        except BaseException as caught:  # noqa: BLE001 - it is raised again in the thread that waits
            error = caught
            self._alone += [*supervisor.trials, *supervisor.alone]
        finally:
            events.close()
            self._said.put(_Ended(uuid=uuid, error=error))

    def _agree(self, started: Started) -> None:
        """Raises DeviceError where the card is on another stack than the first one that was described."""
        with self._lock:
            self._stack = self._stack or started.stack
        if self._stack.fingerprint != started.stack.fingerprint:
            raise DeviceError(
                f"it is on another stack ({stack_words(self._stack, started.stack)}), and one run is evidence about "
                "one stack. Let every card run all: --spread repeat"
            )


def _of_card(event: Event, uuid: str) -> Event:
    match event:
        case At():
            return replace(event, card=uuid)
        case Done():
            return replace(event, record=replace(event.record, outcome=on_card(event.record.outcome, uuid)))
    return event
