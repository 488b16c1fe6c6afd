"""A lease that a wrong clock dated, and whether its holder still gives signs of life."""

from __future__ import annotations

import time
from collections.abc import Callable

from qualify.facts.canary import Lease

LOOK_S = 0.5
"""between two looks"""


def silent(look: Callable[[], Lease | None], ttl_s: float, say: Callable[[str], None], who: str = "") -> Lease | None:
    """The lease, where its holder did not renew it for ``ttl_s``; None where it did, or where a right clock dated it.

    The time is measured by a clock that cannot jump. Should the holder wake later all the same, it writes nothing more:
    whoever takes the lease over gets another epoch.

    Args:
        look: gives the lease where it ends later than any right clock can have dated it; else None.
        ttl_s: how long the lease lasts.
        say: takes a sentence about the wait, before it begins.
        who: the holder in words; empty = as the lease names it.
    """
    found = seen = look()
    if found:
        say(
            f"{who or found.holder} holds what this process needs until {found.expires_at:%Y-%m-%d %H:%M:%S} UTC, as a "
            f"wrong clock dated it: waiting for a sign of life of it, at most {ttl_s:g} s"
        )
    until = time.monotonic() + ttl_s
    while seen and found and (seen.epoch, seen.beats) == (found.epoch, found.beats):
        if time.monotonic() >= until:
            return found
        time.sleep(min(LOOK_S, ttl_s))
        seen = look()
    return None
