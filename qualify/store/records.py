"""Cases and outcomes out of the database. Every function works inside the transaction of its connection.

A run of 50,000 cases has a million rows of parts. Outcomes and their parts are read side by side, in the order of the
outcomes' ids, so that only one outcome's rows are at hand at a time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import chain, groupby
from operator import itemgetter
from types import MappingProxyType
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
from qualify.facts.outcome import REUSED, Finding, Launch, Outcome, Statistics
from qualify.facts.run import Record
from qualify.store import mapping
from qualify.store.tables import cases, findings, launches, outcomes, samples, statistics

Depth = Literal["whole", "times"]
"""how much of each outcome is read::

    whole   everything
    times   the times with their samples, and the note on a time that was taken over; nothing else
"""
_PORTION = 2_000
"""rows that are fetched at once"""
_REMEMBERED = 4_000
"""parts that are kept to stand for equal ones. Equal parts lie near each other; keeping all would double the memory"""


def load_records(
    connection: Connection,
    run_id: str,
    case_id: str | None = None,
    depth: Depth = "whole",
    like: Iterable[Record] = (),
) -> list[Record]:
    """The run's cases in the order of the plan, or only one of them, each with the outcome that counts.

    Args:
        like: records of another run. Its cases stand for equal ones, so both runs need little more memory than one.
    """
    which = cases.c.run_id == run_id
    if case_id is not None:
        which &= cases.c.case_id == case_id
    with _Reader(connection) as reader:
        found = dict(_load_outcomes(reader, latest_outcomes(which), depth))
        planned = _load_cases(reader, which, {record.case.id: record.case for record in like})
        return [Record(case=case, outcome=found.get(key, mapping.NOT_REACHED)) for key, case in planned.items()]


def load_history(connection: Connection, run_id: str) -> tuple[list[Case], list[Record]]:
    """The run's cases in the order of the plan, and all outcomes in the order in which they were stored."""
    which = cases.c.run_id == run_id
    every = select(outcomes.c.id).join(cases, cases.c.key == outcomes.c.case_key).where(which)
    with _Reader(connection) as reader:
        planned = _load_cases(reader, which)
        found = _load_outcomes(reader, every, "whole")
        return list(planned.values()), [Record(case=planned[key], outcome=outcome) for key, outcome in found]


def load_by_key(connection: Connection, keys: Sequence[int]) -> dict[int, Record]:
    """Some cases by their key, whichever runs they are in, each with the outcome that counts."""
    which = cases.c.key.in_(keys)
    with _Reader(connection) as reader:
        found = dict(_load_outcomes(reader, latest_outcomes(which), "whole"))
        planned = _load_cases(reader, which)
        return {key: Record(case=case, outcome=found.get(key, mapping.NOT_REACHED)) for key, case in planned.items()}


def latest_outcomes(which: ColumnElement[bool]) -> Select[Any]:
    """The ids of the outcomes that count, one for each case that has any."""
    return (
        select(func.max(outcomes.c.id))
        .join(cases, cases.c.key == outcomes.c.case_key)
        .where(which)
        .group_by(outcomes.c.case_key)
    )


class _Reader:
    """Reads rows by portions, and closes every cursor at its end.

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
        """The rows. Only a portion of them is in memory at a time."""
        result = self._connection.execute(wanted, execution_options={"yield_per": _PORTION})
        self._opened.callback(result.close)
        return chain.from_iterable(result.partitions())


def _load_cases(
    reader: _Reader, which: ColumnElement[bool], known: Mapping[str, Case] = MappingProxyType({})
) -> dict[int, Case]:
    """Cases by their key, in the order of the plan. Equal workloads are one object: several kernels serve a shape.

    Args:
        known: cases by id that stand for equal ones.
    """
    own, asked = mapping.CASE_COLUMNS, mapping.WORKLOAD_COLUMNS
    columns = [*_columns(cases, own), *_columns(cases, asked, plain=("spans",))]
    made: dict[tuple[Any, ...], Workload] = {}
    lengths = lru_cache(maxsize=_REMEMBERED)(mapping.lengths_from_text)
    found = {}
    for values in reader.rows(select(*columns).where(which).order_by(cases.c.position)):
        row, stored = dict(zip(own, values, strict=False)), values[len(own) :]
        workload = made.get(stored)
        if workload is None:
            asked_for = dict(zip(asked, stored, strict=True))
            workload = mapping.workload_from(asked_for, row["case_id"], lengths)
            _remember(made, stored, workload)
        case = mapping.case_from(row, workload)
        same = known.get(case.id)
        found[row["key"]] = same if same == case else case
    return found


def _remember(made: dict[tuple[Any, ...], Any], stored: tuple[Any, ...], part: object) -> None:
    """Keep a part for equal ones that come soon."""
    if len(made) >= _REMEMBERED:
        made.clear()
    made[stored] = part


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
    """Rows of a part in the order of the outcomes' ids. Each outcome takes its own rows in turn."""

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
        _Beside(_findings(reader, ids, only="" if whole else REUSED)),
        _Beside(_samples(reader, ids)),
        _Beside(_statistics(reader, ids) if whole else ()),
        _Beside(_launches(reader, ids) if whole else ()),
    )


def _outcome_columns(depth: Depth) -> list[ColumnElement[Any]]:
    """All columns of outcomes, in their order; a column that is not read is empty."""
    instead: dict[str, ColumnElement[Any]] = {"witness_expected": type_coerce(outcomes.c.witness_expected, Text)}
    if depth == "times":
        instead["log"] = literal("").label("log")
    return [instead.get(column.name, column) for column in outcomes.columns]


def _findings(reader: _Reader, ids: Select[Any], only: str) -> Iterator[tuple[int, Finding]]:
    """Findings by outcome. Equal ones are one object: most cases pass, and say so in the same words.

    Args:
        only: the check whose findings are read; empty = all.
    """
    names = ("check", "verdict", "detail", "values")
    made: dict[tuple[Any, ...], Finding] = {}
    wanted = select(findings.c.outcome_id, *_columns(findings, names, plain=names)).where(
        findings.c.outcome_id.in_(ids), *([findings.c.check == only] if only else ())
    )
    for row in reader.rows(_in_order(wanted, findings)):
        key = row[1:]
        finding = made.get(key)
        if finding is None:
            finding = mapping.finding_from(*key)
            _remember(made, key, finding)
        yield row[0], finding


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
