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
    skew = f"{abs(skew_s):.0f} s"
    clock = f"the machine's clock in run {run} was {skew}"
    if skew_s < 0:
        return f"{clock} behind the store's clock, so the evidence seems {skew} older than it is"
    known = "ahead of the store's clock, or was set by as much meanwhile"
    return f"{clock} {known}, so the evidence may seem {skew} younger than it is"


def worse(noted: float | None, now: float) -> float:
    """The larger one of two differences between clocks."""
    return now if noted is None or abs(now) > abs(noted) else noted


def by_other_clock(moment: datetime, skew_s: float | None) -> datetime | None:
    """When a moment of a clock was by another one, which this one is ahead of by so many seconds; None = no date."""
    try:
        return moment - timedelta(seconds=skew_s or 0.0)
    except (OverflowError, ValueError):  # somebody edited it: no two clocks are centuries apart, nor NaN
        return None


def is_future(moment: datetime, now: datetime) -> bool:
    """Whether something is dated in the future, beyond what clocks of several machines differ by."""
    return moment - now > CLOCK_SKEW


def ahead_words(run: str, ahead: datetime) -> str:
    """What a date in the future means for a run that was imported, and what to do."""
    return (
        f"run {run} is dated {ahead:%Y-%m-%d %H:%M} UTC, which has not come yet by the store's clock: that one or its "
        "machine's is wrong. It does not count until then, and seems younger than it is from then on. Set the clock, "
        "and run again there."
    )
