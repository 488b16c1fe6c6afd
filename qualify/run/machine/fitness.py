"""Whether the card is fit to be timed: what NVML says while a block runs, and who else uses the card."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from qualify.facts.devices import HOST

REJECTED = {0x08: "hardware slowdown", 0x40: "hardware thermal slowdown", 0x80: "hardware power brake"}
"""clock-event reasons (NVML bits) that make a time worthless, because the card slowed down"""
NOTED = {0x04: "software power cap", 0x20: "software thermal slowdown"}
"""clock-event reasons that slow both sides down equally, so they are only noted"""
POLL_S = 0.01
PATIENCE, PATIENCE_S = 10, 0.3
"""Number of looks, and seconds between them, before a listed process counts as another user's: NVML lists a process
for a moment after its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardState:
    """What was seen of the card during a block."""

    reasons: int = 0
    """clock-event bits of all looks, combined by OR"""
    clock_mhz: float = 0.0
    """median clock of the multiprocessors; 0.0 = unknown"""

    @property
    def rejected(self) -> tuple[str, ...]:
        """Reasons why the time does not count."""
        return tuple(f"{meaning} (clock-event bit {bit:#x})" for bit, meaning in REJECTED.items() if self.reasons & bit)

    @property
    def noted(self) -> tuple[str, ...]:
        """Reasons why the card was slower, although the time counts."""
        return tuple(f"{meaning} (clock-event bit {bit:#x})" for bit, meaning in NOTED.items() if self.reasons & bit)


class Fitness(Protocol):
    """Watches the state of a device while something is timed on it."""

    def refusals(self, own: int) -> tuple[str, ...]:
        """Why nothing may be timed now; empty = timing is allowed.

        Args:
            own: number of qualify's own processes that use the device.
        """
        ...

    def begin(self) -> None:
        """Begin a block."""
        ...

    def end(self) -> CardState:
        """End the block; returns what was seen during it."""
        ...

    def close(self) -> None:
        """End the watch."""
        ...


class Unwatched:
    """A device whose state is unknown: a CPU, or a GPU without NVML."""

    def refusals(self, own: int) -> tuple[str, ...]:
        """Empty, because the state is unknown."""
        return ()

    def begin(self) -> None:
        """Do nothing."""

    def end(self) -> CardState:
        """A state in which nothing was seen."""
        return CardState()

    def close(self) -> None:
        """Do nothing."""


class WatchedCard:
    """A GPU whose state a thread reads every few milliseconds."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._before = 0
        """number of other processes on the card at the start, when this process and its hosts do not use it yet"""
        for _ in range(PATIENCE):
            self._before = len(self._processes())
            if not self._before:
                break
            time.sleep(PATIENCE_S)
        self._lock = threading.Lock()
        self._reasons = 0
        self._clocks: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True, name="nvml")
        self._thread.start()

    def refusals(self, own: int) -> tuple[str, ...]:
        """Refuse a card with MIG, and a card that other processes use."""
        found = []
        try:
            if self._nvml.nvmlDeviceGetMigMode(self._handle)[0]:
                found.append("MIG is on: times are those of a slice. Switch it off, or duel on another card")
        except self._nvml.NVMLError:  # a card without MIG
            pass
        listed = self._processes()
        others = max(self._before, len(listed) - own)
        if others > 0:
            pids = ", ".join(map(str, listed))
            found.append(f"{others} other process{'es' if others > 1 else ''} on the card (pids seen: {pids})")
        return tuple(found)

    def begin(self) -> None:
        """Forget what was seen before, and read the state."""
        with self._lock:
            self._reasons, self._clocks = 0, []
        self._look()

    def end(self) -> CardState:
        """Read the state once more; returns all that was seen during the block."""
        self._look()
        with self._lock:
            return CardState(reasons=self._reasons, clock_mhz=float(median(self._clocks)) if self._clocks else 0.0)

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join()
        self._nvml.nvmlShutdown()

    def _processes(self) -> list[int]:
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return []
        return sorted(int(item.pid) for item in running)

    def _look_on(self) -> None:
        while not self._over.wait(POLL_S):
            self._look()

    def _look(self) -> None:
        try:
            reasons = int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
            clock = int(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))
        except self._nvml.NVMLError:
            return
        with self._lock:
            self._reasons |= reasons
            self._clocks.append(clock)


def patient(fitness: Fitness, own: int) -> tuple[str, ...]:
    """Why nothing may be timed, where the reason lasts longer than a few seconds."""
    found = fitness.refusals(own)
    for _ in range(PATIENCE):
        if not found:
            break
        time.sleep(PATIENCE_S)
        found = fitness.refusals(own)
    return found


def fitness_of(kind: str) -> tuple[Fitness, str]:
    """A watch of the device that this process will use, and a note for the reader; call it before the first use.

    Args:
        kind: kind of the device.
    """
    if kind == HOST:
        return Unwatched(), ""
    try:
        import pynvml
    except ImportError:
        return Unwatched(), "nvidia-ml-py is not installed: throttling and other processes go unnoticed"
    try:
        pynvml.nvmlInit()
        return WatchedCard(pynvml, first_visible(pynvml)), ""
    except pynvml.NVMLError as error:
        return Unwatched(), f"NVML does not answer ({error}): throttling and other processes go unnoticed"


def first_visible(nvml: Any) -> Any:
    """The NVML handle of the first GPU that CUDA_VISIBLE_DEVICES allows."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if chosen and not chosen.isdecimal():
        return nvml.nvmlDeviceGetHandleByUUID(chosen)
    return nvml.nvmlDeviceGetHandleByIndex(int(chosen or 0))
