"""Whether anything was written into a database since somebody looked, for the price of one look at its counter."""

from __future__ import annotations

from sqlite3 import Error
from threading import Lock
from typing import Any

from sqlalchemy import Engine, text

_SNAPSHOT = text("SELECT pg_current_snapshot()::text")
"""the transactions whose rows are seen now: two that are equal see the same rows"""


class Changes:
    """The mark of what a database holds; safe for several threads.

    Args:
        guest: SQLite reads a file as one that nobody changes, and sees no change of it.
    """

    def __init__(self, engine: Engine, *, guest: bool) -> None:
        self._engine = engine
        self._guest = guest
        self._lock = Lock()
        self._counter: Any = None

    def mark(self) -> str | None:
        """Equal to an earlier one only where nobody committed anything in between; None where nobody can tell.

        Writes elsewhere on a PostgreSQL server change the mark too.
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
        """The counter of SQLite, which counts what other connections commit: so this one does nothing else."""
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
