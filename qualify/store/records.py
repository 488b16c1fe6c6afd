"""Cases and outcomes out of the database. Every function works inside the transaction of its connection.

A run of 50,000 cases has a million rows of parts. Outcomes and their parts are read side by side, in the order of the
outcomes' ids, so that only one outcome's rows are at hand at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Literal, Self

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    Text,
    func,
    literal,
    select,
    type_coerce,
)

from qualify.facts.case import Case, Workload
from qualify.facts.outcome import Finding, Launch, Outcome, Statistics
from qualify.facts.run import Record
from qualify.store import mapping
from qualify.store.tables import cases, findings, launches, outcomes, samples, statistics

Depth = Literal["whole", "times"]
"""how much of each outcome is read::

    whole   everything
    times   the times with their samples: no finding, no launch, no statistics, no log
"""
_PORTION = 2_000
"""rows that are fetched at once"""


def load_records(
    connection: Connection, run_id: str, case_id: str | None = None, depth: Depth = "whole"
) -> list[Record]:
    """The run's cases in the order of the plan, or only one of them, each with the outcome that counts."""
    which = cases.c.run_id == run_id
    if case_id is not None:
        which &= cases.c.case_id == case_id
    with _Reader(connection) as reader:
        found = dict(_load_outcomes(reader, latest_outcomes(which), depth))
        planned = _load_cases(reader, which)
        return [Record(case=case, outcome=found.get(key, mapping.NOT_REACHED)) for key, case in planned.items()]


def load_history(connection: Connection, run_id: str) -> tuple[list[Case], list[Record]]:
    """The run's cases in the order of the plan, and all outcomes in the order in which they were stored."""
    which = cases.c.run_id == run_id
    every = select(outcomes.c.id).join(cases, cases.c.key == outcomes.c.case_key).where(which)
    with _Reader(connection) as reader:
        planned = _load_cases(reader, which)
        found = _load_outcomes(reader, every, "whole")
        return list(planned.values()), [Record(case=planned[key], outcome=outcome) for key, outcome in found]


def latest_outcomes(which: ColumnElement[bool]) -> Select[Any]:
    """The ids of the outcomes that count, one for each case that has any."""
    return (
        select(func.max(outcomes.c.id))
        .join(cases, cases.c.key == outcomes.c.case_key)
        .where(which)
        .group_by(outcomes.c.case_key)
    )


class _Reader:
    """Reads rows by portions, and closes at its end whatever was not read to its own.

    Meanwhile no garbage is collected: Python would look through all the rows again and again, 40 % of the time.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        if gc.isenabled():
            gc.disable()
            self._opened.callback(gc.enable)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def rows(self, wanted: Select[Any]) -> Iterator[Any]:
        """The rows, of which only a portion is in memory at a time."""
        result = self._connection.execute(wanted, execution_options={"yield_per": _PORTION})
        self._opened.callback(result.close)
        return chain.from_iterable(result.partitions())


def _load_cases(reader: _Reader, which: ColumnElement[bool]) -> dict[int, Case]:
    """Cases by their key, in the order of the plan. Equal workloads are one object: several kernels serve a shape."""
    own, asked = mapping.CASE_COLUMNS, mapping.WORKLOAD_COLUMNS
    columns = [*_columns(cases, own), *_columns(cases, asked, plain=("spans",))]
    made: dict[tuple[Any, ...], Workload] = {}
    found = {}
    for values in reader.rows(select(*columns).where(which).order_by(cases.c.position)):
        row, stored = dict(zip(own, values, strict=False)), values[len(own) :]
        workload = made.get(stored)
        if workload is None:
            workload = made[stored] = mapping.workload_from(dict(zip(asked, stored, strict=True)), row["case_id"])
        found[row["key"]] = mapping.case_from(row, workload)
    return found


def _load_outcomes(reader: _Reader, ids: Select[Any], depth: Depth) -> Iterator[tuple[int, Outcome]]:
    """The outcomes of those ids, each with the key of its case, in the order in which they were stored."""
    found, taken, numbers, started = _parts(reader, ids, depth)
    names = [column.name for column in outcomes.columns]
    wanted = select(*_outcome_columns(depth)).where(outcomes.c.id.in_(ids)).order_by(outcomes.c.id)
    for values in reader.rows(wanted):
        row = dict(zip(names, values, strict=True))
        outcome_id = row["id"]
        parts = mapping.Parts(
            findings=tuple(found.of(outcome_id)),
            statistics=tuple(numbers.of(outcome_id)),
            launches=tuple(started.of(outcome_id)),
            samples_us=tuple(taken.of(outcome_id)),
        )
        yield row["case_key"], mapping.outcome_from(row, parts)


class _Beside:
    """Rows of a part, in the order of the outcomes' ids: each outcome takes its own as it comes by."""

    def __init__(self, rows: Iterable[tuple[int, Any]]) -> None:
        self._groups = groupby(rows, key=itemgetter(0))
        self._next = next(self._groups, None)

    def of(self, outcome_id: int) -> list[Any]:
        """The parts of the outcome; the ids of the calls must ascend."""
        if self._next is None or self._next[0] != outcome_id:
            return []
        found = [part for _, part in self._next[1]]
        self._next = next(self._groups, None)
        return found


