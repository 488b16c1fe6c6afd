"""Ends a fire's child when the lease under which it runs is over, also where its parent is stopped and cannot."""

from __future__ import annotations

import os
import signal
import time
from threading import Thread

from qualify.canary.messages import Order
from qualify.errors import StoreError
from qualify.store.canaries import Canaries

LOOK_S = 1.0
"""longest time between two looks at the lease"""
GRACE_S = 10.0
"""seconds that the process has to store what was measured, before it is killed"""


class Leash(Thread):
    """Watches the beats of the lease by a clock that cannot jump. While the database is away, the fire goes on."""

    def __init__(self, canaries: Canaries, order: Order) -> None:
        super().__init__(name="leash", daemon=True)
        self._canaries = canaries
        self._order = order
        self._beats = 0
        self._since = time.monotonic()

    def run(self) -> None:
        """Wait until the lease is over, then end this process: first by SIGTERM, after ``GRACE_S`` by SIGKILL."""
        while self._holds():
            time.sleep(min(LOOK_S, self._order.lease_s / 3))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os.killpg(0, signal.SIGKILL)

    def _holds(self) -> bool:
        """Whether the epoch is the one that the fire was taken under, and its holder gave a sign of life."""
        try:
            lease = self._canaries.lease(self._order.lease)
        except StoreError:
            return True
        if lease is None or lease.epoch != self._order.epoch:
            return False
        if lease.beats != self._beats:
            self._beats, self._since = lease.beats, time.monotonic()
        return time.monotonic() - self._since <= self._order.lease_s
