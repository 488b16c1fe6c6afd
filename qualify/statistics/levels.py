"""Two levels of one series: by how much it lies higher since a certain point, with an interval that holds for history.

Runs one after another are no independent draws. Neighbours resemble each other, a card drifts, and one run in twenty is
disturbed. The interval therefore counts neighbours that resemble each other as fewer runs, moves a few outliers in, and
is never narrower than two runs of one stack were seen to differ. Many outliers are a second mode, and widen it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from scipy.special import stdtr, stdtrit

from qualify.statistics.estimate import CONFIDENCE, LEAST_SPREAD
from qualify.statistics.history import calmed
from qualify.statistics.quads import log_of, share

KNOWN_ERROR = 0.035
"""share by which two runs one after the other on one card differ without any change: every interval reaches this far"""
LEAST_BEFORE = 8
"""runs before the change, at least"""
LEAST_SINCE = 4
"""runs since, at least"""
MOST_BEFORE = 16
"""newest runs before the change that count: older ones were on another day's card"""
MOST_ALIKE = 0.9
"""the largest correlation of neighbours that is believed"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelChange:
    """By how much the second level differs from the first; changes are shares: 0.02 = 2 % higher."""

    change: float
    low: float
    """lower end of the 95 % interval"""
    high: float
    slower: float
    """one-sided p-value: the second level is higher at all"""
    faster: float


def level_change(before: Sequence[float], since: Sequence[float]) -> LevelChange | None:
    """The change between two parts of a series of positive numbers; None where one of them is too short.

    A slow drift moves the level, too, but less so between the runs right before and right after the change. Both are
    computed, and the interval encloses both.
    """
    if len(before) < LEAST_BEFORE or len(since) < LEAST_SINCE:
        return None
    whole = _change(before[-MOST_BEFORE:], since)
    return enclosing(whole, _change(before[-LEAST_BEFORE:], since[:LEAST_SINCE]))


def _change(before: Sequence[float], since: Sequence[float]) -> LevelChange:
    parts = _calmed([[math.log(value) for value in part] for part in (before, since)])
    means = [fmean(part) for part in parts]
    rests = [[value - mean for value in part] for part, mean in zip(parts, means, strict=True)]
    alike = _alike(rests)
    counts = [_effective(len(part), alike) for part in parts]
    freedom = max(1.0, sum(counts) - 2)
    squares = sum(value * value for part in rests for value in part)
    spread = max(math.sqrt(squares / (sum(map(len, parts)) - 2) * _widened(counts, parts)), LEAST_SPREAD)
    error = spread * math.sqrt(sum(1 / count for count in counts))
    moved = means[1] - means[0]
    reach = max(log_of(KNOWN_ERROR), error * float(stdtrit(freedom, (1 + CONFIDENCE) / 2)))
    return LevelChange(
        change=share(moved),
        low=share(moved - reach),
        high=share(moved + reach),
        slower=float(stdtr(freedom, -moved / error)),
        faster=float(stdtr(freedom, moved / error)),
    )


def enclosing(one: LevelChange, other: LevelChange) -> LevelChange:
    """The first change, with an interval that encloses both: it holds whichever of the two is right."""
    return LevelChange(
        change=one.change,
        low=min(one.low, other.low),
        high=max(one.high, other.high),
        slower=max(one.slower, other.slower),
        faster=max(one.faster, other.faster),
    )


def _calmed(parts: Sequence[Sequence[float]]) -> list[list[float]]:
    """Both parts with outliers moved to where they still count as ordinary, by the spread around both medians."""
    logs = [value for part in parts for value in part]
    found = calmed(logs, [middle for part in parts for middle in [median(part)] * len(part)])
    first = len(parts[0])
    return [found[:first], found[first:]]


def _alike(rests: Sequence[Sequence[float]]) -> float:
    """Correlation of neighbours, at least 0. It is corrected, because subtracting the mean makes it look smaller."""
    squares = sum(value * value for part in rests for value in part)
    if squares <= 0:
        return 0.0
    neighbours = sum(one * next_ for part in rests for one, next_ in pairwise(part))
    count = sum(map(len, rests))
    seen = neighbours / squares
    return min(MOST_ALIKE, max(0.0, seen + (1 + 4 * seen) / (count - len(rests))))


def _effective(count: int, alike: float) -> float:
    """How many independent runs tell as much as so many runs that resemble their neighbours."""
    return max(1.0, count * (1 - alike) / (1 + alike))


def _widened(counts: Sequence[float], parts: Sequence[Sequence[float]]) -> float:
    """Factor of the variance: runs that resemble each other lie closer to their own mean than to the true one."""
    total = sum(map(len, parts))
    spent = sum(len(part) / count for part, count in zip(parts, counts, strict=True))
    return max(1.0, (total - len(parts)) / max(1.0, total - spent))
