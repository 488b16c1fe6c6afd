"""What a run does while its store refuses to be written: it tries again, for a time, and measures on meanwhile.

A server restarts, another process holds a lock, a disk is full for a moment: none of that is worth a night of a GPU.
A refusal that cannot pass, for example of a damaged file, ends the command at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from qualify.errors import StoreError
from qualify.text import unsaid

T = TypeVar("T")

PATIENCE_S = 120.0
"""seconds from the first refusal on, after which another one usually ends the command"""
PAUSE_S = 0.5
"""between the first two attempts; it doubles each time"""
LONGEST_PAUSE_S = 10.0


class Patience:
    """Attempts to use one store. An attempt is something that may be done again after a StoreError."""

    def __init__(self, tell: Callable[[str], None] = unsaid, longest_s: float | None = None) -> None:
        """The store has refused nothing yet.

        Args:
            tell: takes a sentence when the store begins to refuse, and another one when it takes writes again.
            longest_s: seconds from the first refusal on, after which another one ends the command; None = the usual
                time.
        """
        self.tell = tell
        self.longest_s = PATIENCE_S if longest_s is None else longest_s
        self.refusal = ""
        """what the store answered to the last attempt, in words; empty = it did what it was asked to"""
        self._since = self._next = 0.0
        self._pause_s = PAUSE_S
        self._over = False

    def attempt(self, use: Callable[[], object]) -> bool:
        """Use the store, unless it refused a moment ago. Returns whether it was used.

        Raises:
            StoreError: it refuses for a reason that cannot pass, or for too long.
        """
        if self.refusal and not self._over and time.monotonic() < self._next:
            return False
        try:
            use()
        except StoreError as error:
            self._refused(error)
            return False
        if self.refusal:
            self.refusal, self._pause_s = "", PAUSE_S
            self.tell("the evidence store takes writes again")
        return True

    def keep(self, use: Callable[[], T]) -> T:
        """Use the store, and wait where it refuses; raises as :meth:`attempt`."""
        found: list[T] = []
        while not self.attempt(lambda: found.append(use())):
            time.sleep(max(0.0, self._next - time.monotonic()))
        return found[0]

    def end(self) -> None:
        """The command ends now: every further refusal is raised at once."""
        self._over = True

    def _refused(self, error: StoreError) -> None:
        """Plan the next attempt. Raises the error where there is none."""
        if not error.passing or self._over:
            raise error
        now = time.monotonic()
        first, self.refusal = not self.refusal, error.happened
        if first:
            self._since = now
            self.tell(f"{error} It is tried again for {self.longest_s:.0f} s.")
        elif now - self._since > self.longest_s:
            raise StoreError(f"{error} It was tried again for {now - self._since:.0f} s.", error.happened) from error
        self._next = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
