"""A correct kernel that gets its node into trouble on the longest shape, as ROLE says, while ``hold`` is there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from spoiling import attend as right

LONGEST = 64
HOLD = Path(__file__).with_name("hold")


def attend(call):
    """``killed`` and ``late`` hang, ``segfault`` ends the worker of Ray that asked for this run."""
    role = os.environ.get("ROLE", "")
    if call.q.shape[0] == LONGEST and HOLD.exists():
        if role == "segfault":
            os.kill(int(os.environ["RAY_WORKER"]), signal.SIGSEGV)
        while role in {"killed", "late", "segfault"} and HOLD.exists():
            time.sleep(0.05)
    return right(call)
