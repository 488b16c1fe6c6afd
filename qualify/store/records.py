"""Cases and outcomes out of the database. Every function works inside the transaction of its connection.

A run of 50,000 cases has a million rows of parts. Outcomes and their parts are read portion by portion, in the order of
the outcomes' ids, so that only one portion's rows are at hand at a time.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal

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
from qualify.facts.outcome import LOST, REUSED, TIMING, Finding, Outcome, Statistics
from qualify.facts.run import Record
from qualify.store.mapping.cases import CASE_COLUMNS, WORKLOAD_COLUMNS, case_from, lengths_from_text, workload_from
from qualify.store.mapping.outcomes import (
    NOT_REACHED,
    STATISTICS_COLUMNS,
    Parts,
    finding_from,
    launch_from,
    outcome_from,
)
from qualify.store.tables import cases, findings, launches, outcomes, samples, statistics

Depth = Literal["whole", "times"]
"""how much of each outcome is read::

    whole   everything
    times   only the times with their samples, the notes on them (taken over from another run, or taken while others
            used the card), and the findings that fail: who compares times must know which are of wrong results
"""
_PORTION = 500
"""outcomes whose rows are in memory at a time; also, rows of cases that are fetched at once"""
_SPREAD = 4
"""a portion is read as one range of ids, unless the range spans this many times as many ids as the portion has"""
GAP = Finding(
    check=LOST,
    verdict="inconclusive",
    detail="somebody deleted a finding of this case: the numbers under which its findings are stored have a gap",
)
"""what stands for a finding that is missing between others"""
_REMEMBERED = 4_000
"""parts that are kept so that equal ones become one object; equal parts lie near each other, and keeping all would
double the memory"""


def load_records(
    connection: Connection,
    run_id: str,
    case_id: str | None = None,
    depth: Depth = "whole",
    like: Iterable[Record] = (),
) -> list[Record]:
    """The run's cases in the order of the plan, or only one of them, each with the outcome that counts.

    Args:
        like: records of another run. Cases that are equal to its cases become the same objects, so both runs need
            little more memory than one.
    """
    which = cases.c.run_id == run_id
    if case_id is not None:
        which &= cases.c.case_id == case_id
    return list(_load_latest(connection, which, depth, like).values())


def load_by_key(connection: Connection, keys: Sequence[int]) -> dict[int, Record]:
    """Some cases by their key, whichever runs they are in, each with the outcome that counts."""
    return _load_latest(connection, cases.c.key.in_(keys), "whole")


def load_history(connection: Connection, run_id: str) -> tuple[list[Case], list[Record]]:
    """The run's cases in the order of the plan, and all outcomes in the order in which they were stored."""
    which = cases.c.run_id == run_id
    with _uncollected():
        planned = _load_cases(connection, which)
        every = select(outcomes.c.id).join(cases, cases.c.key == outcomes.c.case_key)
        found = _load_outcomes(connection, every.where(which, _among(planned)), "whole")
        return list(planned.values()), [Record(case=planned[key], outcome=outcome) for key, outcome in found]


def _load_latest(
    connection: Connection, which: ColumnElement[bool], depth: Depth, like: Iterable[Record] = ()
) -> dict[int, Record]:
    """Cases by their key, in the order of the plan, each with the outcome that counts."""
    with _uncollected():
        planned = _load_cases(connection, which, {record.case.id: record.case for record in like})
        found = dict(_load_outcomes(connection, _latest_outcomes(which & _among(planned)), depth))
        return {key: Record(case=case, outcome=found.get(key, NOT_REACHED)) for key, case in planned.items()}


def _among(planned: Mapping[int, Case]) -> ColumnElement[bool]:
    """A condition: the outcomes in the range of these cases. With it the database looks at no other run's outcomes."""
    return outcomes.c.case_key.between(min(planned, default=0), max(planned, default=0))


def load_done(connection: Connection, run_id: str) -> set[str]:
    """The ids of the cases whose last outcome is something other than NotRun."""
    wanted = (
        select(cases.c.case_id)
        .join(outcomes, outcomes.c.case_key == cases.c.key)
        .where(outcomes.c.id.in_(_latest_outcomes(cases.c.run_id == run_id)), outcomes.c.outcome != "not_run")
    )
    return set(connection.execute(wanted).scalars())


