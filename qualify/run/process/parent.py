"""How a process of qualify lives among others: it ends with its parent, and adopts what its children leave behind."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path

from qualify.run.machine.variables import started_with
from qualify.run.process.memory import own_pages

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
CAP_SYS_PTRACE = 19
CAPABILITY_VERSION = 0x20080522


def die_with(parent: int) -> None:
    """End this process when its parent ends in any way; ``parent`` is the parent's process id."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it died before this process began to follow it


def adopt_orphans() -> None:
    """Become the new parent of processes below this one whose own parent ends, in place of the machine's first process.

    For a process of qualify's own only: ``tree.end_strays`` then ends them. A user's process may have other children.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def keep_to_itself() -> None:
    """Let no other process of this user read or write this one's memory and descriptors; root still may.

    The process itself cannot open most of its files in ``/proc`` from now on either.
    """
    started_with()
    with suppress(OSError):
        own_pages()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0)


def leave_others_alone() -> None:
    """Give up root's right to look into processes that keep to themselves, for whatever this one starts too."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    """effective, permitted and inheritable ones, the lower 32 of each first"""
    if libc.capget(header, sets) == 0:
        for number in range(3):
            sets[number] &= ~(1 << CAP_SYS_PTRACE)
        libc.capset(header, sets)


def follow_parent(parent: int) -> None:
    """Die with the parent, leave Ctrl-C to it, say where a fault was, and be the first that a full machine kills."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(parent)
    faulthandler.enable()
    # By this signal the parent asks a silent process where it is, before it kills it.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return
