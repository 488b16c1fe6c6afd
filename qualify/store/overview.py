"""Lists for the site. Each takes a fixed number of queries, however much the store holds, and reads no whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    func,
    literal,
    not_,
    or_,
    select,
    type_coerce,
)

from qualify.facts.devices import HOST
from qualify.facts.duel import DuelVerdict
from qualify.facts.overview import Around, CaseInRun, DuelHead, RunHead, RunList, RunQuery, RunVersion, StackHead
from qualify.facts.stack import Stack
from qualify.store.clock import believed_until
from qualify.store.database import Database
from qualify.store.reading import Stacks, chunks
from qualify.store.records import load_by_key
from qualify.store.tables import (
    baselines,
    cases,
    comments,
    components,
    duel_cells,
    duels,
    findings,
    outcomes,
    revocations,
    runs,
    selftests,
    signoffs,
    stacks,
)
from qualify.store.types import Words, escaped

VERSIONS = ("driver", "cuda", "torch")
"""components that a list of stacks names"""
_MOST_STACKS = 500
_NARROWED = or_(runs.c.select != literal(""), runs.c.kernel != literal(""))
_HEAD = ("id", "matrix", "level", "state", "started_at", "finished_at", "clock_skew_s", "received_at")
_DUEL = ("id", "matrix", "a", "b", "null", "device", "started_at", "complete")


class Overview:
    """What lists show of one database; :attr:`qualify.store.Store.overview`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def runs(self, query: RunQuery) -> RunList:
        """The part of the matching runs that a query asks for, and how many match; newest first, future dates last."""
        with self._database.reading() as connection:
            where = _where(connection, query)
            total = connection.execute(select(func.count()).select_from(runs).where(*where)).scalar_one()
            return RunList(heads=_heads(connection, _ids(connection, query, where)), total=total)

    def run_ids(self, query: RunQuery) -> Sequence[str]:
        """The ids of :meth:`runs`: a long list is read in pieces by them, and new runs do not move its rows."""
        with self._database.reading() as connection:
            return _ids(connection, query, _where(connection, query))

    def heads(self, run_ids: Sequence[str]) -> tuple[RunHead, ...]:
        """The runs of these full ids, in this order; what was deleted meanwhile is left out."""
        with self._database.reading() as connection:
            return _heads(connection, run_ids)

    def has_future(self) -> bool:
        """Whether a run is dated in the future: lists then change with time, even where nobody writes."""
        with self._database.reading() as connection:
            wanted = select(runs.c.id).where(runs.c.started_at > believed_until(connection)).limit(1)
            return connection.execute(wanted).first() is not None

    def latest(self, depth: int) -> dict[tuple[str, str], tuple[RunHead, ...]]:
        """The newest completed runs of each matrix on each device model, newest first; none dated in the future.

        Args:
            depth: how many runs of each. Where all of them are narrowed to a part of the matrix, the newest run of the
                whole matrix follows, if there is one.
        """
        with self._database.reading() as connection:
            found: dict[tuple[str, str], list[RunHead]] = {}
            heads = _heads(connection, _ranked(connection, depth))
            for head in sorted(heads, key=lambda it: (it.started_at, it.id), reverse=True):
                found.setdefault((head.matrix, head.variant), []).append(head)
            parts = {pair[0] for pair, heads in found.items() if all(head.narrowed for head in heads)}
            # A second statement: an index alone answers the first one, and no index says whether a run is whole.
            whole = _ranked(connection, 1, runs.c.matrix.in_(parts), not_(_NARROWED)) if parts else ()
            for head in _heads(connection, whole):
                known = found[head.matrix, head.variant]
                known += [head] if all(it.narrowed for it in known) else []
            return {pair: tuple(heads) for pair, heads in found.items()}

    def head(self, run_id: str) -> RunHead | None:
        """The run of that full id."""
        with self._database.reading() as connection:
            return next(iter(_heads(connection, [run_id])), None)

    def before(self, heads: Sequence[RunHead]) -> dict[str, str]:
        """By run, the id of the previous run of its matrix on the same device model; runs without one are left out."""
        with self._database.reading() as connection:
            other, on = runs.alias(), stacks.alias()
            same = (on.c[name] == stacks.c[name] for name in ("device_kind", "device_name", "units"))
            earlier = (
                select(other.c.id)
                # The first two conditions are a range of an index, which is read backwards to its first match.
                .where(other.c.matrix == runs.c.matrix, other.c.started_at < runs.c.started_at)
                .where(other.c.stack_id.in_(select(on.c.id).where(*same).correlate(stacks)))
                .order_by(other.c.started_at.desc())
                .limit(1)
                .correlate(runs, stacks)
                .scalar_subquery()
            )
            found: dict[str, str] = {}
            for some in chunks([head.id for head in heads]):
                before = type_coerce(earlier, Words("before", nullable=True)).label("before")
                wanted = select(runs.c.id, before).join(stacks, stacks.c.id == runs.c.stack_id)
                rows = connection.execute(wanted.where(runs.c.id.in_(some)))
                found |= {row.id: row.before for row in rows if row.before is not None}
            return found

    def with_finding(self, run_ids: Sequence[str], check: str) -> set[str]:
        """The runs among these ids that have a case with a finding of that check."""
        wanted = (
            select(cases.c.run_id)
            .join(outcomes, outcomes.c.case_key == cases.c.key)
            .join(findings, findings.c.outcome_id == outcomes.c.id)
            .where(findings.c.check == check)
            .distinct()
        )
        with self._database.reading() as connection:
            found = (connection.execute(wanted.where(cases.c.run_id.in_(some))) for some in chunks(run_ids))
            return {row.run_id for rows in found for row in rows}

    def matrices(self) -> list[str]:
        """The names of all matrices that have runs."""
        with self._database.reading() as connection:
            return sorted(connection.execute(select(runs.c.matrix).distinct()).scalars())

    def stacks(self) -> list[StackHead]:
        """The stacks that runs were made on, the one with the newest run first."""
        with self._database.reading() as connection:
            newest = func.max(runs.c.started_at)
            counted = (
                select(runs.c.stack_id, func.count().label("runs"), newest.label("newest"))
                .where(runs.c.stack_id.is_not(None))
                .group_by(runs.c.stack_id)
                .order_by(newest.desc())
                .limit(_MOST_STACKS)
            )
            rows = connection.execute(counted).all()
            known = _stack_rows(connection, [row.stack_id for row in rows])
            versions = _versions(connection, [row.stack_id for row in rows])
            return [
                StackHead(
                    fingerprint=known[row.stack_id]["fingerprint"],
                    variant=_variant(known[row.stack_id]),
                    versions=versions.get(row.stack_id, ()),
                    runs=row.runs,
                    newest=row.newest,
                )
                for row in rows
            ]

    def duels(self, limit: int) -> list[DuelHead]:
        """The newest duels, newest first; those that are dated in the future last."""
        with self._database.reading() as connection:
            future = duels.c.started_at > believed_until(connection)
            columns = [duels.c[name] for name in _DUEL]
            order = (future, duels.c.started_at.desc(), duels.c.id.desc())
            rows = connection.execute(select(*columns).order_by(*order).limit(limit)).mappings().all()
            mine = duel_cells.c.duel_id.in_([row["id"] for row in rows])
            by = (duel_cells.c.duel_id, duel_cells.c.verdict)
            counts: dict[str, dict[DuelVerdict, int]] = {}
            for duel, verdict, count in connection.execute(select(*by, func.count()).where(mine).group_by(*by)):
                counts.setdefault(duel, {})[verdict] = count
            return [DuelHead(**row, counts=counts.get(row["id"], {})) for row in rows]

    def stack(self, fingerprint: str) -> Stack | None:
        """The stack of that fingerprint, of a run or of a side of a duel; on no card. None where it is not stored."""
        with self._database.reading() as connection:
            wanted = select(stacks.c.id).where(stacks.c.fingerprint == fingerprint)
            key = connection.execute(wanted).scalar_one_or_none()
            return None if key is None else Stacks(connection, [key]).of({"stack_id": key, "device_uuid": ""})

    def with_history(self, case_ids: Sequence[str]) -> set[str]:
        """Those of the given case ids that any run has."""
        with self._database.reading() as connection:
            known = (select(cases.c.case_id).where(cases.c.case_id.in_(some)) for some in chunks(case_ids))
            return {name for wanted in known for name in connection.execute(wanted.distinct()).scalars()}

    def case_history(self, case_id: str, limit: int) -> list[CaseInRun]:
        """The newest runs that have a case, each with the outcome that counts there."""
        with self._database.reading() as connection:
            future = runs.c.started_at > believed_until(connection)
            wanted = (
                select(cases.c.key, runs.c.id)
                .join(runs, runs.c.id == cases.c.run_id)
                .where(cases.c.case_id == case_id)
                .order_by(future, runs.c.started_at.desc(), runs.c.id.desc())
                .limit(limit)
            )
            keys = {row.key: row.id for row in connection.execute(wanted)}
            heads = {head.id: head for head in _heads(connection, list(keys.values()))}
            found = load_by_key(connection, list(keys))
            return [CaseInRun(head=heads[run], record=found[key]) for key, run in keys.items()]

    def counts(self) -> dict[str, int]:
        """How many runs and outcomes the store holds. The largest id stands for the number of outcomes: it is cheap."""
        with self._database.reading() as connection:
            held = connection.execute(select(func.count()).select_from(runs)).scalar_one()
            return {"runs": held, "outcomes": _last_outcome(connection)}

    def around(self) -> Around:
        """What may change a verdict besides its own run, by matrix."""

        def grouped(table: Table) -> dict[str, tuple[int, str]]:
            wanted = select(table.c.matrix, func.count(), func.max(table.c.id)).group_by(table.c.matrix)
            return {matrix: (count, last) for matrix, count, last in connection.execute(wanted)}

        with self._database.reading() as connection:
            now = select(runs.c.matrix).distinct().where(runs.c.state == "running")
            accepted = select(baselines.c.matrix, func.max(baselines.c.id)).group_by(baselines.c.matrix)
            return Around(
                baselines={row[0]: row[1] for row in connection.execute(accepted)},
                duels=grouped(duels),
                runs=grouped(runs),
                running=dict.fromkeys(connection.execute(now).scalars(), _last_outcome(connection)),
            )

    def version(self, run_id: str) -> RunVersion | None:
        """A value that changes whenever the page of a run would change; None where there is no such run."""
        mine = signoffs.c.run_id == run_id
        ended = select(func.count()).select_from(revocations.join(signoffs)).where(mine).scalar_subquery()
        said = (_newest(signoffs, mine), ended, _newest(comments, comments.c.run_id == run_id))
        around = (_newest(baselines), _newest(selftests), select(func.count()).select_from(duels).scalar_subquery())
        wanted = select(runs.c.state, runs.c.finished_at, *said, *around).where(runs.c.id == run_id)
        with self._database.reading() as connection:
            row = connection.execute(wanted).one_or_none()
        if row is None:
            return None
        return RunVersion(state=row[0], finished_at=row[1], said=tuple(row[2:5]), around=tuple(row[5:]))


