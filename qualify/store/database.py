"""One database: its address, its connections, its transactions.

SQLite runs in WAL mode, so readers and a writer do not wait for each other. Every write transaction begins
with ``BEGIN IMMEDIATE``: it waits for its turn at the start, and cannot fail in the middle because another
process wrote after its first read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from qualify.errors import StoreError
from qualify.store.failures import explained, store_error

DEFAULT_PATH = Path(".qualify/evidence.db")
CONNECT_TIMEOUT_S = 10
PASSWORD_FILE = "QUALIFY_DB_PASSWORD_FILE"  # noqa: S105 - the name of a variable

_ADDRESSES = "Use a path, sqlite:///PATH or postgresql+psycopg://USER@HOST/NAME."

_CREDENTIALS = re.compile(r"(?<=://)([^/?#:@]*):.*@")
_SECRET_PARAMETERS = ("password", "sslpassword")
_SECRET_PARAMETER = re.compile(rf"(?<=[?&])({'|'.join(_SECRET_PARAMETERS)})=[^&]*")


class Database:
    """Connections to one place, and how it is named in messages."""

    def __init__(self, url: URL, *, busy_timeout_s: float) -> None:
        self.url = url
        self.where = shown(url)
        self._busy_timeout_s = busy_timeout_s
        self.engine = self._engine(migrating=False)

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
        with explained(self.where), self.engine.connect() as connection:
            if not self.sqlite:
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that commits at its end, or leaves nothing behind."""
        with explained(self.where), self.engine.connect() as connection:
            connection.execution_options(writing=True)
            with connection.begin():
                yield connection

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        """A write transaction in which tables may be rebuilt: SQLite then checks no foreign keys."""
        engine = self._engine(migrating=True)
        try:
            with explained(self.where), engine.connect() as connection:
                connection.execution_options(writing=True)
                with connection.begin():
                    yield connection
        finally:
            engine.dispose()

    def close(self) -> None:
        """Closes every connection."""
        self.engine.dispose()

    def _engine(self, *, migrating: bool) -> Engine:
        try:
            engine = create_engine(self.url, **_options(self.url))
        except ArgumentError as error:
            raise store_error(self.where, f"not a usable database URL ({error})", _ADDRESSES) from error
        except ImportError as error:
            advice = "The driver is probably not installed: pip install 'attn-qualify[service]' brings psycopg."
            raise store_error(self.where, f"no driver for {self.url.drivername} ({error})", advice) from error
        if self.sqlite:
            _prepare_sqlite(engine, busy_timeout_s=self._busy_timeout_s, migrating=migrating)
        return engine


def parse(address: str) -> URL:
    """The URL of an address: a SQLAlchemy URL, or a plain path of an SQLite file.

    A server's URL without a password gets the one of the file that QUALIFY_DB_PASSWORD_FILE names.
    """
    if "://" not in address:
        return URL.create("sqlite", database=address)
    try:
        url = make_url(address)
    except (ArgumentError, ValueError) as error:
        raise store_error(without_password(address), "not a database URL", _ADDRESSES) from error
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise store_error(address, "an in-memory database keeps no evidence", "Give a file: sqlite:///PATH.")
    file = os.environ.get(PASSWORD_FILE)
    if file and url.get_backend_name() != "sqlite" and url.password is None:
        return url.set(password=_password(Path(file), shown(url)))
    return url


def _password(path: Path, where: str) -> str:
    """The first line of the file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
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
    return url.difference_update_query(_SECRET_PARAMETERS).render_as_string(hide_password=True)


def without_password(text: str) -> str:
    """An argument of the command line as messages may repeat it, whether it is a well-formed URL or not."""
    return _SECRET_PARAMETER.sub(r"\1=***", _CREDENTIALS.sub(r"\1:***@", text))


def passwordless(text: str) -> str:
    """An address as a command can repeat it: without its password, which then comes from elsewhere."""
    bare = _CREDENTIALS.sub(r"\1@", text)
    without = re.sub(rf"{_SECRET_PARAMETER.pattern}&?", "", bare)
    return bare if without == bare else without.rstrip("?&")


def check_place(url: URL, *, create: bool) -> None:
    """Refuses an SQLite file that cannot be: no parent folder, or no file where none may be created."""
    if url.get_backend_name() != "sqlite":
        return
    path = Path(str(url.database))
    if create and path == DEFAULT_PATH:
        _make_folder(path.parent)
    if path.is_dir():
        raise store_error(str(path), "it is a folder", f"Give a file, for example {path / 'evidence.db'}.")
    if not create and not path.exists():
        raise store_error(str(path), "no such file", "Evidence comes from `qualify run`; or give --db.")
    if not path.parent.is_dir():
        advice = f"The path is probably mistyped; otherwise: mkdir -p {path.parent}"
        raise store_error(str(path), f"the folder {path.parent} does not exist", advice)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        advice = "You may probably not write here: change the folder, or give another place with --db."
        raise StoreError(f"evidence store {folder}: the folder cannot be created ({error}). {advice}") from error


def _options(url: URL) -> dict[str, Any]:
    """How the engine is created; a server that does not answer is given up after some seconds."""
    if url.get_backend_name() == "sqlite":
        return {}
    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.drivername in ("postgresql", "postgresql+psycopg", "postgresql+psycopg2"):
        options["connect_args"] = {"connect_timeout": CONNECT_TIMEOUT_S}
    return options


def _prepare_sqlite(engine: Engine, *, busy_timeout_s: float, migrating: bool) -> None:
    def connected(connection: Any, _: object) -> None:
        # Python's module shall not begin transactions by itself: it would begin them too late.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {round(busy_timeout_s * 1000)}")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA foreign_keys = {'OFF' if migrating else 'ON'}")
        if migrating:
            # The file remembers it. Never before the migration: the file might belong to another program.
            connection.execute("PRAGMA journal_mode = WAL")

    def begun(connection: Connection) -> None:
        writing = connection.get_execution_options().get("writing", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
