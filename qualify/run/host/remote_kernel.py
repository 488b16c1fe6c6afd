"""A kernel that lives in a host process, asked as if it lived here."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from qualify.run.adapters.interface import AttentionCall
from qualify.run.host import messages as says
from qualify.run.host.interface import CallPlace, HostLost, KernelRaised, lengths_of
from qualify.run.host.mirror import Placed
from qualify.run.host.remote import Native, RemoteHost
from qualify.run.repro.script import Claim


@contextmanager
def _told(call: AttentionCall) -> Iterator[None]:
    """What fails within knows in which call."""
    try:
        yield
    except (KernelRaised, HostLost) as error:
        with suppress(RuntimeError):  # the judge's device may be lost, too
            error.lengths = lengths_of(call)
        raise


class RemoteKernel:
    """A kernel in a host process."""

    def __init__(self, host: RemoteHost, name: str) -> None:
        self.host = host
        self.name = name
        self.place: dict[str, Any] = {}

    def prepare(self, call: AttentionCall) -> RemoteBound:
        """Place the call in the shared memory; the host prepares it."""
        with _disable_current_modes():
            placed = self.host.mirror.place(call)
            return RemoteBound(self, call, placed)

    def run(self, call: AttentionCall) -> Any:
        """Run the call in the host, and copy the result here."""
        with _disable_current_modes():
            host = self.host
            placed, room = host.mirror.place(call), host.room(call)
            asked = says.RunOnce(kernel=self.name, place=self.place, call=placed.data, region=room.region)
            with _told(call):
                return host.returned(host.ask(asked, says.Returned), room)

    @contextmanager
    def at(self, place: CallPlace) -> Iterator[None]:
        """The host makes the calls within from that place."""
        usual = CallPlace()
        before = self.place
        self.place = {
            item.name: getattr(place, item.name)
            for item in fields(place)
            if getattr(place, item.name) != getattr(usual, item.name)
        }
        try:
            yield
        finally:
            self.place = before

    def read_back(self, call: AttentionCall) -> None:
        """Copy what the kernel wrote from the shared memory into the judge's tensors."""
        with _disable_current_modes():
            self.host.settle()
            self.host.mirror.read_back(call)

    def render(self, *, title: str, text: str, program: Sequence[str], claim: Claim) -> str:
        """A script of a failure, which the adapter in the host writes."""
        asked = says.Render(
            kernel=self.name,
            title=title,
            text=text,
            program=tuple(program),
            shows=claim.shows.__name__,
            given=claim.given,
            values=claim.values,
        )
        return self.host.ask(asked, says.Script).text

    def in_use(self, *, collect: bool) -> tuple[int, ...]:
        """Bytes in use in the host: in its allocator, and of inputs that are gone here and still held there.

        On a GPU also bytes outside of the allocator.
        """
        self.host.mirror.sweep()
        *used, kept, _ = self.host.ask_numbers(says.Memory(collect=collect), least=3)
        counters = [int(value or 0) for value in used]
        if len(counters) > 1:
            counters[1] -= self.host.arena.device_bytes + torch.cuda.memory_reserved()
        return counters[0] + int(kept or 0), *counters[1:]

    def counts_bytes(self) -> bool:
        """Whether the host's processor counts bytes."""
        return bool(self.host.ask_numbers(says.Memory(collect=False), least=3)[-1])


