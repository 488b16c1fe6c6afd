"""Blocks of two sides that take turns, as paired log ratios.

A quad is four blocks in the order A B B A (or B A A B). A drift that is linear over the quad adds the same to both
sides, so it cancels. One pair of processes gives several quads. They share whatever the processes got at their start
(addresses, autotuning), so a pair counts as one observation, whatever its number of quads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LARGEST = 10.0
"""largest share of change that is computed: beyond it the exact number does not matter"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quad:
    """Four blocks of one cell."""

    a_us: tuple[float, float]
    """time of one launch, in the first and the second block of side A"""
    b_us: tuple[float, float]

    @property
    def log_ratio(self) -> float:
        """ln(B/A): above 0 where B is slower."""
        return (sum(map(math.log, self.b_us)) - sum(map(math.log, self.a_us))) / 2


Pair = Sequence[float]
"""log ratios of the quads of one pair of processes"""


def pair_values(pairs: Sequence[Pair]) -> list[float]:
    """One log ratio for each pair of processes that has a quad: the median, which an outlier does not move."""
    return [median(quads) for quads in pairs if quads]


def share(log_ratio: float) -> float:
    """A log ratio as a share: 0.02 = B takes 2 % longer."""
    return math.expm1(log_ratio)


def log_of(change: float) -> float:
    """The log ratio of a share."""
    return math.log1p(change)
