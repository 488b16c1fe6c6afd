"""Blocks of launches for a duel: prepared once, timed whenever it is this side's turn.

On a GPU a block is replays of one CUDA graph, or eager launches behind a kernel that spins while the host issues them.
The launches of a graph are as many as one layer after another of a model has, so what lies between two launches is
production's. ``plant`` makes each block longer by a share of its own time, to show that a duel finds it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from qualify.facts.devices import HOST
from qualify.run.host.local import MOST_AHEAD_US, host_us
from qualify.run.machine.device import Processor

UNIT = 64
"""most launches of a unit (what one graph holds), unless there are more copies of the inputs"""
UNIT_US = 3_000.0
"""longest that a unit should take"""
ISSUED = 20
"""launches over which the host's time is measured"""
LEAST_COPIES = 3
"""least copies of the inputs over which the launches rotate, where a block has no time for all of them: a kernel that
takes so long fills the cache by itself"""
LEAD_IN = 10
"""a block is so many times as long as what is launched to lead in to it"""
WARM_UP = 2
ALIKE = 1.5
"""where the times of two sides differ by less than this factor, their blocks have equally many launches"""
REPLAY_US = 50.0
"""most host time to launch a graph"""
SPIN_US = 20.0
"""shortest planted spin in a graph: one of less would be shorter than its own launch"""
EAGER_SPIN_US = 100.0
"""shortest planted spin between eager launches: each lets the device wait for some µs"""
CALIBRATED_CYCLES = 2_000_000
LOAD_US = 3000.0
"""how long the card works before cycles are counted"""
ISSUE_US = 20.0
"""host time to launch one spin"""
NODE_US = 1.2
"""time that one more kernel between two others costs, beyond its own work"""


class Blocks:
    """One side's blocks of one cell."""

    def __init__(
        self,
        launches: Sequence[Callable[[], Any]],
        processor: Processor,
        *,
        graph: bool,
        block_us: float,
        plant: float,
        like_us: float = 0.0,
    ) -> None:
        """Warm up, and capture if asked.

        Args:
            launches: of the same call, on copies of its inputs.
            block_us: device time that a block takes at least.
            plant: share of its time that a block spins.
            like_us: of a launch on the other side; 0 = unknown. Where this side takes about as long, its blocks have as
                many launches: a longer block would be timed at another clock of the card.

        Raises:
            RuntimeError: the call cannot be captured.
        """
        self.processor = processor
        for launch in launches:
            launch()
        processor.synchronize()
        self.issue_us = median(host_us(processor, launches[0]) for _ in range(3))
        ahead = 1.5 * self.issue_us * len(launches)
        timed = [processor.block_us(launches, ahead_us=min(MOST_AHEAD_US, ahead)) / len(launches) for _ in range(3)]
        self.launch_us = max(min(timed), 0.1)
        """device time of one launch, roughly"""
        if like_us and max(like_us, self.launch_us) < ALIKE * min(like_us, self.launch_us):
            self.launch_us = like_us
        self.launches = launches[: max(LEAST_COPIES, math.ceil(block_us / self.launch_us))]
        self.count = unit_of(self.launch_us, len(self.launches))
        """launches of a unit"""
        self.spins: dict[int, Callable[[], None]] = {}
        """what is planted behind which launch of a unit"""
        self.repeats = max(1, math.ceil(block_us / (self.launch_us * self.count)))
        self.least_spin_us = SPIN_US if graph else EAGER_SPIN_US
        self.step_host_us = REPLAY_US if graph else self.issue_us * self.count
        self.step = self._captured() if graph else self._unit
        if plant:
            self.spins = self._planted(plant)
            self.step_host_us += 0.0 if graph else ISSUE_US * len(self.spins)
            self.step = self._captured() if graph else self._unit

    def time(self) -> float:
        """µs of one launch in one block; launches before it drive the other side's inputs out of the cache."""
        ahead = min(MOST_AHEAD_US, 1.3 * self.step_host_us * self.repeats)
        self._lead_in()
        return self.processor.block_us([self.step] * self.repeats, ahead_us=ahead) / (self.repeats * self.count)

    def _lead_in(self) -> None:
        """Launch about a tenth of a block: whole units, or single launches where that is less than a unit."""
        units = self.repeats // LEAD_IN
        for _ in range(units):
            self.step()
        for number in range(0 if units else math.ceil(self.repeats * self.count / LEAD_IN)):
            self.launches[number % len(self.launches)]()

    def _planted(self, plant: float) -> dict[int, Callable[[], None]]:
        """The planted spins, by the launch that each follows; together they take ``plant`` of a unit's time."""
        unit_us = min(self.time() for _ in range(3)) * self.count
        pieces = max(1, min(self.count, int(plant * unit_us / self.least_spin_us)))

        def load() -> None:
            for _ in range(math.ceil(LOAD_US / unit_us)):
                self.step()

        spin = spinner(self.processor, plant * unit_us / pieces, load)
        return {(piece + 1) * self.count // pieces - 1: spin for piece in range(pieces)}

    def host_time(self) -> float:
        """µs of the host to issue one launch, without waiting for it."""
        self.processor.synchronize()
        began = time.perf_counter_ns()
        for number in range(ISSUED):
            self.launches[number % len(self.launches)]()
        issued = (time.perf_counter_ns() - began) / 1e3
        self.processor.synchronize()
        return issued / ISSUED

    def _unit(self) -> None:
        """Some launches over all copies in turn, with the planted spins between them."""
        for number in range(self.count):
            self.launches[number % len(self.launches)]()
            if number in self.spins:
                self.spins[number]()

    def _captured(self) -> Callable[[], None]:
        """The replay of a unit."""
        streams = self.processor.streams
        assert streams is not None, "a device without streams has no graphs"
        streams.warm_up(self.launches[0], WARM_UP)
        try:
            replay, _ = streams.capture(self._unit)
        except RuntimeError:
            self.processor.synchronize()
            raise
        replay()
        self.processor.synchronize()
        return replay


def unit_of(launch_us: float, copies: int) -> int:
    """How many launches a unit has: a multiple of the copies, and more where launches are short."""
    wanted = max(copies, min(UNIT, int(UNIT_US / launch_us)), 1)
    return -(-wanted // copies) * copies


def spinner(processor: Processor, us: float, load: Callable[[], None]) -> Callable[[], None]:
    """A call that keeps the device busy for so long.

    Args:
        load: work like that beside which it will spin. A card under load runs at another clock, and so do the cycles of
            the spin.
    """
    if processor.kind == HOST:

        def wait() -> None:
            until = time.perf_counter_ns() + us * 1e3
            while time.perf_counter_ns() < until:
                pass

        return wait

    def sleep(cycles: int) -> None:
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

    def calibrate() -> float:
        load()
        return processor.block_us([lambda: sleep(CALIBRATED_CYCLES)], ahead_us=ISSUE_US)

    took = median(calibrate() for _ in range(3))
    cycles = max(1, int(max(us - NODE_US, 0.0) * CALIBRATED_CYCLES / took))
    return lambda: sleep(cycles)
