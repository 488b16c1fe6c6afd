"""Draws that are the same with every numpy: a verdict of years ago can be computed again."""

from __future__ import annotations

import numpy as np
import pytest

from qualify.statistics.draws import Draws
from qualify.statistics.estimate import interval


def test_the_draws_of_a_seed_are_recorded() -> None:
    """These were made by ``Generator.integers`` of numpy 2.4, with which the first duels were judged."""
    draws = Draws(7)
    assert [5, 3, 4, 5, 3, 4, 5] == draws.below(6, 7).tolist()
    assert [0, 0, 0] == draws.below(1, 3).tolist()
    assert [45, 11, 60, 57, 174] == draws.below(200, 5).tolist()


def test_an_interval_is_recorded() -> None:
    """Of pairs with unequal numbers of quads."""
    pairs = [[0.01, 0.012, 0.013], [0.009, 0.02], [0.011], [0.008, 0.01, 0.013, 0.012], [0.01, 0.01]]
    assert (0.0096, 0.0164) == pytest.approx(interval(pairs, seed=3), rel=1e-9)


def test_words_that_would_favour_a_number_are_passed_over() -> None:
    """Of 32-bit words the remainder of the bound is left out. The stream goes on with the next word."""
    bound, words = 60_000, np.asarray(np.random.PCG64(1).random_raw(400_000), dtype="<u8").view("<u4").astype("u8")
    scaled = words * np.uint64(bound)
    kept = (scaled >> np.uint64(32))[(scaled & np.uint64(0xFFFF_FFFF)) >= (1 << 32) % bound]
    assert len(words) - 10 < len(kept) < len(words)
    draws = Draws(1)
    assert np.array_equal(kept[:1000], draws.below(bound, 1000))
    assert np.array_equal(kept[1000:], draws.below(bound, len(kept) - 1000))


def test_every_number_is_equally_likely() -> None:
    """Of 60,000 draws below 6, each comes 10,000 times, within five standard deviations."""
    counts = np.bincount(Draws(2).below(6, 60_000), minlength=6)
    assert abs(counts - 10_000).max() < 5 * 92
