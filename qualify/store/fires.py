"""Fires, holds, schedules and watched stacks. Every function works inside the transaction of its connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    union_all,
    update,
)

from qualify.errors import LeaseLost
from qualify.facts import codec
from qualify.facts.canary import (
    OPEN,
    Due,
    Fire,
    FireResult,
    Hold,
    Lease,
    NodeOutcome,
    Schedule,
    Served,
    Watched,
    own_lease,
)
from qualify.facts.comparison import StackChange
from qualify.facts.stack import Stack
from qualify.store.bulk import inserting
from qualify.store.clock import believed_until, has_come, is_old, now_of
from qualify.store.reading import chunks
from qualify.store.tables import fires, holds, schedules, watched_stacks
from qualify.store.types import texts

_HOLDS_LOCK = 7_341_920_516_284_037
"""a random key: whoever changes holds takes this lock of PostgreSQL first"""
_FIRE = tuple(Fire.__dataclass_fields__)
_HOLD = tuple(Hold.__dataclass_fields__)
_SCHEDULE = tuple(Schedule.__dataclass_fields__)


def file(connection: Connection, lease: str, due: Iterable[Due]) -> list[int]:
    """Adds fires to a lease, at most one for each canary and moment: an earlier one stays. Returns the new ids."""
    now = now_of(connection)
    rows = [{"lease": item.lease or lease, **_row(item, now)} for item in due]
    if not rows:
        return []
    added = inserting(connection)(fires).on_conflict_do_nothing().returning(fires.c.id)
    return list(connection.execute(added, rows).scalars())


def have_fired(connection: Connection, service: str, moments: Mapping[str, datetime]) -> set[str]:
    """Those canaries that have a fire for their moment, under the lease of the service or of a machine."""
    found: set[str] = set()
    for some in chunks(list(set(moments.values()))):
        filed = load(connection, fires.c.scheduled_for.in_(some), fires.c.trigger == "cron")
        mine = [it for it in filed if it.lease in (service, own_lease(service, it.node))]
        found |= {it.canary for it in mine if moments.get(it.canary) == it.scheduled_for}
    return found


def blank(now: datetime) -> dict[str, Any]:
    """The values of a fire that nobody has taken yet."""
    return {
        "changes": [],
        "state": "pending",
        "epoch": 0,
        "attempts": 0,
        "next_attempt_at": now,
        "created_at": now,
        "variant": "",
        "reasons": [],
        "numerics_only": [],
        "rollout": "",
        "wave": None,
    }


def _row(due: Due, now: datetime) -> dict[str, Any]:
    return {
        **blank(now),
        "canary": due.canary,
        "scheduled_for": due.scheduled_for,
        "trigger": due.trigger,
        "reason": due.reason,
        "changes": codec.to_data(due.changes, tuple[StackChange, ...]),
        "node": due.node,
        "matrix": due.matrix,
        "rollout": due.rollout,
    }


def load(connection: Connection, *where: ColumnElement[bool], limit: int | None = None) -> list[Fire]:
    """Fires, the latest moment first."""
    wanted = select(fires).where(*where).order_by(fires.c.scheduled_for.desc(), fires.c.id.desc()).limit(limit)
    return [_fire(row) for row in connection.execute(wanted).mappings()]


def _fire(row: Mapping[Any, Any]) -> Fire:
    data = {name: row[name] for name in _FIRE}
    changes = codec.from_data(tuple[StackChange, ...], row["changes"])
    lists = {name: texts(row[name]) for name in ("reasons", "numerics_only")}
    return Fire(**{**data, **lists, "changes": changes})


def load_latest(connection: Connection, *where: ColumnElement[bool]) -> dict[str, Fire]:
    """By canary, the latest of its fires that meet all conditions; those dated in the future do not count."""
    until = believed_until(connection)
    dated = (fires.c.scheduled_for <= until, or_(fires.c.finished_at.is_(None), fires.c.finished_at <= until))
    newest = select(fires.c.canary, func.max(fires.c.scheduled_for)).where(*where, *dated).group_by(fires.c.canary)
    return {fire.canary: fire for fire in load(connection, tuple_(fires.c.canary, fires.c.scheduled_for).in_(newest))}


def next_open(connection: Connection, lease: Lease, served: Served | None, only: int | None) -> Fire | None:
    """The oldest fire of the lease that an idle holder should take: nobody took it, or somebody left it unfinished."""
    now = now_of(connection)
    mine = (
        [or_(fires.c.canary.in_(served.canaries), is_old(fires.c.created_at, now, served.orphaned))] if served else []
    )
    wanted = (
        select(fires)
        .where(
            fires.c.lease == lease.name,
            fires.c.state.in_(OPEN),
            has_come(fires.c.next_attempt_at, now),
            or_(fires.c.rollout == "", fires.c.wave.is_not(None)),
            *mine,
        )
        .order_by(fires.c.scheduled_for, fires.c.id)
        .limit(1)
    )
    if only is not None:
        wanted = wanted.where(fires.c.id == only)
    row = connection.execute(wanted).mappings().one_or_none()
    return _fire(row) if row else None


def claim(connection: Connection, lease: Lease, fire_id: int, node: str) -> None:
    """Marks an open fire as taken by the leader; the transaction has checked its epoch."""
    values = {
        "state": "running",
        "epoch": lease.epoch,
        "node": node,
        "attempts": fires.c.attempts + 1,
        "started_at": now_of(connection),
    }
    connection.execute(update(fires).where(fires.c.id == fire_id, fires.c.state.in_(OPEN)).values(values))


def change(connection: Connection, lease: Lease, fire_id: int, values: Mapping[str, Any]) -> None:
    """Changes a fire that the leader is running."""
    taken = (fires.c.state == "running", fires.c.lease == lease.name, fires.c.epoch == lease.epoch)
    if not connection.execute(update(fires).where(fires.c.id == fire_id, *taken).values(dict(values))).rowcount:
        raise LeaseLost(
            f"{lease.holder} with epoch {lease.epoch} no longer runs fire {fire_id}: it ended, was put back, or "
            "another leader took it over. Nothing was written."
        )


def put_back(connection: Connection, lease: Lease, fire_id: int, reason: str, after: timedelta) -> None:
    """Makes a running fire pending again, for another attempt after a while."""
    values = {"state": "pending", "next_attempt_at": now_of(connection) + after, "reasons": [reason]}
    change(connection, lease, fire_id, values)


def finish(connection: Connection, lease: Lease, fire_id: int, result: FireResult) -> None:
    """Ends a fire that the leader is running, and holds or releases its node and variant."""
    change(connection, lease, fire_id, {"matrix": result.matrix})
    file_result(connection, fire_id, result)


def file_result(connection: Connection, fire_id: int, result: FireResult) -> None:
    """Ends a running fire. The caller has checked whose it is."""
    now = now_of(connection)
    values = {
        "state": result.state,
        "matrix": result.matrix,
        "run_id": result.run_id,
        "variant": result.variant,
        "verdict": result.verdict,
        "advice": result.advice,
        "reasons": list(result.reasons),
        "numerics_only": list(result.numerics_only),
        "duel_id": result.duel_id,
        "finished_at": now,
    }
    if result.reason is not None:
        values["reason"] = result.reason
    if result.changes is not None:
        values["changes"] = codec.to_data(result.changes, tuple[StackChange, ...])
    connection.execute(update(fires).where(fires.c.id == fire_id, fires.c.state == "running").values(values))
    (fire,) = load(connection, fires.c.id == fire_id)
    for held in [fire] if result.nodes is None else _of_fleet(fire, result.nodes):
        if held.advice == "promote":
            _release(connection, held, now)
        else:
            _hold(connection, held, now)


def _of_fleet(fire: Fire, nodes: Iterable[NodeOutcome]) -> list[Fire]:
    """The fire once for the whole fleet, then once for each node with that node's own advice."""
    each = [replace(fire, node=it.node, variant=it.variant, advice=it.advice, reasons=it.reasons) for it in nodes]
    return [replace(fire, node="", variant=""), *each]


