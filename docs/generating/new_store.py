"""The SQL statements that make a new SQLite store."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import text

from generating.places import ROOT
from qualify.store.address import parse
from qualify.store.database import Database
from qualify.store.schema import VERSION_TABLE, head, upgrade

PLACE = ROOT / "qualify" / "store" / "new.sql"
MADE = text("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type != 'table', type, name")
CONSTRAINT = "\tCONSTRAINT"


def new_store() -> str:
    """Statements of the schema that all migrations together make from an empty file, with empty lines in between."""
    with TemporaryDirectory() as folder:
        database = Database(parse(str(Path(folder) / "evidence.db")), busy_timeout_s=1)
        try:
            with database.migrating() as connection:
                upgrade(connection)
                made = connection.execute(MADE).scalars().all()
        finally:
            database.close()
    stamp = f"INSERT INTO {VERSION_TABLE} VALUES ('{head()}')"  # noqa: S608 - words of this program
    return ";\n\n".join([*map(_ordered, made), stamp]) + "\n"


def _ordered(statement: str) -> str:
    """The statement with a table's constraints sorted by name, because Alembic writes them in no fixed order."""
    lines = [line.rstrip(", ") for line in statement.splitlines() if line.strip()]
    constraints = sorted(line for line in lines if line.startswith(CONSTRAINT))
    if not constraints:
        return statement
    first = lines.index(next(line for line in lines if line.startswith(CONSTRAINT)))
    columns, last = lines[1:first], lines[first + len(constraints) :]
    return "\n".join([lines[0], ",\n".join([*columns, *constraints]), *last])
