"""The judge's side of a host process: its life, the questions to it, and its answers."""

from __future__ import annotations

import itertools
import math
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeGuard, TypeVar, cast

import torch

from qualify.cards.kernel import KernelCard
from qualify.facts.devices import HOST, KINDS
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.host import messages as says
from qualify.run.host.arena import ALIGNED, Arena, Slot
from qualify.run.host.events import AT_ONCE, MOST_PARTS, unpacked
from qualify.run.host.interface import Bound, Effort, HostLost, KernelRaised, Launchable, Samples, out_bytes
from qualify.run.host.launch import HostProcess, HostSetup
from qualify.run.host.mirror import Mirror
from qualify.run.process.awake import AWAKE
from qualify.run.process.child import START_TIMEOUT_S, Gone
from qualify.text import first_line

RESULT_BYTES = 1 << 20
"""least room for results"""
MOST_DIMENSIONS = 1000
"""dimensions that a result may have; the product of as many as a message holds takes long"""
MOST_SOFTWARE = 1000
"""components, files or variables that a host may name"""
LEAST_US = 1e-6
"""no launch takes less"""
DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
NOWHERE = "meta"
"""torch's device of tensors without elements"""
NO_TIMES = "times that measure nothing; has something there changed its clocks?"
A = TypeVar("A", bound=says.Answer)


class Watch:
    """How long the present stage may take, whatever questions a host gets in it."""

    def __init__(self) -> None:
        self.begin(START_TIMEOUT_S)

    def begin(self, limit_s: float) -> None:
        """A stage begins."""
        self.began = AWAKE.now()
        self.limit_s = limit_s


class Placeable(Protocol):
    """What a host needs of its prepared calls."""

    number: int

    def refresh(self) -> None:
        """Let its inputs hold what the judge's hold."""
        ...


