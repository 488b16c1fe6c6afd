"""Duels as a store has them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from stored_runs import NOW, make_stack

from qualify.facts.case import Phase
from qualify.facts.duel import Duel, DuelCell, DuelVerdict, Ratio
from qualify.facts.run import Run

BEFORE = make_stack(torch="2.10.0")


def make_cell(
    name: str,
    change: float = 0.0,
    *,
    verdict: DuelVerdict = "SAME",
    width: float = 0.005,
    us: float = 100.0,
    phase: Phase = "prefill",
) -> DuelCell:
    """A cell with an interval of that half width."""
    ratio = Ratio(
        verdict=verdict,
        change=change,
        low=change - width,
        high=change + width,
        a_us=us,
        b_us=us * (1 + change),
        pairs=5,
        quads=10,
        detectable=0.01,
        margin=0.01,
    )
    return DuelCell(
        name=name,
        a=f"{name}@old",
        b=name,
        phase=phase,
        verdict=verdict,
        reason="",
        way="graph",
        ratios={"graph": ratio},
        thrown_away=0,
    )


def make_duel(run: Run, *cells: DuelCell, **changes: Any) -> Duel:
    """A duel of another environment with this interpreter, ten minutes old."""
    assert run.stack is not None
    base = Duel(
        id="duel-20261121T025000Z-000001",
        matrix=run.matrix,
        matrix_hash=run.matrix_hash,
        select="",
        a="old",
        b="here",
        null=False,
        device=run.stack.device.variant,
        device_uuid=run.stack.device.uuid,
        stack_a=BEFORE,
        stack_b=run.stack,
        started_at=NOW - timedelta(minutes=15),
        finished_at=NOW - timedelta(minutes=10),
        complete=True,
        least_pairs=5,
        cells=cells,
    )
    return replace(base, **changes)
