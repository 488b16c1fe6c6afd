"""One database: its address, its connections, its transactions.

SQLite runs in WAL mode, so readers and a writer do not wait for each other. Every write transaction begins
with ``BEGIN IMMEDIATE``: it waits for its turn at the start, and cannot fail in the middle because another
process wrote after its first read.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from qualify.errors import QualifyError, StoreError, UsageError
from qualify.files import exists, is_folder, kind_of, open_regular
from qualify.store.changes import Changes, identity
from qualify.store.compiled import compiled_once
from qualify.store.failures import explained, is_read_only, made_read_only, store_error, understood
from qualify.store.guest import companion, connect, is_guest, unchanged
from qualify.text import CREDENTIALS, SECRET_PARAMETER

DEFAULT_PATH = Path(".qualify/evidence.db")
MEMORY = ":memory:"
"""what SQLite calls a database without a file, which ends with its connection"""
CONNECT_TIMEOUT_S = 10
SILENT_S = 30
"""seconds after which a server counts as away whose machine answers nothing; the system alone waits up to two hours"""
STOPPED_S = 60
"""seconds for which a write transaction may stand still: then its process was stopped, and PostgreSQL ends it. Nobody
else could take over a lease that such a transaction has locked"""
PROBES = 4
"""signs of life of the machine that are asked for, one after another, within the second half of that time"""
BUSY_S = 0.02
"""between two attempts at what SQLite does not wait for"""
TURN_S = 0.2
"""for which SQLite itself waits for its turn to write: a signal is answered only in between"""
HURRY_S = 2.0
"""for which a command that was told to end waits for its turn to write"""
POOL = 20
"""connections to a server that stay open after use: opening one takes longer than reading a list of runs"""
PASSWORD_FILE = "QUALIFY_DB_PASSWORD_FILE"  # noqa: S105 - the name of a variable

LONGEST_PASSWORD = 1 << 16
"""bytes of a password's file"""

_EXACT = """\
SELECT set_config('client_encoding', 'UTF8', false), set_config('datestyle', 'ISO', false),
set_config('extra_float_digits', '3', false)
"""
"""all text, dates that the driver can read, and numbers with all their digits; PostgreSQL 11 cuts off two by default"""

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

_ADDRESSES = "Use a path, sqlite:///PATH or postgresql+psycopg://USER@HOST/NAME."

_MISTYPED = re.compile(
    r"(postgres|psql|mysql|mariadb|oracle|mssql|sqlite)[\w+]*:|(^|[/\\])[^/?#:@\\]*:[^@]*@|\bpass\w*\s*=", re.IGNORECASE
)
"""matches a mistyped address of a server: one slash, no slash, no colon, or libpq's words"""
_SECONDS = re.compile(r"\d{1,9}(\.\d*)?", re.ASCII)
_FIRST_WORD = re.compile(r"[\w+]*")