class RemoteHost:
    """One host process."""

    def __init__(self, setup: HostSetup, watch: Watch, process: HostProcess) -> None:
        """Take a process that has been started; :meth:`greet` waits until it answers."""
        self.setup = setup
        self.process = process
        self.child = process.child
        self.watch = watch
        self.numbers = itertools.count()
        self.asked = 0
        """number of the latest request"""
        self.dropped: list[int] = []
        self.loaded: set[str] = set()
        """kernels"""
        self.unsettled = False
        """whether it may still compute what it was asked to launch"""
        self.lost: HostLost | None = None
        self.used = False
        """whether a case has run in it"""
        self.arena = Arena(process.shared, process.size, self._tell, self._untell)
        self.child.beyond_bytes, self.child.lent_bytes = self.arena.beyond_bytes, self.arena.lent_bytes
        self.mirror = Mirror(self.arena, self.settle)
        self.results: Slot | None = None
        self.started = self.controlling = False
        self.controlled: list[dict[str, Any]] | None = None
        """events of the negative control"""

    @property
    def alive(self) -> bool:
        """Whether the process is still to be asked."""
        return self.lost is None

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it, which a neighbour may have sent."""
        return self.lost is None and self.child.was_killed()

    def send_start(self) -> None:
        """Ask for the device, without waiting for the answer: hosts start side by side."""
        start = says.Start(device=self.setup.device, import_paths=self.setup.import_paths)
        self._guarded(lambda: self.child.send(start, START_TIMEOUT_S))

    def greet(self) -> None:
        """Wait until it answers, unless it has done so before. One that cannot take the device is of no use any more.

        Raises:
            torch.OutOfMemoryError, KernelRaised: why it cannot take the device.
            HostLost: the process ended or was ended, or has said before that it cannot.
        """
        if not self.started:
            stage, self.watch = self.watch, Watch()
            try:
                self.answer(says.Accepted)
            except (torch.OutOfMemoryError, KernelRaised) as error:
                self._lose(self.child.unfit(first_line(error)))  # it gives no second answer to wait for
                raise
            finally:
                self.watch = stage
            self.started = True
            self.watch.begin(self.watch.limit_s)  # this time does not count against the stage

    def ask(self, request: says.HostRequest, kind: type[A]) -> A:
        """One question and its answer.

        Raises:
            LibraryRefusal, ImportError, torch.OutOfMemoryError, KernelRaised: as the kernel raised.
            HostLost: the process ended or was ended.
        """
        self.finish_control()
        self.send(request)
        return self.answer(kind)

    def send(self, request: says.HostRequest) -> None:
        """One question, with what nobody needs any more."""
        self.arena.wait()
        dropped, self.dropped = tuple(self.dropped), []
        self.asked += 1
        request.__dict__.update(asked=self.asked, drop=dropped, free=self.arena.heard())
        self._guarded(lambda: self.child.send(request, self.watch.limit_s))

    def answer(self, kind: type[A], announce: Callable[[int], None] | None = None, count: int = 0) -> A:
        """The answer to what was sent.

        Args:
            announce: told the number of each call that begins before it.
            count: of those calls; each begins once, in order.
        """
        reached = -1
        while True:
            match self._guarded(self._receive):
                case None:
                    continue
                case message if message.to != self.asked:
                    raise self._lose(self.child.distrust("an answer that nobody asked for"))
                case says.Began(index=index) if announce and reached < index < count:
                    reached = index
                    announce(index)
                case says.Raised() as raised:
                    raise _exception(raised)
                case message if type(message) is kind:
                    return message
                case message:
                    raise self._lose(self.child.unexpected(message))

    def ask_numbers(self, request: says.HostRequest, least: int = 1) -> tuple[float | None, ...]:
        """One question whose answer is at least so many numbers, each of them 0 or more."""
        values = self.ask(request, says.Numbers).values
        if len(values) < least or not all(value is None or _is_amount(value) for value in values):
            raise self._disbelieve("numbers that measure nothing")
        return values

    def ask_us(self, request: says.HostRequest) -> float:
        """One question whose answer is a time, in µs."""
        began = time.monotonic()
        first = self.ask_numbers(request)[0]
        if not _is_time(first, began):
            raise self._disbelieve(NO_TIMES)
        return first

    def drop(self, number: int) -> None:
        """Nobody needs that prepared call, result or graph any more; the host hears of it with the next question."""
        self.dropped.append(number)

    def settle(self) -> None:
        """Wait until what it was asked to launch is done."""
        if self.unsettled:
            self.ask_numbers(says.Wait())
            self.unsettled = False

    def room(self, call: AttentionCall) -> Slot:
        """A slot for what a call returns; the next call's result takes the same."""
        lse = call.q.shape[0] * call.q.shape[1] * 4
        needed = max(RESULT_BYTES, out_bytes(call) + lse + 4 * ALIGNED)
        if self.results is None or self.results.count < needed:
            self.results = self.arena.take(needed)
        return self.results

    def returned(self, answer: says.Returned, room: Slot) -> Any:
        """What came back, copied into tensors of the judge's own: nothing that is written later counts."""
        if len(answer.parts) != 1 and not answer.several:
            raise self._disbelieve("a result of no parts")
        if len(answer.parts) > says.RETURNED_PARTS:
            raise self._disbelieve("a result of too many parts")
        parts, end = [], 0
        for part in answer.parts:
            if 0 <= part.offset < end:
                raise self._disbelieve("a result outside of its room")
            parts.append(value := self._part(part, room))
            if part.offset >= 0 and isinstance(value, torch.Tensor):
                end = part.offset + value.nbytes
        self.arena.copying |= room.view.is_cuda
        self.unsettled = False
        return tuple(parts) if answer.several else parts[0]

    def _part(self, part: says.ReturnedPart, room: Slot) -> Any:
        if part.kind == "NoneType":
            return None
        dtype = DTYPES.get(part.dtype)
        if dtype is None:
            return type(part.kind, (), {})() if part.kind.isidentifier() else object()
        if len(part.shape) > MOST_DIMENSIONS or max(map(abs, part.shape), default=0) > says.MOST:
            raise self._disbelieve("a result that no tensor can be")
        count = dtype.itemsize * math.prod(part.shape)
        outside = part.offset % ALIGNED or part.offset + count > room.count
        if min(part.shape, default=0) < 0 or (part.offset >= 0 and outside):
            raise self._disbelieve("a result outside of its room")
        try:
            if part.offset >= 0:
                return room.view[part.offset : part.offset + count].view(dtype).view(part.shape).clone()
            # A result that the contract allows has room: this one has another shape, dtype or device.
            # Where it would have none, nobody shall copy it: a tensor of "meta" takes no memory, however large it is.
            device = _known_device(part.device) if count <= room.count else NOWHERE
            return torch.full((1,), math.nan).to(dtype).to(device).expand(part.shape or (1,))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, OverflowError) as error:
            raise self._disbelieve("a result that no tensor can be") from error

    def load(self, card: KernelCard) -> None:
        """Load a card's library or entry, unless it is there."""
        self.greet()
        if card.kernel not in self.loaded:
            load = says.Load(
                kernel=card.kernel, adapter=card.adapter, entry=card.entry or "", options=dict(card.options)
            )
            self.ask(load, says.Accepted)
            self.loaded.add(card.kernel)

    def begin_control(self, *, warm_up: bool = False) -> None:
        """Ask for the witness's negative control, and go on: the first profiler session of a process takes seconds.

        Args:
            warm_up: whether its libraries also get ready for their first launch.
        """
        self.greet()
        self.send(says.Control(warm_up=warm_up))
        self.controlling = True

    @property
    def busy(self) -> bool:
        """Whether it still makes its negative control, so that a question would have to wait."""
        return self.controlling and not self.child.has_spoken()

    def finish_control(self) -> None:
        """Wait for the negative control where it has begun."""
        if self.controlling:
            self.controlling = False
            self.controlled = self._events()

    def control(self) -> list[dict[str, Any]]:
        """Events of the witness's negative control."""
        if self.controlled is None and not self.controlling:
            self.begin_control()
        self.finish_control()
        assert self.controlled is not None, "it was asked for"
        return self.controlled

    def describe(self) -> says.HostSoftware:
        """Its software."""
        self.greet()
        told = self.ask(says.Describe(), says.HostSoftware)
        if max(map(len, (told.components, told.binaries, told.environment))) > MOST_SOFTWARE:
            raise self._disbelieve("more software than a process has")
        return told

    def trace(
        self, calls: Sequence[Bound], announce: Callable[[int], None], *, times: int, memory: bool
    ) -> list[dict[str, Any]]:
        """By its profiler."""
        bounds = [cast("Placeable", call) for call in calls]
        for bound in bounds:
            bound.refresh()

        self.finish_control()
        self.send(says.TraceCalls(numbers=tuple(bound.number for bound in bounds), times=times, memory=memory))
        events = self._events(announce, len(bounds))
        self.unsettled = False
        return events

    def _events(self, announce: Callable[[int], None] | None = None, count: int = 0) -> list[dict[str, Any]]:
        """The events of a session. Each has a time, and a duration if any."""
        parts = [self.answer(says.Events, announce, count)]
        while parts[-1].more:
            if len(parts) == MOST_PARTS:
                raise self._disbelieve(f"more than {MOST_PARTS * AT_ONCE:,} events of one trace")
            parts.append(self.answer(says.Events))
        try:
            found = [event for part in parts for event in unpacked(part)]
        except ValueError as error:
            raise self._disbelieve("events of no kind") from error
        if not all(_is_number(event.get(key, 0)) for event in found for key in ("ts", "dur")):
            raise self._disbelieve("events without a time")
        return found

    def sample(self, calls: Sequence[Launchable], effort: Effort) -> tuple[Samples, Any]:
        """By its clock, or the device's."""
        bounds = [cast("Placeable", call) for call in calls]
        for bound in bounds:
            bound.refresh()
        native = Native(self)
        asked = says.TimeCalls(numbers=tuple(bound.number for bound in bounds), native=native.number, **asdict(effort))
        began = time.monotonic()
        told = self.ask(asked, says.Sampled)
        self.unsettled = False
        measured = all(_is_time(value, began) for value in (*told.samples_us, told.host_us))
        if not measured or len(told.samples_us) != effort.blocks or not 1 <= told.launches_per_block <= effort.launches:
            raise self._disbelieve(NO_TIMES)
        samples = Samples(samples_us=told.samples_us, launches_per_block=told.launches_per_block, host_us=told.host_us)
        return samples, native

    def healthy(self) -> bool:
        """Whether its context computes; a lost one raises in the host."""
        self.unsettled = False
        return self.lost is None and self.ask_numbers(says.Wait()) == (1.0,)

    def close(self) -> None:
        """End the process and give its memory back."""
        self.lost = self.lost or HostLost("it was ended", log="", limit_s=None)
        self.child.stop()
        self.results = None
        self.mirror.copies.clear()
        self.arena.close()
        self.process.close_file()

    def _receive(self) -> Any:
        self.child.progressed = self.watch.began
        return self.child.receive(self.watch.limit_s)

    def _guarded(self, step: Callable[[], Any]) -> Any:
        if self.lost is not None:
            raise self.lost
        try:
            return step()
        except Gone as gone:
            raise self._lose(gone) from None

    def _lose(self, gone: Gone) -> HostLost:
        self.lost = HostLost(gone.error, log=self.child.log_tail(), limit_s=gone.limit_s)
        return self.lost

    def _disbelieve(self, what: str) -> HostLost:
        """End it because of what it said; returns the HostLost to raise."""
        return self._lose(self.child.disbelieve(what))

    def _tell(self, segment: says.OpenMemory) -> None:
        self.ask(segment, says.Accepted)

    def _untell(self, segment: says.CloseMemory) -> bool:
        return self.ask_numbers(segment) == (1.0,)

    def make_room(self) -> None:
        """Give back what is free of the device's memory, here and there."""
        self.mirror.sweep()
        self.ask(says.GiveBack(), says.Accepted)
        self.arena.trim(0)


