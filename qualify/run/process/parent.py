"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
from pathlib import Path

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """End this process when its parent, of that id, ends, however that is."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it died before this process began to follow it


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