def _last_outcome(connection: Connection) -> int:
    found: int = connection.execute(select(func.coalesce(func.max(outcomes.c.id), 0))).scalar_one()
    return found


def _newest(table: Any, *where: ColumnElement[bool]) -> Any:
    return select(func.coalesce(func.max(table.c.id), 0)).where(*where).scalar_subquery()


def _where(connection: Connection, query: RunQuery) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if query.matrix:
        found.append(runs.c.matrix == query.matrix)
    if query.stack:
        found.append(runs.c.stack_id.in_(select(stacks.c.id).where(stacks.c.fingerprint == query.stack)))
    found += [_has(connection, word) for word in query.text.lower().split()]
    return found


def _ids(connection: Connection, query: RunQuery, where: Sequence[ColumnElement[bool]]) -> Sequence[str]:
    """The ids of the part of the matching runs that a query asks for: newest first, future dates last."""
    future = runs.c.started_at > believed_until(connection)
    order = [runs.c.started_at.desc(), runs.c.id.desc()]
    if connection.execute(select(runs.c.id).where(future).limit(1)).first():
        order.insert(0, future.asc())  # only where needed: no index has this order
    wanted = select(runs.c.id).where(*where).order_by(*order)
    return connection.execute(wanted.limit(query.limit).offset(query.offset)).scalars().all()


