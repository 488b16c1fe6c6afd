"""Baselines in the store: append-only, the newest of a matrix and a device model counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import store_examples as examples

from qualify.errors import UsageError
from qualify.facts.baseline import Baseline
from qualify.store import Store

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)


def baseline(number: int = 0, **changes: Any) -> Baseline:
    """An acceptance of the example run."""
    usual: dict[str, Any] = {
        "matrix": "serving",
        "variant": "NVIDIA H100 (132 units)",
        "run_id": examples.run().id,
        "accepted_by": f"jane {examples.HOSTILE}",
        "reason": f"release {number}",
        "accepted_at": NOW + timedelta(hours=number),
        "waivers": {"toy/*": f"census\n{examples.HOSTILE}"} if number else None,
    }
    return Baseline(**usual | changes)


def test_the_newest_counts_and_nothing_is_lost(planned: Store) -> None:
    """Each acceptance stays; the current one is that of the matrix and the device model."""
    first, second, other = baseline(0), baseline(1), baseline(2, variant="NVIDIA L4 (58 units)")
    for item in (first, second, other):
        planned.accept(item)
    assert [other, second, first] == planned.baselines()
    assert second == planned.baseline("serving", first.variant)
    assert other == planned.baseline("serving", other.variant)
    assert planned.baseline("serving", "CPU") is None
    assert planned.baseline("smoke", first.variant) is None
    assert [] == planned.baselines("smoke")


def test_a_baseline_needs_its_run(planned: Store) -> None:
    """Evidence that is not stored cannot be accepted."""
    with pytest.raises(UsageError, match="no run 'none'"):
        planned.accept(baseline(run_id="none"))
    assert [] == planned.baselines()
