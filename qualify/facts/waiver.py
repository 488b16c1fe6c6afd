"""A waiver, and its state: an accepted failure with an owner and an expiry date."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Literal

from qualify.errors import Place

WaiverState = Literal["used", "passing", "unused", "expired", "pending", "elsewhere"]
"""
used: it covers a failure; passing: what it covers passes again; unused: it covers nothing; expired: its last day is
over, so the verdict is FAIL; pending: it is not in force yet; elsewhere: its condition does not fit the stack
"""


IN_FORCE: tuple[WaiverState, ...] = ("used", "passing", "unused")
CLASS = re.compile(r"\[!?\]?[^\]]*\]")
"""a set of characters in a glob, which stands for one character as ``?`` does"""
WILDCARDS = re.compile(r"[*?/]*")
"""a part of a glob that names nothing"""


def bare_stars(select: str) -> tuple[str, ...]:
    """Which of ``case`` and ``kernel`` a glob over case ids leaves open altogether."""
    plain = CLASS.sub("?", select)
    case, slash, kernel = plain.rpartition("/")
    if not slash:  # a * crosses every slash
        case, kernel = plain[:1], plain[-1:]
    parts = {"case": case, "kernel": kernel}
    return tuple(name for name, part in parts.items() if WILDCARDS.fullmatch(part))


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
    """line at which it is written, from 1"""
    select_at: tuple[int, int] = (0, 0)
    """line and column of its glob, from 1"""

    @property
    def place(self) -> str:
        """``file:line``."""
        return f"{self.path}:{self.line}"

    @property
    def select_place(self) -> Place:
        """Where its glob is written."""
        return Place(path=self.path, line=self.select_at[0], column=self.select_at[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class WaiverUse:
    """What a waiver did in one verdict."""

    waiver: Waiver
    state: WaiverState
    waived: tuple[str, ...]
    """cases that it covers"""
    failing: tuple[str, ...]
    """cases that it would cover if it were in force"""
    passing: tuple[str, ...]
    """cases that match its glob and pass"""