class Database:
    """Connections to one place, and how it is named in messages."""

    def __init__(self, url: URL, *, busy_timeout_s: float) -> None:
        self.url = url
        self.where = shown(url)
        self.busy_timeout_s = busy_timeout_s
        """how long an SQLite transaction waits for its turn to write"""
        self.guest = self.sqlite and is_guest(Path(str(url.database)))
        """whether it is an SQLite file that this user may not write"""
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
            with connection.begin(), understood():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that commits at its end, or leaves nothing behind."""
        with explained(self.where), self.engine.connect() as connection, self._transaction(connection):
            if not self.sqlite:
                connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{STOPPED_S}s'")
            yield connection

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
        try:
            with connection.begin():
                yield
        except DBAPIError as error:
            if is_read_only(error):
                self._refuse_read_only(connection, error)
            raise

    def _refuse_read_only(self, connection: Connection, error: DBAPIError) -> None:
        """Raises StoreError where a setting makes the database read-only. Else the next transaction connects anew.

        After a failover the server of the open connections may go on as a standby, which answers and only reads.
        """
        source = None
        with suppress(SQLAlchemyError):  # it is gone by now
            source = connection.execute(_READ_ONLY_BY).scalar()
        if source in _WHOSE:
            raise made_read_only(self.where, _WHOSE[source], error) from error
        connection.invalidate()
        connection.engine.dispose()

    def hurry(self) -> None:
        """From now on an SQLite transaction waits only a moment for its turn to write, also one that waits already."""
        self.busy_timeout_s = min(self.busy_timeout_s, HURRY_S)

    def _unchanged(self) -> AbstractContextManager[None]:
        return unchanged(Path(str(self.url.database))) if self.guest else nullcontext()

    def close(self) -> None:
        """Closes every connection."""
        self.changes.close()
        self.engine.dispose()

    def _engine(self, *, migrating: bool) -> Engine:
        try:
            url, shared = compiled_once(self.url) if self.sqlite else (self.url, {})
            engine = create_engine(url, **shared, **_options(self.url, guest=self.guest))
        except ArgumentError as error:
            raise store_error(self.where, f"not a usable database URL ({error})", _ADDRESSES) from error
        except ImportError as error:
            advice = "The driver is probably not installed: pip install 'attn-qualify[service]' brings psycopg."
            if not self.url.drivername.startswith("postgresql"):
                advice = "qualify stores evidence in SQLite or PostgreSQL."
            raise store_error(self.where, f"no driver for {self.url.drivername} ({error})", advice) from error
        if self.sqlite:
            _prepare_sqlite(engine, self, migrating=migrating)
            _follow_file(engine, Path(str(self.url.database)))
        else:
            _prepare_server(engine)
        return engine


def parse(address: str) -> URL:
    """The URL of an address: a SQLAlchemy URL, or a plain path of an SQLite file.

    A server's URL without a password gets the one of the file that QUALIFY_DB_PASSWORD_FILE names.
    """
    if address == MEMORY:
        raise _in_memory(address)
    if "://" not in address:
        if _MISTYPED.search(address):  # as a path it would become the name of a file, with the password in it
            raise store_error(_withheld(address), "neither a path nor a database URL", _ADDRESSES)
        return URL.create("sqlite", database=address)
    try:
        url = make_url(address)
    except (ArgumentError, ValueError) as error:
        raise store_error(_withheld(address), "not a database URL", _ADDRESSES) from error
    if url.get_backend_name() == "sqlite":
        _check_sqlite(url, address)
    file = os.environ.get(PASSWORD_FILE)
    if file and url.get_backend_name() != "sqlite" and url.password is None:
        return url.set(password=_password(Path(file), shown(url)))
    return url


def files_of(address: str) -> set[str]:
    """The real paths of an SQLite file and of those that SQLite keeps beside it; none for a server.

    None either for an address that is refused: whoever opens it says why.
    """
    try:
        url = parse(address)
    except QualifyError:
        return set()
    if url.get_backend_name() != "sqlite":
        return set()
    return {os.path.realpath(str(url.database)) + beside for beside in ("", "-wal", "-shm", "-journal")}


def _check_sqlite(url: URL, address: str) -> None:
    """Refuses a URL of SQLite that names a server or no file, and parameters that qualify does not take."""
    if url.host or url.username or _MISTYPED.search(str(url.database)):
        raise store_error(
            _withheld(address), "an SQLite file has no user and no server", "Give a file: sqlite:///PATH."
        )
    if url.database in (None, "", MEMORY):
        raise _in_memory(address)
    for name, value in url.query.items():
        if name != "timeout" or not _SECONDS.fullmatch(str(value)):
            raise UsageError(
                f"evidence store {url.database}: the parameter {name}={value} is none that qualify takes. Leave it "
                f"out: --db {url.database}"
            )


def _in_memory(address: str) -> StoreError:
    return store_error(address, "an in-memory database keeps no evidence", "Give a file: sqlite:///PATH.")


def _password(path: Path, where: str) -> str:
    """The password: the first line of the file. Raises StoreError where the file cannot be read, or is empty."""
    try:
        with open_regular(path) as file:
            lines = file.read(LONGEST_PASSWORD).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        advice = "It must be readable to this user, and hold the password on its first line."
        raise store_error(where, f"{PASSWORD_FILE}={path} cannot be read ({reason})", advice) from error
    if not lines or not lines[0]:
        raise store_error(where, f"{PASSWORD_FILE}={path} is empty", "Write the password on its first line.")
    return lines[0]


def shown(url: URL) -> str:
    """The place as messages name it: the path of an SQLite file, or the URL without its password."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    secret = [name for name in url.query if SECRET_PARAMETER.search(f"?{name}=")]
    return url.difference_update_query(secret).render_as_string(hide_password=True)