def _has(connection: Connection, word: str) -> ColumnElement[bool]:
    """Whether a run's id, matrix or stack has the word. Matrices and stacks are few, so each is searched once."""

    def holds(column: ColumnElement[str]) -> ColumnElement[bool]:
        return func.lower(column).contains(escaped(word), autoescape=True)

    matrices = [name for name in connection.execute(select(runs.c.matrix).distinct()).scalars() if word in name.lower()]
    on = select(stacks.c.id).where(or_(holds(stacks.c.device_name), holds(stacks.c.fingerprint)))
    return or_(holds(runs.c.id), runs.c.matrix.in_(matrices), runs.c.stack_id.in_(on))


def _ranked(connection: Connection, depth: int, *where: ColumnElement[bool]) -> Sequence[str]:
    """The ids of the newest completed runs of each matrix on each device model, ``depth`` of each."""
    device = (stacks.c.device_kind, stacks.c.device_name, stacks.c.units)
    order = (runs.c.started_at.desc(), runs.c.id.desc())
    place = func.row_number().over(partition_by=(runs.c.matrix, *device), order_by=order)
    done = (runs.c.state == "completed", runs.c.started_at <= believed_until(connection))
    on = runs.join(stacks, stacks.c.id == runs.c.stack_id)
    ranked = select(runs.c.id, place.label("place")).select_from(on).where(*done, *where).subquery()
    return connection.execute(select(ranked.c.id).where(ranked.c.place <= depth)).scalars().all()


