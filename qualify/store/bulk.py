"""New rows as each database takes them.

Many at once go fastest with COPY on PostgreSQL, and with one prepared statement on SQLite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Table, func, insert, select
from sqlalchemy.exc import DBAPIError

Row = Mapping[str, Any]
Values = Iterable[tuple[Any, ...]]
_COPIES = "psycopg"
"""the driver that has COPY; every other driver gets one INSERT for all rows"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Driver:
    """What decides how a row is written. Every engine has a dialect of its own, and those of one driver agree."""

    name: str
    driver: str
    dialect: Dialect = field(compare=False)


def insert_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Adds the rows, which have the same columns. It is faster than SQLAlchemy, which looks at each row alone."""
    if not rows:
        return
    names = tuple(column.name for column in table.columns if column.name in rows[0])
    driver = _Driver(name=connection.dialect.name, driver=connection.dialect.driver, dialect=connection.dialect)
    makers = _makers(table, names, driver)
    columns = [
        [make(row[name]) for row in rows] if make else [row[name] for row in rows]
        for name, make in zip(names, makers, strict=True)
    ]
    values = zip(*columns, strict=True)
    if connection.dialect.driver == _COPIES:
        _copy(connection, _copying(table, names, driver), values)
        return
    given: Any = list(values)
    if not connection.dialect.positional:
        given = [dict(zip(names, row, strict=True)) for row in given]
    connection.exec_driver_sql(_inserting(table, names, driver), given)


def inserting(connection: Connection) -> Callable[[Table], Any]:
    """The ``insert`` of the database's own dialect, which has ``on_conflict_do_nothing``."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert
    else:
        from sqlalchemy.dialects.sqlite import insert  # type: ignore[assignment]
    return insert


def new_ids(connection: Connection, table: Table, count: int) -> Sequence[int]:
    """Gives ``count`` ascending values for the table's key, larger than every value that the transaction can see.

    PostgreSQL takes them from its sequence. An SQLite transaction holds the only write lock, so this function counts on
    from the largest key, as SQLite itself does.
    """
    (key,) = table.primary_key.columns
    if connection.dialect.name == "sqlite":
        last: int = connection.execute(select(func.coalesce(func.max(key), 0))).scalar_one()
        return range(last + 1, last + 1 + count)
    sequence = func.pg_get_serial_sequence(table.name, key.name)
    wanted = select(func.nextval(sequence)).select_from(func.generate_series(1, count))
    return sorted(connection.execute(wanted).scalars())


def _copy(connection: Connection, statement: str, values: Values) -> None:
    """Sends the rows in one stream. An error of the driver is raised as SQLAlchemy raises it."""
    dialect, driver = connection.dialect, connection.connection.driver_connection
    assert driver is not None
    errors = dialect.loaded_dbapi.Error
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for row in values:
                copy.write_row(row)
    except errors as error:
        raise DBAPIError.instance(statement, None, error, errors, dialect=dialect) from error


@lru_cache(maxsize=64)
def _makers(table: Table, names: tuple[str, ...], driver: _Driver) -> list[Callable[[Any], Any] | None]:
    """For each column, the function that makes its value ready for the driver; None where none is needed."""
    dialect = driver.dialect
    return [table.c[name].type.dialect_impl(dialect).bind_processor(dialect) for name in names]


@lru_cache(maxsize=64)
def _inserting(table: Table, names: tuple[str, ...], driver: _Driver) -> str:
    """The driver's INSERT."""
    return str(insert(table).compile(dialect=driver.dialect, column_keys=list(names)))


@lru_cache(maxsize=64)
def _copying(table: Table, names: tuple[str, ...], driver: _Driver) -> str:
    """PostgreSQL's COPY."""
    quoted = driver.dialect.identifier_preparer.quote
    return f"COPY {quoted(table.name)} ({', '.join(map(quoted, names))}) FROM STDIN"
