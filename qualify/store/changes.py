"""Tells whether anybody wrote into a database since an earlier look, by reading one counter."""

from __future__ import annotations

from pathlib import Path
from sqlite3 import Error
from threading import Lock
from typing import Any

from sqlalchemy import Engine, text

_SNAPSHOT = text("SELECT pg_current_snapshot()::text")
"""which transactions' rows a query sees now; under two equal snapshots a query sees the same rows"""


class Changes:
    """Gives a mark that stands for the content of a database; safe for several threads.

    Args:
        guest: SQLite reads the file as one that nobody changes, so it notices no change.
    """

    def __init__(self, engine: Engine, *, guest: bool) -> None:
        self._engine = engine
        self._guest = guest
        self._lock = Lock()
        self._counter: Any = None
        self._file: tuple[int, int] | None = None
        """the file whose counter is read"""
        self._opened = 0
        """how often a counter was opened: each begins anew"""

    def mark(self) -> str | None:
        """A mark that equals an earlier one only where nobody committed in between; None where nobody can tell.

        On PostgreSQL, writes into other databases of the server change the mark, too.
        """
        if self._guest:
            return None
        if self._engine.dialect.name != "sqlite":
            with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                return str(connection.execute(_SNAPSHOT).scalar_one())
        with self._lock:
            try:
                return self._sqlite(Path(str(self._engine.url.database)))
            except Error:
                self._close()
                return None

    def close(self) -> None:
        """Closes the connection whose counter is read."""
        with self._lock:
            self._close()

    def _sqlite(self, path: Path) -> str | None:
        """SQLite's counter of the commits of all other connections; this connection is used for nothing else.

        Where another file has taken the place, its counter is read. Where none has, nobody can tell.
        """
        there = identity(path)
        if there != self._file:
            self._close()
        if there is None:
            return None
        if self._counter is None:
            pooled = self._engine.raw_connection()
            self._counter = pooled.dbapi_connection
            pooled.detach()
            self._file = there
            self._opened += 1
        ((version,),) = self._counter.execute("PRAGMA data_version").fetchall()
        return f"{self._opened} {version}"

    def _close(self) -> None:
        if self._counter is not None:
            self._counter.close()
            self._counter = None


def identity(path: Path) -> tuple[int, int] | None:
    """Which file is at the path; None where none is."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