def _heads(connection: Connection, ids: Sequence[str]) -> tuple[RunHead, ...]:
    """The runs of these ids, in this order; what is not there is left out."""
    # The largest place, which an index answers with one look for each run. Places count from 0.
    planned = select(func.max(cases.c.position)).where(cases.c.run_id == runs.c.id).scalar_subquery()
    columns = [runs.c[name] for name in _HEAD]
    found: dict[str, Mapping[Any, Any]] = {}
    for some in chunks(ids):
        wanted: Select[Any] = select(
            *columns, runs.c.stack_id, _NARROWED.label("narrowed"), func.coalesce(planned, -1).label("last")
        ).where(runs.c.id.in_(some))
        found |= {row["id"]: row for row in connection.execute(wanted).mappings()}
    known = _stack_rows(connection, sorted({row["stack_id"] for row in found.values() if row["stack_id"] is not None}))
    return tuple(_head(found[run_id], known.get(found[run_id]["stack_id"])) for run_id in ids if run_id in found)


def _head(row: Mapping[Any, Any], stack: Mapping[Any, Any] | None) -> RunHead:
    return RunHead(
        **{name: row[name] for name in _HEAD},
        variant=_variant(stack) if stack else "",
        stack=stack["fingerprint"] if stack else "",
        narrowed=bool(row["narrowed"]),
        cases=row["last"] + 1,
    )


def _stack_rows(connection: Connection, ids: Sequence[int]) -> dict[int, Mapping[Any, Any]]:
    found: dict[int, Mapping[Any, Any]] = {}
    for some in chunks(ids):
        found |= {row["id"]: row for row in connection.execute(select(stacks).where(stacks.c.id.in_(some))).mappings()}
    return found


def _variant(stack: Mapping[Any, Any]) -> str:
    """The device model, as ``Device.variant`` names it."""
    name: str = stack["device_name"]
    return name if stack["device_kind"] == HOST else f"{name} ({stack['units']} units)"


def _versions(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[tuple[str, str], ...]]:
    found: dict[int, dict[str, str]] = {}
    for some in chunks(ids):
        wanted = select(components.c.stack_id, components.c.name, components.c.version).where(
            and_(components.c.stack_id.in_(some), components.c.name.in_(VERSIONS))
        )
        for row in connection.execute(wanted):
            if row.version:
                found.setdefault(row.stack_id, {})[row.name] = row.version
    return {key: tuple((name, known[name]) for name in VERSIONS if name in known) for key, known in found.items()}
