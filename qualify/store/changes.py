"""Tells whether anybody wrote into a database since an earlier look, by reading one counter."""

from __future__ import annotations

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
                return self._sqlite()
            except Error:
                self._close()
                return None

    def close(self) -> None:
        """Closes the connection whose counter is read."""
        with self._lock:
            self._close()

    def _sqlite(self) -> str:
        """SQLite's counter of the commits of all other connections; this connection is used for nothing else."""
        if self._counter is None:
            pooled = self._engine.raw_connection()
            self._counter = pooled.dbapi_connection
            pooled.detach()
        ((version,),) = self._counter.execute("PRAGMA data_version").fetchall()
        return str(version)

    def _close(self) -> None:
        if self._counter is not None:
            self._counter.close()
            self._counter = None
