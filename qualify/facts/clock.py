"""Clocks of several machines: how far apart they may be before evidence is not believed."""

from __future__ import annotations

from datetime import datetime, timedelta

CLOCK_SKEW = timedelta(minutes=5)
"""qualify does not believe a date that is further ahead of now: one of the two clocks is wrong"""

NOTED_SKEW_S = 5.0
"""a runner's clock that is further than this from the store's is noted with the verdict"""


def skew_note(run: str, skew_s: float | None) -> str:
    """What the difference between two clocks means for a run; empty where it means nothing, or nobody measured it."""
    if skew_s is None or abs(skew_s) <= NOTED_SKEW_S:
        return ""
    side, seems = ("ahead of", "newer") if skew_s > 0 else ("behind", "older")
    return (
        f"the clock of the machine of run {run} was {abs(skew_s):.0f} s {side} the store's: its evidence seems that "
        f"much {seems} than it is"
    )


def is_future(moment: datetime, now: datetime) -> bool:
    """Whether something is dated in the future, beyond what clocks of several machines differ by."""
    return moment - now > CLOCK_SKEW
