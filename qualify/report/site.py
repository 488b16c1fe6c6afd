"""The pages of ``qualify web`` that are no report: the list of runs, the canaries, a message; and their JSON twins."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qualify import __version__
from qualify.facts import codec
from qualify.facts.canary import Advice, Alert, AlertState, Fire, Hold, Lease
from qualify.facts.run import Run, Verdict

CLASSES: dict[Advice, str] = {"promote": "PASS", "hold": "INCONCLUSIVE", "roll back": "FAIL"}
"""style of each advice: those of the verdicts"""
GLYPHS: dict[Advice, str] = {"promote": "✓", "hold": "!", "roll back": "✗"}
"""so that colour is never the only sign"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRow:
    """A run in the list."""

    run: Run
    verdict: Verdict
    demonstration: bool
    """a CPU stood in for the GPU that kernels of the matrix need"""
    before: str
    """the run of the same matrix and device before it; empty = none on this page"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SitePage:
    """What every page has."""

    title: str
    summary: str = ""
    twin: str = ""
    """address of its JSON; empty = none"""
    version: str = __version__


@dataclass(frozen=True, kw_only=True, slots=True)
class MessagePage(SitePage):
    """Something in words."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunsPage(SitePage):
    """The list of runs."""

    rows: tuple[RunRow, ...]
    older: str
    """address of the next page; empty = this is the last"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CanariesPage(SitePage):
    """What canaries did and advise."""

    caption: str
    fires: tuple[Fire, ...]
    holds: tuple[Hold, ...]
    dead: tuple[Alert, ...]
    notes: tuple[str, ...]
    classes: Mapping[Advice, str]
    glyphs: Mapping[Advice, str]


def with_verdicts(
    runs: Sequence[Run], verdicts: Mapping[str, Verdict], demonstrations: Collection[str]
) -> tuple[RunRow, ...]:
    """The rows of the list; each is linked to the next older run of the same matrix on the same device model.

    Args:
        verdicts: by id of the run.
        demonstrations: ids of the runs whose CPU stood in for a GPU.
    """
    rows: list[RunRow] = []
    older: dict[tuple[str, str], str] = {}
    for run in reversed(runs):
        pair = run.matrix, run.stack.device.variant if run.stack else ""
        shown = run.id in demonstrations
        rows.append(RunRow(run=run, verdict=verdicts[run.id], demonstration=shown, before=older.get(pair, "")))
        older[pair] = run.id
    return tuple(reversed(rows))


def runs_data(rows: Sequence[RunRow]) -> list[dict[str, Any]]:
    """The list of runs for JSON."""
    return [
        {
            "run": row.run.id,
            "matrix": row.run.matrix,
            "level": row.run.level,
            "state": row.run.state,
            "verdict": row.verdict,
            "demonstration": row.demonstration,
            "started_at": row.run.started_at.isoformat(),
            "finished_at": row.run.finished_at.isoformat() if row.run.finished_at else None,
            "device": row.run.stack.device.variant if row.run.stack else None,
            "stack": row.run.stack.fingerprint if row.run.stack else None,
        }
        for row in rows
    ]


def canaries_page(
    name: str, fires: Sequence[Fire], holds: Sequence[Hold], dead: Sequence[Alert], leases: Sequence[Lease]
) -> CanariesPage:
    """The history of one canary, or of all where the name is empty."""
    return CanariesPage(
        title=f"Canary {name}" if name else "Canaries",
        twin=f"/canaries/{name}.json" if name else "/canaries.json",
        caption=f"The last {len(fires)} fires, the latest moment first",
        fires=tuple(fires),
        holds=tuple(holds),
        dead=tuple(dead),
        notes=tuple(f"Trouble of {lease.holder}: {lease.trouble}" for lease in leases if lease.trouble),
        classes=CLASSES,
        glyphs=GLYPHS,
    )


def canaries_data(page: CanariesPage, leases: Sequence[Lease], alerts: Mapping[AlertState, int]) -> dict[str, Any]:
    """The canaries for JSON."""
    return {
        "leases": [codec.to_data(lease) for lease in leases],
        "holds": [codec.to_data(hold) for hold in page.holds],
        "fires": [codec.to_data(fire) for fire in page.fires],
        "alerts": dict(alerts),
        "given_up": [
            {"id": it.id, "canary": it.canary, "target": it.target, "kind": it.kind, "last_error": it.last_error}
            for it in page.dead
        ],
    }
