"""One database: its connections and its transactions. Where it is: address.py; how SQLite is used: sqlite.py."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from qualify.store import sqlite
from qualify.store.address import ADDRESSES, MEMORY, passwordless, shown
from qualify.store.changes import Changes
from qualify.store.compiled import COMPILED_ONCE
from qualify.store.failures import explained, is_read_only, made_read_only, may_be_a_setting, store_error, understood
from qualify.store.guest import connect, is_guest, unchanged

CONNECT_TIMEOUT_S = 10
SILENT_S = 30
"""seconds after which a server counts as away whose machine answers nothing; the system alone waits up to two hours"""
STOPPED_S = 60
"""seconds for which a write transaction may stand still: then its process was stopped, and PostgreSQL ends it. Nobody
else could take over a lease that such a transaction has locked"""
LOCKED_S = 90
"""seconds for which a statement waits for a lock, where nobody set another limit. It is longer than PostgreSQL waits
for a process that was stopped; without it, a session that somebody forgot holds all commands up for ever"""
PROBES = 4
"""signs of life of the machine that are asked for, one after another, within the second half of that time"""
HURRY_S = 2.0
"""for which a command that was told to end waits for its turn to write"""
POOL = 20
"""connections to a server that stay open after use: opening one takes longer than reading a list of runs"""
_EXACT = """\
SELECT set_config('client_encoding', 'UTF8', false), set_config('datestyle', 'ISO', false),
set_config('extra_float_digits', '3', false), set_config('standard_conforming_strings', 'on', false),
set_config('lock_timeout', coalesce(nullif(current_setting('lock_timeout'), '0'), '{locked_s}s'), false)
"""
"""all text, dates that the driver can read, numbers with all their digits (PostgreSQL 11 cuts off two by default),
texts in statements as compiled.py shares them, and an end to the wait for a lock"""

_READ_ONLY_BY = text(
    "SELECT source FROM pg_settings "
    "WHERE name = 'default_transaction_read_only' AND setting = 'on' AND NOT pg_is_in_recovery()"
)
"""where the setting was made that lets transactions only read; of a standby none"""
_WHOSE = {
    "global": "of all users",
    "database": "of the database",
    "user": "of the user",
    "database user": "of the user",
    "client": "of the connection",
}
"""settings that somebody made for this database, user or URL; the server's own may be those of its maintenance"""

# What SQLAlchemy says of a connection that it throws away is a traceback; why the command ended, qualify says itself.
logging.getLogger("sqlalchemy.pool").addHandler(logging.NullHandler())


