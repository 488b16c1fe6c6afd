"""A store of every older schema is brought forward with everything that is in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import dumps
import pytest
import store_examples as examples
from alembic.script import ScriptDirectory
from cli_process import call
from sqlalchemy import Connection, DateTime, create_engine, make_url, select, text
from sqlalchemy.exc import DBAPIError

from qualify.errors import StoreError
from qualify.seal.parts import digest_of
from qualify.seal.sealed import own_digest
from qualify.store import Store
from qualify.store.address import parse
from qualify.store.database import Database
from qualify.store.schema import config, head, revision_of, upgrade
from qualify.store.tables import metadata

REVISIONS = [script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()]
OLDER = [revision for revision in REVISIONS if revision != head()]
SEALED = "0018"
"""the first revision whose dump holds all that its run's seal is over"""
SQLITE = create_engine("sqlite://").dialect


def _name(address: str) -> str:
    return str(make_url(address).database)


def _rows(revision: str) -> dict[str, list[dict[str, Any]]]:
    dump = json.loads((dumps.FOLDER / f"{revision}.json").read_text())
    assert revision == dump["revision"]
    return dump["tables"]


def _walk(address: str) -> Iterator[str]:
    """Every revision, once the empty database is at it."""
    for revision in reversed(REVISIONS):
        database = Database(parse(address), busy_timeout_s=1)
        with database.migrating() as connection:
            upgrade(connection, revision)
        database.close()
        yield revision


@pytest.fixture(scope="module")
def sqlite_schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an empty SQLite file of every revision, ``REVISION.db``, each migrated from the one before it."""
    folder = tmp_path_factory.mktemp("schemas")
    for revision in _walk(str(folder / "walked.db")):
        shutil.copy(folder / "walked.db", folder / f"{revision}.db")
    return folder


@pytest.fixture(scope="module")
def postgres_schemas(
    module_postgres: str, postgres_like: Callable[[str], AbstractContextManager[str]]
) -> Iterator[dict[str, str]]:
    """The names of PostgreSQL databases of the same kind, by revision."""
    with ExitStack() as stack:
        walked = _name(module_postgres)
        yield {revision: _name(stack.enter_context(postgres_like(walked))) for revision in _walk(module_postgres)}


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    """Both kinds of databases."""
    return request.param


@pytest.fixture
def old(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database as the program of that revision left it."""
    with ExitStack() as stack:
        if kind == "sqlite":
            schemas = request.getfixturevalue("sqlite_schemas")
            address = str(shutil.copy(schemas / f"{request.param}.db", tmp_path / "evidence.db"))
        else:
            template = request.getfixturevalue("postgres_schemas")[request.param]
            address = stack.enter_context(request.getfixturevalue("postgres_like")(template))
        database = Database(parse(address), busy_timeout_s=1)
        with database.migrating() as connection:
            dumps.load(connection, _rows(request.param))
        database.close()
        yield address


@pytest.mark.parametrize("old", OLDER, indirect=True)
def test_an_older_store_is_brought_forward(old: str, request: pytest.FixtureRequest) -> None:
    """Every column of every row that still exists holds what it held; the store is read and written like today's."""
    Store.open(old, create=False).close()
    _check_rows(old, request.node.callspec.params["old"])
    _check_records(old)
    if request.node.callspec.params["old"] >= SEALED:
        _check_seal(old)


def _check_rows(address: str, revision: str) -> None:
    """The rows of the dump are there, as today's types bring them back."""
    database = Database(parse(address), busy_timeout_s=1)
    with database.reading() as connection:
        assert head() == revision_of(connection)
        for name, rows in _rows(revision).items():
            expected = sorted(json.dumps(_kept(name, row)) for row in rows)
            assert expected == sorted(json.dumps(row) for row in _stored(connection, name, rows))
    database.close()


def _kept(table: str, row: dict[str, Any]) -> dict[str, Any]:
    """What today's table still has of a row, in the values that today's types give."""
    columns = metadata.tables[table].columns
    return {name: _plain(columns[name].type, value) for name, value in row.items() if name in columns}


def _plain(kind: Any, value: Any) -> Any:
    """The value of an SQLite row as the column's type brings it back, made fit for JSON."""
    if isinstance(getattr(kind, "impl", kind), DateTime) and value is not None:
        return f"{datetime.fromisoformat(value)}+00:00"
    make = kind.result_processor(SQLITE, None)
    made = make(value) if make else value
    return bool(made) if kind.python_type is bool and made is not None else made


