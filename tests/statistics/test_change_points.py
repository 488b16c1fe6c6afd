"""Change points of simulated nightly series."""

from __future__ import annotations

import numpy as np
import pytest

from qualify.statistics.history import LEAST_POINTS, change_points


@pytest.mark.parametrize("change", [0.03, -0.05, 0.1])
def test_a_level_that_moves_is_found(change: float) -> None:
    """Where it moved, within a night, and by how much."""
    random = np.random.default_rng(2)
    series = [float(value) for value in random.normal(1.0, 0.005, 40)]
    series[25:] = [value * (1 + change) for value in series[25:]]
    (found,) = change_points(series)
    assert abs(found.index - 25) <= 1
    assert abs(found.change - change) < 0.006


def test_noise_is_no_change() -> None:
    """In 100 series of 40 nights not more than one is found; outliers are none either."""
    random = np.random.default_rng(6)
    found = 0
    for _ in range(100):
        series = random.normal(1.0, 0.01, 40)
        series[random.integers(0, 40, 2)] *= 1.5
        found += len(change_points([float(value) for value in series]))
    assert found <= 1


def test_two_modes_that_take_turns_by_chance_are_no_change() -> None:
    """Three nights in ten another kernel is chosen, 10 % slower: of 50 series of 30 nights, 2 at most show a change."""
    random = np.random.default_rng(6)
    found = 0
    for _ in range(50):
        series = random.normal(1.0, 0.002, 30) * (1 + 0.1 * (random.random(30) < 0.3))
        found += bool(change_points([float(value) for value in series]))
    assert found <= 2


def test_two_changes_are_two() -> None:
    """Up, and later down again."""
    random = np.random.default_rng(8)
    series = [float(value) for value in random.normal(1.0, 0.004, 45)]
    series[15:30] = [value * 1.06 for value in series[15:30]]
    assert [15, 30] == [found.index for found in change_points(series)]


def test_a_short_series_says_nothing() -> None:
    """Four points on each side are needed."""
    assert [] == change_points([1.0] * 3 + [2.0] * 4)
    assert LEAST_POINTS == 8
    assert [4] == [found.index for found in change_points([1.0] * 4 + [2.0] * 4)]
