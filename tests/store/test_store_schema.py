"""The schema: migrations and tables agree, and a database that is not ours is left alone."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import store_examples as examples
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, insert, inspect, text

from qualify.errors import StoreError
from qualify.store import Store, schema
from qualify.store.address import parse
from qualify.store.database import Database
from qualify.store.schema import VERSION_TABLE, config, head
from qualify.store.tables import metadata, samples

VERSIONS = Path(schema.__file__).parent / "migrations" / "versions"
HEAD = head()


def test_scripts_are_named_after_their_revisions() -> None:
    """The newest revision is known without Alembic, by the names of the scripts; Alembic finds the same, and one."""
    scripts = ScriptDirectory.from_config(config())
    assert [HEAD] == scripts.get_heads()
    named = {script.revision: Path(script.path).name.partition("_")[0] for script in scripts.walk_revisions()}
    assert {revision: f"r{revision}" for revision in named} == named


def test_migrations_and_tables_agree(address: str) -> None:
    """What the migrations make is what the tables say: Alembic finds nothing to do."""
    Store.open(address).close()
    engine = create_engine(parse(address))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        assert [] == compare_metadata(context, metadata)
    engine.dispose()


def test_migrations_and_tables_agree_on_checks(tmp_path: Path) -> None:
    """Alembic does not compare CHECK constraints, so they are compared here by name and text."""
    migrated, made = tmp_path / "migrated.db", tmp_path / "made.db"
    Store.open(str(migrated)).close()
    engine = create_engine(f"sqlite:///{made}")
    metadata.create_all(engine)
    engine.dispose()
    assert _checks(made) == _checks(migrated)


def _checks(path: Path) -> list[tuple[str, str | None, str]]:
    engine = create_engine(f"sqlite:///{path}")
    inspector = inspect(engine)
    found = [
        (table, check["name"], str(check["sqltext"]))
        for table in inspector.get_table_names()
        for check in inspector.get_check_constraints(table)
    ]
    engine.dispose()
    return sorted(found, key=str)


def test_a_new_file_is_what_the_migrations_make(tmp_path: Path) -> None:
    """The same tables, defaults, constraints, indexes, triggers and rows, letter by letter."""
    new, migrated = tmp_path / "new.db", tmp_path / "migrated.db"
    Store.open(str(new)).close()
    database = Database(parse(str(migrated)), busy_timeout_s=1)
    with database.migrating() as connection:
        schema.upgrade(connection)
    database.close()
    assert _content(migrated) == _content(new)


def _content(path: Path) -> dict[str, list[str] | list[tuple[Any, ...]]]:
    """The lines of every statement, in any order, and the rows of every table."""
    with closing(sqlite3.connect(path)) as connection:
        made = connection.execute("SELECT name, type, sql FROM sqlite_master").fetchall()
        lines = {f"{kind} {name}": _lines(sql or "") for name, kind, sql in made}
        tables = [name for name, kind, _ in made if kind == "table"]
        return lines | {name: _rows(connection, name) for name in tables}


def _rows(connection: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    """The names of the columns in their order, and the rows."""
    found = connection.execute(f'SELECT * FROM "{table}"')
    return [tuple(column[0] for column in found.description), *found]


def _lines(sql: str) -> list[str]:
    return sorted(filter(None, (line.strip(" \t,") for line in sql.splitlines())))


def test_a_new_file_needs_no_migration(tmp_path: Path) -> None:
    """It begins with the schema of today: Alembic is not even imported."""
    script = (
        "import sys; from qualify.store import Store; Store.open(sys.argv[1]).close(); print('alembic' in sys.modules)"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "evidence.db")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "False" == done.stdout.strip()


def test_opening_again_keeps_everything(address: str) -> None:
    """A store is opened any number of times."""
    with Store.open(address) as store:
        store.begin(examples.run())
    with Store.open(address, create=False) as store:
        assert examples.run() == store.run(examples.run().id)


NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "{head}"


def upgrade() -> None:
    with op.batch_alter_table("runs", recreate="auto") as runs:
        runs.alter_column("kernel", new_column_name="kernel_glob")
"""


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The program with one more migration, which rebuilds a table that others refer to; undo() brings today's back."""
    (tmp_path / "r9999_next.py").write_text(NEXT.format(head=HEAD))

    def longer() -> Config:
        made = config()
        made.set_main_option("version_locations", f"{VERSIONS}{os.pathsep}{tmp_path}")
        return made

    monkeypatch.setattr(schema, "config", longer)
    monkeypatch.setattr(schema, "head", lambda: "next")
    return monkeypatch


