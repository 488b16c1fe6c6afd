"""Whether somebody set this machine's clock while a run went on: its dates before and after that do not agree."""

from __future__ import annotations

import time
from collections.abc import Callable

from qualify.errors import StoreError
from qualify.facts.clock import NOTED_SKEW_S, worse
from qualify.store.store import Store


def since_boot() -> float:
    """Seconds since the machine started, its sleep included; nobody can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SetClock:
    """Begins with a run, and tells at its end by how much the clock was set meanwhile."""

    def __init__(self, now: Callable[[], float] = time.time, steady: Callable[[], float] = since_boot) -> None:
        """``now`` is the clock that dates evidence, in seconds; ``steady`` one that only goes on."""
        self._now = now
        self._steady = steady
        self._apart_s = self._difference_s()

    def _difference_s(self) -> float:
        return self._now() - self._steady()

    def skew_s(self, store: Store, noted: float | None) -> float | None:
        """By how much the clock of a run was ahead of the right one, at worst, in seconds.

        Where the store's clock was set along, as one of the same machine is, nobody knows which of the two times was
        right. Then the evidence counts as the older one of both.

        Args:
            noted: by how much it was ahead of the store's at the start.
        """
        set_by = self._difference_s() - self._apart_s
        if abs(set_by) <= NOTED_SKEW_S:
            return noted
        try:
            now = store.clock_skew_s()
        except StoreError:  # whoever ends the run gets the same error, and reports it
            return worse(noted, abs(set_by))
        along = abs(now - (noted or 0.0)) <= NOTED_SKEW_S
        return worse(noted, abs(set_by) if along else now)
