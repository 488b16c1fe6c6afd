"""Runs out of the database, with what they ran on. Every function works inside the transaction of its connection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, bindparam, select

from qualify.facts.run import Run
from qualify.facts.seal import Seal
from qualify.facts.stack import Ceilings, Stack
from qualify.store import tables
from qualify.store.clock import believed_until
from qualify.store.mapping.row import Row
from qualify.store.mapping.runs import ceilings_from, run_from, stack_from
from qualify.store.tables import runs

_CHUNK = 500
_RUN = select(runs.c.id).where(runs.c.id == bindparam("run"))


def chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The values in portions that fit into one IN list."""
    return (values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK))


def run_ids(connection: Connection) -> list[str]:
    """The ids of all runs, newest first; those that are dated in the future last."""
    return list(connection.execute(select(runs.c.id).order_by(*newest(connection))).scalars())


def newest(connection: Connection) -> tuple[ColumnElement[Any], ...]:
    """The order of runs: the newest first, those that are dated in the future last."""
    return runs.c.started_at > believed_until(connection), runs.c.started_at.desc(), runs.c.id.desc()


def load_runs(connection: Connection, *where: ColumnElement[bool], limit: int | None = None) -> list[Run]:
    """The runs that meet all conditions, newest first; those that are dated in the future last."""
    wanted = select(runs).where(*where).order_by(*newest(connection)).limit(limit)
    rows = _rows(connection, wanted)
    ids = [row["id"] for row in rows]
    environments = _grouped(_where_in(connection, tables.run_environments, "run_id", ids), "run_id")
    parts = [*rows, *(part for some in environments.values() for part in some)]
    stacks = Stacks(connection, {part["stack_id"] for part in parts if part["stack_id"] is not None})
    ceilings = _load_ceilings(connection, ids)
    return [
        run_from(
            row, stacks.of(row), ceilings.get(row["id"]), [(part, stacks.of(part)) for part in environments[row["id"]]]
        )
        for row in rows
    ]


class Stacks:
    """The stacks of some runs, each read once."""

    def __init__(self, connection: Connection, ids: Iterable[int]) -> None:
        wanted = sorted(ids)
        self._rows = {row["id"]: row for row in _where_in(connection, tables.stacks, "id", wanted)}
        self._components = _grouped(_where_in(connection, tables.components, "stack_id", wanted), "stack_id")
        self._environment = _grouped(_where_in(connection, tables.stack_environment, "stack_id", wanted), "stack_id")

    def of(self, part: Row) -> Stack | None:
        """The stack of a run or of one of its environments, on its card."""
        key = part["stack_id"]
        if key is None:
            return None
        return stack_from(self._rows[key], self._components[key], self._environment[key], uuid=part["device_uuid"])


def fingerprints_of(connection: Connection, run_id: str) -> set[str]:
    """The stored fingerprints of a run's stacks: its own and those of its environments."""
    known, part = tables.stacks.c, tables.run_environments.c
    own = select(known.fingerprint).join(runs, runs.c.stack_id == known.id).where(runs.c.id == run_id)
    others = select(known.fingerprint).join(tables.run_environments, part.stack_id == known.id)
    return {*connection.execute(own).scalars(), *connection.execute(others.where(part.run_id == run_id)).scalars()}


def has_run(connection: Connection, run_id: str) -> bool:
    """Whether there is a run of that full id."""
    return connection.execute(_RUN, {"run": run_id}).first() is not None


def load_seal(connection: Connection, run_id: str) -> Seal | None:
    """The seal of a run; None where it has none."""
    part = tables.seals.c
    row = connection.execute(select(part.envelope, part.parts).where(part.run_id == run_id)).one_or_none()
    return Seal(envelope=row.envelope, parts=row.parts) if row else None


def _load_ceilings(connection: Connection, run_ids: Sequence[str]) -> dict[str, Ceilings]:
    matmuls = _grouped(_where_in(connection, tables.matmul_ceilings, "run_id", run_ids), "run_id")
    rows = _where_in(connection, tables.ceilings, "run_id", run_ids)
    return {row["run_id"]: ceilings_from(row, matmuls[row["run_id"]]) for row in rows}


def _rows(connection: Connection, wanted: Select[Any], values: Mapping[str, Any] | None = None) -> list[Row]:
    """The rows as dictionaries, which are several times faster to read than SQLAlchemy's mappings."""
    result = connection.execute(wanted, values)
    names = tuple(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result.all()]


def _where_in(connection: Connection, table: Table, column: str, values: Sequence[Any]) -> list[Row]:
    """The rows whose column holds one of the values, in the order of the primary key."""
    wanted = _wanted_in(table, column)
    return [row for some in chunks(values) for row in _rows(connection, wanted, {"values": some})]


@cache
def _wanted_in(table: Table, column: str) -> Select[Any]:
    """Built once: a run is read by six such statements, and to build one takes twice the time of running it."""
    values = bindparam("values", type_=table.c[column].type, expanding=True)
    return select(table).where(table.c[column].in_(values)).order_by(*table.primary_key.columns)


def _grouped(rows: Iterable[Row], column: str) -> dict[Any, list[Row]]:
    grouped: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row[column]].append(row)
    return grouped