def _release(connection: Connection, fire: Fire, now: datetime) -> None:
    """Ends the holds that this or earlier fires put on the node and variant, and holds whose variant is unknown."""
    moment = fires.c.scheduled_for
    dated = or_(moment <= fire.scheduled_for, moment > believed_until(connection))
    earlier = select(fires.c.id).where(fires.c.canary == fire.canary, dated)
    ended = (
        update(holds)
        .where(*_pair(fire), holds.c.variant.in_([fire.variant, ""]), holds.c.fire_id.in_(earlier))
        .values(released_at=now, released_by=fire.id)
    )
    connection.execute(ended)


def _hold(connection: Connection, fire: Fire, now: datetime) -> None:
    """Keeps one open hold for a node and variant: newest reason, oldest date. None where a later fire passed there."""
    passed = load(
        connection,
        fires.c.canary == fire.canary,
        fires.c.node == fire.node,
        fires.c.variant == fire.variant,
        fires.c.advice == "promote",
        fires.c.scheduled_for > fire.scheduled_for,
        fires.c.scheduled_for <= believed_until(connection),
        limit=1,
    )
    if passed:
        return
    reason = "; ".join(fire.reasons)
    mine = (*_pair(fire), holds.c.variant == fire.variant)
    if connection.execute(update(holds).where(*mine).values(reason=reason, fire_id=fire.id)).rowcount:
        return
    row = {"canary": fire.canary, "node": fire.node, "variant": fire.variant, "reason": reason}
    connection.execute(insert(holds), {**row, "fire_id": fire.id, "since": now})


def _pair(fire: Fire) -> tuple[ColumnElement[bool], ...]:
    return holds.c.canary == fire.canary, holds.c.node == fire.node, holds.c.released_at.is_(None)


