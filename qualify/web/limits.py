"""What one client may ask: how often, how much at once, and from which page."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

LONGEST_BODY = 64 * 1024
"""bytes of a request's body"""
LONGEST_SHOWN = 200
"""characters of a header in a message, and so in the audit log"""
MOST_CLIENTS = 10_000
"""clients that are counted; the one that has been silent longest is forgotten"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """A bucket of tokens: ``burst`` at once, ``per_s`` in the long run."""

    burst: float
    per_s: float


READS = Rate(burst=400, per_s=200)
WRITES = Rate(burst=60, per_s=1)
FAILURES = Rate(burst=10, per_s=0.1)
"""proofs that are not accepted: who guesses tokens has six guesses a minute"""


class Limiter:
    """Counts what clients ask; safe for several threads."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = Lock()

    def take(self, client: str) -> float:
        """Counts one request. Returns how many seconds the client must wait; 0 = none."""
        with self._lock:
            left = self._refilled(client)
            wait = 0.0 if left >= 1 else (1 - left) / self._rate.per_s
            self._left[client] = left if wait else left - 1, time.monotonic()
            while len(self._left) > MOST_CLIENTS:
                self._left.popitem(last=False)
            return wait

    def empty(self, client: str) -> bool:
        """Whether the client must wait; counts nothing."""
        with self._lock:
            return self._refilled(client) < 1

    def _refilled(self, client: str) -> float:
        now = time.monotonic()
        left, at = self._left.pop(client, (self._rate.burst, now))
        left = min(self._rate.burst, left + (now - at) * self._rate.per_s)
        self._left[client] = left, now
        return left


def foreign(headers: Mapping[str, str], *, ambient: bool) -> str:
    """Why a request may come from another site's page; empty where it comes from this site, or from no page.

    Browsers send Origin and Sec-Fetch-Site with every such request, and no page can change them.

    Args:
        ambient: the browser proves by itself who asks. Without it a program may leave both headers out.
    """
    site, origin = headers.get("sec-fetch-site", ""), headers.get("origin", "")
    if site and site != "same-origin":
        return f"Sec-Fetch-Site is {site[:LONGEST_SHOWN]!r}"
    if origin and origin.partition("://")[2] != headers.get("host"):
        return f"Origin is {origin[:LONGEST_SHOWN]!r}"
    if ambient and not site and not origin:
        return "neither Origin nor Sec-Fetch-Site is there"
    return ""
