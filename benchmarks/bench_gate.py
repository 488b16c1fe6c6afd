"""The gate on a full store: 1,000,000 outcomes in SQLite, of which it judges one run of 1,000 or of 5,000 cases."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import evidence, machine, show, small, timed
from sqlalchemy import Connection, Table, create_engine, func, insert, literal, select

from qualify.store import tables
from qualify.store.store import Store

CASES = 5_000
FEWER = 1_000
RUNS = 200
PARTS = (tables.findings, tables.statistics, tables.launches, tables.samples)


def main() -> None:
    """Store a run of measured records, copy it until the store is full, and ask the gate about it."""
    cases, fewer, runs = (100, 20, 3) if small() else (CASES, FEWER, RUNS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, records = evidence(cases, folder)
        with Store.open(str(folder / "bench.db")) as store:
            for label, some in (("full", records), ("part", records[:fewer])):
                store.begin(replace(run, id=label))
                store.add_cases(label, [record.case for record in some])
                store.add(label, some)
        with _connected(folder / "bench.db") as connection:
            for number in range(1, runs):
                _copy(connection, "full", f"copy-{number:06}")
            stored = connection.execute(select(func.count()).select_from(tables.outcomes)).scalar_one()
        figures = {
            count: timed("gate", "--run", label, "--db", "bench.db", folder=folder)
            for label, count in (("part", fewer), ("full", cases))
        }
        size = (folder / "bench.db").stat().st_size
    machine()
    show("outcomes in the store", stored, "")
    show("size of the store", size / 1e9, "GB")
    for count, (wall, cpu) in figures.items():
        show(f"qualify gate --run, {count:,} cases", wall, "s")
        show(f"qualify gate --run, {count:,} cases: CPU", cpu, "s")


@contextmanager
def _connected(path: Path) -> Iterator[Connection]:
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def _copy(connection: Connection, run_id: str, copy_id: str) -> None:
    """Add the run with all its rows under another id, as the database itself can do it."""
    _copy_rows(connection, tables.runs, {"id": literal(copy_id)}, tables.runs.c.id == run_id)
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
