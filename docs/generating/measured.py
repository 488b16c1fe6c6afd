"""The table of docs/kernels.md: launched kernels, worst errors and times of each kernel card in each phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from generating.places import FIGURES, read
from generating.tables import table

HEADS = (
    *("kernel", "phase", "cases", "kernels launched (generation)", "E", "R", "G", "β/limit", "LSE", "µs"),
    "share of ceiling",
)


def measured_table() -> str:
    """A row for each kernel and phase."""
    return table(HEADS, [_row(found) for found in read(FIGURES)["measured"]])


def _row(found: dict[str, Any]) -> list[str]:
    ran = sorted(f"`{name}` ({generation or 'generation unknown'})" for name, generation in found["launched"])
    errors = [_worst(found[name], ".2f") for name in ("E", "R", "G", "beta_share")]
    times, shares = found["latency_us"], found["ceiling_share"]
    return [
        *(found["kernel"], found["phase"], f"{found['cases']}", ", ".join(ran), *errors),
        _worst(found["lse_rel"], ".1e"),
        f"{times[0]:.1f} to {times[1]:.1f}" if times else "–",
        f"{shares[0]:.0%} (best {shares[1]:.0%})" if shares else "–",
    ]


def _worst(values: Sequence[float | None], form: str) -> str:
    """The values, with ∞ for one that was not finite; a dash where there are none."""
    return " · ".join("∞" if value is None else format(value, form) for value in values) or "–"
