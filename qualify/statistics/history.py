"""Change points of a series: where a level moved and stayed there. For slow drift, not for a gate.

The series is split where a two-sample t-test on the logarithms is most significant, and each part is split again. A
place is kept where it holds between its neighbouring places. For that its p-value must be small enough after a
correction for all places that were tried. The medians must differ enough, and each side needs enough points. A single
outlier is no change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from scipy.special import stdtr

from qualify.statistics.quads import share

LEAST_SIDE = 4
"""least points on each side of a change"""
LEAST_POINTS = 2 * LEAST_SIDE
LARGEST_P = 0.001
"""largest p-value of a change, multiplied by the number of places that were tried"""
PROMISING_P = 0.05
"""largest p-value of a split that is tried: a level that rises and falls again shows only in a later split"""
LEAST_CHANGE = 0.01
"""share by which the medians must differ at least"""
KEPT_SPREADS = 4.0
"""a point farther than so many robust standard deviations from its neighbours' median is moved in to that distance"""
MOST_MOVED = 1 / 6
"""largest share of the points that may be outliers: more are another mode, and moving them in would hide the spread"""
LEAST_SPREAD = 1e-6
"""standard deviation of a level, in log ratio, at least"""
MAD = 1.4826
"""standard deviation of a normal distribution over its median absolute deviation"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePoint:
    """A place where the level moved."""

    index: int
    """of the first point after it"""
    change: float
    """share by which the medians before and after it differ; each side reaches to the next change"""
    p: float


def change_points(values: Sequence[float]) -> list[ChangePoint]:
    """The changes of a series of positive numbers, in their order; none where there are too few points."""
    logs = [math.log(value) for value in values]
    calm = _calmed(logs)
    places = sorted(_split(calm, 0, len(calm)))
    while places:
        found = _between(logs, calm, places)
        weak = [point for point in found if point.p > LARGEST_P or abs(point.change) < LEAST_CHANGE]
        if not weak:
            return found
        places.remove(max(weak, key=lambda point: (point.p, -abs(point.change))).index)
    return []


def _split(logs: Sequence[float], first: int, end: int) -> list[int]:
    """Places at which the level may have moved; those that do not hold between their neighbours are left out later."""
    tried = range(first + LEAST_SIDE, end - LEAST_SIDE + 1)
    if not tried:
        return []
    p, index = min((_p(logs[first:at], logs[at:end]), at) for at in tried)
    if p > PROMISING_P:
        return []
    return [*_split(logs, first, index), index, *_split(logs, index, end)]


def _between(logs: Sequence[float], calm: Sequence[float], places: Sequence[int]) -> list[ChangePoint]:
    """Each place as a change from the segment before it to the one after it."""
    edges = [0, *places, len(logs)]
    return [
        ChangePoint(
            index=at,
            change=share(median(logs[at:end]) - median(logs[first:at])),
            p=min(1.0, len(logs) * _p(calm[first:at], calm[at:end])),
        )
        for first, at, end in zip(edges[:-2], places, edges[2:], strict=True)
    ]


def _p(before: Sequence[float], after: Sequence[float]) -> float:
    """p-value of different levels under one spread, by Student's t-test."""
    freedom = len(before) + len(after) - 2
    means = [fmean(side) for side in (before, after)]
    squares = sum((value - mean) ** 2 for side, mean in zip((before, after), means, strict=True) for value in side)
    spread = max(math.sqrt(squares / freedom), LEAST_SPREAD)
    t = abs(means[1] - means[0]) / (spread * math.sqrt(1 / len(before) + 1 / len(after)))
    return float(2 * stdtr(freedom, -t))


def _calmed(logs: Sequence[float]) -> list[float]:
    """The series with outliers moved to where they still count as ordinary among their neighbours.

    The median of seven neighbours follows a level that moves and stays, but no single point.
    """
    around = [median(logs[max(0, at - 3) : at + 4]) for at in range(len(logs))]
    return calmed(logs, around)


def calmed(logs: Sequence[float], around: Sequence[float]) -> list[float]:
    """The points, the few outliers moved in; all as they are where more than a few are far away.

    Args:
        around: by point, the level that it belongs to.
    """
    apart = [abs(value - middle) for value, middle in zip(logs, around, strict=True)]
    reach = KEPT_SPREADS * MAD * median(apart) if apart else 0.0
    if sum(distance > reach for distance in apart) > MOST_MOVED * len(apart):
        return list(logs)
    return [min(max(value, middle - reach), middle + reach) for value, middle in zip(logs, around, strict=True)]
