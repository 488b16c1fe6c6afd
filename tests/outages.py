"""Databases that refuse to be written for a time, as after a restart of the server or under somebody's lock."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Self

from sqlalchemy import create_engine, make_url, text

LOCKER = """\
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


class Outage:
    """Refuses from :meth:`begin` to :meth:`end`. Use it as a context manager: at its end it is over."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.locker: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """Another process takes SQLite's lock; PostgreSQL ends all connections, and takes no new ones."""
        if "://" in self.address:
            self._allow("false")
            return
        command = [sys.executable, "-c", LOCKER, self.address]
        self.locker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.locker.stdout
        assert "locked\n" == self.locker.stdout.readline()

    def end(self) -> None:
        """All is as before."""
        if "://" in self.address:
            self._allow("true")
        elif self.locker:
            self.locker.communicate()
            self.locker = None

    def _allow(self, word: str) -> None:
        url: Any = make_url(self.address)
        engine = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
        ending = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = :name"
        with engine.connect() as connection:
            connection.execute(text(f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS {word}"))
            if word == "false":
                connection.execute(text(ending), {"name": url.database})
        engine.dispose()
