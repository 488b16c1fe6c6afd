"""The fastest proven kernel of each production shape: a dispatch table from evidence."""

from __future__ import annotations

from dataclasses import dataclass

from qualify.facts.case import Phase
from qualify.facts.dtypes import Dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedKernel:
    """A proven kernel with its time; the interval holds the median with 95 % confidence."""

    kernel: str
    case: str
    us: float
    low_us: float
    high_us: float
    card: str
    """UUID of the card that timed it, where several shared the run; empty = the run's"""


@dataclass(frozen=True, kw_only=True, slots=True)
class BestKernel:
    """One production shape, and the kernels that serve it."""

    shape: str
    """model/phase/shape/dtype/mask"""
    model: str
    phase: Phase
    dtype: Dtype
    mask: str
    batch: int
    longest_q: int
    """queries of the longest sequence"""
    longest_k: int
    heads_q: int
    heads_kv: int
    head_dim: int
    page_size: int
    """0 = packed"""
    fastest: TimedKernel | None
    """None where no kernel is proven and timed"""
    others: tuple[TimedKernel, ...]
    """the other proven ones, the fastest first"""

    @property
    def rival(self) -> TimedKernel | None:
        """The first other kernel that may be faster: the intervals overlap, or two cards timed them."""
        best = self.fastest
        return next(
            (it for it in self.others if best and not (best.card == it.card and best.high_us < it.low_us)), None
        )

    @property
    def decided(self) -> bool:
        """Whether the fastest one's interval lies below those of all others, on one card."""
        return self.fastest is not None and self.rival is None
