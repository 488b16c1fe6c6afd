"""Budgets of time: what the changes of cells say about each of them. Sees changes and the policy, nothing else.

A budget passes where the whole interval is within it, and fails where the whole interval is beyond it. Otherwise it is
undecided. A cell that was not timed is undecided, too: what is not known to be as fast never passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Literal, get_args

from qualify.cards.policy import TimeBudget
from qualify.facts.case import Phase
from qualify.facts.duel import Duel, DuelCell
from qualify.facts.performance import BudgetUse, BudgetVerdict, CellChange, Share

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ROUNDED = 1e-9
"""share by which a sum of weights may be too small, because each addition is rounded"""
End = Literal["change", "low", "high"]
ENDS: tuple[End, ...] = ("change", "low", "high")
Weights = Mapping[str, float]
"""how often the traffic makes the call of each production shape; empty = every shape counts alike"""


def duel_changes(duel: Duel) -> tuple[CellChange, ...]:
    """The cells of a duel."""
    return tuple(_of_duel(duel, cell) for cell in duel.cells)


def _of_duel(duel: Duel, cell: DuelCell) -> CellChange:
    ratio = cell.ratio
    return CellChange(
        cell=cell.name,
        phase=cell.phase,
        verdict=cell.verdict,
        evidence="duel",
        basis=duel.id,
        change=ratio.change if ratio else None,
        low=ratio.low if ratio else None,
        high=ratio.high if ratio else None,
        before_us=ratio.a_us if ratio else None,
        reason=cell.reason,
    )


def gone_since(duel: Duel) -> tuple[CellChange, ...]:
    """The cells that only the earlier side of a duel could run."""
    return tuple(
        CellChange(
            cell=name,
            phase=phase,
            verdict="INCONCLUSIVE",
            evidence="duel",
            basis=duel.id,
            change=None,
            low=None,
            high=None,
            before_us=None,
            reason=f"only {duel.a} can run it",
        )
        for name in duel.only_a
        for phase in get_args(Phase)
        if name.split("/")[1:2] == [phase]
    )


def use_budgets(
    cells: Sequence[CellChange], budgets: Sequence[TimeBudget], weights: Weights, gone: Sequence[CellChange] = ()
) -> tuple[BudgetUse, ...]:
    """What becomes of each budget.

    Args:
        gone: cells that could be run before and cannot now. One of them may have served its shape, so they count for
            the traffic; a budget of each cell is about those that can be run.
    """
    return tuple(
        _use(
            budget,
            [cell for cell in cells if _meant(budget, cell)],
            weights,
            [cell for cell in gone if _meant(budget, cell)],
        )
        for budget in budgets
    )


def without_budgets(cells: Sequence[CellChange], margin_of: Callable[[float], float]) -> BudgetUse:
    """The result of a required duel where the matrix has no budget: no cell may be slower, and none undecided.

    Args:
        margin_of: gives the usual margin, as a share, of a kernel that takes so many µs. With a larger margin a duel
            would call more cells the same.
    """
    return _over_cells("", 0.0, cells, [(cell, _unbudgeted(cell, margin_of)) for cell in cells])


def _unbudgeted(cell: CellChange, margin_of: Callable[[float], float]) -> BudgetVerdict:
    if cell.verdict == "SLOWER":
        return "FAIL"
    within_margin = cell.high is not None and cell.high <= margin_of(_before_us(cell))
    return "PASS" if within_margin and cell.verdict in ("SAME", "FASTER") else "INCONCLUSIVE"


def _meant(budget: TimeBudget, cell: CellChange) -> bool:
    return budget.phase is None or cell.phase == budget.phase


def _use(budget: TimeBudget, cells: Sequence[CellChange], weights: Weights, gone: Sequence[CellChange]) -> BudgetUse:
    if budget.of == "cell":
        return _of_cells(budget, cells)
    told = partial(_told, budget.phase or "", budget.of, budget.percent / 100)
    weighted = [(cell, weight) for cell in serving([*cells, *gone]) if (weight := _weight(cell, weights))]
    open_ = [cell for cell, _ in weighted if cell.change is None]
    if open_ or not weighted:
        return told(cells, "INCONCLUSIVE", (None, None, None), open_)
    change, low, high = (growth(weighted, budget.of, end) for end in ENDS)
    verdict = within(low, high, budget.percent / 100)
    worst = [cell for cell, _ in weighted] if verdict != "PASS" else []
    return told(cells, verdict, (change, low, high), worst)


def _of_cells(budget: TimeBudget, cells: Sequence[CellChange]) -> BudgetUse:
    """Each cell for itself."""
    allowed = budget.percent / 100
    return _over_cells(budget.phase or "", allowed, cells, [(cell, _verdict(cell, allowed)) for cell in cells])


def _over_cells(
    phase: str, allowed: float, cells: Sequence[CellChange], judged: Sequence[tuple[CellChange, BudgetVerdict]]
) -> BudgetUse:
    """Cells that are judged one by one: the worst verdict counts."""
    verdicts = {verdict for _, verdict in judged}
    verdict: BudgetVerdict = "FAIL" if "FAIL" in verdicts else "INCONCLUSIVE" if verdicts != {"PASS"} else "PASS"
    worst = min((cell for cell in cells if cell.change is not None), key=worst_first, default=None)
    interval = (worst.change, worst.low, worst.high) if worst else (None, None, None)
    shown = [cell for cell, found in judged if found != "PASS"]
    return _told(phase, "cell", allowed, cells, verdict, interval, shown)


def _told(
    phase: str,
    of: Share,
    allowed: float,
    cells: Sequence[CellChange],
    verdict: BudgetVerdict,
    interval: tuple[float | None, float | None, float | None],
    shown: Sequence[CellChange],
) -> BudgetUse:
    change, low, high = interval
    return BudgetUse(
        phase=phase,
        of=of,
        allowed=allowed,
        verdict=verdict,
        change=change,
        low=low,
        high=high,
        evidence=tuple(sorted({cell.evidence for cell in cells})),
        cells=tuple(sorted(shown, key=worst_first)),
    )


def _verdict(cell: CellChange, allowed: float) -> BudgetVerdict:
    """SLOWER within the budget passes. An undecided cell passes only where its whole interval is within the budget."""
    if cell.low is None or cell.high is None:
        return "INCONCLUSIVE"
    found = within(cell.low, cell.high, allowed)
    # A gate fails only where a slowdown is significant among all cells, and confirmed if a duel measured it.
    return "INCONCLUSIVE" if found == "FAIL" and cell.verdict != "SLOWER" else found


def within(low: float, high: float, allowed: float) -> BudgetVerdict:
    """PASS where the whole interval is within the budget, FAIL where all of it is beyond, else INCONCLUSIVE."""
    if high <= allowed:
        return "PASS"
    return "FAIL" if low > allowed else "INCONCLUSIVE"


def serving(cells: Iterable[CellChange]) -> list[CellChange]:
    """One cell for each shape: the cell of the kernel that was the fastest before, because that kernel serves it.

    A kernel that a duel could not time may have been the fastest, so its cell stands for the shape. A kernel without
    any history did not exist before, so it comes last.
    """
    best: dict[str, CellChange] = {}
    for cell in cells:
        known = best.get(_shape(cell))
        if known is None or _rank(cell) < _rank(known):
            best[_shape(cell)] = cell
    return list(best.values())


def _rank(cell: CellChange) -> float:
    """Sorts the kernels of a shape: the one that serves it comes first."""
    return -1.0 if cell.evidence == "duel" and cell.before_us is None else _before_us(cell)


def _before_us(cell: CellChange) -> float:
    return cell.before_us if cell.before_us is not None else float("inf")


def _weight(cell: CellChange, weights: Weights) -> float:
    return weights.get(_shape(cell), 0.0) if weights else 1.0


def _shape(cell: CellChange) -> str:
    """The production shape of a cell, which may end with a kernel."""
    return "/".join(cell.cell.split("/")[:5])


def growth(measured: Sequence[tuple[CellChange, float]], of: str, end: End) -> float:
    """The share by which the traffic's time grows if every cell stands at one end of its interval.

    The mean and all quantiles grow if any single time grows. So the result is an end of an interval that holds for all
    cells together. A slowdown that is not proven does not raise the lower end.
    """
    before = [(_before_us(cell), weight) for cell, weight in measured]
    after = [(_before_us(cell) * (1 + _at(cell, end)), weight) for cell, weight in measured]
    return _figure(after, of) / _figure(before, of) - 1


def _at(cell: CellChange, end: End) -> float:
    """A cell's change at that end."""
    found = {"change": cell.change, "low": cell.low, "high": cell.high}[end]
    assert found is not None, "only timed cells are counted"
    return min(found, 0.0) if end == "low" and cell.verdict != "SLOWER" else found


def _figure(times: Sequence[tuple[float, float]], of: str) -> float:
    """The mean or a quantile of weighted times."""
    total = sum(weight for _, weight in times)
    if of == "mean":
        return fmean([us for us, _ in times], weights=[weight for _, weight in times])
    seen = 0.0
    for us, weight in sorted(times):
        seen += weight
        if reaches(seen, QUANTILES[of] * total):
            return us
    return max(us for us, _ in times)


def reaches(seen: float, wanted: float) -> bool:
    """Whether a sum of weights is as large as wanted, whatever the order was in which they were added."""
    return seen >= wanted * (1 - ROUNDED)


def worst_first(cell: CellChange) -> tuple[float, str]:
    """Sorts cells: the one that grew most comes first."""
    return (-cell.change if cell.change is not None else float("-inf"), cell.cell)
