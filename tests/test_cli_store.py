"""The command line on SQLite and on PostgreSQL: the same commands, and no password anywhere."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_process import Ended, call, environment, write_card, write_cards, write_matrix
from sqlalchemy import MetaData, create_engine, make_url, select

from qualify.store.store import Store

PASSWORD = "hunter2-is-secret"
TELLS = """
import os

def attend(call):
    raise RuntimeError(f"{os.environ.get('QUALIFY_DB')} {os.environ.get('PGPASSWORD')}")
"""
CASE = "toy.tp1/prefill/b1.q8.k8/fp32/causal"


@dataclass
class Place:
    """A database and a folder in which one run was made."""

    db: str
    folder: Path
    ran: Ended

    @property
    def shown(self) -> list[str]:
        """Everything that a person or a page was shown."""
        pages = [path.read_text() for path in (self.folder / "out").rglob("*.*")]
        return [self.ran.out, self.ran.err, *pages]


@pytest.fixture
def place(address: str, tmp_path: Path) -> Place:
    """A run of a good kernel and of one that prints its environment; QUALIFY_DB names the database."""
    folder = tmp_path / "work"
    folder.mkdir()
    cards = write_cards(folder / "cards", "correct")
    (cards / "tells.py").write_text(TELLS)
    write_card(cards, "tells", "tells")
    write_matrix(folder / "m.yaml", "correct", "tells")
    db = make_url(address).set(password=PASSWORD).render_as_string(hide_password=False) if "://" in address else address
    env = environment(QUALIFY_DB=db, PGPASSWORD=PASSWORD)
    return Place(db=db, folder=folder, ran=call("run", "m.yaml", "--cards", "cards", cwd=folder, env=env))


def test_every_command_reads_what_run_wrote(place: Place) -> None:
    """The same answers by --db as by QUALIFY_DB; nothing shown or stored holds the password."""
    at = ("--db", place.db, "--cards", "cards")
    gate = call("gate", *at, "--json", cwd=place.folder)
    assert (1, 1) == (place.ran.code, gate.code), place.ran.err
    assert {f"{CASE}/correct": "PASS", f"{CASE}/tells": "FAIL"} == {c["id"]: c["verdict"] for c in gate.data["cases"]}
    report = call("report", gate.data["run"][:-3], *at, cwd=place.folder)
    assert (0, f"out/{gate.data['run']}/report.html\n") == (report.code, report.out)
    repro = call("repro", f"{CASE}/tells", *at, cwd=place.folder)
    assert 0 == repro.code
    upgrade = call("db", "upgrade", "--db", place.db, cwd=place.folder)
    assert (0, "") == (upgrade.code, upgrade.err)
    assert "up to date" in upgrade.out
    shown = [*place.shown, *(text for ended in (gate, report, repro, upgrade) for text in (ended.out, ended.err))]
    assert [] == [text for text in [*shown, *_stored(place.db)] if PASSWORD in text]


def _stored(db: str) -> list[str]:
    """Every row of every table, as text."""
    engine = create_engine(db if "://" in db else f"sqlite:///{db}")
    metadata = MetaData()
    with engine.connect() as connection:
        metadata.reflect(connection)
        rows = [str(row) for table in metadata.sorted_tables for row in connection.execute(select(table))]
    engine.dispose()
    assert rows
    return rows


def test_the_command_that_goes_on_hides_the_password(new_postgres: str, tmp_path: Path) -> None:
    """A run whose database goes away ends with exit 4, and says how to go on without telling the password."""
    url = make_url(new_postgres).set(password=PASSWORD).render_as_string(hide_password=False)
    Store.open(new_postgres).close()
    matrix = write_matrix(tmp_path / "m.yaml")
    _lose(new_postgres, "outcomes")
    ended = call("run", matrix, f"--db={url}", cwd=tmp_path)
    assert (4, "") == (ended.code, ended.out)
    assert "Go on with: qualify run" in ended.err
    assert "--db=postgresql" in ended.err.rpartition("Go on with: ")[2]
    assert "postgres@" in ended.err.rpartition("Go on with: ")[2]
    assert PASSWORD not in ended.err


def _lose(address: str, table: str) -> None:
    engine = create_engine(address)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {table} CASCADE")
    engine.dispose()


def test_without_the_driver_the_message_says_what_to_install(tmp_path: Path) -> None:
    """PostgreSQL without psycopg: one line, exit 4, the pip command, and no password."""
    hidden = (
        "import sys; sys.modules['psycopg'] = None; from qualify.cli import main; "
        f"sys.argv = ['qualify', 'gate', '--db', 'postgresql://ann:{PASSWORD}@127.0.0.1/evidence']; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", hidden], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert (4, "") == (ended.returncode, ended.stdout)
    assert "pip install 'attn-qualify[service]'" in ended.stderr
    assert "postgresql://ann:***@127.0.0.1/evidence" in ended.stderr
    assert 1 == len(ended.stderr.splitlines())
    assert PASSWORD not in ended.stderr


def test_sqlite_is_the_default_and_needs_no_driver(tmp_path: Path) -> None:
    """Without --db and QUALIFY_DB the store is a file in the working folder."""
    assert 0 == call("db", "upgrade", cwd=tmp_path).code
    with closing(sqlite3.connect(tmp_path / ".qualify" / "evidence.db")) as connection:
        assert (0,) == connection.execute("SELECT count(*) FROM runs").fetchone()


@pytest.mark.parametrize(
    "words",
    [
        ("ingest", "damaged"),
        ("ingest", "missing"),
        ("db", "import", "damaged"),
        ("db", "import", "missing"),
        ("baseline", "import", "damaged"),
        ("canary", "fire", "nightly", "--on", "nobody"),
        ("fleet", "smoke", "--device", "cpu:1", "--address", "127.0.0.1:1"),
    ],
    ids=" ".join,
)
def test_a_command_that_fails_makes_no_store(words: tuple[str, ...], tmp_path: Path) -> None:
    """Where none was, an empty store would look as if something had run here: a gate says that there is none."""
    (tmp_path / "damaged").write_text("no evidence")
    ended = call(*words, "--db", "e.db", cwd=tmp_path)
    assert ended.code in {2, 4}, ended.err
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("e.db")]
    gate = call("gate", "--db", "e.db", cwd=tmp_path)
    assert (4, True) == (gate.code, "e.db: no such file" in gate.err)


def test_many_files_that_are_refused_make_no_store(tmp_path: Path) -> None:
    """The processes among which `ingest` shares many files make none either."""
    for number in range(40):
        (tmp_path / f"{number}.jsonl.gz").write_text("no evidence")
    ended = call("ingest", *[f"{number}.jsonl.gz" for number in range(40)], "--db", "e.db", cwd=tmp_path)
    assert (2, 40) == (ended.code, ended.err.count("Nothing was imported"))
    assert not (tmp_path / "e.db").exists()
