"""Brings a database to the schema of this program, by its migrations."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, inspect, text

from qualify.store.database import Database
from qualify.store.failures import store_error

VERSION_TABLE = "qualify_version"
# One number for all programs, so that two of them never migrate one PostgreSQL database at the same time.
_LOCK = 7_217_401


def config() -> Config:
    """Alembic's configuration; the scripts are found through the package, in a checkout and in a wheel."""
    made = Config()
    made.set_main_option("script_location", "qualify.store:migrations")
    made.set_main_option("path_separator", "os")
    return made


def prepare(database: Database, *, create: bool) -> None:
    """Creates the schema in a new database, migrates an older one, refuses a newer or foreign one."""
    head = ScriptDirectory.from_config(config()).get_current_head()
    with database.reading() as connection:
        if revision_of(connection) == head:
            return
        _check(database, connection, create=create)
    with database.migrating() as connection:
        if not database.sqlite:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
        # Another process may have migrated it between the two transactions.
        _check(database, connection, create=create)
        upgrade(connection)


def revision_of(connection: Connection) -> str | None:
    """The revision that the database is at; None where it has never been migrated."""
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Runs the migrations up to ``revision`` inside the connection's transaction."""
    settings = config()
    settings.attributes["connection"] = connection
    command.upgrade(settings, revision)


def _check(database: Database, connection: Connection, *, create: bool) -> None:
    found = revision_of(connection)
    scripts = ScriptDirectory.from_config(config())
    if found is None:
        _check_empty(database, connection, create=create)
        return
    try:
        scripts.get_revision(found)
    except CommandError as error:
        happened = f"it is at schema revision {found}, which this program ({scripts.get_current_head()}) does not know"
        raise store_error(
            database.where, happened, "A newer qualify wrote it: upgrade with pip install -U attn-qualify."
        ) from error


def _check_empty(database: Database, connection: Connection, *, create: bool) -> None:
    tables = inspect(connection).get_table_names()
    if tables:
        happened = f"it belongs to another program (tables {', '.join(sorted(tables)[:5])})"
        raise store_error(database.where, happened, "Give qualify a database of its own with --db.")
    if not create:
        raise store_error(database.where, "it is empty", "Evidence comes from 'qualify run MATRIX'; or give --db.")
