"""Whether a run could store anything at an address: asked beforehand, and nothing is stored or made."""

from __future__ import annotations

from contextlib import closing

from sqlalchemy import Connection, Table, insert, inspect, select

from qualify.store.address import check_writable, parse
from qualify.store.database import Database
from qualify.store.tables.evidence import cases, findings, launches, outcomes, runs, samples, stacks

WRITTEN: tuple[Table, ...] = (stacks, runs, cases, outcomes, findings, launches, samples)
"""tables that each run adds to"""
PATIENCE_S = 5.0


def check_takes_evidence(address: str) -> None:
    """Raises StoreError where a run could store nothing there.

    Of an SQLite file its permissions are asked, and of a server whether it takes writes, from this user.
    """
    check_writable(address)
    url = parse(address)
    if url.get_backend_name() == "sqlite":
        return
    with closing(Database(url, busy_timeout_s=PATIENCE_S)) as database, database.writing() as connection:
        undone = connection.begin_nested()
        _write_nothing(connection)
        undone.rollback()


def _write_nothing(connection: Connection) -> None:
    """Add no row to each table; where there is no store yet, make a table. The server refuses it as it does a run."""
    there = set(inspect(connection).get_table_names())
    for table in WRITTEN:
        if table.name in there:
            connection.execute(insert(table).from_select(list(table.c), select(table).where(table.c[0] != table.c[0])))
    if not there:
        connection.exec_driver_sql("CREATE TABLE qualify_doctor (nothing integer)")
