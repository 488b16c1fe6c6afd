"""A correct kernel that gets its node into trouble on the longest shape, as ROLE says, while ``hold`` is there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from spoiling import attend as right

LONGEST = 64
HOLD = Path(__file__).with_name("hold")
WAIT = HOLD.with_name("wait")
"""while it is there, ``good`` and ``busy`` get no further"""
STRIKE, STRUCK = HOLD.with_name("strike"), HOLD.with_name("struck")
"""Every node is ``segfault`` while the first one is there; it makes the second one as it ends its worker."""


def attend(call):
    """``killed`` and ``late`` hang, ``segfault`` ends the worker of Ray that asked for this run."""
    role = os.environ.get("ROLE", "")
    while role in {"good", "busy"} and WAIT.exists():
        time.sleep(0.05)
    if call.q.shape[0] == LONGEST and HOLD.exists():
        if role == "segfault" or STRIKE.exists():
            STRUCK.touch()
            os.kill(int(os.environ["RAY_WORKER"]), signal.SIGSEGV)
        while role in {"killed", "late", "segfault"} and HOLD.exists():
            time.sleep(0.05)
    return right(call)
