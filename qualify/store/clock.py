"""The database's clock: the one that every replica of the canary service shares."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, or_, text

from qualify.facts.clock import CLOCK_SKEW

LONGEST_WAIT = timedelta(hours=2)
"""longer than a fire or an alert ever waits for its next attempt"""


def now_of(connection: Connection) -> datetime:
    """The current time, by the clock of the database server; for an SQLite file that is this machine's clock."""
    if connection.dialect.name == "sqlite":
        shown = connection.execute(text("SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')")).scalar_one()
        return datetime.fromisoformat(shown).replace(tzinfo=UTC)
    # Not now(), which stands still within a transaction.
    moment: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    return moment.astimezone(UTC)


def skew_s(connection: Connection) -> float:
    """By how many seconds this machine's clock is ahead of the database's; exact to half the time of a query."""
    now_of(connection)  # the first answer takes longer
    before = datetime.now(UTC)
    there = now_of(connection)
    after = datetime.now(UTC)
    return (before + (after - before) / 2 - there).total_seconds()


def has_come(moment: ColumnElement[Any], now: datetime) -> ColumnElement[bool]:
    """Whether a wait is over. A moment beyond the longest wait was set by a wrong clock, and counts as over."""
    return or_(moment <= now, moment > now + LONGEST_WAIT)


def lasts(until: datetime, now: datetime) -> bool:
    """Whether a lease still lasts. One that ends later than any lease can was dated by a wrong clock: it is over."""
    return now < until <= now + LONGEST_WAIT


def is_old(moment: ColumnElement[Any], now: datetime, age: timedelta) -> ColumnElement[bool]:
    """Whether something is at least ``age`` old. A date in the future is from a wrong clock, and counts as old."""
    return or_(moment <= now - age, moment > now + CLOCK_SKEW)


def believed_until(connection: Connection) -> datetime:
    """The latest date that qualify believes. A row with a later date comes last in every list of the newest rows."""
    return now_of(connection) + CLOCK_SKEW
