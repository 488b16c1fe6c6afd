"""A damaged SQLite file: one message that says so, and the file stays as it is."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import canary_examples
import pytest
import store_examples as examples
from cli_process import call
from stored_runs import MATRIX, store_run

from qualify.errors import StoreError
from qualify.facts.baseline import Baseline
from qualify.facts.people import AuditEntry, Revocation, SignOff
from qualify.facts.run import Record
from qualify.store import Store, tables
from qualify.store.mapping.cases import lengths_from_text
from qualify.store.types import Stored, UtcTime

RUN = examples.run()
STACK = examples.stack()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one run with every kind of outcome; it is only copied."""
    path = tmp_path_factory.mktemp("whole") / "evidence.db"
    with Store.open(str(path)) as store:
        store.begin(RUN)
        store.set_stack(RUN.id, STACK, examples.ceilings())
        planned = examples.cases(len(examples.outcomes()))
        store.add_cases(RUN.id, planned)
        pairs = zip(planned, examples.outcomes(), strict=True)
        store.add(RUN.id, [Record(case=case, outcome=outcome) for case, outcome in pairs])
        facts = {"accepted_by": "jane", "reason": "r", "accepted_at": RUN.started_at}
        store.accept(Baseline(matrix=RUN.matrix, variant=STACK.device.variant, run_id=RUN.id, **facts))
    return path


def _change(path: Path, *statements: str) -> None:
    """Runs SQL with everything allowed; what changes the schema is seen by the next statement."""
    for statement in statements:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(statement)


LOOSE = "UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '')"


