"""Which host serves which kernel: one process for each library and each card of a third party."""

from __future__ import annotations

import contextlib
import os
import select
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from qualify.cards.kernel import CALL, KernelCard
from qualify.errors import DeviceError
from qualify.facts.devices import HOST
from qualify.run.host.interface import HostLost, Kernel, KernelRaised
from qualify.run.host.launch import MOST, HostProcess, HostSetup, library_of
from qualify.run.host.messages import HostSoftware
from qualify.run.host.remote import RemoteHost, Watch
from qualify.run.host.remote_kernel import RemoteKernel
from qualify.run.machine.device import processor_of
from qualify.run.measure.recording import CALLS
from qualify.run.measure.tracing import read_trace
from qualify.run.measure.witness import negative_control
from qualify.run.process.child import START_TIMEOUT_S, not_started
from qualify.run.process.tree import end_strays
from qualify.run.repro.script import Claim

TOGETHER = 8
"""hosts that start side by side: importing a library keeps a core busy for seconds"""
CORES_EACH = 2
"""cores for each of them; fewer start together on a smaller machine"""
AHEAD = 2
"""more processes for repeats than cases have failed so far"""
FIRST_S = 10.0
"""how long to wait for the first of several hosts that get ready"""


def side_by_side(count: int) -> int:
    """How many of so many hosts start or load together on this machine; 1 or more."""
    return max(1, min(count, TOGETHER, len(os.sched_getaffinity(0)) // CORES_EACH))


@dataclass(kw_only=True, slots=True)
class _Place:
    """A host, and what is known of it."""

    host: RemoteHost
    preload: list[KernelCard] = field(default_factory=list)
    control: str | None = None
    ran: bool = False


class Pool:
    """Host processes of one judge."""

    def __init__(
        self,
        setup: HostSetup,
        watch: Watch,
        environments: dict[str, str] | None = None,
        *,
        ends_strays: bool = False,
        early: dict[str, HostProcess] | None = None,
    ) -> None:
        """No host is in use yet. Where there are too many, the one that was not needed for the longest time ends.

        Args:
            early: processes that have been started for libraries.
            environments: interpreters by the name of their environment.
            ends_strays: whether this process adopts orphans, and so ends what a host has left behind. A process with
                children of another kind must not: they would be taken for strays.
        """
        self.ends_strays = ends_strays
        self.setup = setup
        self.watch = watch
        self.environments = environments or {}
        self.early = early or {}
        self.places: dict[str, _Place] = {}
        """by library, those used last at the end"""
        self.owed = 0
        """cases that are still to come and each need a host of their own"""
        self.spares: list[RemoteHost] = []
        """started, and nothing loaded"""
        self.failures = 0
        """cases that failed and probably run again"""
        self.expected: list[HostProcess] = []
        """processes that import torch, or have done so, and have not been asked for anything"""

    def begin_start(self, cards: Iterable[KernelCard]) -> None:
        """Start the hosts of some cards side by side, without waiting for them.

        A third party's kernel is loaded with its first case. Where an environment has no other kernels, a host of
        theirs starts all the same: somebody must say what is installed there.
        """
        for card in cards:
            library = library_of(card)
            known = {place.partition("/")[0] for place in self.places}
            if card.adapter == CALL and (not card.environment or card.environment in known):
                continue
            if library not in self.places:
                if len(self.places) == MOST:
                    continue
                self.places[library] = _Place(host=self._spawn(card))
            if card.adapter != CALL:
                self.places[library].preload.append(card)

    def finish_start(self, announce: Callable[[str], None]) -> None:
        """Wait for them, and load their libraries side by side, as far as there are cores for it.

        An error is ignored here: it comes again with the first case of the kernel, and is recorded as its outcome.

        Args:
            announce: told the first kernel of each library whose turn it is.
        """

        def load(place: _Place) -> None:
            for card in place.preload:
                with contextlib.suppress(Exception):
                    place.host.load(card)

        waiting = [place for place in self.places.values() if place.preload]
        together = side_by_side(len(waiting))
        with ThreadPoolExecutor(together) as threads:
            for first in range(0, len(waiting), together):
                some = waiting[first : first + together]
                announce(some[0].preload[0].kernel)
                list(threads.map(load, some))

    def described(self) -> dict[str, list[HostSoftware]]:
        """What the hosts of other environments say of their software, by environment."""
        found: dict[str, list[HostSoftware]] = defaultdict(list)
        for library, place in self.places.items():
            environment = library.partition("/")[0]
            if environment and place.host.alive:
                with contextlib.suppress(Exception):
                    found[environment].append(place.host.describe())
        return found

    def begin_controls(self) -> None:
        """Let every host make its negative control now, while this process does other work.

        Where there are several, each also warms up what is slow at its first launch: cases of the others run meanwhile.
        """
        several = len(self.places) > 1
        for place in self.places.values():
            if place.host.alive:
                with contextlib.suppress(HostLost):
                    place.host.begin_control(warm_up=several)

    def binaries(self) -> list[str]:
        """Files that matter and that hosts of this environment have mapped."""
        found: set[str] = set()
        for library, place in self.places.items():
            if library.startswith("/") and place.host.alive:
                with contextlib.suppress(Exception):
                    found.update(place.host.describe().binaries)
        return sorted(found)

    def kernel(self, card: KernelCard, *, alone: bool = False) -> Kernel:
        """Load it in its host, which is started, or started anew."""
        library = library_of(card)
        place = self.places.pop(library, None)
        if place is not None and (place.host.lost is not None or place.host.killed or (alone and place.ran)):
            self._end(place.host)
            place = None
        if place is None:
            while len(self.places) >= MOST:
                self._end(self.places.pop(next(iter(self.places))).host)
            place = _Place(host=self._spawn(card))
        self.places[library] = place
        place.host.load(card)
        return RemoteKernel(place.host, card.kernel)

    def host(self, card: KernelCard) -> RemoteHost:
        """The host of the card's library."""
        return self.places[library_of(card)].host

    def fresh(self, card: KernelCard) -> bool:
        """Whether the host of the card's library is fresh."""
        place = self.places.get(library_of(card))
        if place is None:
            return True
        fresh, place.ran = not place.ran, True
        return fresh

    def busy(self, card: KernelCard) -> bool:
        """Whether its host makes its negative control now; one that has not started is not waited for yet."""
        place = self.places.get(library_of(card))
        return place is not None and place.host.busy

    def wait(self) -> bool:
        """Wait for whichever host is the first to have made its negative control.

        A single one is not waited for here: the case that needs it does so, under the limit of its stage.
        """
        busy = [place.host for place in self.places.values() if place.host.busy]
        if len(busy) < 2:
            return False
        ready = select.poll()
        for host in busy:
            ready.register(host.child.incoming, select.POLLIN)
        return bool(ready.poll(1000 * FIRST_S))

    def control(self, card: KernelCard) -> str:
        """Each host is asked once, and its answer remembered."""
        place = self.places[library_of(card)]
        if place.control is None:
            (trace,) = read_trace(place.host.control(), count=1, cuda=self.setup.device != HOST, calls=CALLS)
            place.control = negative_control(trace)
        return place.control

    def begin(self, limit_s: float) -> None:
        """Until the next stage this limit holds for every question to a host."""
        self.watch.begin(limit_s)

    def lost(self, card: KernelCard) -> None:
        """End the host of the card's library; the next case gets another one."""
        place = self.places.pop(library_of(card), None)
        if place is not None:
            self._end(place.host)

    def make_room(self) -> None:
        """Give back the memory of all hosts, and last that of this process, because it holds parts of theirs."""
        for place in self.places.values():
            if place.host.alive and place.host.started:
                with contextlib.suppress(HostLost, KernelRaised):
                    place.host.make_room()
        processor_of(self.setup.device).give_back()

    def _end(self, host: RemoteHost) -> None:
        """End a host, and what it started and left behind."""
        host.close()
        if self.ends_strays:
            hosts = (*self.spares, *(place.host for place in self.places.values()))
            children = (*(other.child for other in hosts), *(process.child for process in self.expected))
            end_strays([child.process.pid for child in children])

    def render(self, card: KernelCard, *, title: str, text: str, program: Sequence[str], claim: Claim) -> str:
        """Render in a host, because adapter and source are there; a new one, if the kernel has ended its own."""
        kernel = self.kernel(card)
        assert isinstance(kernel, RemoteKernel), "a pool's kernels live in hosts"
        return kernel.render(title=title, text=text, program=program, claim=claim)

    def expect_repeat(self) -> None:
        """A case failed, and probably runs again in a host of its own: the process for that starts now.

        It only imports torch, beside the next cases. On a CPU that would disturb their times, so there none starts.
        Some more start with it: the last failures of a run need not wait for theirs.
        """
        self.failures += 1
        wanted = side_by_side(self.failures + AHEAD) if self.setup.device != HOST else 0
        with contextlib.suppress(OSError):  # it starts later, or somebody hears then that the machine has no room
            while len(self.expected) < wanted:
                self.expected.append(HostProcess(self.setup))

    def prepare_spares(self, count: int) -> None:
        """Start hosts for so many cases that each need one of their own, as many together as there are cores for.

        It waits until they are up and have made their negative controls: no start disturbs a measurement.
        """
        self.owed = count
        self._refill()

    def _refill(self) -> None:
        together = side_by_side(self.owed)
        limit_s = self.watch.limit_s
        self.watch.begin(START_TIMEOUT_S)
        with contextlib.suppress(DeviceError, HostLost):  # fewer do, where the machine has no room for more
            while len(self.spares) < together:
                self.spares.append(self._start())
        steps: tuple[Callable[[RemoteHost], None], ...] = (
            lambda spare: spare.greet(),
            lambda spare: spare.begin_control(),
            lambda spare: spare.finish_control(),
        )
        for step in steps:
            for spare in self.spares:
                with contextlib.suppress(Exception):  # it comes again with the case that needs a host
                    step(spare)
        self.watch.begin(limit_s)

    def close(self) -> None:
        """End them all."""
        for place in self.places.values():
            place.host.close()
        for spare in self.spares:
            spare.close()
        for process in self.expected:
            process.close()
        self.places.clear()
        self.spares.clear()
        self.expected.clear()

    def _spawn(self, card: KernelCard) -> RemoteHost:
        """A host for a card: one that was started for it or that waits, or another."""
        early = self.early.pop(library_of(card), None)
        if early is not None:
            return self._greeted(early)
        if card.environment:
            return self._start(card.environment)
        if self.owed > 1 and not self.spares:
            self._refill()
        self.owed = max(0, self.owed - 1)
        while self.spares:
            spare = self.spares.pop()
            if spare.lost is None and spare.child.process.poll() is None:
                return spare
            spare.close()
        return self._start()

    def _start(self, environment: str = "") -> RemoteHost:
        """One more process.

        Raises:
            DeviceError: the machine has no room for it, or for what it shares with this one.
        """
        while self.expected and not environment:
            begun = self.expected.pop(0)
            if begun.child.process.poll() is None:
                return self._greeted(begun)
            begun.close()
        try:
            process = HostProcess(self.setup, self.environments.get(environment, ""))
        except OSError as error:
            raise DeviceError(f"no process can be started for a kernel: {not_started(error)}") from error
        return self._greeted(process)

    def _greeted(self, process: HostProcess) -> RemoteHost:
        try:
            host = RemoteHost(self.setup, self.watch, process)
        except OSError as error:
            process.close()
            raise DeviceError(
                f"no memory can be shared with the process of a kernel: {error}. It needs {process.size / 1e9:.0f} GB "
                "of addresses, most of which take no memory. A limit of the address space probably forbids that: look "
                "at `ulimit -v`, and set it to unlimited. What was measured is stored."
            ) from error
        host.send_start()
        return host
