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
"""clock-event reasons under which a time is not that of the kernel"""
NOTED = {0x04: "software power cap", 0x20: "software thermal slowdown"}
"""reasons under which both sides are slowed down alike"""
POLL_S = 0.01
PATIENCE, PATIENCE_S = 10, 0.3
"""looks, and seconds between them, before a process counts as somebody else's: one that has ended stays a moment"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardState:
    """What was seen of the card meanwhile."""

    reasons: int = 0
    """clock-event bits of all looks together"""
    clock_mhz: float = 0.0
    """median clock of the multiprocessors; 0.0 = unknown"""

    @property
    def rejected(self) -> tuple[str, ...]:
        """Why the time counts as nothing."""
        return tuple(f"{meaning} (clock-event bit {bit:#x})" for bit, meaning in REJECTED.items() if self.reasons & bit)

    @property
    def noted(self) -> tuple[str, ...]:
        """What slowed the card down without making the time worthless."""
        return tuple(f"{meaning} (clock-event bit {bit:#x})" for bit, meaning in NOTED.items() if self.reasons & bit)


class Fitness(Protocol):
    """The state of a device, for whoever times on it."""

    def refusals(self, own: int) -> tuple[str, ...]:
        """Why nothing may be timed now.

        Args:
            own: processes of ours that use the device.
        """
        ...

    def begin(self) -> None:
        """A block begins."""
        ...

    def end(self) -> CardState:
        """It has ended: what was seen meanwhile."""
        ...

    def close(self) -> None:
        """End the watch."""
        ...


class Unwatched:
    """A device that nobody can ask: a CPU, or a GPU without NVML."""

    def refusals(self, own: int) -> tuple[str, ...]:
        """Empty: nobody can ask the device."""
        return ()

    def begin(self) -> None:
        """Nothing to look at."""

    def end(self) -> CardState:
        """A state in which nothing was seen."""
        return CardState()

    def close(self) -> None:
        """Nothing to end."""


class WatchedCard:
    """A GPU, looked at every few milliseconds by a thread."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._before = 0
        """processes of others; this one and its hosts use no card yet"""
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
        """MIG, and processes of others."""
        found = []
        try:
            if self._nvml.nvmlDeviceGetMigMode(self._handle)[0]:
                found.append("MIG is on: times are those of a slice. Switch it off, or duel on another card")
        except self._nvml.NVMLError:  # a card that has none
            pass
        listed = self._processes()
        others = max(self._before, len(listed) - own)
        if others > 0:
            pids = ", ".join(map(str, listed))
            found.append(f"{others} other process{'es' if others > 1 else ''} on the card (pids seen: {pids})")
        return tuple(found)

    def begin(self) -> None:
        """Forget what was seen before, and look."""
        with self._lock:
            self._reasons, self._clocks = 0, []
        self._look()

    def end(self) -> CardState:
        """Look once more."""
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
    """Why nothing may be timed, where that lasts."""
    found = fitness.refusals(own)
    for _ in range(PATIENCE):
        if not found:
            break
        time.sleep(PATIENCE_S)
        found = fitness.refusals(own)
    return found


def fitness_of(kind: str) -> tuple[Fitness, str]:
    """The watch of the device that this process is about to use, before it does; and what a reader should know of it.

    Args:
        kind: of the device.
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
    """The handle of the first GPU that CUDA_VISIBLE_DEVICES leaves."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if chosen and not chosen.isdecimal():
        return nvml.nvmlDeviceGetHandleByUUID(chosen)
    return nvml.nvmlDeviceGetHandleByIndex(int(chosen or 0))
