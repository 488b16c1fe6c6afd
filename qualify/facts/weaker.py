"""Where the requirements became weaker than those of an earlier run: each point with the requirement then and now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

LessKind = Literal["cases", "expectation", "level", "policy", "card", "waiver"]
"""
cases: they are gone, or refused now; expectation: shapes that any kernel may serve now, or another one; level: fewer
checks; policy: of the matrix; card: what a kernel promises, or what proves it; waiver: one that covers everything
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Less:
    """One requirement that became weaker, alike cases together."""

    kind: LessKind
    what: str
    """for example ``kernel flash-attn-3`` or ``policy.timeout_s``"""
    then: str
    """what the earlier run asked"""
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
    """whether a token proved who that is"""
    accepted_at: datetime
    """aware UTC"""
    changes: tuple[Less, ...]
    forbidden: bool
    """whether the policy of the baseline or of today forbids it"""
    name: str = ""
    """whose baseline it is, for example a branch's; empty = the one without a name"""
    acceptable: bool = False
    """whether the judged run can be accepted as it is: all evidence is from it, and the matrix is the one it has"""