def _stored(connection: Connection, name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    table = metadata.tables[name]
    columns = [table.columns[column] for column in (rows[0] if rows else ()) if column in table.columns]
    if not columns:
        return []
    found = connection.execute(select(*columns)).mappings()
    return [{key: str(value) if isinstance(value, datetime) else value for key, value in row.items()} for row in found]


def _check_seal(address: str) -> None:
    """A field that today's evidence has, and that of the older program has not, breaks no seal."""
    with Store.open(address, create=False) as store:
        found = store.evidence(examples.run(1).id)
    assert found.seal is not None
    assert own_digest(found.seal) == digest_of(found.lines)


def _check_records(address: str) -> None:
    """The evidence of the older program is judged like today's, and a new run is added to it."""
    with Store.open(address, create=False) as store:
        records = store.records(examples.run(1).id)
        assert [examples.simple(examples.case(0))] == records[:1]
        expected = [type(outcome).__name__ for outcome in examples.outcomes()[1:]]
        assert expected == [type(record.outcome).__name__ for record in records[1:-1]]
        assert [examples.run(1).id, examples.run(2).id] == sorted(run.id for run in store.runs())
        assert examples.stack() == store.run(examples.run(1).id).stack
        for duel in map(store.duel, (duel.id for duel in store.duels())):
            assert duel.seal is not None
            assert own_digest(duel.seal) == duel.sha256, "a new field of a duel breaks no seal"
        run = examples.run(3)
        store.begin(run)
        store.set_stack(run.id, examples.stack("GPU-3", driver="600"), None)
        store.add_cases(run.id, examples.cases(1))
        store.add(run.id, [examples.simple(examples.case(0))])
        store.add_selftest(replace(examples.selftest(), wall_s=1.0))
        assert [examples.simple(examples.case(0))] == store.records(run.id)


@pytest.mark.parametrize("old", ["0010"], indirect=True)
def test_chunks_are_a_pattern_by_name(old: str) -> None:
    """A case whose mask had chunks, the only pattern there was, has them still; the others have no pattern."""
    database = Database(parse(old), busy_timeout_s=1)
    with database.migrating() as connection:
        connection.exec_driver_sql("UPDATE cases SET chunk = 64 WHERE position = 0")
    database.close()
    with Store.open(old, create=False) as store:
        masks = {record.case.id: record.case.workload.mask for record in store.records(examples.run(1).id)}
    expected = {case: ("chunked", 64) if case == examples.case(0).id else ("", 0) for case in masks}
    assert expected == {case: (mask.pattern, mask.size) for case, mask in masks.items()}


@pytest.mark.parametrize("old", ["0010"], indirect=True)
def test_a_pattern_of_a_newer_program_is_told(old: str) -> None:
    """No migration comes with a kind of mask, so an older program may meet a word that it does not know."""
    with Store.open(old, create=False) as store:
        database = Database(parse(old), busy_timeout_s=1)
        with database.writing() as connection:
            connection.exec_driver_sql("UPDATE cases SET pattern = 'striped', pattern_size = 2 WHERE position = 0")
        database.close()
        with pytest.raises(StoreError, match=r"pattern='striped' is none of chunked, dilated\). A newer qualify"):
            store.records(examples.run(1).id)


@pytest.mark.parametrize("old", ["0001"], indirect=True)
def test_db_upgrade_brings_it_forward(old: str, tmp_path: Any) -> None:
    """The command says where, and the runs of before version 2 of the schema have the version of checks there was."""
    ended = call("db", "upgrade", "--db", old, cwd=tmp_path)
    assert (0, "") == (ended.code, ended.err)
    with Store.open(old, create=False) as store:
        assert [1, 1] == [run.check_version for run in store.runs()]
        assert store.selftest(1) is None


def test_how_a_signer_is_known_comes_from_the_audit_log(address: str) -> None:
    """Where its lines agree; sign-offs and what was done about holds stay append-only."""
    rows = _rows("0026")
    facts = {"who": "jane", "address": "", "allowed": 1, "action": "sign", "at": rows["audit"][0]["at"]}
    signed = {it["role"]: it for it in rows["signoffs"]}
    lines = [("release", "token a55b"), ("kernel", "token a55b"), ("kernel", "command")]
    subject = f"run {signed['release']['run_id']}"
    rows["audit"] = [
        {**facts, "id": number, "how": how, "subject": subject, "detail": f"as {role}: {signed[role]['reason']}"}
        for number, (role, how) in enumerate(lines, 1)
    ]
    database = Database(parse(address), busy_timeout_s=1)
    with database.migrating() as connection:
        upgrade(connection, "0026")
        dumps.load(connection, rows)
        upgrade(connection, head())
    with database.reading() as connection:
        found = {row.role: row.how for row in connection.execute(text("SELECT role, how FROM signoffs"))}
    assert {"release": "token a55b", "kernel": ""} == found
    with pytest.raises((DBAPIError, StoreError), match="append-only"), database.writing() as connection:
        connection.execute(text("UPDATE signoffs SET how = 'jwt'"))
    database.close()
