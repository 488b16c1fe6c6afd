"""Known effects are recovered from simulated times, and none is invented."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.statistics import estimate as estimating
from qualify.statistics.estimate import estimate, interval
from qualify.statistics.power import claimed, detectable
from qualify.statistics.quads import Quad, log_of, pair_values, share
from qualify.statistics.verdicts import PairedCell, decide, margin_of, significant

PAIRS, QUADS = 5, 3


def simulated(random, change, *, kind="plain", spread=0.002, noise=0.004, pairs=PAIRS):
    """Log ratios of pairs of processes whose clock, temperature and neighbours do something."""
    made = []
    for _ in range(pairs):
        own = random.normal(0, spread)
        wander, level = 0.0, 1.0
        quads = []
        for _ in range(QUADS):
            times = []
            for place in range(4):
                wander = 0.9 * wander + random.normal(0, 0.004) if kind == "autocorrelated" else 0.0
                if kind == "drift":
                    level *= 1.002
                if kind == "steps" and random.random() < 0.05:
                    level = random.choice([1.0, 1.15])
                time = 100 * level * math.exp(wander + random.normal(0, noise))
                if kind == "outliers" and random.random() < 0.03:
                    time *= random.uniform(1.5, 10)
                times.append(time * (math.exp(own) * (1 + change) if place in {1, 2} else 1.0))
            quads.append(Quad(a_us=(times[0], times[3]), b_us=(times[1], times[2])).log_ratio)
        made.append(quads)
    return made


KINDS = ["plain", "drift", "autocorrelated", "steps", "outliers"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_invented(kind: str) -> None:
    """Of 200 cells without any change not one is called slower or faster, whatever the card does meanwhile."""
    random = np.random.default_rng(7)
    cells = [
        PairedCell(
            name=str(number),
            margin=0.01,
            pairs=simulated(random, 0.0, kind=kind),
            confirming=simulated(random, 0.0, kind=kind),
        )
        for number in range(200)
    ]
    found = decide(cells, least_pairs=PAIRS)
    assert {"SAME", "AMBIGUOUS"} >= {decision.verdict for decision in found.values()}


@pytest.mark.parametrize("kind", ["plain", "drift", "autocorrelated"])
def test_a_slowdown_of_two_per_cent_is_found(kind: str) -> None:
    """In 95 of 100 cells at least, and nothing else is."""
    random = np.random.default_rng(3)
    cells = [
        PairedCell(
            name=f"{number}",
            margin=0.01,
            pairs=simulated(random, 0.025 if number < 100 else 0.0, kind=kind, noise=0.003),
            confirming=simulated(random, 0.025 if number < 100 else 0.0, kind=kind, noise=0.003),
        )
        for number in range(200)
    ]
    found = decide(cells, least_pairs=PAIRS)
    slower = {int(name) for name, decision in found.items() if decision.verdict == "SLOWER"}
    assert 95 <= len(slower & set(range(100)))
    assert not slower - set(range(100))


def test_who_is_faster_is_called_so() -> None:
    """The mirror image."""
    random = np.random.default_rng(5)
    cell = PairedCell(name="x", margin=0.01, pairs=simulated(random, -0.05))
    assert "FASTER" == decide([cell], least_pairs=PAIRS)["x"].verdict


def test_slower_needs_a_confirmation() -> None:
    """Until new pairs were made the cell is ambiguous; where they show nothing it is no slowdown."""
    random = np.random.default_rng(5)
    first = simulated(random, 0.05)
    open_ = decide([PairedCell(name="x", margin=0.01, pairs=first)], least_pairs=PAIRS)["x"]
    assert ("AMBIGUOUS", True) == (open_.verdict, open_.confirm)
    calm = simulated(random, 0.0, spread=0.0005, noise=0.001)
    denied = decide([PairedCell(name="x", margin=0.01, pairs=first, confirming=calm)], least_pairs=PAIRS)["x"]
    assert ("SAME", False) == (denied.verdict, denied.confirm)


def test_few_pairs_decide_nothing() -> None:
    """Four pairs are not five, and one gives no estimate."""
    random = np.random.default_rng(5)
    few = simulated(random, 0.2, pairs=4)
    assert "AMBIGUOUS" == decide([PairedCell(name="x", margin=0.01, pairs=few)], least_pairs=5)["x"].verdict
    alone = decide([PairedCell(name="x", margin=0.01, pairs=few[:1])], least_pairs=5)["x"]
    assert ("AMBIGUOUS", None) == (alone.verdict, alone.estimate)


def test_a_wide_interval_is_never_the_same() -> None:
    """Pairs that differ by several per cent show no equivalence of one per cent."""
    random = np.random.default_rng(2)
    cells = [
        PairedCell(name=str(number), margin=0.01, pairs=simulated(random, 0.0, spread=0.03)) for number in range(50)
    ]
    assert {"AMBIGUOUS"} == {decision.verdict for decision in decide(cells, least_pairs=PAIRS).values()}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=5), min_size=2, max_size=8),
    st.floats(0.001, 0.2),
)
def test_the_sides_are_treated_alike(pairs: list[list[float]], margin: float) -> None:
    """With A and B exchanged the tests exchange too, and the interval holds the median of pairs' extremes."""
    mirrored = [[-value for value in quads] for quads in pairs]
    ahead, back = estimating.tests_of(pairs, margin), estimating.tests_of(mirrored, margin)
    assert ahead is not None
    assert back is not None
    assert math.isclose(ahead.slower, back.faster, abs_tol=1e-9)
    low, high = interval(pairs, seed=1)
    flat = [value for quads in pairs for value in quads]
    assert min(flat) - 1e-12 <= low <= high <= max(flat) + 1e-12


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1, 1e5), st.floats(1, 1e5), st.floats(0.9, 1.1), st.floats(-0.5, 0.5).filter(lambda value: abs(value) > 0)
)
def test_a_quad_cancels_what_grows_evenly(a: float, base: float, growth: float, change: float) -> None:
    """A B B A under a steady factor per block gives exactly the planted ratio."""
    levels = [base * growth**place for place in range(4)]
    quad = Quad(a_us=(a * levels[0], a * levels[3]), b_us=(a * levels[1] * (1 + change), a * levels[2] * (1 + change)))
    assert math.isclose(change, share(quad.log_ratio), rel_tol=1e-6, abs_tol=1e-9)