class Native:
    """What a launch returned, in its host; dropped there once nobody has this any more."""

    def __init__(self, host: RemoteHost) -> None:
        self.number = next(host.numbers)
        weakref.finalize(self, host.drop, self.number).atexit = False


def _is_amount(value: object) -> TypeGuard[float]:
    """Whether it is a number from 0 on."""
    return _is_number(value) and value >= 0


def _is_time(value: object, began: float) -> TypeGuard[float]:
    """Whether it is a time in µs: more than nothing, and no more than has passed since the question was asked."""
    return _is_number(value) and LEAST_US <= value <= (time.monotonic() - began) * 1e6


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and -says.MOST <= value <= says.MOST


def _exception(raised: says.Raised) -> Exception:
    match raised.kind:
        case "refusal":
            return LibraryRefusal(raised.text)
        case "import":
            return LoadFailed(raised.name, raised.text, raised.log, raised.place)
        case "memory":
            kind = MemoryError if raised.name == "MemoryError" else torch.OutOfMemoryError
            return kind(raised.text)
    return KernelRaised(raised.name, raised.text, raised.log, raised.place)


class LoadFailed(KernelRaised, ImportError):
    """A library or an entry cannot be imported in its host."""


def _known_device(name: str) -> str:
    return name if name == HOST or (name in KINDS and torch.cuda.is_available()) else NOWHERE
