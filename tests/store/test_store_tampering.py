"""Whatever is changed in sealed evidence is noticed, and named: in a store by SQL, and in an exported file."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import store_examples as examples
from sealing import KeyPair, new_pair, seal_run
from sqlalchemy import Boolean, Connection, Engine, Table, create_engine, select, text
from sqlalchemy.exc import DBAPIError

from qualify.errors import QualifyError, UsageError
from qualify.facts.outcome import Finding
from qualify.seal.form import line, plain
from qualify.seal.parts import digests
from qualify.seal.sealed import SealCheck, check_seal
from qualify.store import archive, tables, transfer
from qualify.store.address import parse
from qualify.store.failures import DamagedError, UnknownWordError
from qualify.store.store import Store

RUN = examples.run(1).id
EVIDENCE: tuple[Table, ...] = (
    tables.runs,
    tables.run_environments,
    tables.stacks,
    tables.components,
    tables.stack_environment,
    tables.ceilings,
    tables.matmul_ceilings,
    tables.cases,
    tables.outcomes,
    tables.findings,
    tables.statistics,
    tables.launches,
    tables.samples,
)
"""every table that holds something of a run"""
STRANGE = ('{"x":1}', "[1]", '[["x",1]]', "2026-01-01 00:00:00")
"""values that columns of JSON and of moments take"""
ORDERS = {"position", "id", "key"}
"""columns that only order rows, or that other rows refer to"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    """The runner's keys."""
    return new_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def sealed(store_of_runs: str, pair: KeyPair) -> Iterator[str]:
    """The address of a store with a sealed run of every kind of outcome, and another run on another stack."""
    with Store.open(store_of_runs) as store:
        seal_run(store, RUN, pair.signing)
    yield store_of_runs
    _engine(store_of_runs).dispose()


@contextmanager
def tampering(address: str) -> Iterator[Connection]:
    """A connection of somebody who can write the database, and regrets it at the end."""
    with _engine(address).connect() as connection:
        yield connection
        connection.rollback()


@cache
def _engine(address: str) -> Engine:
    """It keeps its connection, and the statements that it has compiled: to make either takes longer than an edit."""
    return create_engine(parse(address))


def checked(connection: Connection, pair: KeyPair) -> SealCheck:
    """What a gate finds in the stored run, within the transaction of the connection."""
    found = archive.load(connection, RUN)
    assert found is not None
    if found.edited:
        raise DamagedError(found.edited)  # as Store.evidence
    return check_seal(found.seal, found.lines, RUN, pair.trusted)


def test_an_untouched_run_is_as_it_was_sealed(sealed: str, pair: KeyPair) -> None:
    """On both databases."""
    with tampering(sealed) as connection:
        found = checked(connection, pair)
    assert ("", True, ()) == (found.why_not, found.trusted, found.differences)


def _cells() -> list[tuple[Table, str]]:
    """Every column of every table of evidence whose value could be edited."""
    return [
        (table, column.name)
        for table in EVIDENCE
        for column in table.columns
        if not column.foreign_keys and not (column.primary_key and column.name in ORDERS)
    ]


def _others(connection: Connection, table: Table, name: str, value: Any) -> list[Any]:
    """Values that might stand in place of one: what other rows have, and what no row has."""
    column = table.columns[name]
    if isinstance(column.type, Boolean):
        return [not value]
    seen = [row[0] for row in connection.execute(text(f'SELECT DISTINCT "{name}" FROM {table.name}'))]
    made: list[Any] = [value + 1, 0.5] if isinstance(value, int | float) else []
    words = [word for check in table.constraints for word in str(getattr(check, "sqltext", "")).split("'")[1::2]]
    return [
        other
        for other in [*seen, *made, not value, f"{value}x", *words, *STRANGE]
        if other is not None and repr(other) != repr(value)
    ]


