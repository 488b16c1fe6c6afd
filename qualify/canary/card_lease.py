"""The lease of a card (the GPU): one fire at a time runs on it, whichever service of the store owes the others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from threading import Event, Thread
from types import TracebackType
from typing import Self

from qualify.canary.conditions import card_uuid
from qualify.canary.messages import Order
from qualify.errors import LeaseLost, StoreError
from qualify.facts.canary import Lease
from qualify.store.canaries import Canaries
from qualify.store.leases import OF_CARDS

CARD_S = 10.0
"""seconds for which a holder may be silent: after a SIGKILL the next fire waits as long"""
BEAT_S = 3.0
LOOK_S = 0.5
"""seconds between two attempts of a fire that waits for the card"""
Say = Callable[[str], None]


class CardLease(Thread):
    """Holds the card from ``with`` to its end; a thread renews the lease."""

    def __init__(self, canaries: Canaries, order: Order, say: Say) -> None:
        """``say`` takes a line for the log."""
        super().__init__(name="card", daemon=True)
        self._canaries = canaries
        self._name = f"{OF_CARDS}{card_uuid(order.device) or f'{order.node} cpu'}"
        self._holder = f"{order.lease} on {order.node}, pid {os.getpid()}"
        self._say = say
        self._ended = Event()
        self._lease: Lease | None = None

    def __enter__(self) -> Self:
        """Wait until nobody else has the card; the timeout of the fire is the limit."""
        told, seen, since = "", (0, 0), time.monotonic()
        while True:
            other = self._canaries.lease(self._name)
            sign = (other.epoch, other.beats) if other else (0, 0)
            if sign != seen:
                seen, since = sign, time.monotonic()
            dead = other if time.monotonic() - since > CARD_S else None
            self._lease = self._canaries.acquire(self._name, self._holder, CARD_S, dead)
            if self._lease is not None:
                break
            if other and other.holder != told:
                told = other.holder
                self._say(f"waits for {self._name}, which a fire of {told} uses")
            time.sleep(LOOK_S)
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Let the next one begin."""
        self._ended.set()
        self.join()
        assert self._lease is not None
        self._canaries.release(self._lease)

    def run(self) -> None:
        """Renew the lease; where another fire took the card over, this process asks itself to stop."""
        assert self._lease is not None
        while not self._ended.wait(BEAT_S):
            try:
                self._canaries.renew(self._lease, CARD_S)
            except LeaseLost:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            except StoreError:  # the database is away: nobody else can take the card over either
                continue
