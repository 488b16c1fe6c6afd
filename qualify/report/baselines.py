"""Baselines for people and machines."""

from __future__ import annotations

from typing import Any

from qualify.facts.baseline import Baseline
from qualify.text import one_line


def to_line(baseline: Baseline, *, current: bool) -> str:
    """One line."""
    state = "current" if current else "earlier"
    name = f" for {baseline.name}" if baseline.name else ""
    text = (
        f"{state}  {baseline.matrix} on {baseline.variant}{name}: run {baseline.run_id}, accepted by "
        f"{baseline.who} on {baseline.accepted_at:%Y-%m-%d %H:%M} UTC: {baseline.reason}"
    )
    return one_line(text)


def to_data(baseline: Baseline, *, current: bool) -> dict[str, Any]:
    """The same for machines."""
    return {
        "matrix": baseline.matrix,
        "variant": baseline.variant,
        "name": baseline.name,
        "run": baseline.run_id,
        "accepted_by": baseline.accepted_by,
        "proven": baseline.proven,
        "reason": baseline.reason,
        "accepted_at": baseline.accepted_at.isoformat(),
        "current": current,
    }
