"""Budgets of time: intervals at their limits, what the traffic weighs, and which kernel serves a shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qualify.cards.policy import TimeBudget
from qualify.facts.performance import BudgetUse, CellChange
from qualify.report.performance import budget_sentence
from qualify.verdict.performance import use_budgets

SHAPE = "m/decode/b1.q1.k{}/bf16/causal"
GONE: dict[str, Any] = {"verdict": "INCONCLUSIVE", "change": None, "low": None, "high": None, "before_us": None}


def changed(low: float, high: float, size: int = 8, kernel: str = "x", **more: Any) -> CellChange:
    """A cell that took 100 µs before, slower by something in that interval."""
    usual: dict[str, Any] = {
        "cell": f"{SHAPE.format(size)}/{kernel}",
        "phase": "decode",
        "verdict": "SLOWER",
        "evidence": "duel",
        "basis": "a duel",
        "change": (low + high) / 2,
        "low": low,
        "high": high,
        "before_us": 100.0,
        "reason": "",
    }
    return CellChange(**usual | more)


def use(*cells: CellChange, of: Any = "cell", phase: Any = None, percent: float = 5.0, **weights: float) -> BudgetUse:
    """What becomes of one budget; ``k8=2.0`` weighs the shape of 8 keys."""
    weighed = {f"m/decode/b1.q1.{name}/bf16/causal": weight for name, weight in weights.items()}
    (found,) = use_budgets(cells, [TimeBudget(of=of, phase=phase, percent=percent)], weighed)
    return found


@pytest.mark.parametrize(
    ("cell", "verdict"),
    [
        (changed(0.04, 0.05), "PASS"),
        (changed(0.04, 0.051), "INCONCLUSIVE"),
        (changed(0.05, 0.06), "INCONCLUSIVE"),
        (changed(0.051, 0.06), "FAIL"),
        (changed(0.051, 0.06, verdict="AMBIGUOUS"), "INCONCLUSIVE"),
        (changed(0.04, 0.05, verdict="AMBIGUOUS"), "PASS"),
        (replace(changed(0.0, 0.0), low=None), "INCONCLUSIVE"),
        (replace(changed(0.0, 0.0), high=None), "INCONCLUSIVE"),
    ],
)
def test_an_interval_beside_its_budget(cell: CellChange, verdict: str) -> None:
    """Within it with its limit, or wholly beyond it and shown to be slower; everything else is open."""
    assert verdict == use(cell).verdict


def test_the_worst_cell_decides() -> None:
    """One failure beside what is open is a failure; shown are the cells without a time, then those that grew most."""
    cells = changed(0.0, 0.01), changed(0.1, 0.2, 9), changed(0.04, 0.3, 10), replace(changed(0.0, 0.0, 11), **GONE)
    found = use(*cells)
    assert ("FAIL", 0.04, 0.3) == (found.verdict, found.low, found.high)
    assert [11, 10, 9] == [int(cell.cell.split("/")[2].rpartition("k")[2]) for cell in found.cells]
    assert "INCONCLUSIVE" == use(cells[0], cells[3]).verdict
    assert "INCONCLUSIVE" == use().verdict


def test_a_budget_of_a_phase_sees_that_phase_alone() -> None:
    """Prefill became slower, decode did not."""
    slower = changed(0.1, 0.2, phase="prefill", cell="m/prefill/b1.q8.k8/bf16/causal/x")
    assert ["PASS", "FAIL", "FAIL"] == [
        use(changed(0.0, 0.01), slower, phase=phase).verdict for phase in ("decode", "prefill", None)
    ]


@pytest.mark.parametrize(
    ("weights", "verdict"),
    [
        ({}, "INCONCLUSIVE"),
        ({"k8": 1.0, "k9": 1.0}, "INCONCLUSIVE"),
        ({"k8": 1.0}, "PASS"),
        ({"k7": 1.0}, "INCONCLUSIVE"),
    ],
    ids=["all alike", "both", "only the timed one", "neither"],
)
def test_a_shape_without_a_time_is_open_where_the_traffic_has_it(weights: dict[str, float], verdict: str) -> None:
    """And traffic of which no shape was timed proves nothing."""
    found = use(changed(0.0, 0.01), replace(changed(0.0, 0.0, 9), **GONE), of="mean", **weights)
    assert verdict == found.verdict


def test_a_slowdown_that_is_not_shown_does_not_raise_the_lower_end() -> None:
    """The traffic fails by cells that are known to be slower."""
    sure, unsure = changed(0.2, 0.3), changed(0.2, 0.3, 9, verdict="AMBIGUOUS")
    assert "FAIL" == use(sure, changed(0.0, 0.0, 9), of="mean").verdict
    assert "INCONCLUSIVE" == use(unsure, changed(0.0, 0.0), of="mean").verdict


@pytest.mark.parametrize(("of", "verdict"), [("p50", "PASS"), ("p95", "PASS"), ("p99", "FAIL"), ("mean", "FAIL")])
def test_quantiles_weigh_calls(of: str, verdict: str) -> None:
    """Of 100 calls 95 are short and stay so, and five long ones take twice as long."""
    slow = changed(1.0, 1.0, 9, before_us=1000.0)
    assert verdict == use(changed(0.0, 0.0), slow, of=of, k8=95.0, k9=5.0).verdict


def test_a_quantile_adds_up_the_calls_before_it() -> None:
    """The middle call of three shapes is one of the second shape, the only one that became slower."""
    cells = changed(0.0, 0.0), changed(0.5, 0.5, 9, before_us=200.0), changed(0.0, 0.0, 10, before_us=900.0)
    assert "FAIL" == use(*cells, of="p50", k8=0.3, k9=0.3, k10=0.4).verdict


def test_a_quantile_does_not_depend_on_the_order_in_which_weights_are_added() -> None:
    """Three shapes became faster, and now stand in another order: half of the calls are still theirs."""
    became = ((10.0, 9.0), (20.0, 9.2), (30.0, 9.1), (1000.0, 1000.0))
    cells = [
        changed(us / before - 1, us / before - 1, size, before_us=before, verdict="FASTER")
        for size, (before, us) in enumerate(became, 8)
    ]
    found = use(*cells, of="p50", k8=0.1, k9=0.05, k10=0.35, k11=0.5)
    assert ("PASS", pytest.approx(9.2 / 30 - 1)) == (found.verdict, found.change)


def test_a_mean_is_weighted_and_may_reach_its_limit() -> None:
    """One call of ten takes twice as long; half as long again is within 50 %."""
    assert 0.1 == pytest.approx(use(changed(0.0, 0.0), changed(1.0, 1.0, 9), of="mean", k8=9.0, k9=1.0).change)
    assert "PASS" == use(changed(0.5, 0.5), of="mean", percent=50.0).verdict


def test_a_budget_says_what_it_allows_and_shows_its_cells_where_it_does_not_hold() -> None:
    """The traffic's as well."""
    held, broken = use(changed(0.0, 0.0), of="mean", phase="decode"), use(changed(0.5, 0.5), of="mean")
    assert ("decode", 0.05, ()) == (held.phase, held.allowed, held.cells)
    assert ("", 0.05, (changed(0.5, 0.5),)) == (broken.phase, broken.allowed, broken.cells)


