"""Collects the Xids that the driver reports while something runs: from NVML's events, and from the kernel's log.

NVML needs no privilege, and reports card and number. The kernel's log (``/dev/kmsg``) also has the driver's words. Root
may read it, and other users only where ``kernel.dmesg_restrict`` is 0.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from qualify.facts.xid import Xid

KERNEL_LOG = Path("/dev/kmsg")
BUS = r"(?:PCI:)?(?P<bus>[0-9a-fA-F:]+)(?:\.[0-9a-fA-F]+)?"
LINE = re.compile(rf"NVRM: Xid \({BUS}\): (?P<number>[0-9]+)(?:, (?P<text>.*))?")
NAMED = re.compile(rf"NVRM: GPU at {BUS}: (?P<uuid>GPU-[0-9a-f-]+)")
LOOK_S = 0.05
"""seconds between two looks"""
SAME_S = 2.0
"""most seconds between two reports, by NVML and by the log, that count as one error"""
RECORD_BYTES = 8192
"""most bytes of one record of the log"""
LONGEST = 300
"""most characters that are kept of the driver's words"""


def bus_of(text: str) -> str:
    """A place on the PCI bus in the form ``0000:3b:00``; NVML writes ``00000000:3B:00.0``."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest.partition('.')[0]}"


def parse(line: str) -> tuple[str, int, str] | None:
    """Place on the bus, number and words of a line of the kernel's log; None where it reports no Xid."""
    found = LINE.search(line)
    if found is None:
        return None
    return bus_of(found["bus"]), int(found["number"]), (found["text"] or "").strip()[:LONGEST]


class KernelLog:
    """Lines that are added to the kernel's log from now on."""

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        """Open the log. ``why_not`` says why it cannot be read; empty where it can."""
        self.why_not = ""
        self._file = -1
        self._rest = b""
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError as error:
            self.why_not = f"{path}: {error.strerror or error}"
            self.close()

    def lines(self) -> Iterator[str]:
        """Lines since the last call."""
        while self._file >= 0:
            try:
                data = os.read(self._file, RECORD_BYTES)
            except BrokenPipeError:  # records were overwritten before they were read: go on with the next
                continue
            except OSError:  # nothing more
                return
            if not data:
                return
            *whole, self._rest = (self._rest + data).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)

    def close(self) -> None:
        """Close the log."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class NvmlXids:
    """Xids from NVML's events, for every GPU that NVML lists."""

    def __init__(self) -> None:
        self.buses: dict[str, str] = {}
        """UUIDs by place on the bus"""
        self._uuids: dict[int, str] = {}
        """UUIDs by address of NVML's handle, because a card that has fallen off the bus no longer reports its UUID"""
        self._nvml: Any = None
        self._events: Any = None
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:  # no driver, or an incomplete one: only the kernel's log remains
            return
        self._nvml = pynvml
        with suppress(pynvml.NVMLError):
            self._events = pynvml.nvmlEventSetCreate()
            for index in range(pynvml.nvmlDeviceGetCount()):
                with suppress(pynvml.NVMLError):  # a lost card, or a card without events
                    self._listen(pynvml.nvmlDeviceGetHandleByIndex(index))

    def _listen(self, handle: Any) -> None:
        """Register for the events of one card."""
        nvml = self._nvml
        uuid = self._uuids[_address(handle)] = _text(nvml.nvmlDeviceGetUUID(handle))
        self.buses[bus_of(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))] = uuid
        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)

    def read(self) -> Iterator[tuple[str, int]]:
        """(UUID, number) of each Xid since the last call."""
        while self._events is not None:
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:  # nothing more
                return
            uuid = self._uuids.get(_address(data.device), "")
            with suppress(self._nvml.NVMLError):
                uuid = uuid or _text(self._nvml.nvmlDeviceGetUUID(data.device))
            yield uuid, int(data.eventData)

    def close(self) -> None:
        """Free NVML's events."""
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                if self._events is not None:
                    self._nvml.nvmlEventSetFree(self._events)
                self._nvml.nvmlShutdown()
        self._nvml = self._events = None


def _address(handle: Any) -> int:
    """The address of NVML's handle of a card, in this process."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class XidWatch(Thread):
    """A thread that collects the Xids of a machine until it is closed."""

    def __init__(self, log: KernelLog | None = None, nvml: NvmlXids | None = None) -> None:
        super().__init__(name="xids", daemon=True)
        self._log = log or KernelLog()
        self._nvml = nvml or NvmlXids()
        self._buses = dict(self._nvml.buses)
        self._lock = Lock()
        self._found: list[Xid] = []
        self._over = Event()

    @property
    def why_not(self) -> str:
        """Why the kernel's log cannot be read; empty where it can."""
        return self._log.why_not

    @property
    def found(self) -> tuple[Xid, ...]:
        """All Xids so far."""
        with self._lock:
            return tuple(self._found)

    def run(self) -> None:
        """Look for Xids repeatedly."""
        while not self._over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Add the Xids since the last look."""
        now = time.monotonic()
        told = [Xid(number=number, card=card, bus="", seen_s=now, text="") for card, number in self._nvml.read()]
        told += list(self._logged(self._log.lines(), now))
        with self._lock:
            for xid in told:
                _merge(self._found, xid)

    def _logged(self, lines: Iterable[str], now: float) -> Iterator[Xid]:
        for line in lines:
            if named := NAMED.search(line):
                self._buses[bus_of(named["bus"])] = named["uuid"]
            if told := parse(line):
                bus, number, text = told
                yield Xid(number=number, card=self._buses.get(bus, ""), bus=bus, seen_s=now, text=text)

    def close(self) -> None:
        """End the thread, and look for the last time."""
        self._over.set()
        if self.is_alive():
            self.join()
        self.look()
        self._log.close()
        self._nvml.close()


def _merge(found: list[Xid], xid: Xid) -> None:
    """Add an Xid. An error that both NVML and the log report becomes one."""
    for index, known in enumerate(found):
        same = known.number == xid.number and known.card == xid.card and bool(known.text) != bool(xid.text)
        if same and abs(known.seen_s - xid.seen_s) <= SAME_S:
            words = known if known.text else xid
            found[index] = replace(known, text=words.text, bus=words.bus)
            return
    found.append(xid)


def at_case(xid: Xid, cases: Iterable[tuple[float, str]]) -> Xid:
    """The Xid, with the case that began last before it was seen.

    Args:
        cases: (seconds of the monotonic clock at which the case began, case id), in order.
    """
    begun = [case for since, case in cases if since <= xid.seen_s]
    return replace(xid, case=begun[-1]) if begun else xid


def of_cards(xids: Iterable[Xid], cards: Iterable[str]) -> Mapping[str, tuple[Xid, ...]]:
    """The Xids of each card, by its UUID. An Xid of another or an unknown card is left out."""
    found: dict[str, list[Xid]] = {card: [] for card in cards}
    for xid in xids:
        if xid.card in found:
            found[xid.card].append(xid)
    return {card: tuple(some) for card, some in found.items()}
