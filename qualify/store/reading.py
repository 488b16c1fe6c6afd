"""The database into facts. Every function works inside the transaction of its connection."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, Text, func, select, type_coerce

from qualify.facts.case import Case
from qualify.facts.outcome import Finding, Outcome
from qualify.facts.run import Record, Run
from qualify.facts.seal import Seal
from qualify.facts.stack import Ceilings, Stack
from qualify.store import mapping, tables
from qualify.store.clock import believed_until
from qualify.store.mapping import Row
from qualify.store.tables import cases, outcomes, runs

_CHUNK = 500
_NO_PARTS = mapping.Parts()


def chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The values in portions that fit into one IN list."""
    return (values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK))


def run_ids(connection: Connection) -> list[str]:
    """The ids of all runs, newest first; those that are dated in the future last."""
    return list(connection.execute(select(runs.c.id).order_by(*_newest(connection))).scalars())


def _newest(connection: Connection) -> tuple[ColumnElement[Any], ...]:
    return runs.c.started_at > believed_until(connection), runs.c.started_at.desc(), runs.c.id.desc()


def load_runs(connection: Connection, *where: ColumnElement[bool], limit: int | None = None) -> list[Run]:
    """The runs that meet all conditions, newest first; those that are dated in the future last."""
    wanted = select(runs).where(*where).order_by(*_newest(connection)).limit(limit)
    rows = _rows(connection, wanted)
    ids = [row["id"] for row in rows]
    environments = _grouped(_where_in(connection, tables.run_environments, "run_id", ids), "run_id")
    parts = [*rows, *(part for some in environments.values() for part in some)]
    stacks = _Stacks(connection, {part["stack_id"] for part in parts if part["stack_id"] is not None})
    ceilings = _load_ceilings(connection, ids)
    return [
        mapping.run_from(
            row, stacks.of(row), ceilings.get(row["id"]), [(part, stacks.of(part)) for part in environments[row["id"]]]
        )
        for row in rows
    ]


class _Stacks:
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
        return mapping.stack_from(
            self._rows[key], self._components[key], self._environment[key], uuid=part["device_uuid"]
        )


def load_seal(connection: Connection, run_id: str) -> Seal | None:
    """The seal of a run; None where it has none."""
    part = tables.seals.c
    row = connection.execute(select(part.envelope, part.parts).where(part.run_id == run_id)).one_or_none()
    return Seal(envelope=row.envelope, parts=row.parts) if row else None


def _load_ceilings(connection: Connection, run_ids: Sequence[str]) -> dict[str, Ceilings]:
    matmuls = _grouped(_where_in(connection, tables.matmul_ceilings, "run_id", run_ids), "run_id")
    rows = _where_in(connection, tables.ceilings, "run_id", run_ids)
    return {row["run_id"]: mapping.ceilings_from(row, matmuls[row["run_id"]]) for row in rows}


def load_records(connection: Connection, run_id: str, case_id: str | None = None) -> list[Record]:
    """The run's cases in the order of the plan, or only one of them, each with the outcome that counts."""
    which = cases.c.run_id == run_id
    if case_id is not None:
        which &= cases.c.case_id == case_id
    with _uncollected():
        found = dict(_load_outcomes(connection, latest_outcomes(which)))
        planned = _load_cases(connection, which)
        return [Record(case=case, outcome=found.get(key, mapping.NOT_REACHED)) for key, case in planned.items()]


def load_history(connection: Connection, run_id: str) -> tuple[list[Case], list[Record]]:
    """The run's cases in the order of the plan, and all outcomes in the order in which they were stored."""
    which = cases.c.run_id == run_id
    every = select(outcomes.c.id).join(cases, cases.c.key == outcomes.c.case_key).where(which)
    with _uncollected():
        planned = _load_cases(connection, which)
        found = _load_outcomes(connection, every)
        return list(planned.values()), [Record(case=planned[key], outcome=outcome) for key, outcome in found]


def _load_cases(connection: Connection, which: ColumnElement[bool]) -> dict[int, Case]:
    """Cases by their key, in the order of the plan."""
    rows = _rows(connection, select(cases).where(which).order_by(cases.c.position))
    return {row["key"]: mapping.case_from(row) for row in rows}


