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


def before_it_came(moment: datetime, received_at: datetime | None) -> datetime:
    """A moment of what came from another store, which cannot be later than when it came; None = it came from none."""
    if received_at is not None and (moment - received_at).total_seconds() > NOTED_SKEW_S:
        return received_at
    return moment


def received_note(run: str, latest: datetime, received_at: datetime | None) -> str:
    """What it means that a run is dated later than it came to this store; empty where it is not.

    Args:
        latest: the latest date in the run.
    """
    if received_at is None or before_it_came(latest, received_at) == latest:
        return ""
    return (
        f"run {run} is dated {latest:%Y-%m-%d %H:%M} UTC, and came to this store on {received_at:%Y-%m-%d %H:%M} UTC: "
        "the clock of its machine was ahead, or the store's was behind. Its age counts from when it came"
    )


def is_future(moment: datetime, now: datetime) -> bool:
    """Whether something is dated in the future, beyond what clocks of several machines differ by."""
    return moment - now > CLOCK_SKEW


def ahead_words(run: str, ahead: datetime) -> str:
    """What a date in the future means for a run that was imported, and what to do."""
    return (
        f"run {run} is dated {ahead:%Y-%m-%d %H:%M} UTC, which has not come yet by the store's clock: that one or its "
        "machine's is wrong. It does not count until then, and from then on its age counts from this import. Set the "
        "clock, and run again there."
    )
