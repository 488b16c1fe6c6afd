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
    """The acceptances, newest first; only those of the matrix, the variant and the name that are given.

    An acceptance comes last where it, or its run, is dated in the future. The list also has an acceptance whose run
    somebody deleted by hand: a later look for that run says so.
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
    """The acceptance of a row. Raises DamagedError where its waivers are not a mapping from globs to texts."""
    if row["waivers"] is not None and not are_texts(row["waivers"]):
        found = f"{row['waivers']!r:.60}"
        raise DamagedError(f"the waivers of a baseline are {found}, which is not a mapping from globs to texts")
    return Baseline(**{name: row[name] for name in _FIELDS})
