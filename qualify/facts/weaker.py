"""Where the requirements became weaker than those of an earlier run: each point with the requirement then and now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

LessKind = Literal["cases", "expectation", "level", "policy", "card", "waiver"]
"""
cases: some are gone, or refused now; expectation: any kernel, or another one, may serve the shapes now; level: fewer
checks ran; policy: a weaker one; card: a kernel promises less, or more names prove it; waiver: a new one
covers every kernel or every case
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Less:
    """One requirement that became weaker, with all cases for which it did."""

    kind: LessKind
    what: str
    """for example ``kernel flash-attn-3`` or ``policy.timeout_s``"""
    then: str
    """the requirement of the earlier run"""
    now: str
    """the requirement now"""
    cases: tuple[str, ...] = ()
    """ids of the cases, or of the production shapes of an expectation; empty where it is about all"""

    @property
    def count(self) -> int:
        """How many cases or shapes it is about; 0 where it is about all."""
        return len(self.cases)


@dataclass(frozen=True, kw_only=True, slots=True)
class Weaker:
    """A verdict beside the accepted baseline: which requirements became weaker, and whether the policy allows it."""

    run: str
    """id of the accepted run"""
    accepted_by: str
    proven: bool
    """whether a token proved who accepted it"""
    accepted_at: datetime
    """aware UTC"""
    changes: tuple[Less, ...]
    forbidden: bool
    """whether the policy of the baseline or of today forbids it"""
    name: str = ""
    """whose baseline it is, for example a branch's; empty = the one without a name"""
    acceptable: bool = False
    """whether the judged run can become the baseline as it is: all evidence is from this run, and the matrix is the one
    that it ran"""