def _parts(reader: _Reader, ids: Select[Any], depth: Depth) -> tuple[_Beside, _Beside, _Beside, _Beside]:
    """Findings, samples, statistics and launches of the outcomes."""
    whole = depth == "whole"
    return (
        _Beside(_findings(reader, ids) if whole else ()),
        _Beside(_samples(reader, ids)),
        _Beside(_statistics(reader, ids) if whole else ()),
        _Beside(_launches(reader, ids) if whole else ()),
    )


def _outcome_columns(depth: Depth) -> list[ColumnElement[Any]]:
    """All columns of outcomes, in their order; for what is not read stands nothing."""
    without: dict[str, ColumnElement[Any]] = {} if depth == "whole" else {"log": literal("").label("log")}
    return [without.get(column.name, column) for column in outcomes.columns]


def _findings(reader: _Reader, ids: Select[Any]) -> Iterator[tuple[int, Finding]]:
    """Findings by outcome. Equal ones are one object: most cases pass, and say so in the same words."""
    names = ("check", "verdict", "detail", "values")
    made: dict[tuple[Any, ...], Finding] = {}
    wanted = select(findings.c.outcome_id, *_columns(findings, names, plain=names)).where(
        findings.c.outcome_id.in_(ids)
    )
    for outcome_id, *stored in reader.rows(_in_order(wanted, findings)):
        key = tuple(stored)
        finding = made.get(key)
        if finding is None:
            finding = made[key] = mapping.finding_from(*key)
        yield outcome_id, finding


def _samples(reader: _Reader, ids: Select[Any]) -> Iterator[tuple[int, float]]:
    """Samples by outcome."""
    wanted = select(samples.c.outcome_id, samples.c.latency_us).where(samples.c.outcome_id.in_(ids))
    return reader.rows(_in_order(wanted, samples))


def _statistics(reader: _Reader, ids: Select[Any]) -> Iterator[tuple[int, Statistics]]:
    """Statistics by outcome."""
    part = statistics.c.outcome_id
    wanted = select(part, *_columns(statistics, mapping.STATISTICS_COLUMNS)).where(part.in_(ids))
    for outcome_id, *stored in reader.rows(_in_order(wanted, statistics)):
        yield outcome_id, Statistics(**dict(zip(mapping.STATISTICS_COLUMNS, stored, strict=True)))


def _launches(reader: _Reader, ids: Select[Any]) -> Iterator[tuple[int, Launch]]:
    """Launches by outcome."""
    names = [column.name for column in launches.columns]
    for values in reader.rows(_in_order(select(launches).where(launches.c.outcome_id.in_(ids)), launches)):
        yield values[0], mapping.launch_from(dict(zip(names, values, strict=True)))


def _columns(table: Table, names: Iterable[str], plain: Sequence[str] = ()) -> list[ColumnElement[Any]]:
    """Columns of the table; the plain ones as the database has them."""
    return [type_coerce(table.c[name], Text) if name in plain else table.c[name] for name in names]


def _in_order(wanted: Select[Any], table: Table) -> Select[Any]:
    return wanted.order_by(table.c.outcome_id, table.c.position)
