"""The lease of one replica, kept in a thread of its own with connections of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread

from qualify.errors import LeaseLost, StoreError
from qualify.facts.canary import Lease
from qualify.store.store import Store

SHARE = 3
"""renewals within the time of a lease"""
FOLLOW_S = 2.0
"""longest time between two looks of a follower"""


class Keeper(Thread):
    """Takes the lease when it is free, renews it, and stops leading by its own monotonic clock when it cannot."""

    def __init__(
        self,
        store: Store,
        name: str,
        holder: str,
        ttl_s: float,
        wake: Callable[[], None],
        trouble: Callable[[], str],
        *,
        node: str = "",
        looked_ago_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Each renewal stores what ``trouble`` and ``looked_ago_s`` return, so that everybody sees it.

        Args:
            trouble: what is wrong; empty = nothing.
            node: whose own lease this is.
            looked_ago_s: how long ago the stack of ``node`` was last seen.
        """
        super().__init__(name=f"lease {name}", daemon=True)
        self._canaries = store.canaries
        self._name = name
        self._holder = holder
        self._ttl_s = ttl_s
        self._wake = wake
        self._trouble = trouble
        self._node = node
        self._looked_ago_s = looked_ago_s
        self._stopped = Event()
        self._lease: Lease | None = None
        self._until = 0.0
        self._seen: tuple[Lease, float] | None = None
        self._told = 0
        self.error: StoreError | None = None
        """why the database could not be reached at the last attempt; None = it could"""

    @property
    def lease(self) -> Lease | None:
        """The lease while this replica leads. None as soon as another one may have taken over."""
        lease = self._lease
        return lease if lease is not None and time.monotonic() < self._until else None

    @property
    def followed(self) -> Lease | None:
        """Somebody else's lease, as it was seen last; None while this replica leads."""
        seen = self._seen
        theirs = seen is not None and self._lease is None and seen[0].holder != self._holder
        return seen[0] if seen is not None and theirs else None

    def run(self) -> None:
        """Keep the lease until :meth:`stop`, then give it back."""
        while not self._stopped.is_set():
            led = self.lease is not None
            try:
                self._turn()
                self.error = None
            except LeaseLost:
                self._lease = None
            except StoreError as error:
                self.error = error
            if led != (self.lease is not None):
                self._wake()
            self._stopped.wait(self._pause())
        self._give_back()

    def stop(self) -> None:
        """Gives the lease back, and ends."""
        self._stopped.set()

    def _pause(self) -> float:
        share = self._ttl_s / SHARE
        return share if self._lease else min(share, FOLLOW_S)

    def _turn(self) -> None:
        asked = time.monotonic()  # before the database answers: the lease may be a little longer than we believe
        if self._lease is not None and asked >= self._until:
            self._lease = None  # the work under it has been stopped, and begins again under a new epoch
        if self._lease is not None:
            self._canaries.renew(self._lease, self._ttl_s, self._trouble(), self._looked_ago_s())
            self._until = asked + self._ttl_s
            return
        found = self._canaries.acquire(self._name, self._holder, self._ttl_s, self._dead(), self._node)
        if found is not None:
            self._until = asked + self._ttl_s
            self._lease, self._seen = found, None
        elif self._seen is not None and self._seen[0].epoch != self._told:
            self._told = self._seen[0].epoch
            self._wake()

    def _dead(self) -> Lease | None:
        """The lease, where its holder was silent for too long by this process's own clock, which cannot jump."""
        lease, now = self._canaries.lease(self._name), time.monotonic()
        if lease is None:
            return None
        if self._seen is None or (self._seen[0].epoch, self._seen[0].beats) != (lease.epoch, lease.beats):
            self._seen = lease, now
        return lease if now - self._seen[1] > self._ttl_s else None

    def _give_back(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                self._canaries.release(lease)
            except StoreError as error:  # it runs out by itself
                self.error = error
