"""The ratio of one cell: its interval by a hierarchical bootstrap, and p-values by t-tests over process pairs.

Few pairs make a plain percentile interval too short. Its percentiles are therefore moved outwards to where the
t-distribution with the pairs' degrees of freedom has them (Hesterberg 2015, the expanded percentile interval).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtr, stdtrit

from qualify.statistics.draws import Draws
from qualify.statistics.quads import Pair, log_of, pair_values, share

RESAMPLES = 4000
CONFIDENCE = 0.95
"""confidence of the two-sided interval"""
FEW = 16
"""most quads of a pair whose draws a sorting network puts in order"""
LEAST_SPREAD = 1e-6
"""least spread between pairs, as a log ratio: a coarse clock may give equal times, and a test must not divide by 0"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tests:
    """p-values of one cell; each is small where its claim holds."""

    slower: float
    """one-sided: B takes longer than A at all"""
    faster: float
    same: float
    """two one-sided tests: B differs from A by less than the margin, either way"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What the pairs of one cell say."""

    change: float
    """share: 0.02 = B takes 2 % longer than A"""
    low: float
    """lower end of the interval, as a share"""
    high: float
    tests: Tests
    spread: float
    """standard deviation between process pairs, in log ratio"""
    pairs: int
    quads: int


def tests_of(pairs: Sequence[Pair], margin: float) -> Tests | None:
    """The p-values; None where fewer than two pairs have a quad.

    Args:
        margin: share below which a change does not count.
    """
    values = pair_values(pairs)
    if len(values) < 2:
        return None
    mean, error, freedom = fmean(values), spread_of(values) / math.sqrt(len(values)), len(values) - 1
    above, below = log_of(margin), log_of(-margin)
    return Tests(
        slower=float(stdtr(freedom, -mean / error)),
        faster=float(stdtr(freedom, mean / error)),
        same=float(max(stdtr(freedom, (mean - above) / error), stdtr(freedom, (below - mean) / error))),
    )


def change_of(pairs: Sequence[Pair]) -> float:
    """The mean over process pairs, as a share; 0.0 where there is none."""
    values = pair_values(pairs)
    return share(fmean(values)) if values else 0.0


def estimate(pairs: Sequence[Pair], margin: float, *, name: str) -> Estimate | None:
    """The ratio with its interval; None where fewer than two pairs have a quad.

    Args:
        name: of the cell: it seeds the bootstrap, so the same times always give the same interval.
    """
    tests = tests_of(pairs, margin)
    if tests is None:
        return None
    values = pair_values(pairs)
    low, high = interval(pairs, seed=zlib.crc32(name.encode()))
    return Estimate(
        change=share(fmean(values)),
        low=share(low),
        high=share(high),
        tests=tests,
        spread=spread_of(values),
        pairs=len(values),
        quads=sum(map(len, pairs)),
    )


def spread_of(values: Sequence[float]) -> float:
    """Standard deviation between pairs, never 0."""
    return max(stdev(values), LEAST_SPREAD)


def interval(pairs: Sequence[Pair], *, seed: int) -> tuple[float, float]:
    """The expanded percentile interval of the mean over pairs, as log ratios: pairs are drawn, then quads within."""
    kept = [np.asarray(quads, dtype=float) for quads in pairs if len(quads)]
    count = len(kept)
    draws = Draws(seed)
    drawn = _columns(draws.below(count, RESAMPLES * count), count)
    total: NDArray[np.float64] = np.zeros(RESAMPLES)
    for number, quads in enumerate(kept):
        total += _drawn(quads, (drawn == number).sum(axis=0), draws)
    tail = float(ndtr(math.sqrt(count / (count - 1)) * stdtrit(count - 1, (1 - CONFIDENCE) / 2)))
    low, high = np.quantile(total / count, [tail, 1 - tail])
    return float(low), float(high)


def _drawn(quads: NDArray[np.float64], times: NDArray[np.int64], draws: Draws) -> NDArray[np.float64]:
    """For each resample the sum over its draws of one pair: each draw adds the median of resampled quads."""
    rows = np.concatenate([np.nonzero(times > turn)[0] for turn in range(int(times.max()))])
    count, ordered = len(quads), np.sort(quads)
    ranks = np.argsort(np.argsort(quads)).astype(np.uint16)
    picked = _sorted(ranks.take(_columns(draws.below(count, len(rows) * count), count)))
    medians = (ordered[picked[(count - 1) // 2]] + ordered[picked[count // 2]]) / 2
    return np.bincount(rows, medians, len(times)).astype(float)


def _sorted(columns: NDArray[np.uint16]) -> list[NDArray[np.uint16]]:
    """The rows, each column put in order: a few long rows by a sorting network, because numpy's sort takes longer."""
    count = len(columns)
    if count > FEW:
        return list(np.sort(columns, axis=0))
    rows = list(columns)
    for turn in range(count):
        for place in range(turn % 2, count - 1, 2):
            one, other = rows[place : place + 2]
            rows[place : place + 2] = np.minimum(one, other), np.maximum(one, other)
    return rows


def _columns(drawn: NDArray[np.uint16], count: int) -> NDArray[np.uint16]:
    """(count, resamples) from draws that stand resample by resample: few long rows are computed faster."""
    return np.ascontiguousarray(drawn.reshape(-1, count).T)
