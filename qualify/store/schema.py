"""Brings a database to the schema of this program: a new SQLite file at once, any other by its migrations.

``new.sql`` holds what the migrations make of an empty SQLite file; ``docs/generate.py`` writes it. Running the
migrations instead takes ten times as long. Alembic is imported only to migrate: the import takes a tenth of a gate's
time.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Text, column, inspect, select, table, text
from sqlalchemy.exc import DBAPIError

from qualify.errors import StoreError
from qualify.facts.typed import Typed
from qualify.store.database import Database
from qualify.store.failures import UTF8_ADVICE, lacks_right, store_error

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE = "qualify_version"
# One number for all programs, so that two of them never migrate one PostgreSQL database at the same time.
_LOCK = 7_217_401
ENCODINGS = ("UTF8", "SQL_ASCII")
"""of databases that hold every text; the second one stores bytes as they come"""


def head() -> str:
    """The newest revision."""
    return max(_revisions())


def _revisions() -> list[str]:
    """Every revision that this program knows: the scripts are called ``rREVISION_what.py``."""
    scripts = files("qualify.store.migrations.versions").iterdir()
    return [script.name.partition("_")[0][1:] for script in scripts if script.name.startswith("r")]


def config() -> Config:
    """Alembic's configuration; the scripts are found through the package, in a checkout and in a wheel."""
    from alembic.config import Config

    made = Config()
    made.set_main_option("script_location", "qualify.store:migrations")
    made.set_main_option("path_separator", "os")
    return made


def prepare(database: Database, *, create: bool, migrate: bool) -> None:
    """Creates the schema in a new database, migrates an older one, refuses a newer or foreign one."""
    with database.reading() as connection:
        found = revision_of(connection)
        if found == head():
            return
        _check(database, connection, create=create)
    if (found is not None and not migrate) or database.guest:  # an empty one has nothing to migrate
        raise _outdated(database, found)
    with database.migrating() as connection:
        if not database.sqlite:
            _wait_for_migrations(connection)
        # Another process may have migrated it between the two transactions.
        if _check(database, connection, create=create) is None and database.sqlite:
            begin_new(connection)
        if revision_of(connection) != head():
            _bring_forward(database, connection, found)


def _bring_forward(database: Database, connection: Connection, found: str | None) -> None:
    """Migrates. Raises StoreError that names the older schema where this user may not, as one that only reads."""
    try:
        upgrade(connection)
    except DBAPIError as error:
        if found is None or not lacks_right(error):
            raise
        happened = f"{_behind(found)}, and this user lacks the right to bring it there"
        advice = "Have the user who made the store do it, with the same program: qualify db upgrade"
        raise store_error(database.where, happened, advice, " ".join(str(error.orig).split())) from error


def _wait_for_migrations(connection: Connection) -> None:
    """Locks out other migrations until the transaction ends. One of a large store may take longer than other locks."""
    limit = connection.execute(text("SELECT current_setting('lock_timeout')")).scalar_one()
    setting = text("SELECT set_config('lock_timeout', :limit, true)")
    connection.execute(setting, {"limit": "0"})
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
    connection.execute(setting, {"limit": limit})


def begin_new(connection: Connection) -> None:
    """Makes the schema in an empty SQLite file, inside the connection's transaction.

    It is the schema of the newest revision, unless a developer has just written a revision that ``new.sql`` lacks.
    """
    for statement in files("qualify.store").joinpath("new.sql").read_text("utf-8").split(";\n\n"):
        connection.exec_driver_sql(statement)


def check_current(database: Database) -> str:
    """The revision that the database is at. Raises StoreError where it is not this program's."""
    if wrong := wrong_schema(database):
        raise wrong
    return head()


def wrong_schema(database: Database) -> StoreError | None:
    """Why the database's schema is not this program's; None where it is."""
    with database.reading() as connection:
        found = revision_of(connection)
    if found is not None and found not in _revisions():
        return _newer(database, found)
    return None if found == head() else _outdated(database, found)


def _outdated(database: Database, found: str | None) -> StoreError:
    command = Typed(db=database.address).command("db", "upgrade")
    return store_error(database.where, _behind(found), f"Bring it there with the same program: {command}")


def _behind(found: str | None) -> str:
    return f"its schema is at revision {found or 'none'}, and this program needs {head()}"


def _newer(database: Database, found: str) -> StoreError:
    happened = f"it is at schema revision {found or 'none'}, which this program ({head()}) does not know"
    return store_error(database.where, happened, "A newer qualify wrote it: install that version here, or a newer one.")


def revision_of(connection: Connection) -> str | None:
    """The revision that the database is at; None where it has never been migrated."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    known = table(VERSION_TABLE, column("version_num", Text))
    return connection.execute(select(known.c.version_num)).scalar_one_or_none()


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Runs the migrations up to ``revision`` inside the connection's transaction."""
    from alembic import command

    settings = config()
    settings.attributes["connection"] = connection
    command.upgrade(settings, revision)


def _check(database: Database, connection: Connection, *, create: bool) -> str | None:
    """The revision of the database; None where it is empty and may become a store. Raises StoreError for others."""
    found = revision_of(connection)
    if found is None:
        _check_empty(database, connection, create=create)
    elif found not in _revisions():  # compared as a whole: Alembic would accept the beginning of one, or nothing
        raise _newer(database, found)
    return found


def _check_empty(database: Database, connection: Connection, *, create: bool) -> None:
    tables = inspect(connection).get_table_names()
    if tables:
        happened = f"it belongs to another program (tables {', '.join(sorted(tables)[:5])})"
        raise store_error(database.where, happened, "Give qualify a database of its own with --db.")
    if not create:
        raise store_error(database.where, "it is empty", "Evidence comes from `qualify run`; or give --db.")
    if not database.sqlite:
        encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
        if encoding not in ENCODINGS:
            raise store_error(database.where, f"its encoding is {encoding}, which lacks letters", UTF8_ADVICE)