def _read(path: Path) -> str:
    """Reads all there is of the run; returns what was said of damage, or nothing."""
    before = path.read_bytes()
    try:
        with Store.open(str(path), create=False) as store:
            store.resolve("latest")
            store.runs()
            store.records(RUN.id)
            store.export_run(RUN.id, path.with_name("out.gz"))
            store.baselines()
    except StoreError as error:
        assert before == path.read_bytes()
        return str(error)
    return ""


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut in half": (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), "is damaged"),
    "cut within its head": (lambda path: path.write_bytes(path.read_bytes()[:50]), "is damaged"),
    "pages of other bytes": (
        lambda path: path.write_bytes(path.read_bytes()[:8192] + b"\x5a" * (path.stat().st_size - 8192)),
        "is damaged",
    ),
    "another page size": (
        lambda path: path.write_bytes(path.read_bytes()[:16] + b"\x02\x00" + path.read_bytes()[18:]),
        "is damaged",
    ),
    "no page size": (
        lambda path: path.write_bytes(path.read_bytes()[:16] + b"\x03\x03" + path.read_bytes()[18:]),
        "is not an SQLite database",
    ),
    "a table missing": (lambda path: _change(path, "DROP TABLE findings"), "does not have the expected tables"),
    "a column missing": (
        lambda path: _change(path, "ALTER TABLE runs RENAME COLUMN matrix_path TO x"),
        "does not have the expected tables",
    ),
    "an unknown version": (lambda path: _change(path, "UPDATE qualify_version SET version_num = 'x1'"), "revision x1"),
    "an empty version": (lambda path: _change(path, "UPDATE qualify_version SET version_num = ''"), "revision none"),
    "half a version": (lambda path: _change(path, "UPDATE qualify_version SET version_num = '001'"), "revision 001,"),
    "two versions": (lambda path: _change(path, "INSERT INTO qualify_version VALUES ('0001')"), "reported an error"),
    "no version": (lambda path: _change(path, "DELETE FROM qualify_version"), "belongs to another program"),
    "a stack missing": (lambda path: _change(path, "DELETE FROM stacks"), "is damaged"),
    "text that is none": (
        lambda path: _change(path, "UPDATE runs SET matrix = CAST(x'ff89' AS TEXT)"),
        "evidence store",
    ),
    "a date that is none": (lambda path: _change(path, "UPDATE runs SET started_at = '2026-13-45'"), "is damaged"),
    "a number as a date": (lambda path: _change(path, "UPDATE runs SET started_at = -1"), "is damaged"),
    "JSON cut off": (lambda path: _change(path, "UPDATE cases SET spans = '[1'"), "is damaged"),
    "JSON of another shape": (lambda path: _change(path, """UPDATE findings SET "values" = '[1]'"""), "is damaged"),
    "a number among promises": (
        lambda path: _change(path, """UPDATE runs SET terms = '{"x":5}'"""),
        "the terms of a run",
    ),
    "a list in place of waivers": (
        lambda path: _change(path, "UPDATE baselines SET waivers = '[1]'"),
        "the waivers of a baseline",
    ),
    "a timing without its parts": (lambda path: _change(path, "UPDATE outcomes SET host_us = NULL"), "has no host_us"),
    "evidence without an attempt": (lambda path: _change(path, "UPDATE outcomes SET attempt = NULL"), "has no attempt"),
    "lengths without end": (
        lambda path: _change(path, "UPDATE cases SET seqlens_q = '8192x99999999999'"),
        "is damaged",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_told(whole: Path, tmp_path: Path, damage: str) -> None:
    """What is wrong, with which file, and what can be done; nothing is written into it."""
    change, message = DAMAGES[damage]
    path = Path(shutil.copy(whole, tmp_path / "evidence.db"))
    change(path)
    told = _read(path)
    assert message in told
    assert str(path) in told


def test_a_log_that_is_missing_costs_only_its_last_commits(whole: Path, tmp_path: Path) -> None:
    """SQLite's own file is whole without it: a copy without the log is an older state, and no damage."""
    path = Path(shutil.copy(whole, tmp_path / "evidence.db"))
    with Store.open(str(path)) as store:
        store.add_selftest(examples.selftest())
        copy = _copied_alone(path)
        assert path.with_name("evidence.db-wal").stat().st_size
    with Store.open(str(copy), create=False) as store:
        assert [RUN.id] == [run.id for run in store.runs()]
        assert store.selftest(examples.selftest().check_version) is None


def _copied_alone(path: Path) -> Path:
    """A copy of the file, without its log."""
    return Path(shutil.copy(path, path.with_name("copy.db")))


def _end(store: Store) -> None:
    store.finish(RUN.id, "completed", RUN.started_at)


def _revoked(store: Store) -> None:
    entry = AuditEntry(who="jane", how="command", address="", action="sign", subject=RUN.id, allowed=True)
    told = {"verdict": "PASS", "by": "jane", "role": "release", "reason": "r", "at": RUN.started_at}
    signed = store.people.sign(SignOff(id=0, run_id=RUN.id, sha256="ab" * 32, sealed=True, **told), entry)
    store.people.revoke(signed.id, Revocation(by="jane", reason="r", at=RUN.started_at), entry)


def _imported(store: Store) -> None:
    folder = Path(store.where).parent
    with Store.open(str(folder / "other.db")) as other:
        other.begin(examples.run(1))
        other.finish(examples.run(1).id, "interrupted", RUN.started_at)
        other.export_run(examples.run(1).id, folder / "run.jsonl.gz")
    store.import_run(folder / "run.jsonl.gz")


def _held(store: Store) -> None:
    lease = canary_examples.lead(store)
    (fire_id,) = store.canaries.file(lease, [canary_examples.due()])
    store.canaries.take(lease, "n")
    store.canaries.finish(lease, fire_id, canary_examples.result(advice="hold"), canary_examples.says())


DECISIVE: dict[str, tuple[Callable[[Store], object], Callable[[Store], object]]] = {
    "begun": (lambda store: store.begin(examples.run(1)), lambda store: store.resolve("latest")),
    "resumed": (lambda store: store.resume(RUN.id), lambda store: store.run(RUN.id).state),
    "ended": (_end, lambda store: store.run(RUN.id).state),
    "imported": (_imported, lambda store: store.resolve("latest")),
    "accepted": (
        lambda store: store.accept(replace(store.baselines()[0], reason="newer")),
        lambda store: [baseline.reason for baseline in store.baselines()],
    ),
    "timed": (lambda store: store.add_duel(examples.duel()), lambda store: [duel.id for duel in store.duels()]),
    "revoked": (_revoked, lambda store: [signed.revoked is None for signed in store.people.signoffs([RUN.id])]),
    "held": (_held, lambda store: [hold.canary for hold in store.canaries.holds()]),
}
"""by what happened: how, and what tells that it did"""


@pytest.mark.parametrize("happened", DECISIVE)
def test_a_copy_of_the_file_alone_knows_what_decides(whole: Path, tmp_path: Path, happened: str) -> None:
    """A store in use is copied without its log: no older evidence passes in place of what has happened since."""
    do, told = DECISIVE[happened]
    path = Path(shutil.copy(whole, tmp_path / "evidence.db"))
    if happened == "resumed":
        with Store.open(str(path)) as store:
            _end(store)
    with Store.open(str(path)) as store:
        before = told(store)
        do(store)
        after = told(store)
        with Store.open(str(_copied_alone(path)), create=False) as copy:
            assert after == told(copy)
    assert before != after


READ = {"runs", "stacks", "components", "cases", "outcomes"}
KEYS = {"runs.id", "components.position", "cases.key", "cases.run_id", "cases.case_id", "cases.position"}
"""to change them leaves other rows without theirs"""
COLUMNS = [
    (table.name, column.name)
    for table in tables.metadata.tables.values()
    for column in table.columns
    if isinstance(column.type, Stored | UtcTime)
    if table.name in READ and f"{table.name}.{column.name}" not in KEYS
]
COLUMNS += [
    ("findings", "verdict"),
    ("findings", "detail"),
    ("statistics", "E"),
    ("launches", "role"),
    ("samples", "latency_us"),
]


@pytest.mark.parametrize("value", ["x'00ff'", "NULL"], ids=["bytes", "nothing"])
def test_no_value_of_another_type_is_taken(whole: Path, tmp_path: Path, value: str) -> None:
    """Every column of evidence in turn holds bytes, which none does, or nothing where there must be something."""
    taken = []
    path = tmp_path / "evidence.db"
    for table, column in COLUMNS:
        shutil.copy(whole, path)
        _change(path, LOOSE, f'UPDATE {table} SET "{column}" = {value}')
        if not _read(path) and not (value == "NULL" and tables.metadata.tables[table].c[column].nullable):
            taken.append(f"{table}.{column}")
    assert [] == taken


def test_a_word_that_nobody_knows_is_not_taken(whole: Path, tmp_path: Path) -> None:
    """What the schema allows is checked as it is read, too."""
    path = Path(shutil.copy(whole, tmp_path / "evidence.db"))
    _change(path, "UPDATE launches SET role = 'x'")
    assert "role is 'x', which is none of attention, auxiliary" in _read(path)


LISTS: dict[str, Callable[[Store], object]] = {
    "duels.only_a": Store.duels,
    "duels.only_b": Store.duels,
    "duel_cells.notes": Store.duels,
    "fires.reasons": lambda store: store.canaries.fires(),
    "fires.numerics_only": lambda store: store.canaries.fires(),
}
"""columns of duels and fires that hold lists of texts, and what reads them"""


@pytest.mark.parametrize("value", ['[{"x":1}]', '"abc"', '{"x":1}'])
def test_a_list_of_texts_holds_texts(full_sqlite: Path, tmp_path: Path, value: str) -> None:
    """Whatever else JSON can hold would reach a page, which cannot show it."""
    for place, read in LISTS.items():
        table, _, column = place.partition(".")
        path = Path(shutil.copy(full_sqlite, tmp_path / "damaged.db"))
        _change(path, f"UPDATE {table} SET {column} = '{value}'")
        with Store.open(str(path)) as store, pytest.raises(StoreError, match="a list of texts is"):
            read(store)


@pytest.mark.parametrize(("column", "value"), [("code", "[1]"), ("code", '{"k":[1]}'), ("content", '{"x":1}')])
def test_what_a_duel_timed_is_texts(full_sqlite: Path, tmp_path: Path, column: str, value: str) -> None:
    """A digest that is none is told, not compared."""
    path = Path(shutil.copy(full_sqlite, tmp_path))
    _change(path, f"UPDATE duels SET {column} = '{value}'")
    with (
        Store.open(str(path)) as store,
        pytest.raises(StoreError, match=r"texts by name are|the code of kernels is"),
    ):
        store.duels()


@pytest.mark.parametrize("text", ["8192x99999999", "1x-3", "-1", "x2", "9" * 5000, "1x0"])
def test_lengths_that_cannot_be(text: str) -> None:
    """Nothing is allocated for a batch that no plan makes."""
    with pytest.raises(ValueError, match=r"lengths of a batch|invalid literal|Exceeds the limit"):
        lengths_from_text(text)


def test_the_gate_ends_with_exit_4(tmp_path: Path) -> None:
    """A verdict on a damaged file would be none."""
    path, matrix = tmp_path / "evidence.db", tmp_path / "serving.yaml"
    matrix.write_text(MATRIX)
    with Store.open(str(path)) as store:
        store_run(store, matrix)
    assert 0 == call("gate", "--db", path, cwd=tmp_path).code
    _change(path, "DELETE FROM stacks")
    ended = call("gate", "--db", path, cwd=tmp_path)
    assert (4, "") == (ended.code, ended.out)
    assert "the database is damaged" in ended.err
    assert ".recover" in ended.err
