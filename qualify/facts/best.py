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
    measured_by: str
    """id of the run that timed it, where the judged run took its time over; empty = the judged run"""
    cold: bool
    """whether every launch found its inputs outside of the last-level cache"""

    def timed_like(self, other: TimedKernel) -> bool:
        """Whether both times were measured in one run, on one card, and with the cache in one state."""
        mine, theirs = (self.card, self.measured_by, self.cold), (other.card, other.measured_by, other.cold)
        return mine == theirs


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
        """The first other kernel that may be faster: the intervals overlap, or the two were not timed alike."""
        best = self.fastest
        return next((it for it in self.others if best and not (best.timed_like(it) and best.high_us < it.low_us)), None)

    @property
    def decided(self) -> bool:
        """Whether the fastest one's interval lies below those of all others, which were timed like it."""
        return self.fastest is not None and self.rival is None
