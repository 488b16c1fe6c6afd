"""A process of qualify between others: it ends with the one that started it, and inherits what its own leave behind."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
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