class Database:
    """Connections to one place, and how it is named in messages."""

    def __init__(self, url: URL, *, busy_timeout_s: float) -> None:
        self.url = url
        self.where = shown(url)
        self.busy_timeout_s = busy_timeout_s
        """how long an SQLite transaction waits for its turn to write"""
        self.guest = self.sqlite and is_guest(Path(str(url.database)))
        """whether it is an SQLite file that this user may not write"""
        self._closed = False
        self.engine = self._engine(migrating=False)
        self.changes = Changes(self.engine, guest=self.guest)

    @property
    def address(self) -> str:
        """What --db takes: the path of an SQLite file, or the URL without its password."""
        return self.where if self.sqlite else passwordless(self.url.render_as_string(hide_password=False))

    @property
    def sqlite(self) -> bool:
        """Whether it is an SQLite file."""
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database from its first query to its last."""
        with explained(self.where), self._unchanged(), self.engine.connect() as connection:
            if not self.sqlite:
                connection.execution_options(isolation_level="REPEATABLE READ")
            with self._noticing(connection), connection.begin(), understood():
                yield connection

    @contextmanager
    def writing(self, *, in_file: bool = False) -> Iterator[Connection]:
        """A transaction that commits at its end, or leaves nothing behind.

        Args:
            in_file: whether an SQLite file itself then holds it, and not only its log. It is for what a verdict must
                not lack: somebody may copy the file alone.
        """
        with explained(self.where), self.engine.connect() as connection:
            with self._transaction(connection):
                if not self.sqlite:
                    connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{STOPPED_S}s'")
                yield connection
            if in_file and self.sqlite:
                sqlite.checkpoint(connection)

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        """A write transaction in which tables may be rebuilt: SQLite then checks no foreign keys."""
        engine = self._engine(migrating=True)
        try:
            with explained(self.where), engine.connect() as connection, self._transaction(connection):
                yield connection
        finally:
            engine.dispose()

    @contextmanager
    def _transaction(self, connection: Connection) -> Iterator[None]:
        connection.execution_options(writing=True)
        with self._noticing(connection), connection.begin():
            yield

    @contextmanager
    def _noticing(self, connection: Connection) -> Iterator[None]:
        """After an error that a setting can cause, the next transaction connects anew: a connection keeps settings.

        The setting may have been reset since. After a failover the server of the open connections may go on as a
        standby, which answers and only reads.
        """
        try:
            yield
        except DBAPIError as error:
            if may_be_a_setting(error):
                connection.invalidate()
                connection.engine.dispose()
            if is_read_only(error):
                self._refuse_read_only(error)
            raise

    def _refuse_read_only(self, error: DBAPIError) -> None:
        """Raises StoreError where a setting makes the database read-only, also for a new connection."""
        source = None
        with suppress(SQLAlchemyError), self.engine.connect() as connection:  # the server may be gone by now
            connection.detach()  # nor is this one used again
            source = connection.execute(_READ_ONLY_BY).scalar()
        if source in _WHOSE:
            raise made_read_only(self.where, _WHOSE[source], error) from error

    def hurry(self) -> None:
        """From now on an SQLite transaction waits only a moment for its turn to write, also one that waits already."""
        self.busy_timeout_s = min(self.busy_timeout_s, HURRY_S)

    def _unchanged(self) -> AbstractContextManager[None]:
        return unchanged(Path(str(self.url.database))) if self.guest else nullcontext()

    def close(self) -> None:
        """Closes every connection; one that another thread uses now, as soon as that thread gives it back."""
        self._closed = True
        self.changes.close()
        self.engine.dispose()

    def _engine(self, *, migrating: bool) -> Engine:
        try:
            options = _options(self.url, guest=self.guest)
            engine = create_engine(self.url, execution_options=COMPILED_ONCE, **options)
        except ArgumentError as error:
            raise store_error(self.where, f"not a usable database URL ({error})", ADDRESSES) from error
        except ImportError as error:
            advice = "The driver is probably not installed: pip install 'attn-qualify[service]' brings psycopg."
            if not self.url.drivername.startswith("postgresql"):
                advice = "qualify stores evidence in SQLite or PostgreSQL."
            raise store_error(self.where, f"no driver for {self.url.drivername} ({error})", advice) from error
        if self.sqlite:
            sqlite.prepare(engine, self.busy_timeout_s, lambda: self.busy_timeout_s, migrating=migrating)
            sqlite.follow_file(engine, Path(str(self.url.database)))
        else:
            _prepare_server(engine)
        self._close_what_nobody_takes(engine)
        return engine

    def _close_what_nobody_takes(self, engine: Engine) -> None:
        """Close connections that come back once the store is closed, or once the engine has given up their pool.

        ``Engine.dispose`` closes those that nobody uses. Others come back into a pool from which nobody takes any more.
        """

        def connected(_: Any, record: ConnectionPoolEntry) -> None:
            record.info["pool"] = engine.pool

        def returned(_: Any, record: ConnectionPoolEntry) -> None:
            if self._closed or record.info.get("pool") is not engine.pool:
                record.close()

        event.listen(engine, "connect", connected)
        event.listen(engine, "checkin", returned)  # codespell:ignore checkin


def _options(url: URL, *, guest: bool) -> dict[str, Any]:
    """The options of the engine. It gives up a server that does not answer within some seconds."""
    if guest:  # each transaction looks anew whether somebody writes
        return {"creator": lambda: connect(Path(str(url.database))), "poolclass": NullPool}
    if url.get_backend_name() == "sqlite":
        return {"poolclass": NullPool} if url.database == MEMORY else {}  # each connection is a database of its own
    options: dict[str, Any] = {"pool_pre_ping": True, "pool_size": POOL, "max_overflow": POOL}
    if url.drivername in ("postgresql", "postgresql+psycopg", "postgresql+psycopg2"):
        options["connect_args"] = {name: value for name, value in _patience().items() if name not in url.query}
    return options


def _patience() -> dict[str, int]:
    """Libpq's words for how long it waits for a machine that answers nothing: to connect, and in a connection."""
    return {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives_idle": SILENT_S // 2,
        "keepalives_interval": SILENT_S // 2 // PROBES,
        "keepalives_count": PROBES,
        "tcp_user_timeout": SILENT_S * 1000,
    }


def _prepare_server(engine: Engine) -> None:
    """Have every value come back as it was stored, whatever the server, the database or the user is set to."""

    def connected(connection: Any, _: object) -> None:
        with closing(connection.cursor()) as cursor:
            cursor.execute(_EXACT.format(locked_s=LOCKED_S))
        connection.commit()

    event.listen(engine, "connect", connected, insert=True)  # before SQLAlchemy reads the server's version as text
