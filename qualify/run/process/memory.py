"""Host memory of processes, and whether the kernel killed any for want of it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from functools import cache
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
OWN_PAGES = re.compile(r"^Pss_Anon:\s+(\d+) kB$", re.MULTILINE)
KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def resident_bytes(pids: Collection[int], limit_bytes: int) -> int:
    """Host memory that processes have touched, without files; 0 for those about which the system says nothing.

    A page that several share, as after a fork, counts once. Below the limit it may count for each of them: the kernel
    keeps that number, and walks through all pages for the other one.
    """
    used = sum(map(_touched_bytes, pids))
    return used if used <= limit_bytes or len(pids) == 1 else sum(map(_share_bytes, pids))


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


def _share_bytes(pid: int) -> int:
    """A process's part of the pages that it touched."""
    try:
        found = OWN_PAGES.search((PROC / f"{pid}/smaps_rollup").read_text())
    except OSError:
        found = None
    return int(found[1]) << 10 if found else _touched_bytes(pid)


def _touched_bytes(pid: int) -> int:
    """All pages that a process touched."""
    try:
        fields = (PROC / f"{pid}/statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
