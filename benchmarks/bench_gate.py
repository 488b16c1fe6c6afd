"""The gate on a full store of 1,001,000 outcomes; it judges one run of 1,000 or of 50,000 cases.

It is measured on SQLite and, as a superuser, on PostgreSQL; ``--sqlite`` or ``--postgresql`` measures only one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import addresses, command_line, evidence, machine, peak_of, show, small, timed
from sqlalchemy import Connection, Table, create_engine, func, insert, literal, select, text

from qualify.facts.run import Record, Run
from qualify.store import tables
from qualify.store.store import Store

CASES = 50_000
FEWER = 1_000
RUNS = 20
GROUP = 500
PARTS = (tables.findings, tables.statistics, tables.launches, tables.samples)


def main() -> None:
    """Store a run of measured records, copy it until the store is full, and ask the gate about it."""
    asked = command_line(__doc__, evidence=True, databases=True).parse_args()
    cases, fewer, runs = (100, 20, 3) if small() else (CASES, FEWER, RUNS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, records = evidence(cases, folder, asked.evidence)
        machine()
        with addresses(folder, asked.database) as databases:
            for database, address in databases.items():
                _fill(address, run, records, fewer, runs)
                for label, count in (("part", fewer), ("full", cases)):
                    _measure(f"{database}: gate of {count:,} cases", label, address, folder)


def _fill(address: str, run: Run, records: list[Record], fewer: int, runs: int) -> None:
    with Store.open(address) as store:
        for label, some in (("full", records), ("part", records[:fewer])):
            store.begin(replace(run, id=label))
            store.add_cases(label, [record.case for record in some])
            for first in range(0, len(some), GROUP):
                store.add(label, some[first : first + GROUP])
    for number in range(1, runs):
        with connected(address) as connection:
            if connection.dialect.name == "postgresql":  # skip checks of keys, because copied rows passed them before
                connection.execute(text("SET LOCAL session_replication_role = replica"))
            copy_run(connection, "full", f"copy-{number:06}")
    with connected(address) as connection:
        connection.execute(text("ANALYZE"))  # a server does this by itself after some time
        stored = connection.execute(select(func.count()).select_from(tables.outcomes)).scalar_one()
    show("outcomes in the store", stored, "")


def _measure(what: str, label: str, address: str, folder: Path) -> None:
    asked = ("gate", "--run", label, "--db", address)
    wall, cpu = timed(*asked, folder=folder)
    show(what, wall, "s")
    show(f"{what}: CPU of the command", cpu, "s")
    show(f"{what}: peak memory", peak_of(*asked, folder=folder) / 1e6, "MB")


@contextmanager
def connected(address: str) -> Iterator[Connection]:
    """A transaction of the database."""
    engine = create_engine(address if "://" in address else f"sqlite:///{address}")
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def copy_run(connection: Connection, run_id: str, copy_id: str, **columns: Any) -> None:
    """Copy a run with all its rows to another id, by statements within the database.

    Args:
        columns: columns of the run that differ in the copy.
    """
    changed = {name: literal(value, tables.runs.c[name].type) for name, value in columns.items()}
    _copy_rows(connection, tables.runs, {"id": literal(copy_id), **changed}, tables.runs.c.id == run_id)
    keys = select(tables.cases.c.key).where(tables.cases.c.run_id == run_id)
    ids = select(tables.outcomes.c.id).where(tables.outcomes.c.case_key.in_(keys))
    first_key, last_key = _span(connection, tables.cases, "key")
    first_id, last_id = _span(connection, tables.outcomes, "id")
    key_shift, id_shift = last_key - first_key + 1, last_id - first_id + 1
    cases, outcomes = tables.cases.c, tables.outcomes.c
    changes: dict[str, object] = {"key": cases.key + key_shift, "run_id": literal(copy_id)}
    _copy_rows(connection, tables.cases, changes, cases.run_id == run_id)
    changes = {"id": outcomes.id + id_shift, "case_key": outcomes.case_key + key_shift}
    _copy_rows(connection, tables.outcomes, changes, outcomes.case_key.in_(keys))
    for table in PARTS:
        _copy_rows(connection, table, {"outcome_id": table.c.outcome_id + id_shift}, table.c.outcome_id.in_(ids))


def _copy_rows(connection: Connection, table: Table, changes: dict[str, Any], which: Any) -> None:
    columns: list[Any] = [changes.get(column.name, column) for column in table.columns]
    connection.execute(insert(table).from_select(list(table.columns), select(*columns).where(which)))


def _span(connection: Connection, table: Table, column: str) -> tuple[int, int]:
    """The smallest and the largest key of a table."""
    return connection.execute(select(func.min(table.c[column]), func.max(table.c[column]))).one()


if __name__ == "__main__":
    main()