def test_the_interval_covers_the_truth() -> None:
    """Of 300 cells with five pairs, 95 % hold the true change, within what chance allows."""
    random = np.random.default_rng(11)
    held = 0
    for number in range(300):
        found = estimate(simulated(random, 0.02), 0.01, name=str(number))
        assert found is not None
        held += found.low <= 0.02 <= found.high
    assert 0.92 * 300 <= held


def test_the_same_times_give_the_same_interval() -> None:
    """The bootstrap is seeded by the cell's name."""
    pairs = simulated(np.random.default_rng(1), 0.01)
    assert estimate(pairs, 0.01, name="cell") == estimate(pairs, 0.01, name="cell")


def test_equal_times_are_the_same() -> None:
    """A coarse clock gives equal numbers: no division by zero."""
    found = decide([PairedCell(name="x", margin=0.01, pairs=[[0.0]] * 5)], least_pairs=5)["x"]
    assert "SAME" == found.verdict


def test_a_quad_without_samples_counts_as_none() -> None:
    """A pair whose samples were all thrown away is no observation."""
    assert [0.1] == pair_values([[], [0.1]])
    assert estimating.tests_of([[], [0.1]], 0.01) is None


def test_benjamini_hochberg_keeps_the_false_ones_few() -> None:
    """Of 2,000 cells with 40 real changes a raw p < 0.05 would flag about 140."""
    random = np.random.default_rng(9)
    p = {str(number): (1e-7 if number < 40 else float(random.uniform())) for number in range(2000)}
    found = significant(p)
    assert {str(number) for number in range(40)} <= found
    assert len(found) <= 46
    assert set() == significant({})


def test_margins_grow_for_short_kernels() -> None:
    """A percent of 5 µs is less than a clock tells."""
    assert [0.01, 0.02, 0.03] == [margin_of(us) for us in (50, 49.9, 9)]
    assert [0.02, 0.03, 0.05] == [claimed(us) for us in (50, 49.9, 9)]


def test_two_wild_pairs_detect_nothing() -> None:
    """The figure stays one: eleven times as long."""
    assert math.isclose(10.0, detectable(3.0, 2, 0.01))


def test_what_is_detectable_is_detected() -> None:
    """A change of that size is flagged in nine of ten cells at least."""
    random = np.random.default_rng(4)
    spread = math.hypot(0.002, 0.004 / math.sqrt(2))
    change = detectable(spread, PAIRS, 0.01)
    flagged = 0
    for number in range(100):
        pairs = [[value] for value in random.normal(log_of(change), spread, PAIRS)]
        found = estimate(pairs, 0.01, name=str(number))
        assert found is not None
        flagged += found.low > 0.01
    assert 90 <= flagged