class RemoteBound:
    """A prepared call of a kernel in a host process."""

    def __init__(self, kernel: RemoteKernel, call: AttentionCall, placed: Placed) -> None:
        self.kernel = kernel
        self.host = kernel.host
        self.call = call
        self.placed = placed
        self.number = next(self.host.numbers)
        asked = says.Prepare(kernel=kernel.name, place=kernel.place, number=self.number, call=placed.data)
        with _told(call):
            self.host.ask(asked, says.Accepted)
        self.host.unsettled = True
        weakref.finalize(self, self.host.drop, self.number).atexit = False

    def refresh(self) -> None:
        """Copy what the judge's inputs hold into the shared memory."""
        with _disable_current_modes():
            self.host.mirror.refresh(self.placed)

    def launch(self) -> Native:
        """Launch in the host, which may still compute when this returns."""
        self.refresh()
        return _launched(self.kernel, self.number)

    def turned(self, rows: Iterable[int]) -> list[RemoteTurned]:
        """Prepare turned copies in the host's own memory."""
        self.refresh()
        counts = tuple(rows)
        copies = [RemoteTurned(self.kernel) for _ in counts]
        if copies:
            numbers = tuple(copy.number for copy in copies)
            asked = says.PrepareTurned(number=self.number, place=self.kernel.place, numbers=numbers, rows=counts)
            self.host.ask(asked, says.Accepted)
            self.host.unsettled = True
        return copies

    def result(self, native: Native) -> Any:
        """A copy of the result in this process."""
        with _disable_current_modes():
            room = self.host.room(self.call)
            asked = says.FetchResult(
                number=self.number, place=self.kernel.place, native=native.number, region=room.region
            )
            return self.host.returned(self.host.ask(asked, says.Returned), room)

    def host_us(self) -> float:
        """Microseconds by the host's clock."""
        return self._measured("host_us") or 0.0

    def peak_bytes(self) -> int | None:
        """Bytes by the host's allocator."""
        told = self._measured("peak_bytes")
        return None if told is None else int(told)

    def traced_peak_bytes(self) -> int:
        """Bytes by the host's profiler."""
        return int(self._measured("traced_peak_bytes") or 0)

    def capture(self, warm_up: int) -> tuple[Callable[[], None], Any]:
        """Capture in the host; a replay sees what the inputs hold here."""
        self.refresh()
        graph, native = Native(self.host), Native(self.host)
        asked = says.Capture(
            number=self.number, place=self.kernel.place, warm_up=warm_up, graph=graph.number, native=native.number
        )
        self.host.ask(asked, says.Accepted)

        def replay() -> None:
            self.refresh()
            self.host.ask(says.ReplayGraph(graph=graph.number), says.Accepted)
            self.host.unsettled = True

        return replay, native

    def behind(self, replaced: Sequence[tuple[Tensor, Tensor]]) -> Any:
        """Launch in the host; the inputs hold the new values here too."""
        self.refresh()
        with _disable_current_modes():
            mirror, room = self.host.mirror, self.host.room(self.call)
            specs = [(mirror.spec(into), mirror.spec(values)) for into, values in replaced]
            pairs = tuple((into[0], values[0]) for into, values in specs)
            asked = says.Behind(number=self.number, place=self.kernel.place, replaced=pairs, region=room.region)
            returned = self.host.returned(self.host.ask(asked, says.Returned), room)
        for into, values in replaced:
            into.copy_(values)
        return returned

    def _measured(self, what: Any) -> float | None:
        self.refresh()
        asked = says.Measure(number=self.number, place=self.kernel.place, what=what)
        value = self.host.ask_numbers(asked)[0]
        self.host.unsettled = True
        return value


class RemoteTurned:
    """A prepared call on inputs that only its host has."""

    def __init__(self, kernel: RemoteKernel) -> None:
        self.kernel = kernel
        self.number = next(kernel.host.numbers)
        weakref.finalize(self, kernel.host.drop, self.number).atexit = False

    def refresh(self) -> None:
        """Nothing to copy: only the host has these inputs."""

    def launch(self) -> Native:
        """Launch in the host, which may still compute when this returns."""
        return _launched(self.kernel, self.number)


class RemoteBlocks:
    """Blocks of launches of a call, prepared in its host (qualify.run.host.blocks)."""

    def __init__(
        self,
        calls: Sequence[RemoteBound | RemoteTurned],
        *,
        graph: bool,
        block_us: float,
        plant: float,
        like_us: float,
    ) -> None:
        """Prepare them.

        Args:
            like_us: of a launch on the other side, in µs; 0 = unknown.

        Raises:
            KernelRaised: the call cannot be captured.
        """
        self.host = calls[0].kernel.host
        self.calls = calls
        self.number = next(self.host.numbers)
        for call in calls:
            call.refresh()
        asked = says.PrepareBlocks(
            numbers=tuple(call.number for call in calls),
            number=self.number,
            graph=graph,
            block_us=block_us,
            plant=plant,
            like_us=like_us,
        )
        self.launch_us = self.host.ask_numbers(asked)[0] or 0.0
        weakref.finalize(self, self.host.drop, self.number).atexit = False

    def time(self, *, host: bool = False) -> float:
        """µs of one launch in one block; of the host that issues it, if asked."""
        return self.host.ask_us(says.TimeBlock(number=self.number, host=host))


def _launched(kernel: RemoteKernel, number: int) -> Native:
    native = Native(kernel.host)
    kernel.host.ask(says.LaunchBound(number=number, place=kernel.place, native=native.number), says.Accepted)
    kernel.host.unsettled = True
    return native
