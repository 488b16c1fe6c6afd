"""What a family of cells says together: four verdicts, with a known rate of false alarms.

A cell is slower only where all of this holds::

    1. its one-sided test is significant among all cells (Benjamini-Hochberg)
    2. the lower end of its interval is above the margin: the change is large enough to matter
    3. new pairs of processes confirm it: p < 0.01 there, and a change above the margin

FASTER is its mirror image, without a confirmation: nothing fails by it. SAME needs an equivalence test and an interval
within the margin. Whatever is left is AMBIGUOUS, and never counts as good news.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from qualify.statistics.estimate import Estimate, Tests, change_of, estimate, tests_of
from qualify.statistics.quads import Pair

Verdict = Literal["SLOWER", "SAME", "FASTER", "AMBIGUOUS"]
MARGINS = ((50.0, 0.01), (10.0, 0.02), (0.0, 0.03))
"""(kernels of at least so many µs, least share of change that counts)"""
FALSE_DISCOVERY = 0.05
"""share of the cells called slower that may be false, before any confirmation"""
EQUIVALENCE = 0.05
"""largest p-value by which two sides are the same"""
CONFIRMATION = 0.01
"""largest p-value of a confirmation"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedCell:
    """One cell's paired log ratios."""

    name: str
    margin: float
    """share below which a change does not count"""
    pairs: Sequence[Pair]
    confirming: Sequence[Pair] = ()
    """of the new pairs that were made because the first ones said SLOWER"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellDecision:
    """What a cell's pairs say among the others."""

    verdict: Verdict
    confirm: bool
    """whether it is slower so far, and new pairs shall confirm it"""
    estimate: Estimate | None
    """None where there are too few pairs"""


def margin_of(latency_us: float) -> float:
    """The least share of change that counts for a kernel of so many µs; a number that is no time counts as 0 µs."""
    return next((margin for least_us, margin in MARGINS if latency_us >= least_us), MARGINS[-1][1])


def decide(
    cells: Sequence[PairedCell], *, least_pairs: int, waiting: Collection[str] | None = None
) -> dict[str, CellDecision]:
    """The verdicts of a family of cells, by name.

    Args:
        least_pairs: fresh process pairs that any verdict but AMBIGUOUS needs.
        waiting: the cells to decide, among all others; None = every cell.
    """
    tests = {cell.name: found for cell in cells if (found := tests_of(cell.pairs, cell.margin))}
    slower = significant({name: found.slower for name, found in tests.items()})
    faster = significant({name: found.faster for name, found in tests.items()})
    return {
        cell.name: _decide(cell, tests.get(cell.name), cell.name in slower, cell.name in faster, least_pairs)
        for cell in cells
        if waiting is None or cell.name in waiting
    }


def significant(p_values: Mapping[str, float]) -> set[str]:
    """Those that stay significant among all (Benjamini-Hochberg)."""
    ordered = sorted(p_values, key=lambda name: p_values[name])
    adjusted = [p_values[name] * (len(ordered) / rank) for rank, name in enumerate(ordered, 1)]
    last = max((rank for rank, p in enumerate(adjusted, 1) if p <= FALSE_DISCOVERY), default=0)
    return set(ordered[:last])


def _decide(cell: PairedCell, tests: Tests | None, slower: bool, faster: bool, least_pairs: int) -> CellDecision:
    if tests is None:
        return CellDecision(verdict="AMBIGUOUS", confirm=False, estimate=None)
    first = estimate(cell.pairs, cell.margin, name=cell.name)
    assert first is not None, "it has tests"
    enough = first.pairs >= least_pairs
    if cell.confirming or (slower and enough and first.low > cell.margin):
        return _confirmed(cell, first, least_pairs)
    if faster and enough and first.high < -cell.margin:
        return CellDecision(verdict="FASTER", confirm=False, estimate=first)
    same = enough and is_same(first, cell.margin)
    return CellDecision(verdict="SAME" if same else "AMBIGUOUS", confirm=False, estimate=first)


def is_same(found: Estimate, margin: float) -> bool:
    """Whether it is shown that the sides differ by less than the margin."""
    return found.tests.same <= EQUIVALENCE and -margin <= found.low <= found.high <= margin


def _confirmed(cell: PairedCell, first: Estimate, least_pairs: int) -> CellDecision:
    """What the confirmation says. Its estimate counts alone: the first one was chosen because it was large."""
    again = estimate(cell.confirming, cell.margin, name=cell.name)
    if again is None or again.pairs < least_pairs:
        return CellDecision(verdict="AMBIGUOUS", confirm=True, estimate=first)
    if again.tests.slower <= CONFIRMATION and change_of(cell.confirming) > cell.margin:
        return CellDecision(verdict="SLOWER", confirm=False, estimate=again)
    return CellDecision(verdict="SAME" if is_same(again, cell.margin) else "AMBIGUOUS", confirm=False, estimate=again)
