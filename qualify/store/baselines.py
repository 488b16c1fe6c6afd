"""Baselines in the database. Every function works inside the transaction of its connection."""

from __future__ import annotations

from sqlalchemy import Connection, RowMapping, func, insert, or_, select

from qualify.facts.baseline import Baseline
from qualify.store.clock import believed_until
from qualify.store.failures import DamagedError
from qualify.store.mapping.row import are_texts
from qualify.store.tables import baselines, runs

_FIELDS = tuple(Baseline.__dataclass_fields__)


def insert_baseline(connection: Connection, baseline: Baseline) -> None:
    """Adds an acceptance; nothing is ever replaced."""
    connection.execute(insert(baselines), {name: getattr(baseline, name) for name in _FIELDS})


def load_baselines(
    connection: Connection,
    *,
    matrix: str | None = None,
    variant: str | None = None,
    name: str | None = None,
    limit: int | None = None,
) -> list[Baseline]:
    """The acceptances, of one matrix, variant and name where they are given, newest first.

    Those that are dated in the future come last, and so do those of runs that are. One whose run somebody deleted by
    hand is there: whoever looks for its run is told.
    """
    until = believed_until(connection)
    future = or_(baselines.c.accepted_at > until, func.coalesce(runs.c.started_at > until, False))
    wanted = select(baselines).join(runs, runs.c.id == baselines.c.run_id, isouter=True)
    wanted = wanted.order_by(future, baselines.c.id.desc()).limit(limit)
    if matrix is not None:
        wanted = wanted.where(baselines.c.matrix == matrix)
    if variant is not None:
        wanted = wanted.where(baselines.c.variant == variant)
    if name is not None:
        wanted = wanted.where(baselines.c.name == name)
    rows = connection.execute(wanted).mappings()
    return [_baseline(row) for row in rows]


def _baseline(row: RowMapping) -> Baseline:
    """The acceptance. Raises DamagedError where its waivers are no texts by glob."""
    if row["waivers"] is not None and not are_texts(row["waivers"]):
        raise DamagedError(f"the waivers of a baseline are {row['waivers']!r:.60}")
    return Baseline(**{name: row[name] for name in _FIELDS})
