"""A clock that stands still while this process is stopped: where the machine was paused, no kernel hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any, Protocol

OVERSLEPT_S = 1.0
"""a wait that ends so much too late was stopped: nobody waits so long for a processor"""


class Poll(Protocol):
    """What :func:`select.poll` makes."""

    def poll(self, timeout: float, /) -> list[Any]:
        """Wait so many milliseconds for a descriptor."""
        ...


class AwakeClock:
    """Seconds in which this process ran, or waited as long as it wanted to. It is safe for several threads.

    It notices a pause that comes while somebody waits: whoever watches other processes does little else.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """``now`` is a clock that goes on while the process is stopped."""
        self._now = now
        self._stopped_s = 0.0
        self._known = now()
        """the moment up to which pauses are known: two threads that wait notice the same one"""
        self._lock = Lock()

    def now(self) -> float:
        """Seconds, from any moment on."""
        return self._now() - self._stopped_s

    def wait(self, poll: Poll, milliseconds: int) -> bool:
        """Wait for a descriptor, and count no pause in it. Returns whether something happened there."""
        until = self._now() + milliseconds / 1000
        found = bool(poll.poll(milliseconds))
        with self._lock:
            ended = self._now()
            late_s = ended - max(until, self._known)
            if late_s > OVERSLEPT_S:
                self._stopped_s += late_s
                self._known = ended
        return found


AWAKE = AwakeClock()
"""the clock of this process"""
