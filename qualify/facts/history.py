"""The time of one case over many runs on one card, beside an anchor that took part in the same runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryPoint:
    """The times of one run."""

    run: str
    at: datetime
    """when it began; aware UTC"""
    stack: str
    """fingerprint of what the case ran on; empty = unknown"""
    us: float
    anchor_us: float | None
    """time of the anchor in the same run; None where the case has none"""

    @property
    def ratio(self) -> float:
        """The case's time over the anchor's; the time itself where there is no anchor."""
        return self.us / self.anchor_us if self.anchor_us else self.us


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryChange:
    """A run at which the level of the times changed."""

    run: str
    at: datetime
    change: float
    """share: 0.02 = 2 % longer from then on"""
    p: float
    stack: str
    """what of the stack changed with that run, in words; empty = nothing"""
    code: str = ""
    """the kernel's own files that changed with that run; empty = none, or one of the runs did not note its code"""


@dataclass(frozen=True, kw_only=True, slots=True)
class HistorySeries:
    """One case on one card."""

    case: str
    card: str
    """name and UUID of the device"""
    anchor: str
    """what the times are relative to: a case, or the median of the others; empty = nothing"""
    points: tuple[HistoryPoint, ...]
    """oldest first"""
    changes: tuple[HistoryChange, ...]
    why_not: str
    """why this series cannot show a change; empty where it can"""
