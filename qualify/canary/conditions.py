"""What the card (the GPU) says against a fire: not to run at all, or not to believe its times."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from qualify.facts.devices import HOST
from qualify.fleet.probe import find_host
from qualify.run.machine.fitness import first_visible
from qualify.run.machine.health import recovery, remapping, unsupported

SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""NVML clock-event reasons under which times are not those of the card"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """Reasons, with values; none where nothing speaks against the fire."""

    refuse: tuple[str, ...] = ()
    numerics_only: tuple[str, ...] = ()


def examine(device: str) -> Conditions:
    """The state of the GPU that a fire would run on, before it does; nothing speaks against a CPU.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``, as the canary has it.
    """
    monitor = Monitor(device)
    try:
        return Conditions(refuse=monitor.refusals(), numerics_only=monitor.doubts(idle=True))
    finally:
        monitor.close()


class Monitor:
    """The GPU of a fire while it runs; it does nothing on a machine without one."""

    def __init__(self, device: str) -> None:
        self._lost: tuple[str, ...] = ()
        self._nvml: Any = None
        self._handle: Any = None
        self._events: Any = None
        self._xids: list[int] = []
        self._doubts: dict[str, None] = {}
        if device == HOST:
            return
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
        except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
            return
        except pynvml.NVMLError as error:
            self._lost = (f"NVML: {error}; a driver upgrade is probably not finished",)
            return
        self._nvml = pynvml
        try:
            self._handle = first_visible(pynvml)
        except pynvml.NVMLError as error:
            self._lost = (f"the GPU does not answer (NVML: {error})",)
        self._events = self._listen()

    def refusals(self) -> tuple[str, ...]:
        """Why nothing may run: the GPU is lost, asks for a recovery action, or could not remap faulty rows."""
        if self._handle is None:
            return self._lost
        told = (recovery(self._nvml, self._handle), remapping(self._nvml, self._handle))
        return tuple(filter(None, told))

    @property
    def uuid(self) -> str:
        """Of the GPU; empty where there is none, or it does not answer."""
        if self._handle is None:
            return ""
        try:
            return str(self._nvml.nvmlDeviceGetUUID(self._handle))
        except self._nvml.NVMLError:
            return ""

    def doubts(self, *, idle: bool) -> tuple[str, ...]:
        """Why times say nothing: slowdowns, MIG, and, where ``idle`` says that we run nothing, processes of others."""
        if self._handle is None:
            return ()
        nvml, found = self._nvml, []
        try:
            reasons = int(nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
            found += [f"{meaning} (clock-event bit {bit:#x})" for bit, meaning in SLOWDOWNS.items() if reasons & bit]
            if nvml.nvmlDeviceGetMigMode(self._handle)[0]:
                found.append("MIG is on: times are those of a slice")
        except nvml.NVMLError as error:
            if not unsupported(nvml, error):
                found.append(f"NVML does not answer: {error}")
        others = self._others() if idle else []
        if others:
            found.append(f"other processes use the card (pid {', '.join(map(str, others))})")
        return tuple(found)

    def sample(self) -> None:
        """Remembers what speaks against the run's times, and the errors that the driver reported (Xid)."""
        self._doubts |= dict.fromkeys(self.doubts(idle=False))
        while self._events is not None:
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:  # nothing more
                return
            self._xids.append(int(data.eventData))

    @property
    def seen(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Every doubt and every Xid of all samples."""
        return tuple(self._doubts), tuple(self._xids)

    def close(self) -> None:
        """Leaves the GPU alone."""
        if self._nvml is not None:
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()
        self._nvml = self._handle = self._events = None

    def _listen(self) -> Any:
        nvml = self._nvml
        if self._handle is None:
            return None
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:  # a card or driver without events
            return None
        return events

    def _others(self) -> list[int]:
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return []
        return sorted({int(item.pid) for item in running} - {os.getpid()})


def card_uuid(device: str) -> str:
    """UUID of the GPU that a fire would take; empty where it would take the CPU, or NVML does not tell.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``, as the canary has it.
    """
    monitor = Monitor(device)
    try:
        return monitor.uuid
    finally:
        monitor.close()


def here(device: str) -> str:
    """The device that a fire would take, in words."""
    return str(find_host(device))
