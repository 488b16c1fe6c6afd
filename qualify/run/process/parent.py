"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """End this process when its parent, of that id, ends, however that is."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it died before this process began to follow it
