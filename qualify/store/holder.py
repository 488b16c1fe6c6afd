"""Which other process holds the lock of an SQLite file, as Linux tells it.

::

    1: POSIX  ADVISORY  WRITE 4711 08:01:131 120 120      /proc/locks: kind, process, device and inode, bytes

Who writes in WAL mode has locked one byte of the index beside the file (``-shm``); in other modes, of the file itself.
Nothing is found where ``/proc`` is hidden, or where the process is in another container.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qualify.processes import read_process
from qualify.text import clipped, one_line, without_password

WRITE_BYTE = 120
"""of the index, locked by who writes (WAL_WRITE_LOCK of SQLite)"""
SHOWN = 60
"""characters of a command line: the program and what it is told first"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A process that has locked the file."""

    pid: int
    program: str
    """the beginning of its command line, up to its first option; empty where it cannot be read"""
    stopped: bool
    """whether a signal or a debugger holds it"""

    @property
    def advice(self) -> str:
        """Which process it is, and what to do about it."""
        named = f"Process {self.pid}{f' ({self.program})' if self.program else ''} holds the lock"
        if self.stopped:
            return f"{named} and is stopped (Ctrl-Z, kill -STOP): let it go on (kill -CONT {self.pid}) or end it."
        return f"{named}, and probably hangs: look what it does, and let it end, or end it (kill {self.pid})."


def holder_of(path: Path) -> Holder | None:
    """The other process that keeps everybody else from writing into the file; None where nobody can tell."""
    index = path.with_name(f"{path.name}-shm")
    with suppress(OSError, ValueError):
        for pid, place, locked in _locks():
            if pid != os.getpid() and (_is(path, place, pid) or (WRITE_BYTE in locked and _is(index, place, pid))):
                process = read_process(pid)
                return Holder(pid=pid, program=_program(pid), stopped=process.stopped) if process else None
    return None


def _locks() -> Iterator[tuple[int, str, range]]:
    """Each lock of a writer: its process, the device and inode of the file, and the bytes that are locked."""
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[1:4] == ["POSIX", "ADVISORY", "WRITE"]:  # another word comes first where a process waits for a lock
            pid, place, first, last = words[4:8]
            yield int(pid), place, range(int(first), sys.maxsize if last == "EOF" else int(last) + 1)


def _is(path: Path, place: str, pid: int) -> bool:
    """Whether a process has locked that file: several disks may have a file of one number.

    Some file systems tell another device than their files have. So the files count that the process has open, if this
    user may see them.
    """
    if not path.exists() or int(place.rpartition(":")[2]) != path.stat().st_ino:
        return False
    try:
        opened = list(Path(f"/proc/{pid}/fd").iterdir())
    except PermissionError:
        disk = path.stat().st_dev
        return place.startswith(f"{os.major(disk):02x}:{os.minor(disk):02x}:")
    return any(each.samefile(path) for each in opened if each.exists())


def _program(pid: int) -> str:
    """The beginning of its command line. What follows an option may be secret, and stays out."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        first = next((at for at, word in enumerate(words) if word.startswith("--") or not word), len(words))
        return clipped(one_line(without_password(" ".join(words[:first]))), SHOWN)
    return ""
