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


@dataclass(frozen=True, kw_only=True, slots=True)
class BestKernel:
    """One production shape, and who serves it fastest."""

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
    def decided(self) -> bool:
        """Whether the fastest one's interval lies below that of the next."""
        if self.fastest is None:
            return False
        return not self.others or self.fastest.high_us < self.others[0].low_us
