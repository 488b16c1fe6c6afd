"""Stores as older programs left them: ``dumps/REVISION.json``, every table with its rows as SQLite holds them.

Before a migration is added, the program of that day writes the dump of the schema that the migration starts from::

    PYTHONPATH=.:tests python tests/store/dumps.py
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import canary_examples
import store_examples as examples
from sealing import seal_run
from securesystemslib.signer import CryptoSigner
from sqlalchemy import Connection

from qualify.facts.baseline import Baseline
from qualify.facts.case import Case
from qualify.facts.people import AuditEntry, Comment, HoldAction, Revocation, SignOff
from qualify.facts.run import Record
from qualify.seal.duel_form import seal_duel
from qualify.seal.keys import with_public
from qualify.store import Store

FOLDER = Path(__file__).with_name("dumps")
MAKERS: dict[str, Callable[[Any], Any]] = {
    "boolean": bool,
    "double precision": float,
    "timestamp with time zone": lambda text: datetime.fromisoformat(text).replace(tzinfo=UTC),
}
"""what makes the value of a type of PostgreSQL from what SQLite holds"""
# SQLAlchemy's reflection asks for much more of each table, and takes half of the time of these tests.
_COLUMNS = """\
SELECT table_name, column_name, data_type, column_default FROM information_schema.columns WHERE table_schema = 'public'
"""
_REFERENCES = """\
SELECT conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint
WHERE contype = 'f' AND conrelid <> confrelid
"""


def fill(store: Store) -> None:
    """Something in every table."""
    fill_runs(store)
    store.add_selftest(examples.selftest())
    duel = examples.duel()
    store.add_duel(duel, seal_duel(duel, with_public(CryptoSigner.generate_ed25519(), "a new key")))
    store.accept(Baseline(**canary_examples.BASELINE, run_id=examples.run(1).id))
    canary_examples.fill(store)
    fill_people(store)
    fill_deletions(store)


def fill_deletions(store: Store) -> None:
    """A run that is no longer there."""
    store.begin(examples.run(9))
    store.retention.remove_run(
        examples.run(9).id, by="jane", how="qualify db prune --keep-days 9", reason=examples.HOSTILE
    )


def fill_people(store: Store) -> None:
    """Two sign-offs, one of them revoked, two comments, and what was done about a hold."""
    entry = AuditEntry(who="jane", how="command", address="", action="sign", subject="run", allowed=True)
    facts: dict[str, Any] = {"sealed": True, "verdict": "PASS", "by": "jane", "at": canary_examples.THREE}
    for role in ("release", "kernel"):
        signed = SignOff(id=0, run_id=examples.run(1).id, sha256="ab" * 32, role=role, reason=examples.HOSTILE, **facts)
        stored = store.people.sign(signed, entry)
    ended = Revocation(by="joe", reason="wrong run", at=canary_examples.THREE)
    store.people.revoke(stored.id, ended, replace(entry, action="revoke"))
    said: dict[str, Any] = {"id": 0, "by": "jane", "text": examples.HOSTILE, "at": canary_examples.THREE}
    store.people.comment(Comment(run_id=examples.run(2).id, case_id="", **said), replace(entry, action="comment"))
    store.people.comment(Comment(run_id=None, case_id=examples.case(0).id, **said), replace(entry, action="comment"))
    for hold in store.canaries.holds():
        action = HoldAction(
            id=0, hold_id=hold.id, kind="acknowledge", by="jane", reason="seen", at=canary_examples.THREE
        )
        store.people.act(action, replace(entry, action="acknowledge"))


def fill_runs(store: Store) -> None:
    """A completed run with every kind of outcome, and an interrupted run on another stack."""
    plan = fill_run(store)
    other = examples.run(2, select=examples.HOSTILE)
    store.begin(other)
    store.set_stack(other.id, examples.stack("GPU-2", driver="590.1"), None)
    store.add_cases(other.id, plan[:2])
    store.finish(other.id, "interrupted", examples.STARTED)


def fill_run(store: Store) -> list[Case]:
    """A completed run with every kind of outcome, one of them repeated; returns its plan."""
    run, outcomes = examples.run(1), examples.outcomes()
    plan = examples.cases(len(outcomes) + 1)
    store.begin(run)
    store.set_stack(run.id, examples.stack(), examples.ceilings())
    store.set_environments(run.id, {"next": examples.stack(driver="581.1"), "old": examples.stack()})
    store.add_cases(run.id, plan)
    store.add(run.id, [Record(case=case, outcome=outcome) for case, outcome in zip(plan, outcomes, strict=False)])
    store.add(run.id, [examples.simple(plan[0])])
    store.finish(run.id, "completed", examples.STARTED)
    seal_run(store, run.id)
    return plan


def rows_of(path: Path) -> dict[str, Any]:
    """The revision of an SQLite store and the rows of every table."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        tables = sorted(name for (name,) in connection.execute(query))
        rows = {name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")] for name in tables}
    (version,) = rows.pop("qualify_version")
    return {"revision": version["version_num"], "tables": rows}


def load(connection: Connection, tables: dict[str, list[dict[str, Any]]]) -> None:
    """Puts the rows into the tables that the database has at that revision."""
    filled = {name: rows for name, rows in tables.items() if rows}
    if connection.dialect.name == "sqlite":
        for name, rows in filled.items():
            _insert(connection, name, rows, "?")
        return
    kinds: dict[str, dict[str, str]] = {}
    counters: dict[str, str] = {}
    for table, column, kind, default in connection.exec_driver_sql(_COLUMNS):
        kinds.setdefault(table, {})[column] = kind
        if str(default).startswith("nextval("):
            counters[table] = column
    before = TopologicalSorter({name: set[str]() for name in filled})
    for name, other in connection.exec_driver_sql(_REFERENCES):
        before.add(name, other)
    for name in before.static_order():
        if name in filled:
            _insert(connection, name, [_for_postgres(kinds[name], row) for row in filled[name]], "%s")
            if name in counters:
                _count_on(connection, name, counters[name])


def _insert(connection: Connection, table: str, rows: list[dict[str, Any]], place: str) -> None:
    columns, places = ", ".join(f'"{column}"' for column in rows[0]), ", ".join([place] * len(rows[0]))
    values = [tuple(row.values()) for row in rows]
    connection.exec_driver_sql(f"INSERT INTO {table} ({columns}) VALUES ({places})", values)


def _for_postgres(kinds: dict[str, str], row: dict[str, Any]) -> dict[str, Any]:
    """A row as SQLite holds it, in the types that PostgreSQL has and SQLite has not."""
    return {
        name: value if value is None else MAKERS.get(kinds[name], lambda same: same)(value)
        for name, value in row.items()
    }


def _count_on(connection: Connection, table: str, column: str) -> None:
    """Rows with given keys do not advance PostgreSQL's counter, as those of a program did."""
    newest = f'SELECT max("{column}") FROM {table}'
    connection.exec_driver_sql(f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), ({newest}))")


def main() -> None:
    """Writes the dump of this program's schema."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "evidence.db"
        with Store.open(str(path)) as store:
            fill(store)
        dump = rows_of(path)
    FOLDER.mkdir(exist_ok=True)
    lines = [
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]"
        for name, rows in dump["tables"].items()
    ]
    text = f'{{"revision": {json.dumps(dump["revision"])}, "tables": {{\n' + ",\n".join(lines) + "\n}}\n"
    (FOLDER / f"{dump['revision']}.json").write_text(text)


if __name__ == "__main__":
    main()
