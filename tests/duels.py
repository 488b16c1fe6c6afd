"""Duels as a store has them: simulated times, and what the statistics say of them."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

from stored_runs import NOW, make_stack

from qualify.facts.case import Phase
from qualify.facts.duel import Duel, DuelCell, DuelPair, DuelQuad, DuelVerdict, Ratio
from qualify.facts.run import Run
from qualify.verdict.duelled import decided_again, is_complete

BEFORE = make_stack(torch="2.10.0")
PAIRS = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""where each of five pairs of processes lies within the interval"""


def make_cell(
    name: str,
    change: float = 0.0,
    *,
    verdict: DuelVerdict = "SAME",
    width: float = 0.005,
    us: float = 100.0,
    phase: Phase = "prefill",
) -> DuelCell:
    """A cell with an interval of that half width, about. A duel of it has times that give the verdict."""
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
    """A duel of another environment with this interpreter, ten minutes old; its cells say what its times give."""
    assert run.stack is not None
    bare = Duel(
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
        complete=is_complete(cells),
        least_pairs=len(PAIRS),
        cells=tuple(replace(cell, ratios={}) for cell in cells),
        samples={cell.name: _pairs(cell, cell.ratio) for cell in cells if cell.ratio},
    )
    family = decided_again(bare, left_early=True)
    found = {cell.name: cell for cell in family.reports()}
    told = [replace(found[cell.name], notes=cell.notes) if cell.name in found else cell for cell in cells]
    assert [cell.verdict for cell in cells] == [cell.verdict for cell in told]
    samples = {name: tuple(cell.pairs) for name, cell in family.cells.items()}
    return replace(bare, cells=tuple(told), samples=samples, **changes)


def _pairs(cell: DuelCell, ratio: Ratio) -> tuple[DuelPair, ...]:
    """Five pairs of processes, and five that confirm where it is slower; their mean is the change."""
    width = ratio.high - ratio.change
    return tuple(
        DuelPair(
            way="graph",
            pair=number,
            quads=(_quad(ratio.a_us, math.log1p(ratio.change) + width * PAIRS[number % len(PAIRS)]),) * 2,
            thrown_away=cell.thrown_away if number == 0 else 0,
        )
        for number in range(2 * len(PAIRS) if cell.verdict == "SLOWER" else len(PAIRS))
    )


def _quad(us: float, log_ratio: float) -> DuelQuad:
    later = us * math.exp(log_ratio)
    return DuelQuad(a_us=(us, us), b_us=(later, later))