def test_of_equally_fast_kernels_the_first_one_serves() -> None:
    """In plan order."""
    steady, slower = changed(0.0, 0.0, kernel="a"), changed(0.5, 0.6, kernel="b")
    assert ["PASS", "FAIL"] == [use(*cells, of="p50").verdict for cells in ((steady, slower), (slower, steady))]


def test_the_fastest_kernel_before_serves_a_shape() -> None:
    """Another kernel's slowdown is not the traffic's. One without history serves none; one lost by a duel may."""
    fast, slow = changed(0.0, 0.0, kernel="fast", before_us=10.0), changed(0.5, 0.6, kernel="slow")
    for evidence, verdict in (("history", "PASS"), ("duel", "INCONCLUSIVE")):
        gone = replace(changed(0.0, 0.0, kernel="gone"), **GONE, evidence=evidence)
        for cells in ((slow, gone, fast), (fast, slow, gone), (gone, fast, slow)):
            assert verdict == use(*cells, of="p50").verdict


@pytest.mark.parametrize(
    ("percent", "told"), [(0.25, "+0.25%"), (0.04, "+0.04%"), (5.0, "+5.0%"), (12.5, "+12.5%"), (1000.0, "+1000.0%")]
)
def test_a_budget_is_told_as_it_was_written(percent: float, told: str) -> None:
    """One of 0.25 % is no budget of 0.2 %, and one of 0.04 % is none of 0."""
    sentence = budget_sentence(use(changed(0.001, 0.002), percent=percent))
    assert sentence.startswith(f"budget of each cell ({told}) ")