def load_last_end(connection: Connection, run_id: str) -> datetime | None:
    """The last moment at which an outcome of a run says that its case ended; None where none says so."""
    wanted = select(func.max(outcomes.c.ended_at)).join(cases, cases.c.key == outcomes.c.case_key)
    last: datetime | None = connection.execute(wanted.where(cases.c.run_id == run_id)).scalar_one()
    return last


def load_calls(connection: Connection, run_id: str) -> dict[str, str]:
    """The content hash of each case of a run, by the case's id."""
    wanted = select(cases.c.case_id, cases.c.content_hash).where(cases.c.run_id == run_id)
    return {row.case_id: row.content_hash for row in connection.execute(wanted)}


def _latest_outcomes(which: ColumnElement[bool]) -> Select[Any]:
    """The ids of the outcomes that count, one for each case that has any."""
    return (
        select(func.max(outcomes.c.id))
        .join(cases, cases.c.key == outcomes.c.case_key)
        .where(which)
        .group_by(outcomes.c.case_key)
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switches garbage collection off: Python would look through all rows again and again, for 40 % of the time."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


def _load_cases(
    connection: Connection, which: ColumnElement[bool], known: Mapping[str, Case] = MappingProxyType({})
) -> dict[int, Case]:
    """Cases by their key, in the order of the plan. Equal workloads are one object: several kernels serve a shape.

    Args:
        known: cases by id; a case that equals the known one becomes the same object.
    """
    columns = [*_columns(cases, CASE_COLUMNS), *_columns(cases, WORKLOAD_COLUMNS, plain=("spans",))]
    made: dict[tuple[Any, ...], Workload] = {}
    lengths = lru_cache(maxsize=_REMEMBERED)(lengths_from_text)
    found = {}
    wanted = select(*columns).where(which).order_by(cases.c.position)
    with connection.execute(wanted, execution_options={"yield_per": _PORTION}) as result:
        for values in chain.from_iterable(result.partitions()):
            own, asked = values[: len(CASE_COLUMNS)], values[len(CASE_COLUMNS) :]
            workload = made.get(asked)
            if workload is None:
                workload = workload_from(asked, own[1], lengths)
                _remember(made, asked, workload)
            case = case_from(own, workload)
            same = known.get(case.id)
            found[own[0]] = same if same == case else case
    return found


def _remember(made: dict[tuple[Any, ...], Any], stored: tuple[Any, ...], part: object) -> None:
    """Keep a part for equal ones that come soon."""
    if len(made) >= _REMEMBERED:
        made.clear()
    made[stored] = part


def _load_outcomes(connection: Connection, wanted: Select[Any], depth: Depth) -> Iterator[tuple[int, Outcome]]:
    """The outcomes of the wanted ids, each with the key of its case, in the order in which they were stored."""
    ids = sorted(connection.execute(wanted).scalars())
    for start in range(0, len(ids), _PORTION):
        yield from _load_portion(connection, ids[start : start + _PORTION], depth)


def _load_portion(connection: Connection, ids: Sequence[int], depth: Depth) -> Iterator[tuple[int, Outcome]]:
    """The outcomes of these ids, which ascend."""
    found, taken, numbers, started = _parts(connection, ids, depth)
    names = [column.name for column in outcomes.columns]
    wanted = select(*_outcome_columns(depth)).where(_with_ids(outcomes.c.id, ids)).order_by(outcomes.c.id)
    counts = frozenset(ids)
    for values in connection.execute(wanted).all():
        row = dict(zip(names, values, strict=True))
        outcome_id = row["id"]
        if outcome_id not in counts:
            continue
        own = found.get(outcome_id, ())
        if depth == "whole" and row["finding_count"] not in (None, len(own)) and GAP not in own:
            own = [*own, _lost(row["finding_count"], len(own))]
        parts = Parts(
            findings=tuple(own),
            statistics=tuple(numbers.get(outcome_id, ())),
            launches=tuple(started.get(outcome_id, ())),
            samples_us=tuple(taken.get(outcome_id, ())),
        )
        yield row["case_key"], outcome_from(row, parts)


def _lost(counted: int, there: int) -> Finding:
    """The finding that says that the last findings were deleted, or that some were added."""
    done = "deleted" if there < counted else "added"
    detail = f"somebody {done} a finding of this case: its run stored {counted}, and {there} are there"
    return Finding(check=LOST, verdict="inconclusive", detail=detail)


def _with_ids(column: ColumnElement[Any], ids: Sequence[int]) -> ColumnElement[bool]:
    """A condition: the rows of these ascending ids, and perhaps rows between them, as a range is read faster.

    A range holds too many other rows only where other runs were stored at the same time. Then the ids are listed.
    """
    first, last = ids[0], ids[-1]
    return column.between(first, last) if last - first < _SPREAD * len(ids) else column.in_(ids)


Grouped = Mapping[int, Sequence[Any]]
"""the rows of one kind of part, by the outcome's id; outcomes without such a part are left out"""


def _parts(connection: Connection, ids: Sequence[int], depth: Depth) -> tuple[Grouped, Grouped, Grouped, Grouped]:
    """Findings, samples, statistics and launches of the outcomes."""
    whole = depth == "whole"
    return (
        _findings(connection, ids, every=whole),
        _samples(connection, ids),
        _statistics(connection, ids) if whole else {},
        _launches(connection, ids) if whole else {},
    )


def _outcome_columns(depth: Depth) -> list[ColumnElement[Any]]:
    """All columns of outcomes, in their order; a column that is not read is empty."""
    instead: dict[str, ColumnElement[Any]] = {"witness_expected": type_coerce(outcomes.c.witness_expected, Text)}
    if depth == "times":
        instead["log"] = literal("").label("log")
    return [instead.get(column.name, column) for column in outcomes.columns]


def _findings(connection: Connection, ids: Sequence[int], *, every: bool) -> Grouped:
    """Findings by outcome. Equal ones are one object: most cases pass, and say so in the same words.

    Args:
        every: False = only those that fail, and notes on times and on what was taken over.
    """
    names = ("check", "verdict", "detail", "values")
    wanted = select(findings.c.outcome_id, findings.c.position, *_columns(findings, names, plain=names))
    if not every:
        on_time = (findings.c.check == TIMING) & (findings.c.verdict == "note")
        wanted = wanted.where(on_time | (findings.c.check == REUSED) | (findings.c.verdict == "fail"))
    made: dict[tuple[Any, ...], Finding] = {}
    found: defaultdict[int, list[Finding]] = defaultdict(list)
    for outcome_id, position, *stored in _rows(connection, wanted, findings, ids):
        key = tuple(stored)
        finding = made.get(key)
        if finding is None:
            finding = made[key] = finding_from(*key)
        own = found[outcome_id]
        if every and position != len(own) and GAP not in own:
            own.append(GAP)
        own.append(finding)
    return found


def _samples(connection: Connection, ids: Sequence[int]) -> Grouped:
    """Samples by outcome."""
    found = defaultdict(list)
    for outcome_id, latency_us in _rows(connection, select(samples.c.outcome_id, samples.c.latency_us), samples, ids):
        found[outcome_id].append(latency_us)
    return found


def _statistics(connection: Connection, ids: Sequence[int]) -> Grouped:
    """Statistics by outcome."""
    found = defaultdict(list)
    wanted = select(statistics.c.outcome_id, *_columns(statistics, STATISTICS_COLUMNS))
    for outcome_id, *stored in _rows(connection, wanted, statistics, ids):
        found[outcome_id].append(Statistics(**dict(zip(STATISTICS_COLUMNS, stored, strict=True))))
    return found


def _launches(connection: Connection, ids: Sequence[int]) -> Grouped:
    """Launches by outcome."""
    names = [column.name for column in launches.columns]
    found = defaultdict(list)
    for values in _rows(connection, select(launches), launches, ids):
        found[values[0]].append(launch_from(dict(zip(names, values, strict=True))))
    return found


def _rows(connection: Connection, wanted: Select[Any], table: Table, ids: Sequence[int]) -> Sequence[Any]:
    """The rows of one kind of part of these outcomes, in the order of the part's table."""
    part = table.c
    return connection.execute(
        wanted.where(_with_ids(part.outcome_id, ids)).order_by(part.outcome_id, part.position)
    ).all()


def _columns(table: Table, names: Iterable[str], plain: Sequence[str] = ()) -> list[ColumnElement[Any]]:
    """Columns of the table; the plain ones as the database has them."""
    return [type_coerce(table.c[name], Text) if name in plain else table.c[name] for name in names]
