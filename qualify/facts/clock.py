"""Clocks of several machines: how far apart they may be before evidence is not believed."""

from __future__ import annotations

from datetime import datetime, timedelta

CLOCK_SKEW = timedelta(minutes=5)
"""what is dated further ahead of now than this is not believed: one of the two clocks is wrong"""


def is_future(moment: datetime, now: datetime) -> bool:
    """Whether something is dated in the future, beyond what clocks of several machines differ by."""
    return moment - now > CLOCK_SKEW
