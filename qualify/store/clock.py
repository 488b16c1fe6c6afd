"""The database's clock: the one that every replica of the canary service shares."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, text

from qualify.facts.clock import CLOCK_SKEW


def now_of(connection: Connection) -> datetime:
    """The moment, by the clock of the database server; of an SQLite file that is this machine's."""
    if connection.dialect.name == "sqlite":
        shown = connection.execute(text("SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')")).scalar_one()
        return datetime.fromisoformat(shown).replace(tzinfo=UTC)
    # Not now(), which stands still within a transaction.
    moment: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    return moment.astimezone(UTC)


def skew_s(connection: Connection) -> float:
    """By how many seconds this machine's clock is ahead of the database's, to half the time that the answer takes."""
    now_of(connection)  # the first answer takes longer
    before = datetime.now(UTC)
    there = now_of(connection)
    after = datetime.now(UTC)
    return (before + (after - before) / 2 - there).total_seconds()


def believed_until(connection: Connection) -> datetime:
    """The latest date that is believed: what is dated later comes last wherever the newest is looked for."""
    return now_of(connection) + CLOCK_SKEW