def _edits(address: str, table: Table, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Statements that put another value into a cell of the sealed run; the database may refuse some of them."""
    key = [column.name for column in table.primary_key.columns]
    listed = ", ".join(f'"{column}"' for column in [name, *key])
    with tampering(address) as connection:
        rows = connection.execute(text(f'SELECT {listed} FROM {table.name} WHERE "{name}" IS NOT NULL')).all()
        own = (row for row in reversed(rows) if _is_of_the_run(connection, table, dict(zip(key, row[1:], strict=True))))
        last = next(own, None)
        if last is None:
            return
        others = _others(connection, table, name, last[0])
    where = " AND ".join(f'"{column}" = :k{place}' for place, column in enumerate(key))
    for other in others:
        keys = {f"k{place}": part for place, part in enumerate(last[1:])}
        yield f'UPDATE {table.name} SET "{name}" = :new WHERE {where}', {"new": other, **keys}


def _noticed_edit(address: str, pair: KeyPair, table: Table, name: str) -> bool | None:
    """Whether an edit of that column is noticed; None where the database takes none."""
    for edit, values in _edits(address, table, name):
        with tampering(address) as connection:
            try:
                connection.execute(text(edit), values)
            except DBAPIError:
                continue
            try:
                return bool(checked(connection, pair).why_not)
            except (QualifyError, UnknownWordError, ValueError, KeyError, TypeError, AttributeError):
                return True  # it is no evidence any more
    return None


def _is_of_the_run(connection: Connection, table: Table, key: dict[str, Any]) -> bool:
    """Whether a row belongs to the sealed run."""
    if table is tables.runs:
        return key["id"] == RUN
    if "run_id" in key:
        return key["run_id"] == RUN
    stack = key.get("stack_id", key.get("id") if table is tables.stacks else None)
    if stack is not None:
        wanted = select(tables.runs.c.id).where(tables.runs.c.id == RUN, tables.runs.c.stack_id == stack)
        return connection.execute(wanted).first() is not None
    wanted = select(tables.cases.c.run_id).join(tables.outcomes, isouter=True)
    if table is tables.cases:
        wanted = wanted.where(tables.cases.c.key == key["key"])
    else:
        wanted = wanted.where(tables.outcomes.c.id == key.get("outcome_id", key.get("id")))
    return connection.execute(wanted).scalars().first() == RUN


def test_every_edited_cell_is_noticed(sealed: str, pair: KeyPair) -> None:
    """Each column of each table of evidence, one after the other."""
    found = {(table.name, name): _noticed_edit(sealed, pair, table, name) for table, name in _cells()}
    assert set() == {cell for cell, noticed in found.items() if noticed is False}
    # NULL in a run of here; when another one came is the store's knowledge, and no seal is over it.
    assert {("runs", "clock_skew_s"), ("runs", "received_at")} == {
        cell for cell, noticed in found.items() if noticed is None
    }


def test_a_removed_part_is_noticed(sealed: str, pair: KeyPair) -> None:
    """A finding, a statistic, a launch or a sample less."""
    words = {"samples": "timing.samples_us", "launches": "witness.launches"}
    last = "SELECT max(outcome_id), max(position) FROM {0} WHERE outcome_id = (SELECT max(outcome_id) FROM {0})"
    for table in ("findings", "statistics", "launches", "samples"):
        with tampering(sealed) as connection:
            outcome, position = connection.execute(text(last.format(table))).one()
            where = f"WHERE outcome_id = {outcome} AND position = {position}"
            connection.execute(text(f"DELETE FROM {table} {where}"))
            assert words.get(table, table) in checked(connection, pair).why_not


def test_what_differs_is_named(sealed: str, pair: KeyPair) -> None:
    """Case, field, and whether it was changed, removed or added."""
    first, *_ = examples.cases(2)
    newest = f"(SELECT max(o.id) FROM outcomes o JOIN cases c ON c.key = o.case_key WHERE c.case_id = '{first.id}')"
    kept = "(SELECT min(outcome_id) FROM findings WHERE check_ = 'numerics')".replace("check_", '"check"')
    edits = {
        f"UPDATE outcomes SET error = 'none' WHERE id = {newest}": f"{first.id} outcome 2 of 2: error changed",
        f"DELETE FROM outcomes WHERE id = {newest}": f"{first.id} outcome removed: 2 sealed, 1 here",
        f"UPDATE findings SET verdict = 'pass' WHERE outcome_id = {kept} AND position = 0": "[0].verdict changed",
        f"UPDATE runs SET matrix_source = 'models: []' WHERE id = '{RUN}'": "the run matrix_source changed",
        "UPDATE components SET digest = 'x' WHERE name = 'torch'": "environments.next.stack.components[2].digest",
    }
    for edit, expected in edits.items():
        with tampering(sealed) as connection:
            connection.execute(text(edit))
            assert expected in checked(connection, pair).why_not


def test_a_swapped_finding_is_noticed(sealed: str, pair: KeyPair) -> None:
    """The same rows in another order, or of another case, are other evidence."""
    with tampering(sealed) as connection:
        outcome = connection.execute(text("SELECT min(outcome_id) FROM findings WHERE position = 1")).scalar_one()
        for number, new in ((0, 9), (1, 0), (9, 1)):
            moving = f"UPDATE findings SET position = {new} WHERE outcome_id = {outcome} AND position = {number}"
            connection.execute(text(moving))
        found = checked(connection, pair)
    assert "findings[0].check changed" in found.why_not
    with tampering(sealed) as connection:
        wanted = text(f"SELECT key FROM cases WHERE run_id = '{RUN}' ORDER BY position")
        first, second, *_ = connection.execute(wanted).scalars()
        connection.execute(text(f"UPDATE outcomes SET case_key = {first} WHERE case_key = {second}"))
        found = checked(connection, pair)
    assert "outcome removed: 1 sealed, 0 here" in found.why_not


def test_another_stack_is_noticed(sealed: str, pair: KeyPair) -> None:
    """A row may point to the rows of another run."""
    with tampering(sealed) as connection:
        other = f"(SELECT stack_id FROM runs WHERE id <> '{RUN}')"
        connection.execute(text(f"UPDATE runs SET stack_id = {other} WHERE id = '{RUN}'"))
        assert "the run stack.components[0].version changed" in checked(connection, pair).why_not


def test_a_seal_is_worth_nothing_elsewhere(sealed: str, pair: KeyPair, tmp_path: Path) -> None:
    """A seal that is missing, changed, of another run, or of another key."""
    edits = {
        "DELETE FROM seals": "it is not sealed",
        "UPDATE seals SET envelope = '{}'": "its seal is damaged",
        "UPDATE seals SET envelope = '[1]'": "its seal is damaged",
        'UPDATE seals SET envelope = replace(envelope, \'"payload":"ey\', \'"payload":"fy\')': "its seal is damaged",
        'UPDATE seals SET envelope = replace(envelope, \'"sig":"\', \'"sig":"AAAA\')': "the signature of its seal",
    }
    for edit, expected in edits.items():
        with tampering(sealed) as connection:
            connection.execute(text(edit))
            assert expected in checked(connection, pair).why_not, edit
    with tampering(sealed) as connection:
        assert "not by one of the required keys" in checked(connection, new_pair(tmp_path, "stranger")).why_not
        found = archive.load(connection, RUN)
        assert found
        assert "its seal is that of run" in check_seal(found.seal, found.lines, "another", pair.trusted).why_not


def test_parts_of_somebody_else_only_hide_the_place(sealed: str, pair: KeyPair) -> None:
    """That something differs is signed; where it differs is not told from parts that were changed."""
    with tampering(sealed) as connection:
        connection.execute(text("UPDATE seals SET parts = 'AAAA'"))
        assert "" == checked(connection, pair).why_not
        connection.execute(text("UPDATE samples SET latency_us = 1.0 WHERE position = 0"))
        assert "where cannot be told" in checked(connection, pair).why_not


def test_a_seal_by_its_own_key_names_nobody(sealed: str, pair: KeyPair, tmp_path: Path) -> None:
    """Without a key to believe, a seal says that nothing changed since, and by which key: that which really signed."""
    stranger = new_pair(tmp_path, "stranger")
    with Store.open(sealed) as store:
        seal_run(store, RUN, stranger.signing)
        found = store.evidence(RUN)
    own = check_seal(found.seal, found.lines, RUN)
    assert ("", False) == (own.why_not, own.trusted)
    assert own.signed_by
    assert stranger.signing.public.id == own.signed_by.id
    assert check_seal(found.seal, found.lines, RUN, pair.trusted).why_not


# An exported file: whoever edits it can also write its digest.


def _leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values that are no dictionary and no list of dictionaries."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(data, list) and data and isinstance(data[0], dict | list):
        for index, value in enumerate(data):
            yield from _leaves(value, (*path, index))
    else:
        yield path


def _set(data: Any, path: tuple[Any, ...]) -> None:
    """Puts another value there."""
    for step in path[:-1]:
        data = data[step]
    value = data[path[-1]]
    if isinstance(value, bool):
        data[path[-1]] = not value
    elif isinstance(value, int | float):
        data[path[-1]] = value + 1 if math.isfinite(value) else 0.5
    elif isinstance(value, str):
        data[path[-1]] = f"{value}x"
    else:
        data[path[-1]] = ["x"]


def _write(path: Path, lines: list[Any]) -> None:
    """The file with a digest that fits."""
    body = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    trailer = {"sha256": hashlib.sha256(body).hexdigest()}
    path.write_bytes(gzip.compress(body + json.dumps(trailer).encode() + b"\n", 1))


def _kind(path: tuple[Any, ...]) -> tuple[Any, ...]:
    """The path without the places in lists: a field is edited once."""
    return tuple("#" if isinstance(step, int) else step for step in path)


def test_every_edited_field_of_a_file_is_noticed(sqlite_of_runs: str, pair: KeyPair, tmp_path: Path) -> None:
    """The import refuses it, or it is no run any more."""
    file, edited = tmp_path / "run.jsonl.gz", tmp_path / "edited.jsonl.gz"
    with Store.open(sqlite_of_runs) as store:
        seal_run(store, RUN, pair.signing)
        store.export_run(RUN, file)
    lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()][:-1]
    paths = {_kind(path): (at, path) for at, line in list(enumerate(lines))[1:-1] for path in _leaves(line)}
    silent = []
    for at, path in paths.values():
        changed = json.loads(json.dumps(lines))
        _set(changed[at], path)
        _write(edited, changed)
        if not _noticed(edited, pair):
            silent.append(path)
    assert [] == silent
    assert len(paths) > 100


def _noticed(file: Path, pair: KeyPair) -> bool:
    """Whether an import would refuse the file, and `verify` say that it is not what was sealed."""
    try:
        found = transfer.read(file).run
    except UsageError:
        return True
    with pytest.raises(UsageError, match="It was changed after it was sealed"):
        transfer.refuse_other_seal(file, found, found.sha256)
    return bool(check_seal(found.seal, found.lines, found.run.id, pair.trusted).why_not)


def test_removed_and_added_lines_of_a_file_are_noticed(sqlite_of_runs: str, pair: KeyPair, tmp_path: Path) -> None:
    """An outcome less, one twice, the last case less, two outcomes in another order."""
    file = tmp_path / "run.jsonl.gz"
    with Store.open(sqlite_of_runs) as store:
        seal_run(store, RUN, pair.signing)
        store.export_run(RUN, file)
    lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()][:-1]
    outcomes = [at for at, line in enumerate(lines) if "of" in line]
    edits = (
        (lambda some: some.pop(outcomes[0]), "outcome removed"),
        (lambda some: some.insert(outcomes[-1], some[outcomes[0]]), "outcome added"),
        (lambda some: some.pop(max(at for at in outcomes if some[at]["of"] == 1)), "outcome removed"),
        (lambda some: some.insert(outcomes[0], some.pop(outcomes[1])), "in another order"),
    )
    for edit, expected in edits:
        changed = json.loads(json.dumps(lines))
        edit(changed)
        _write(file, changed)
        found = transfer.read(file).run
        assert expected in check_seal(found.seal, found.lines, RUN, pair.trusted).why_not


def test_a_seal_survives_both_databases(sealed: str, new_postgres: str, pair: KeyPair, tmp_path: Path) -> None:
    """The origin's signature holds after an import, and after another one."""
    files = [tmp_path / "1.jsonl.gz", tmp_path / "2.jsonl.gz"]
    with Store.open(sealed) as store:
        store.export_run(RUN, files[0])
    for number, address in enumerate((new_postgres, str(tmp_path / "last.db"))):
        with Store.open(address) as store:
            store.import_run(files[min(number, 1)])
            store.export_run(RUN, files[1])
            found = store.evidence(RUN)
        check = check_seal(found.seal, found.lines, RUN, pair.trusted)
        assert ("", True) == (check.why_not, check.trusted)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_seal_reaches_a_run_that_is_there_without_one(empty_sqlite: str, pair: KeyPair, tmp_path: Path) -> None:
    """Equal evidence with a seal adds the seal, and a file without one takes none away."""
    plain, with_seal = tmp_path / "plain.jsonl.gz", tmp_path / "sealed.jsonl.gz"
    with Store.open(empty_sqlite) as store:
        store.begin(examples.run(1))
        store.export_run(RUN, plain)
        seal_run(store, RUN, pair.signing)
        store.export_run(RUN, with_seal)
    with Store.open(str(tmp_path / "other.db")) as store:
        for file, expected in ((plain, False), (with_seal, True), (plain, True)):
            store.import_run(file)
            assert expected == (store.evidence(RUN).seal is not None)


def test_the_order_of_values_and_the_sign_of_zero() -> None:
    """The order of a finding's values is part of it; the sign of zero is not, because SQLite does not keep it."""

    def written(**values: float) -> bytes:
        return line({"x": plain(Finding(check="c", verdict="note", detail="", values=values))})

    assert written(a=-0.0, b=1.0) == written(a=0.0, b=1.0) != written(b=1.0, a=0.0)


def test_equal_values_that_are_written_in_another_way_have_other_digests() -> None:
    """One, true and 1.0 are equal in Python, and so are the two zeros."""
    values = [1, True, 1.0, "1", 0, False, 0.0, -0.0, None, ""]
    found = digests({f"v{place}": value for place, value in enumerate(values)})
    assert len(values) == len(set(found.values()))
    assert list(found.values()) == [digests(value) for value in values]
