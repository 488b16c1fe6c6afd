"""A waiver, and what became of it: a failure that somebody answers for, until a day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Literal

WaiverState = Literal["used", "passing", "unused", "expired", "pending", "elsewhere"]
"""
used: it covers a failure; passing: what it covers passes again; unused: it covers nothing; expired: its last day is
over, so the verdict is FAIL; pending: it is not in force yet; elsewhere: its condition does not fit the stack
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiver:
    """One accepted failure."""

    id: str
    select: str
    """glob over case ids"""
    checks: tuple[str, ...]
    """checks and outcomes whose failure is accepted; any other failure of the case still counts"""
    owner: str
    reason: str
    link: str
    created: date
    expires: date
    """last day on which it holds, UTC"""
    stack: Mapping[str, str]
    """device or component, and the glob or version specifier that it must meet; empty = every stack"""
    path: str
    line: int
    """where it is written, from 1"""

    @property
    def place(self) -> str:
        """``file:line``."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WaiverUse:
    """What a waiver did in one verdict."""

    waiver: Waiver
    state: WaiverState
    waived: tuple[str, ...]
    """cases that it covers"""
    failing: tuple[str, ...]
    """cases that it would cover, were it in force"""
    passing: tuple[str, ...]
    """cases of its glob that pass"""
