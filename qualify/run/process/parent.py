"""A process of qualify between others: it ends with the one that started it, and inherits what its own leave behind."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36


def die_with(parent: int) -> None:
    """End this process when its parent, of that id, ends, however that is."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it died before this process began to follow it


def adopt_orphans() -> None:
    """Let the processes fall to this one, and not to the machine's first, whose parents end below it.

    For a process of qualify's own only: ``tree.end_strays`` then ends them. A user's process may have other children.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def keep_to_itself() -> None:
    """Let no other process of this user read or write this one's memory and descriptors; root still may."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0)


def follow_parent(parent: int) -> None:
    """Die with the parent, leave Ctrl-C to it, say where a fault was, and be the first that a full machine kills."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with(parent)
    faulthandler.enable()
    # The parent asks with it where a silent process is, before it kills it.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return
