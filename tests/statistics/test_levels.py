"""Two levels of simulated histories: false alarms stay rare, known changes are found, short ones say nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qualify.statistics.levels import (
    KNOWN_ERROR,
    LEAST_BEFORE,
    LEAST_SINCE,
    LevelChange,
    enclosing,
    level_change,
)

Noise = NDArray[np.float64]
Disturb = Callable[[np.random.Generator, Noise], Noise]
SERIES = 150
"""simulated histories of a kind"""


def plain(_: np.random.Generator, noise: Noise) -> Noise:
    """Independent runs."""
    return noise


def alike(_: np.random.Generator, noise: Noise) -> Noise:
    """Neighbours with a correlation of 0.7."""
    found = noise.copy()
    for at in range(1, len(found)):
        found[at] = 0.7 * found[at - 1] + math.sqrt(1 - 0.49) * noise[at]
    return found


def drift(_: np.random.Generator, noise: Noise) -> Noise:
    """A card that becomes slower by 0.2 % a run."""
    return noise + 0.002 * np.arange(len(noise))


def steps(random: np.random.Generator, noise: Noise) -> Noise:
    """A throttled card: 6 % slower for two runs."""
    at = int(random.integers(0, len(noise) - 2))
    noise[at : at + 2] += 0.06
    return noise


def outliers(random: np.random.Generator, noise: Noise) -> Noise:
    """One run in twenty takes 30 % longer."""
    return noise + 0.3 * (random.random(len(noise)) < 0.05)


def modes(random: np.random.Generator, noise: Noise) -> Noise:
    """Three processes in ten choose another kernel, which takes 10 % longer."""
    return 0.2 * noise + 0.1 * (random.random(len(noise)) < 0.3)


def changes(disturb: Disturb, effect: float, before: int, since: int, spread: float = 0.01) -> list[LevelChange]:
    """What is found in simulated histories whose level moves by so much."""
    random = np.random.default_rng(7)
    found = []
    for _ in range(SERIES):
        logs = disturb(random, random.normal(0.0, spread, before + since))
        logs[before:] += math.log1p(effect)
        change = level_change([math.exp(it) for it in logs[:before]], [math.exp(it) for it in logs[before:]])
        assert change is not None
        found.append(change)
    return found


@pytest.mark.parametrize("since", [4, 10])
@pytest.mark.parametrize("disturb", [plain, alike, drift, steps, outliers, modes])
def test_no_change_is_rarely_called_one(disturb: Disturb, since: int) -> None:
    """In 150 histories of 16 runs and 4 or 10 since, no more than 2 % of the intervals leave 0 out."""
    found = changes(disturb, 0.0, 16, since)
    assert sum(it.low > 0 or it.high < 0 for it in found) <= 0.02 * SERIES


@pytest.mark.parametrize("disturb", [plain, alike, outliers])
def test_a_slowdown_is_never_called_harmless(disturb: Disturb) -> None:
    """A change of 10 % fits into a budget of 5 % in at most 2 % of the histories."""
    assert sum(it.high <= 0.05 for it in changes(disturb, 0.10, 16, 6)) <= 0.02 * SERIES


@pytest.mark.parametrize("effect", [0.08, -0.08, 0.2])
def test_a_known_change_is_found(effect: float) -> None:
    """With the right size, by nine of ten histories, also where outliers disturb them."""
    for disturb in (plain, outliers):
        found = changes(disturb, effect, 16, 6)
        assert sum(it.low <= effect <= it.high for it in found) >= 0.95 * SERIES
        beyond = [it.low > 0 if effect > 0 else it.high < 0 for it in found]
        assert sum(beyond) >= 0.9 * SERIES


@given(
    before=st.lists(st.floats(1e-2, 1e6), min_size=1, max_size=20),
    since=st.lists(st.floats(1e-2, 1e6), min_size=1, max_size=12),
    unit=st.floats(1e-3, 1e3),
)
@settings(max_examples=60, deadline=None)
def test_the_interval_holds_the_known_error_and_knows_no_unit(
    before: list[float], since: list[float], unit: float
) -> None:
    """Whatever the runs were: never narrower than two runs differ, and the same in another unit."""
    found = level_change(before, since)
    if len(before) < LEAST_BEFORE or len(since) < LEAST_SINCE:
        assert found is None
        return
    assert found is not None
    assert found.low <= found.change <= found.high
    assert 1 + found.low <= (1 + found.change) / (1 + KNOWN_ERROR) * (1 + 1e-9)
    assert 1 + found.high >= (1 + found.change) * (1 + KNOWN_ERROR) * (1 - 1e-9)
    scaled = level_change([it * unit for it in before], [it * unit for it in since])
    assert scaled is not None
    assert scaled.change == pytest.approx(found.change, rel=1e-6, abs=1e-9)


def test_both_views_must_agree() -> None:
    """An interval of two holds both, and the weaker p-value counts."""
    calm, moved = level_change([1.0] * 8, [1.0] * 4), level_change([1.0] * 8, [1.1] * 4)
    assert calm is not None
    assert moved is not None
    both = enclosing(moved, calm)
    assert (moved.change, calm.low, moved.high, calm.slower) == (both.change, both.low, both.high, both.slower)