def _load_outcomes(connection: Connection, ids: Select[Any]) -> list[tuple[int, Outcome]]:
    """The outcomes of those ids, each with the key of its case, in the order in which they were stored."""
    parts = _load_parts(connection, ids)
    rows = _rows(connection, select(outcomes).where(outcomes.c.id.in_(ids)).order_by(outcomes.c.id))
    return [(row["case_key"], mapping.outcome_from(row, parts.get(row["id"], _NO_PARTS))) for row in rows]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection, which would look through all the rows again and again: 40 % of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def latest_outcomes(which: ColumnElement[bool]) -> Select[Any]:
    """The ids of the outcomes that count, one for each case that has any."""
    return (
        select(func.max(outcomes.c.id))
        .join(cases, cases.c.key == outcomes.c.case_key)
        .where(which)
        .group_by(outcomes.c.case_key)
    )


def _load_parts(connection: Connection, ids: Select[Any]) -> dict[int, mapping.Parts]:
    findings, samples_us = _load_findings(connection, ids), _load_samples(connection, ids)
    statistics, launches = (
        _grouped(_parts_of(connection, table, ids), "outcome_id") for table in (tables.statistics, tables.launches)
    )
    return {
        outcome_id: mapping.Parts(
            findings=tuple(findings[outcome_id]),
            statistics=statistics[outcome_id],
            launches=launches[outcome_id],
            samples_us=tuple(samples_us[outcome_id]),
        )
        for outcome_id in [*findings, *statistics, *launches, *samples_us]
    }


def _parts_of(connection: Connection, table: Table, ids: Select[Any]) -> Sequence[Row]:
    wanted = select(table).where(table.c.outcome_id.in_(ids)).order_by(table.c.outcome_id, table.c.position)
    return _rows(connection, wanted)


def _load_findings(connection: Connection, ids: Select[Any]) -> dict[int, list[Finding]]:
    """All findings by outcome. Equal ones are one object: most cases pass, and say so in the same words."""
    part = tables.findings.c
    columns = (type_coerce(column, Text) for column in (part.check, part.verdict, part.detail, part["values"]))
    grouped: dict[int, list[Finding]] = defaultdict(list)
    made: dict[tuple[str, str, str, str], Finding] = {}
    for outcome_id, *stored in _plain_parts(connection, ids, part.outcome_id, *columns):
        key = tuple(stored)
        finding = made.get(key)
        if finding is None:
            finding = made[key] = mapping.finding_from(*key)
        grouped[outcome_id].append(finding)
    return grouped


def _load_samples(connection: Connection, ids: Select[Any]) -> dict[int, list[float]]:
    """All samples by outcome."""
    part = tables.samples.c
    grouped: dict[int, list[float]] = defaultdict(list)
    for outcome_id, latency_us in _plain_parts(connection, ids, part.outcome_id, part.latency_us):
        grouped[outcome_id].append(latency_us)
    return grouped


def _plain_parts(
    connection: Connection, ids: Select[Any], outcome_id: Column[int], *columns: ColumnElement[Any]
) -> Any:
    """The same as plain tuples, for the parts of which there are far more than of anything else."""
    wanted = select(outcome_id, *columns).where(outcome_id.in_(ids))
    return connection.execute(wanted.order_by(outcome_id, outcome_id.table.c.position)).all()


def _rows(connection: Connection, wanted: Select[Any]) -> list[Row]:
    """The rows as dictionaries, whose values are at hand several times faster than those of SQLAlchemy's mappings."""
    result = connection.execute(wanted)
    names = tuple(result.keys())
    return [dict(zip(names, row, strict=True)) for row in result.all()]


def _where_in(connection: Connection, table: Table, column: str, values: Sequence[Any]) -> list[Row]:
    """The rows whose column holds one of the values, in the order of the primary key."""
    found: list[Row] = []
    for some in chunks(values):
        wanted = select(table).where(table.c[column].in_(some)).order_by(*table.primary_key.columns)
        found += _rows(connection, wanted)
    return found


def _grouped(rows: Iterable[Row], column: str) -> dict[Any, list[Row]]:
    grouped: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row[column]].append(row)
    return grouped