def _withheld(address: str) -> str:
    """The beginning of an address that cannot be read: nobody knows where in it the password stands."""
    return _FIRST_WORD.match(address)[0] + ":***"  # type: ignore[index]


def passwordless(text: str) -> str:
    """An address as a printed command can repeat it: without its password, which the user gives in another way."""
    bare = CREDENTIALS.sub(r"\1@", text)
    without = re.sub(rf"{SECRET_PARAMETER.pattern}&?", "", bare)
    return bare if without == bare else without.rstrip("?&")


def check_place(url: URL, *, create: bool) -> None:
    """Refuses an SQLite path whose folder is missing, or whose file is missing and may not be created, or not read."""
    if url.get_backend_name() != "sqlite":
        return
    path = Path(str(url.database))
    if create and path == DEFAULT_PATH:
        _make_folder(path.parent)
    if kind := kind_of(path):
        example = path / "evidence.db" if is_folder(path) else path.with_name("evidence.db")
        raise store_error(str(path), f"it is {kind}", f"Give a file, for example {example}.")
    if not create and not exists(path):
        raise store_error(str(path), "no such file", "Evidence comes from `qualify run`; or give --db.")
    if not is_folder(path.parent):
        advice = f"The path is probably mistyped; otherwise: mkdir -p {path.parent}"
        raise store_error(str(path), f"the folder {path.parent} does not exist", advice)
    for file in (path, companion(path, "-wal")):
        if exists(file) and not os.access(file, os.R_OK, effective_ids=True):
            advice = "Ask its owner to let you (ls -l shows who that is), or give another place with --db."
            raise store_error(str(path), f"you may not read {file}", advice)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        advice = "You may probably not write here: change the folder, or give another place with --db."
        raise StoreError(f"evidence store {folder}: the folder cannot be created ({error}). {advice}") from error


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


def _prepare_sqlite(engine: Engine, database: Database, *, migrating: bool) -> None:
    busy_timeout_s = database.busy_timeout_s

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
            _begin_immediate(connection, database)
        finally:
            driver.execute(_busy_timeout(busy_timeout_s))

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)


def _prepare_server(engine: Engine) -> None:
    """Have every value come back as it was stored, whatever the server, the database or the user is set to."""

    def connected(connection: Any, _: object) -> None:
        with closing(connection.cursor()) as cursor:
            cursor.execute(_EXACT)
        connection.commit()

    event.listen(engine, "connect", connected, insert=True)  # before SQLAlchemy reads the server's version as text


def _busy_timeout(seconds: float) -> str:
    return f"PRAGMA busy_timeout = {round(seconds * 1000)}"


def _begin_immediate(connection: Connection, database: Database) -> None:
    """Wait for the turn to write, in steps: while SQLite waits, Python answers no signal."""
    since = time.monotonic()
    while True:
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        except OperationalError as error:
            if not _is_busy(error.orig) or time.monotonic() - since >= database.busy_timeout_s:
                raise
            time.sleep(BUSY_S)
        else:
            return


def _is_busy(error: BaseException | None) -> bool:
    return isinstance(error, sqlite3.Error) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def _follow_file(engine: Engine, path: Path) -> None:
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
