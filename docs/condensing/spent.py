"""Where the time of a run went."""

from __future__ import annotations

from typing import Any


def spent(figures: dict[str, Any], run_id: str) -> str:
    """The seconds that each kernel's cases took in a run, longest first, and how many of these their first calls."""
    named = [run for run in figures["runs"] if run["run"] == run_id]
    if not named:
        raise SystemExit(f"no run {run_id} there. It has: {', '.join(run['run'] for run in figures['runs'])}")
    taken: dict[str, dict[str, float]] = named[0]["spent"]
    return "\n".join(
        f"{kernel:24} {own['cases']:5} cases {own['wall_s']:7.1f} s, first calls {own['first_call_s']:6.1f} s"
        for kernel, own in sorted(taken.items(), key=lambda item: -item[1]["wall_s"])
    )
