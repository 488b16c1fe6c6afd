"""What the gate says of time: each budget of the matrix, and what a duel or the history of runs says about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from qualify.facts.case import Phase
from qualify.facts.duel import DuelVerdict

Share = Literal["cell", "mean", "p50", "p95", "p99"]
"""what a budget is about: every single cell, or the attention time of the traffic"""
BudgetVerdict = Literal["PASS", "FAIL", "INCONCLUSIVE"]
TimeEvidence = Literal["duel", "history"]
"""what judged a time. duel: two sides took turns; history: the runs before, compared with those since"""
AcceptedEvidence = Literal["duel", "history", "either"]
"""what may judge a time; ``either``: history where no duel has timed the cell"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellChange:
    """One cell beside a budget; changes are shares: 0.02 = 2 % longer."""

    cell: str
    phase: Phase
    verdict: DuelVerdict
    evidence: TimeEvidence
    """what judged it"""
    basis: str
    """the duel's id, or how many runs there were before and since"""
    change: float | None
    """None where the evidence has no time of it"""
    low: float | None
    """lower end of the 95 % interval"""
    high: float | None
    before_us: float | None
    """median time before; None where the evidence has none"""
    reason: str
    """why it is undecided; empty where it is decided"""


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetUse:
    """One budget and what became of it."""

    phase: str
    """empty = all phases"""
    of: Share
    allowed: float
    """how much it may grow, as a share"""
    verdict: BudgetVerdict
    change: float | None
    """change of the worst cell, or of the traffic; None where nothing was timed"""
    low: float | None
    high: float | None
    evidence: tuple[TimeEvidence, ...]
    """what judged its cells"""
    cells: tuple[CellChange, ...]
    """those that fail it or leave it undecided, the worst first"""

    @property
    def name(self) -> str:
        """What may grow, in words."""
        what = "each cell" if self.of == "cell" else f"{self.of} of the traffic"
        return f"{what}, {self.phase}" if self.phase else what


@dataclass(frozen=True, kw_only=True, slots=True)
class Performance:
    """A verdict about time."""

    accepted: AcceptedEvidence
    """what may judge a time here"""
    duel: str
    """id of the duel; empty where none counts"""
    at: datetime | None
    """when the duel ended"""
    against: str
    """what was there before: the duel's name of that side, or the runs before"""
    stack_a: str
    """fingerprint of the stack that was there before; empty where nothing counts"""
    budgets: tuple[BudgetUse, ...]
    cells: tuple[CellChange, ...]
    """all that were compared, the worst first; empty where nothing counts"""
    why_not: str
    """why no evidence of time counts; empty where some does"""
    required: bool
    """whether there is no verdict without such evidence"""

    @property
    def verdict(self) -> BudgetVerdict:
        """The worst of all budgets; INCONCLUSIVE where evidence is required and none counts."""
        verdicts = {use.verdict for use in self.budgets}
        if "FAIL" in verdicts:
            return "FAIL"
        return "INCONCLUSIVE" if "INCONCLUSIVE" in verdicts or (self.required and self.why_not) else "PASS"