def lock_holds(connection: Connection) -> None:
    """From here to the end of the transaction nobody else changes holds. SQLite has one writer at a time anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_HOLDS_LOCK)))


def load_holds(connection: Connection, *where: ColumnElement[bool]) -> list[Hold]:
    """Holds, the newest first."""
    rows = connection.execute(select(holds).where(*where).order_by(holds.c.id.desc())).mappings()
    return [Hold(**{name: row[name] for name in _HOLD}) for row in rows]


def load_runs(connection: Connection, fire_ids: Sequence[int]) -> dict[int, str]:
    """The runs of some fires, by the id of the fire; those without a run are left out."""
    found: dict[int, str] = {}
    for some in chunks(fire_ids):
        wanted = select(fires.c.id, fires.c.run_id).where(fires.c.id.in_(some), fires.c.run_id.is_not(None))
        found |= {row.id: row.run_id for row in connection.execute(wanted)}
    return found


def know_schedules(connection: Connection, lease: Lease, crons: Mapping[str, str]) -> dict[str, Schedule]:
    """Stores and returns the schedules of the given canaries, and removes the lease's other schedules.

    A new or changed schedule counts from now on. So does one whose ``since`` lies in the future, because a wrong clock
    wrote it.
    """
    now = now_of(connection)
    mine = schedules.c.lease == lease.name
    known = {item.canary: item for item in load_schedules(connection, mine)}
    kept = {name for name, item in known.items() if item.since <= now and item.cron == crons.get(name)}
    again = [name for name in crons if name not in kept]
    gone = [*(name for name in known if name not in crons), *(name for name in again if name in known)]
    for name in gone:
        connection.execute(delete(schedules).where(mine, schedules.c.canary == name))
    rows = [{"lease": lease.name, "canary": name, "cron": crons[name], "since": now} for name in again]
    if rows:
        connection.execute(insert(schedules), rows)
    fresh = {name: Schedule(canary=name, cron=crons[name], since=now) for name in again}
    return {name: fresh.get(name) or known[name] for name in crons}


def load_schedules(connection: Connection, *where: ColumnElement[bool]) -> list[Schedule]:
    """The schedules of canaries, sorted by name."""
    rows = connection.execute(select(schedules).where(*where).order_by(schedules.c.canary)).mappings()
    return [Schedule(**{name: row[name] for name in _SCHEDULE}) for row in rows]


def plan(connection: Connection, lease: Lease, following: Mapping[str, datetime | None]) -> None:
    """Stores when canaries are due next."""
    mine = (schedules.c.lease == lease.name, schedules.c.canary == bindparam("named"))
    rows = [{"named": name, "at": moment} for name, moment in following.items()]
    if rows:
        connection.execute(update(schedules).where(*mine).values(next_at=bindparam("at")), rows)


def load_owed(connection: Connection) -> dict[tuple[str, str], datetime]:
    """By lease and canary: the earliest moment, past or future, whose fire has not ended."""
    opened = select(fires.c.lease, fires.c.canary, fires.c.scheduled_for.label("at")).where(fires.c.state.in_(OPEN))
    planned = select(schedules.c.lease, schedules.c.canary, schedules.c.next_at.label("at"))
    owed = union_all(opened, planned.where(schedules.c.next_at.is_not(None))).subquery()
    grouped = select(owed.c.lease, owed.c.canary, func.min(owed.c.at)).group_by(owed.c.lease, owed.c.canary)
    return {(row[0], row[1]): row[2] for row in connection.execute(grouped)}


def load_watched(connection: Connection, *where: ColumnElement[bool]) -> list[Watched]:
    """The stacks as the canaries saw them last."""
    wanted = select(watched_stacks).where(*where).order_by(watched_stacks.c.canary, watched_stacks.c.node)
    return [
        Watched(
            lease=row.lease,
            canary=row.canary,
            node=row.node,
            stack=codec.from_data(Stack, row.stack),
            seen_at=row.seen_at,
            changing_to=row.changing_to,
            changing_since=row.changing_since,
            changes=codec.from_data(tuple[StackChange, ...], row.changes or ()),
        )
        for row in connection.execute(wanted)
    ]


def save_watched(connection: Connection, seen: Sequence[Watched]) -> None:
    """Replaces the stacks that the canaries saw last."""
    for item in seen:
        identity = {"lease": item.lease, "canary": item.canary, "node": item.node}
        values = {
            "fingerprint": item.stack.fingerprint,
            "stack": codec.to_data(item.stack),
            "seen_at": item.seen_at,
            "changing_to": item.changing_to,
            "changing_since": item.changing_since,
            "changes": codec.to_data(item.changes, tuple[StackChange, ...]),
        }
        key = [watched_stacks.c[name] == value for name, value in identity.items()]
        if not connection.execute(update(watched_stacks).where(*key).values(values)).rowcount:
            connection.execute(insert(watched_stacks), identity | values)