def test_an_older_database_is_migrated(address: str, next_release: pytest.MonkeyPatch) -> None:
    """A newer program brings a store forward with its evidence; then the older program refuses it by both revisions."""
    with next_release.context() as today:
        today.setattr(schema, "config", config)
        today.setattr(schema, "head", head)
        with Store.open(address) as store:
            store.begin(examples.run(kernel="flash*"))
            store.add_cases(examples.run().id, examples.cases(3))
    with Store.open(address, create=False) as store:
        assert 3 == len(store.records(examples.run().id))
    engine = create_engine(parse(address))
    with engine.connect() as connection:
        assert "flash*" == connection.execute(text("SELECT kernel_glob FROM runs")).scalar_one()
    engine.dispose()
    next_release.undo()
    with pytest.raises(StoreError, match=rf"revision next, which this program \({HEAD}\)"):
        Store.open(address)


def test_a_service_of_an_older_program_names_what_to_install(empty_store: str) -> None:
    """Another program upgraded the store under it: its own `db upgrade` would only refuse."""
    engine = create_engine(parse(empty_store))
    with Store.open(empty_store) as store, engine.connect() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = 'next'"))
        connection.commit()
        with pytest.raises(StoreError, match=r"revision next, which this .* does not know. A newer qualify wrote it"):
            store.check()
    engine.dispose()


def test_evidence_of_the_first_schema_is_kept(tmp_path: Path) -> None:
    """A case stored before fp8 existed has no descale factors after the migration, and belongs to its run still."""
    path = tmp_path / "evidence.db"
    database = Database(parse(str(path)), busy_timeout_s=1)
    with database.migrating() as connection:
        schema.upgrade(connection, "0001")
    database.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        _insert(connection, "runs", id="one")
        _insert(connection, "cases", run_id="one", dtype="bf16", workload_dtype="bf16", phase="decode")
    Store.open(str(path), create=False).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        assert [("one", "")] == connection.execute("SELECT run_id, descale FROM cases").fetchall()
        assert [] == connection.execute("PRAGMA foreign_key_check").fetchall()


def _insert(connection: sqlite3.Connection, table: str, **values: str) -> None:
    """One row: the given texts, and something that fits into every other column that must not be empty."""
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    usual = {"level": "smoke", "device": "cpu", "state": "completed"}
    row = {name: usual.get(name, 0) for _, name, _, needed, _, key in columns if needed and not key} | values
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    """No table is added to, and no setting changed in, an SQLite file of somebody else."""
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE runs (id TEXT)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store.open(str(path))
    assert before == path.read_bytes()


def test_sqlite_is_set_up_to_survive(tmp_path: Path) -> None:
    """The file is in WAL mode, which the database remembers."""
    path = tmp_path / "evidence.db"
    Store.open(str(path)).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        assert ("wal",) == connection.execute("PRAGMA journal_mode").fetchone()


def test_foreign_keys_are_enforced(tmp_path: Path) -> None:
    """No statement can leave a row that belongs to nothing."""
    path = str(tmp_path / "evidence.db")
    Store.open(path).close()
    database = Database(parse(path), busy_timeout_s=1)
    orphan = {"outcome_id": 1, "position": 0, "latency_us": 1.0}
    with pytest.raises(StoreError, match="FOREIGN KEY"), database.writing() as connection:
        connection.execute(insert(samples), orphan)
    database.close()


def test_opening_needs_no_torch(tmp_path: Path) -> None:
    """The gate and the report read evidence on machines without torch."""
    script = (
        "import sys; from qualify.store import Store; Store.open(sys.argv[1]).close(); print('torch' in sys.modules)"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "evidence.db")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "False" == done.stdout.strip()
