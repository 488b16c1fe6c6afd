"""What Linux says of a process of this machine: the one place that reads ``/proc/PID/stat``."""

from __future__ import annotations

import os
from dataclasses import dataclass

LONGEST_STAT = 4096
"""bytes of what the kernel says of a process"""


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment."""

    pid: int
    state: str
    """as in ``/proc/PID/stat``; Z where the main thread has ended"""
    parent: int
    session: int
    threads: int
    started: int
    """clock ticks since the machine's start; id and start time together name a process"""

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more; its parent may not have asked yet how it ended."""
        return self.state in "ZX" and self.threads <= 1

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger holds it, so that it computes nothing."""
        return self.state in "Tt"


def read_process(pid: int) -> Process | None:
    """What the kernel says of a process; None where there is none of this id, or ``/proc`` hides it."""
    try:
        handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(handle, LONGEST_STAT)
        finally:
            os.close(handle)
    except OSError:
        return None
    # The name, in brackets, may hold anything.
    fields = text.rpartition(b")")[2].split(None, 20)
    return Process(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        session=int(fields[3]),
        threads=int(fields[17]),
        started=int(fields[19]),
    )


def processes() -> dict[int, Process]:
    """Every process of this machine, or of this container, by id."""
    with os.scandir("/proc") as entries:
        found = [read_process(int(entry.name)) for entry in entries if entry.name.isdigit()]
    return {process.pid: process for process in found if process is not None}
