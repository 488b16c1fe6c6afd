"""The selftest's results in the store."""

from __future__ import annotations

from dataclasses import replace

import store_examples as examples

from qualify.store import Store

RESULT = examples.selftest()


def test_a_result_comes_back(store: Store) -> None:
    """Everything is rebuilt from the tables."""
    store.add_selftest(RESULT)
    assert RESULT == store.selftest(1)


def test_the_newest_result_counts(store: Store) -> None:
    """A later result of the same checks replaces an earlier one."""
    newer = replace(RESULT, wall_s=1.0, faults=RESULT.faults[:1], correct=())
    store.add_selftest(RESULT)
    store.add_selftest(newer)
    assert newer == store.selftest(1)


def test_other_checks_and_parts_do_not_count(store: Store) -> None:
    """A result of another version of the checks, or of some faults only, says nothing about these checks."""
    store.add_selftest(replace(RESULT, check_version=2))
    store.add_selftest(replace(RESULT, select="top*"))
    assert store.selftest(1) is None
