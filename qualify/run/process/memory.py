"""Host memory of processes, and whether the kernel killed any for want of it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
SHARES = re.compile(r"^Pss_(Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)
SHARED = re.compile(r"^RssShmem:\s+(\d+) kB$", re.MULTILINE)
KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def resident_bytes(pids: Collection[int], limit_bytes: int, lent_bytes: int | None = None) -> int:
    """Host memory that processes have touched, without files on disks; 0 for those of which the system says nothing.

    A page that several share, as after a fork, counts once. Below the limit it may count for each of them: the kernel
    keeps that number, and walks through all pages for the other one.

    Args:
        limit_bytes: where they have more, their pages are counted exactly.
        lent_bytes: of memory that processes may share, as in ``/dev/shm``, so many do not count: somebody else has
            lent them. None = none of it counts.
    """
    used = _sum(map(_touched, pids), lent_bytes)
    return used if used <= limit_bytes else _sum(map(_share, pids), lent_bytes)


def _sum(parts: Iterable[tuple[int, int]], lent_bytes: int | None) -> int:
    """Bytes of (own, shared) memory of each process."""
    own, shared = map(sum, zip((0, 0), *parts, strict=True))
    return own if lent_bytes is None else own + max(0, shared - lent_bytes)


@cache
def own_pages() -> int:
    """Descriptor of Linux's table of this process's pages; to be opened before ``keep_to_itself`` makes that fail."""
    return os.open(PROC / "self/pagemap", os.O_RDONLY)


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory: in this cgroup, else on this machine.

    Only the difference of two calls means anything; 0 where the system does not count.
    """
    for counter in (*_cgroup_counters(), PROC / "vmstat"):
        try:
            found = KILLS.search(counter.read_text())
        except OSError:
            continue
        if found:
            return int(found[1])
    return 0


def _cgroup_counters() -> list[Path]:
    """Where the memory controller of this process's cgroup may count, in both versions of cgroups."""
    try:
        lines = (PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    counters = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if not controllers:
            counters.append(CGROUPS / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            counters.append(CGROUPS / "memory" / path.lstrip("/") / "memory.oom_control")
    return counters


def _share(pid: int) -> tuple[int, int]:
    """A process's part of the (own, shared) pages that it touched."""
    try:
        found = dict(SHARES.findall((PROC / f"{pid}/smaps_rollup").read_text()))
    except OSError:
        found = {}
    return (int(found["Anon"]) << 10, int(found["Shmem"]) << 10) if len(found) == 2 else _touched(pid)


def _touched(pid: int) -> tuple[int, int]:
    """Bytes of all (own, shared) pages that a process touched."""
    try:
        fields = (PROC / f"{pid}/statm").read_text().split()
        shared = SHARED.search((PROC / f"{pid}/status").read_text())
    except OSError:
        return 0, 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE"), int(shared[1]) << 10 if shared else 0
