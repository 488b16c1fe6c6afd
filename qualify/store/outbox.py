"""The outbox of alerts. Every function works inside the transaction of its connection."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, func, insert, or_, select, update

from qualify.facts.canary import Alert, AlertState, Letter, Served
from qualify.store.clock import has_come, is_old, now_of
from qualify.store.tables import outbox

Turns = Mapping[tuple[str, str], str]
"""a word by canary and target; alerts about one node whose targets have the same word are sent one after another"""
NO_TURNS: Turns = MappingProxyType({})
TURN = timedelta(seconds=5)
"""time after which qualify looks again at an alert that waits for its turn"""
_FIELDS = tuple(Alert.__dataclass_fields__)


def add(connection: Connection, canary: str, fire_id: int, letters: Iterable[Letter]) -> None:
    """Adds an alert for each letter."""
    now = now_of(connection)
    rows = [
        {
            "id": f"msg_{secrets.token_hex(12)}",
            "canary": canary,
            "fire_id": fire_id,
            "kind": letter.kind,
            "target": letter.target,
            "body": dict(letter.body),
            "state": "pending",
            "attempts": 0,
            "created_at": now,
            "next_attempt_at": now,
            "last_error": "",
        }
        for letter in letters
    ]
    if rows:
        connection.execute(insert(outbox), rows)


def claim(
    connection: Connection, limit: int, lasts: timedelta, served: Served | None = None, turns: Turns = NO_TURNS
) -> list[Alert]:
    """Takes due alerts, the oldest first, and counts the attempt. Nobody else gets them for the time ``lasts``.

    Args:
        turns: the targets that must get a node's alerts in the order of the events.
    """
    now = now_of(connection)
    mine = (
        [or_(outbox.c.canary.in_(served.canaries), is_old(outbox.c.created_at, now, served.orphaned))] if served else []
    )
    due = (
        select(outbox)
        .where(outbox.c.state == "pending", has_come(outbox.c.next_attempt_at, now), *mine)
        .order_by(outbox.c.next_attempt_at, outbox.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    found = [_alert(row) for row in connection.execute(due).mappings()]
    if later := _later(connection, found, turns):
        connection.execute(update(outbox).where(outbox.c.id.in_(later)).values(next_attempt_at=now + TURN))
        found = [alert for alert in found if alert.id not in later]
    if found:
        values = {"attempts": outbox.c.attempts + 1, "next_attempt_at": now + lasts}
        ids = [alert.id for alert in found]
        connection.execute(update(outbox).where(outbox.c.id.in_(ids)).values(values))
        again = select(outbox).where(outbox.c.id.in_(ids)).order_by(outbox.c.created_at, outbox.c.id)
        found = [_alert(row) for row in connection.execute(again).mappings()]
    return found


def _later(connection: Connection, found: Sequence[Alert], turns: Turns) -> set[str]:
    """The ids of those that must wait, because an older alert of the same turn is neither sent nor given up."""
    asked = [alert for alert in found if (alert.canary, alert.target) in turns]
    if not asked:
        return set()
    mine = (outbox.c.state == "pending", outbox.c.canary.in_({alert.canary for alert in asked}))
    waiting = [_alert(row) for row in connection.execute(select(outbox).where(*mine)).mappings()]
    first: dict[object, datetime] = {}
    for alert in waiting:
        turn = _turn(alert, turns)
        first[turn] = min(alert.created_at, first.get(turn, alert.created_at))
    return {alert.id for alert in asked if first.get(_turn(alert, turns), alert.created_at) < alert.created_at}


def _turn(alert: Alert, turns: Turns) -> object:
    """A key that is equal for alerts that take turns; every other alert has a key of its own."""
    turn = turns.get((alert.canary, alert.target))
    return alert.id if turn is None else (alert.canary, turn, alert.body.get("node"))


def settle(connection: Connection, alert_id: str, state: AlertState, error: str, after: timedelta) -> None:
    """Stores how an attempt ended: sent, given up, or pending for another attempt after the time ``after``."""
    values = {"state": state, "last_error": error, "next_attempt_at": now_of(connection) + after}
    connection.execute(update(outbox).where(outbox.c.id == alert_id).values(values))


def load(connection: Connection, state: AlertState | None, limit: int) -> list[Alert]:
    """Alerts, of one state or of all, the newest first."""
    wanted = select(outbox).order_by(outbox.c.created_at.desc(), outbox.c.id).limit(limit)
    if state is not None:
        wanted = wanted.where(outbox.c.state == state)
    return [_alert(row) for row in connection.execute(wanted).mappings()]


def counts(connection: Connection) -> dict[AlertState, int]:
    """How many alerts are in which state."""
    found: dict[AlertState, int] = {"pending": 0, "sent": 0, "dead": 0}
    grouped = select(outbox.c.state, func.count()).group_by(outbox.c.state)
    return found | {row[0]: row[1] for row in connection.execute(grouped)}


def _alert(row: Any) -> Alert:
    return Alert(**{name: row[name] for name in _FIELDS})
