"""How SQLite is used.

It runs in WAL mode, so readers and a writer do not wait for each other. Every write transaction begins with
``BEGIN IMMEDIATE``: it waits for its turn at the start, and cannot fail in the middle because another process wrote
after its first read.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DisconnectionError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from qualify.store.changes import identity
from qualify.store.failures import store_error
from qualify.store.guest import companion

BUSY_S = 0.02
"""between two attempts at what SQLite does not wait for"""
TURN_S = 0.2
"""for which SQLite itself waits for its turn to write: a signal is answered only in between"""


def prepare(engine: Engine, busy_timeout_s: float, patience: Callable[[], float], *, migrating: bool) -> None:
    """Prepare the connections and transactions of an engine.

    Args:
        busy_timeout_s: how long a statement waits for its turn.
        patience: how long a write transaction still waits for its turn, in seconds.
        migrating: whether the schema is changed, and the file gets WAL mode.
    """

    def connected(connection: Any, _: object) -> None:
        # Python's module shall not begin transactions by itself: it would begin them too late.
        connection.isolation_level = None
        connection.execute(_busy_timeout(busy_timeout_s))
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA foreign_keys = {'OFF' if migrating else 'ON'}")
        if migrating:
            # The file keeps this mode. Only a migration sets it: before that, the file might belong to another program.
            _begin_wal(connection, busy_timeout_s)

    def begun(connection: Connection) -> None:
        if not connection.get_execution_options().get("writing", False):
            connection.exec_driver_sql("BEGIN")
            return
        driver: Any = connection.connection.driver_connection
        driver.execute(_busy_timeout(min(busy_timeout_s, TURN_S)))
        try:
            _begin_immediate(connection, patience)
        finally:
            driver.execute(_busy_timeout(busy_timeout_s))

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)


def checkpoint(connection: Connection) -> None:
    """Copy what is committed from the log into the file, as far as nobody still reads an earlier state.

    Where that fails, the log keeps it: nothing is lost.
    """
    driver: Any = connection.connection.driver_connection
    with suppress(sqlite3.Error):
        driver.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _busy_timeout(seconds: float) -> str:
    return f"PRAGMA busy_timeout = {round(seconds * 1000)}"


def _begin_immediate(connection: Connection, patience: Callable[[], float]) -> None:
    """Wait for the turn to write, in steps: while SQLite waits, Python answers no signal."""
    since = time.monotonic()
    while True:
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        except OperationalError as error:
            if not _is_busy(error.orig) or time.monotonic() - since >= patience():
                raise
            time.sleep(BUSY_S)
        else:
            return


def _is_busy(error: BaseException | None) -> bool:
    return isinstance(error, sqlite3.Error) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def follow_file(engine: Engine, path: Path) -> None:
    """Use no connection to a file that is not at the path any more: what it wrote there, nobody would find.

    Where another file has taken the place, it is opened, unless the earlier one's log is still there: SQLite would
    take it for the log of the new file, and write it into that. Where no file has, that is an error.
    """
    path = path.absolute()
    log = companion(path, "-wal")
    seen: set[tuple[int, int]] = set()
    logs: dict[tuple[int, int] | None, tuple[int, int] | None] = {}
    """by log, the file that it was seen beside"""

    def there() -> tuple[int, int] | None:
        now = identity(path)
        if now is None and seen:
            advice = (
                "Somebody probably moved or removed it, or its disk is not mounted. What was committed before is in "
                "that file: put it back."
            )
            raise store_error(str(path), "the file is gone", advice)
        return now

    def opening(*_: object) -> None:
        now = there()  # SQLite would make an empty one
        beside = identity(log)
        if beside is None:
            logs.clear()  # a later log may get the same number
        elif logs.get(beside, now) != now and log.stat().st_size:
            happened = "another file has taken its place, and the log of the earlier one is still beside it"
            advice = (
                f"SQLite would write that log into the new file. End what uses the store, move {log} and "
                f"{path.name}-shm to another folder, and type the command again."
            )
            raise store_error(str(path), happened, advice)

    def taken(_: Any, record: ConnectionPoolEntry, __: object) -> None:
        now = there()
        if now is None:  # a new file, which SQLite makes when it is first used
            return
        seen.add(now)
        if record.info.setdefault("file", now) != now:
            raise DisconnectionError("another file is there")
        if beside := identity(log):
            logs[beside] = now

    event.listen(engine, "do_connect", opening)
    event.listen(engine, "checkout", taken)


def _begin_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Have the file in WAL mode. SQLite does not wait here where another process has just begun to use the file."""
    until = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() >= until:
                raise
            time.sleep(BUSY_S)
        else:
            return
