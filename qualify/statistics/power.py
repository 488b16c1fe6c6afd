"""The smallest change that a duel would find, from the spread between process pairs."""

from __future__ import annotations

import math

from scipy.special import stdtrit

from qualify.statistics.quads import LARGEST, log_of, share

CLAIMED = ((50.0, 0.02), (10.0, 0.03), (0.0, 0.05))
"""(kernels of at least so many µs, share of change that a duel is meant to find)"""
POWER = 0.95
ALARM = 1e-3
"""p-value that a cell needs under Benjamini-Hochberg where one in fifty is slower"""


def claimed(latency_us: float) -> float:
    """The change that a duel is meant to find in a kernel that takes so long."""
    return next(change for least_us, change in CLAIMED if latency_us >= least_us)


def detectable(spread: float, pairs: int, margin: float) -> float:
    """The smallest slowdown, as a share, that is flagged with a chance of 95 %.

    It must be significant among the other cells, and its interval must begin above the margin.

    Args:
        spread: standard deviation between process pairs, in log ratio.
        pairs: fresh process pairs.
        margin: share below which a change does not count.
    """
    freedom = pairs - 1
    error = spread / math.sqrt(pairs)
    alarm, edge, power = (float(stdtrit(freedom, 1 - tail)) for tail in (ALARM, 0.025, 1 - POWER))
    significant, beyond = (alarm + power) * error, log_of(margin) + (edge + power) * error
    return share(min(max(significant, beyond), log_of(LARGEST)))
