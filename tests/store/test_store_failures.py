"""Every failure of the database is explained, under the condition that really causes it."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import store_examples as examples
from cli_process import environment
from outages import Outage
from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import OperationalError

from qualify.errors import StoreError, UsageError
from qualify.facts.outcome import Measured
from qualify.facts.run import Record
from qualify.fleet.writers import this_process
from qualify.store import DEFAULT_PATH, Store, schema
from qualify.store.address import PASSWORD_FILE, check_writable, parse, shown
from qualify.store.database import Database
from qualify.store.holder import Holder, holder_of
from qualify.store.writable import check_takes_evidence
from qualify.text import without_password

RUN = examples.run()
NOBODY = 65_534


def _refused(address: str, *words: str, **options: Any) -> str:
    """Opens a store that cannot be opened; the message holds all words, and is returned."""
    with pytest.raises(StoreError) as caught:
        Store.open(address, **options)
    message = str(caught.value)
    assert [] == [word for word in words if word not in message]
    return message


def _fill(store: Store, group: int = 100) -> tuple[int, str]:
    """Commits groups of outcomes until the store fails; returns how many were committed, and the message."""
    store.begin(RUN)
    plan = examples.cases(group)
    store.add_cases(RUN.id, plan)
    committed = 0
    try:
        for _ in range(1_000):
            store.add(RUN.id, [examples.simple(case) for case in plan])
            committed += group
    except StoreError as error:
        return committed, str(error)
    raise AssertionError(f"{committed} outcomes fitted where only some should")


def _stored(path: Path) -> tuple[int, str]:
    """Outcomes in the file, and what SQLite says about its integrity."""
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM outcomes").fetchone()
        (integrity,) = connection.execute("PRAGMA integrity_check").fetchone()
        return count, integrity


def test_the_default_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run in a folder needs no preparation."""
    monkeypatch.chdir(tmp_path)
    Store.open(str(DEFAULT_PATH)).close()
    assert (tmp_path / ".qualify" / "evidence.db").is_file()


def test_a_default_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the place of the default folder is named."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".qualify").write_text("")
    _refused(str(DEFAULT_PATH), ".qualify", "cannot be created", "--db")


def test_a_missing_folder(tmp_path: Path) -> None:
    """A mistyped folder is an error, not a new folder."""
    _refused(str(tmp_path / "typo" / "evidence.db"), str(tmp_path / "typo"), "does not exist", "mkdir -p")


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    """A folder is not taken for a database."""
    _refused(f"sqlite:///{tmp_path}", str(tmp_path), "is a folder", "evidence.db")


def test_a_missing_file_is_not_created_for_a_reader(tmp_path: Path) -> None:
    """Reading commands do not leave empty stores behind."""
    path = tmp_path / "evidence.db"
    _refused(str(path), str(path), "no such file", "qualify run", create=False)
    assert not path.exists()


def test_an_empty_file_is_no_evidence_for_a_reader(tmp_path: Path) -> None:
    """A reading command does not turn an empty file into a store."""
    path = tmp_path / "evidence.db"
    path.touch()
    _refused(str(path), str(path), "it is empty", "qualify run", create=False)
    assert 0 == path.stat().st_size


def test_an_in_memory_database() -> None:
    """A database that vanishes cannot hold evidence."""
    _refused("sqlite://", "in-memory", "sqlite:///PATH")


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """Another file under the name is left alone."""
    path = tmp_path / "evidence.db"
    path.write_text("not a database, but some notes of somebody\n" * 100)
    before = path.read_bytes()
    _refused(str(path), str(path), "not an SQLite database", "backup")
    assert before == path.read_bytes()


def test_a_damaged_database(tmp_path: Path) -> None:
    """A file whose pages were overwritten is named as damaged, with a way to save it."""
    path = tmp_path / "evidence.db"
    with Store.open(str(path)) as store:
        store.begin(RUN)
        store.add_cases(RUN.id, examples.cases(500))
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    _refused(str(path), str(path), "damaged", ".recover")


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of one's own, without root's right to ignore permissions."""
    # Root's folder for temporary files may be closed to others.
    folder = Path(tempfile.mkdtemp(prefix="qualify-", dir="/var/tmp" if os.geteuid() == 0 else None))
    if os.geteuid() != 0:
        yield folder
    else:
        os.chown(folder, NOBODY, NOBODY)
        # What is imported later cannot be read any more: a first store imports everything.
        Store.open(str(folder / "first.db")).close()
        os.seteuid(NOBODY)
        yield folder
        os.seteuid(0)
    folder.chmod(0o700)
    shutil.rmtree(folder)


def test_a_place_that_takes_no_evidence_is_known_before(unprivileged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only file, log or folder, and a folder that cannot be made: the same as a run would find, and no file."""
    path, log = unprivileged / "evidence.db", unprivileged / "evidence.db-wal"
    monkeypatch.chdir(unprivileged)
    check_writable(str(path))
    check_writable(str(DEFAULT_PATH))
    assert [] == [each for each in unprivileged.iterdir() if each.name != "first.db"]
    path.touch()
    log.touch()
    for closed, told in ((log, str(log)), (path, str(path)), (unprivileged, f"into {unprivileged}")):
        closed.chmod(0o500)
        with pytest.raises(StoreError, match=f"you may not write {told}. It, or its disk, is probably read-only: "):
            check_writable(str(path))
        if closed != unprivileged:
            closed.chmod(0o600)
    with pytest.raises(StoreError, match=f"^evidence store {DEFAULT_PATH}: you may not write into {unprivileged}. "):
        check_writable(str(DEFAULT_PATH))
    with pytest.raises(StoreError, match="the folder nowhere does not exist"):
        check_writable("nowhere/evidence.db")


def test_a_read_only_folder(unprivileged: Path) -> None:
    """A folder in which one may not write cannot hold a new store."""
    unprivileged.chmod(0o500)
    path = unprivileged / "evidence.db"
    _refused(str(path), str(path), "cannot be opened", "ls -ld", "--db")
    with pytest.raises(StoreError, match="cannot be opened"):
        Store.open(str(path), create="late")


def test_a_read_only_file(unprivileged: Path) -> None:
    """Writing into a file without the right to is explained, and reading it still works."""
    path = unprivileged / "evidence.db"
    with Store.open(str(path)) as store:
        store.begin(RUN)
    path.chmod(0o400)
    with Store.open(str(path)) as store:
        assert RUN.started_at == store.run(RUN.id).started_at
        with pytest.raises(StoreError, match="cannot be written"):
            store.begin(examples.run(1))


@pytest.mark.parametrize("closed", ["evidence.db", "evidence.db-wal"])
def test_a_file_that_one_may_not_read(unprivileged: Path, closed: str) -> None:
    """A colleague's store with the permissions of a careful umask: neither a folder is missing, nor must one write."""
    path = unprivileged / "evidence.db"
    with Store.open(str(path)) as store:
        store.begin(RUN)
        (unprivileged / closed).chmod(0)
        _refused(str(path), f"you may not read {unprivileged / closed}", "Ask its owner", create=False)


def test_an_export_that_one_may_not_read(unprivileged: Path) -> None:
    """Its name is right."""
    file = unprivileged / "run.gz"
    file.touch(mode=0)
    words = r"Permission denied\. Ask its owner to let you read it"
    with Store.open(str(unprivileged / "evidence.db")) as store, pytest.raises(UsageError, match=words):
        store.import_run(file)


def _guest(folder: Path) -> Path:
    """A store with one run that its user may read and not write, nor anything beside it."""
    path = folder / "evidence.db"
    with Store.open(str(path)) as store:
        store.begin(RUN)
    path.chmod(0o400)
    folder.chmod(0o500)
    return path


def test_a_guest_reads(unprivileged: Path) -> None:
    """Who may not write the file, nor beside it, reads it all the same, and leaves nothing there."""
    path = _guest(unprivileged)
    before = sorted(unprivileged.iterdir())
    with Store.open(str(path), create=False) as store:
        assert RUN.started_at == store.run(RUN.id).started_at
        with pytest.raises(StoreError, match="cannot be written"):
            store.begin(examples.run(1))
    assert before == sorted(unprivileged.iterdir())


def test_a_guest_reads_what_is_in_the_log(unprivileged: Path) -> None:
    """While its writer has it open, the newest evidence is in the log beside the file."""
    path = unprivileged / "evidence.db"
    with Store.open(str(path)) as writer:
        writer.begin(RUN)
        path.chmod(0o400)
        unprivileged.chmod(0o500)
        assert path.with_name("evidence.db-wal").stat().st_size
        with Store.open(str(path), create=False) as store:
            assert RUN.started_at == store.run(RUN.id).started_at
        unprivileged.chmod(0o700)


def test_a_guest_does_not_pass_over_the_log(unprivileged: Path) -> None:
    """A copy with its log, whose index is missing: the last evidence is in the log, so there is no verdict without."""
    path = unprivileged / "evidence.db"
    with Store.open(str(path)) as writer:
        writer.begin(RUN)
        copy = unprivileged / "the copy.db"
        for ending in ("", "-wal"):
            shutil.copy(f"{path}{ending}", f"{copy}{ending}")
    unprivileged.chmod(0o500)
    with pytest.raises(StoreError, match="its last changes are in a write-ahead log") as told:
        Store.open(str(copy), create=False)
    assert f"qualify db upgrade --db '{copy}'" in str(told.value)


def test_a_guest_notices_a_writer(unprivileged: Path) -> None:
    """What was read while somebody wrote may be half of each state: it is not judged."""
    path = _guest(unprivileged)
    with Store.open(str(path), create=False) as store:
        with pytest.raises(StoreError, match="it was written while it was read"), store._database.reading():
            os.utime(path, ns=(1, 1))
        assert RUN.started_at == store.run(RUN.id).started_at


def test_a_guest_of_an_older_schema(unprivileged: Path) -> None:
    """It cannot be brought forward by who may not write."""
    path = unprivileged / "evidence.db"
    Store.open(str(path)).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE qualify_version SET version_num = '0001'")
    path.chmod(0o400)
    unprivileged.chmod(0o500)
    with pytest.raises(StoreError, match=r"its schema is at revision 0001.*qualify db upgrade"):
        Store.open(str(path), create=False)


def test_a_user_with_select_only_reads(empty_postgres: str) -> None:
    """A gate needs no more of PostgreSQL."""
    with Store.open(empty_postgres) as store:
        store.begin(RUN)
    name = f"reader_{uuid.uuid4().hex}"
    engine = create_engine(empty_postgres, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE ROLE {name}"))
        connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}"))
    address = make_url(empty_postgres).update_query_dict({"options": f"-c role={name}"})
    try:
        with Store.open(address.render_as_string(hide_password=False), create=False) as store:
            assert [RUN] == store.runs()
            assert RUN.id == store.resolve("latest")
            with pytest.raises(StoreError, match="lacks a right"):
                store.begin(examples.run(1))
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP OWNED BY {name}"))
            connection.execute(text(f"DROP ROLE {name}"))
        engine.dispose()


def test_a_server_that_takes_no_writes_for_a_moment(empty_postgres: str) -> None:
    """After a failover the old server answers on, and only reads. The next attempt looks for the new one."""
    with Store.open(empty_postgres) as store:

        def begin(connection: Connection) -> None:
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")

        def server() -> int:
            with store._database.engine.connect() as connection:
                return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())

        before = server()
        event.listen(store._database.engine, "begin", begin)
        with pytest.raises(StoreError, match="the database server takes no writes now") as told:
            store.begin(RUN)
        event.remove(store._database.engine, "begin", begin)
        assert told.value.passing
        assert before != server()
        store.begin(RUN)
        assert [RUN] == store.runs()


@pytest.mark.parametrize(
    ("statement", "options", "where"),
    [
        ("ALTER DATABASE {name} SET default_transaction_read_only = on", {}, "of the database"),
        ("ALTER ROLE CURRENT_USER IN DATABASE {name} SET default_transaction_read_only = on", {}, "of the user"),
        ("", {"options": "-c default_transaction_read_only=on"}, "of the connection"),
    ],
    ids=["database", "user", "connection"],
)
def test_a_database_that_somebody_made_read_only(
    empty_postgres: str, statement: str, options: dict[str, str], where: str
) -> None:
    """That passes by no waiting: the message names whose setting it is."""
    Store.open(empty_postgres).close()
    if statement:
        _execute(empty_postgres, statement.format(name=make_url(empty_postgres).database))
    address = make_url(empty_postgres).update_query_dict(options).render_as_string(hide_password=False)
    with Store.open(address) as store, pytest.raises(StoreError, match="read-only by a setting") as told:
        store.begin(RUN)
    assert not told.value.passing
    assert f"default_transaction_read_only {where} is on" in str(told.value)


def test_a_setting_that_was_reset_refuses_nothing_more(empty_postgres: str) -> None:
    """A connection keeps the settings with which it began: a service wrote nothing until it was started again."""
    name = make_url(empty_postgres).database
    Store.open(empty_postgres).close()
    _execute(empty_postgres, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with Store.open(empty_postgres) as store:
        with pytest.raises(StoreError, match="read-only by a setting"):
            store.begin(RUN)
        elsewhere = make_url(empty_postgres).set(database="postgres").render_as_string(hide_password=False)
        _execute(elsewhere, f"ALTER DATABASE {name} RESET default_transaction_read_only")
        store.begin(RUN)
        assert [RUN] == store.runs()


def test_a_limit_that_was_lifted_cancels_nothing_more(empty_postgres: str) -> None:
    """The same for a limit of time: of the server's connections that are open, none is used again."""
    name = make_url(empty_postgres).database
    Store.open(empty_postgres).close()
    _execute(empty_postgres, f"ALTER DATABASE {name} SET statement_timeout = '50ms'")
    with Store.open(empty_postgres) as store:
        with pytest.raises(StoreError, match="cancelled a statement"), store._database.reading() as connection:
            connection.exec_driver_sql("SELECT pg_sleep(60)")
        _execute(empty_postgres, f"ALTER DATABASE {name} RESET statement_timeout")
        with store._database.reading() as connection:
            assert "0" == connection.exec_driver_sql("SHOW statement_timeout").scalar_one()


@pytest.mark.parametrize("setting", ["extra_float_digits = 0", "DateStyle = 'SQL, DMY'", "client_encoding = 'LATIN1'"])
def test_settings_of_the_server_change_no_evidence(empty_postgres: str, setting: str) -> None:
    """Numbers lost their last digits where the server, the database or the user has another way to show them."""
    _execute(empty_postgres, f"ALTER DATABASE {make_url(empty_postgres).database} SET {setting}")
    measured = Measured(evidence=examples.evidence(statistics=(examples.statistics(E=0.34839442367481394),)))
    record = Record(case=examples.case(model="β"), outcome=measured)
    with Store.open(empty_postgres) as store:
        store.begin(RUN)
        store.add_cases(RUN.id, [record.case])
        store.add(RUN.id, [record])
        assert [repr(record)] == list(map(repr, store.records(RUN.id)))
        assert RUN.started_at == store.run(RUN.id).started_at


@pytest.fixture
def encoded(postgres_engine: Engine, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty PostgreSQL database in that encoding."""
    name = f"qualify_{uuid.uuid4().hex}"
    making = f"ENCODING '{request.param}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' STRATEGY FILE_COPY"
    with postgres_engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} {making}"))
    yield postgres_engine.url.set(database=name).render_as_string(hide_password=False)
    with postgres_engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.mark.parametrize("encoded", ["SQL_ASCII"], indirect=True)
def test_a_database_without_an_encoding_holds_every_text(encoded: str) -> None:
    """Its driver gave bytes in place of text."""
    run = examples.run(select="β → €")
    with Store.open(encoded) as store:
        store.begin(run)
        assert [run] == store.runs()


@pytest.mark.parametrize("encoded", ["LATIN1"], indirect=True)
def test_a_database_that_cannot_hold_every_text(encoded: str) -> None:
    """No store begins there: its first message with such a letter would cost the outcomes of a run."""
    _refused(encoded, "its encoding is LATIN1", "createdb -E UTF8")
    database = Database(parse(encoded), busy_timeout_s=1)
    words = "cannot hold a letter of this text.*createdb -E UTF8"
    with pytest.raises(StoreError, match=words) as told, database.writing() as connection:
        connection.execute(text("SELECT CAST(:letter AS text)"), {"letter": "β"})
    database.close()
    assert not told.value.passing


@pytest.mark.parametrize(
    ("code", "words", "passing"),
    [
        ("57014", "cancelled a statement.*statement_timeout", True),
        ("25P04", "ended a transaction", True),
        ("XX001", "the database is damaged.*backup", False),
        ("XX002", "the database is damaged.*backup", False),
    ],
)
def test_what_a_server_answers(empty_postgres: str, code: str, words: str, passing: bool) -> None:
    """A time limit of the server passes, perhaps: a run waits for it. A damaged page does not."""
    raising = f"DO $$ BEGIN RAISE EXCEPTION 'so it is' USING ERRCODE = '{code}'; END $$"
    database = Database(parse(empty_postgres), busy_timeout_s=1)
    with pytest.raises(StoreError, match=words) as told, database.writing() as connection:
        connection.exec_driver_sql(raising)
    database.close()
    assert passing == told.value.passing


@pytest.fixture
def page_limit() -> Iterator[int]:
    """SQLite may not grow a file beyond this many pages: it then reports a full disk, as it does for a real one."""
    pages = 200

    def limit(connection: Any, _: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    event.listen(Engine, "connect", limit)
    yield pages
    event.remove(Engine, "connect", limit)


@pytest.mark.usefixtures("page_limit")
def test_a_full_database_keeps_what_was_committed(tmp_path: Path) -> None:
    """A group commit that does not fit leaves nothing of itself, and everything before it."""
    path = tmp_path / "evidence.db"
    with Store.open(str(path)) as store:
        committed, message = _fill(store)
        assert 100 == len(store.done(RUN.id))
    assert [] == [word for word in (str(path), "disk is full", "--resume") if word not in message]
    assert (committed, "ok") == _stored(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("mounting a small file system needs root")
    mounting = [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    mounted = subprocess.run(mounting, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    # Lazily: a test that failed may still hold the database open.
    subprocess.run([umount, "--lazy", str(folder)], check=True)


def test_a_full_disk_keeps_what_was_committed(small_disk: Path, tmp_path: Path) -> None:
    """A disk without space ends the run with an explanation; what was committed is readable and intact."""
    path = small_disk / "evidence.db"
    with Store.open(str(path)) as store:
        committed, message = _fill(store)
        assert 100 == len(store.done(RUN.id))
    assert [] == [word for word in (str(path), "disk", "--resume") if word not in message]
    saved = tmp_path / "saved"
    shutil.copytree(small_disk, saved)
    assert (committed, "ok") == _stored(saved / "evidence.db")


INTERRUPTED = """
import sys
from sqlalchemy import event
from qualify.store import Store

address, run, case = sys.argv[1:]

def read(data):
    if data.decode() == case:
        raise KeyboardInterrupt
    return data.decode()

with Store.open(address, create=False) as store:
    event.listen(store._database.engine, "checkout", lambda raw, *_: setattr(raw, "text_factory", read))
    try:
        store.evidence(run)
    except KeyboardInterrupt:
        print("interrupted")
"""
"""reads a run; Ctrl-C comes while SQLite gives the row of a case"""


def test_an_interrupt_in_the_middle_of_reading_is_quiet(tmp_path: Path, empty_sqlite: str) -> None:
    """SQLAlchemy throws the connection away, and cannot close its cursor then: its traceback is for nobody."""
    with Store.open(empty_sqlite) as store:
        store.begin(RUN)
        store.add_cases(RUN.id, examples.cases(10))
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    words = [sys.executable, str(script), empty_sqlite, RUN.id, examples.cases(10)[5].id]
    ended = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert ("interrupted\n", "", 0) == (ended.stdout, ended.stderr, ended.returncode)


def test_a_file_that_is_moved_away_takes_nothing_along(tmp_path: Path) -> None:
    """Nothing is written into a file that nobody finds any more; one that is put there is used from then on."""
    path, aside = tmp_path / "evidence.db", tmp_path / "aside"
    with Store.open(str(path)) as store:
        store.begin(RUN)
        aside.mkdir()
        for file in tmp_path.glob("evidence.db*"):
            file.rename(aside / file.name)
        for use in (lambda: store.begin(examples.run(1)), lambda: store.run(RUN.id)):
            with pytest.raises(StoreError, match="the file is gone"):
                use()
        assert [aside] == list(tmp_path.iterdir())
        Store.open(str(path)).close()
        assert [] == store.runs()
        store.begin(examples.run(1))
        path.unlink()
        for file in aside.iterdir():
            file.rename(tmp_path / file.name)
        assert [RUN] == store.runs()


def test_a_backup_that_is_restored_is_not_damaged(tmp_path: Path) -> None:
    """SQLite would write the log of the earlier file, which still lies beside it, into the restored one."""
    path, backup, aside = tmp_path / "evidence.db", tmp_path / "backup.db", tmp_path / "aside"
    with Store.open(str(backup)) as store:
        store.begin(RUN)
    with Store.open(str(path)) as store:
        for number in (1, 2, 3):
            store.begin(examples.run(number))
        restored = backup.read_bytes()
        backup.rename(path)
        for use in (store.runs, lambda: store.begin(examples.run(4))):
            with pytest.raises(StoreError, match=rf"another file has taken its place.*move {path}-wal"):
                use()
        assert restored == path.read_bytes()
        aside.mkdir()
        for ending in ("-wal", "-shm"):
            Path(f"{path}{ending}").rename(aside / f"log{ending}")
        assert [RUN] == store.runs()
        store.begin(examples.run(4))
    assert (0, "ok") == _stored(path)


def test_a_lock_that_is_never_released(tmp_path: Path) -> None:
    """A writer that waits in vain says who may be in the way; readers go on."""
    path = tmp_path / "evidence.db"
    with Store.open(str(path), busy_timeout_s=0.05) as store, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="stayed locked") as caught:
            store.begin(RUN)
        assert [] == store.runs()
    assert "fuser" in str(caught.value)


@contextmanager
def _held(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock of a store; there are secrets on its command line."""
    code = "import sqlite3, sys; a = sqlite3.connect(sys.argv[1]); a.execute('BEGIN IMMEDIATE'); print(1); input()"
    place.with_name("w.py").write_text(code)
    words = ["python", "w.py", place.name, "at://me:hidden@host", "--token", "secret"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, executable=sys.executable, cwd=place.parent, stdin=pipe, stdout=pipe, text=True) as it:
        assert it.stdout is not None
        assert "1\n" == it.stdout.readline()
        yield it
        it.kill()


@pytest.mark.parametrize(
    ("stops", "advice"),
    [
        (False, " holds the lock, and probably hangs: look what it does, and let it end, or end it (kill {pid})."),
        (True, " holds the lock and is stopped (Ctrl-Z, kill -STOP): let it go on (kill -CONT {pid}) or end it."),
    ],
)
def test_who_holds_a_lock_is_named(empty_sqlite: str, stops: bool, advice: str) -> None:
    """Its process, how its command line begins, and whether it is stopped; nothing that may be secret."""
    path = Path(empty_sqlite)
    with _held(path) as holder, Store.open(empty_sqlite, busy_timeout_s=0) as store:
        if stops:
            holder.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
        with pytest.raises(StoreError) as caught:
            store.begin(RUN)
    told, named = str(caught.value), f"(python w.py {path.name} at://me:***@host)"
    assert told.endswith(f"(database is locked). Process {holder.pid} {named}{advice.format(pid=holder.pid)}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_who_holds_a_lock_is_found(empty_sqlite: str) -> None:
    """What that process has open is hidden: then it counts on which disk the locked file is. Readers lock nothing."""
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(f"{folder}/w.db")) as reader:
        path = Path(shutil.copy(empty_sqlite, f"{folder}/w.db"))
        Path(folder).chmod(0o755)
        reader.execute("SELECT * FROM runs").fetchall()
        with _held(path) as holder:
            os.seteuid(NOBODY)
            try:
                found = holder_of(path)
            finally:
                os.seteuid(0)
        assert found == Holder(pid=holder.pid, program="python w.py w.db at://me:***@host", stopped=False)
        assert holder_of(path) is None


@contextmanager
def _locked(address: str) -> Iterator[None]:
    """Somebody's transaction has the table of runs for itself, also against readers, and stands still."""
    engine = create_engine(address)
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        engine.dispose()


def test_a_lock_of_a_server_that_is_never_released(empty_postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers, writers and a migration end after a time and say why. They waited for ever, without a word."""
    monkeypatch.setattr("qualify.store.database.LOCKED_S", 0.05)
    Store.open(empty_postgres).close()
    with Store.open(empty_postgres) as store, _locked(empty_postgres):
        with pytest.raises(StoreError, match="stayed locked by another session"):
            store.runs()
        with pytest.raises(StoreError, match="stayed locked by another session"):
            store.begin(RUN)
        with (
            pytest.raises(StoreError, match="stayed locked by another session"),
            store._database.migrating() as connection,
        ):
            connection.exec_driver_sql("ALTER TABLE runs ADD COLUMN other TEXT")


def test_a_migration_waits_for_another_one_as_long_as_that_takes(
    new_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release begins on many nodes at once: while one migrates a large store, the others wait for it."""
    monkeypatch.setattr("qualify.store.database.LOCKED_S", 0.05)
    engine = create_engine(new_postgres)
    with engine.connect() as other:
        other.exec_driver_sql(f"SELECT pg_advisory_xact_lock({schema._LOCK})")
        release = threading.Timer(0.5, other.rollback)
        release.start()
        with Store.open(new_postgres) as store, store._database.writing() as connection:
            assert "50ms" == connection.exec_driver_sql("SHOW lock_timeout").scalar_one()
        release.join()
    engine.dispose()


def test_a_lock_of_a_server_is_told_in_its_words(empty_postgres: str) -> None:
    """An administrator limits the wait. The message names no tool for files, but where the session is found."""
    Store.open(empty_postgres).close()
    _execute(empty_postgres, f"ALTER DATABASE {make_url(empty_postgres).database} SET lock_timeout = '50ms'")
    with Store.open(empty_postgres) as store, _locked(empty_postgres):
        with pytest.raises(StoreError, match=r"stayed locked by another session.*pg_stat_activity") as told:
            store.runs()
        assert told.value.passing
        assert "fuser" not in str(told.value)


def test_a_new_file_that_another_process_begins_to_use_is_waited_for(tmp_path: Path) -> None:
    """Several runs that start in an empty folder share a file: while one makes it, SQLite refuses WAL at once."""
    path = tmp_path / "evidence.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="stayed locked"):
            Store.open(str(path), busy_timeout_s=0.05)
        release = threading.Timer(0.3, lambda: other.execute("ROLLBACK"))
        release.start()
        with Store.open(str(path)) as store:
            assert [] == store.runs()
        release.join()


def test_a_database_that_lost_a_table(tmp_path: Path) -> None:
    """A schema that somebody changed by hand is named as that."""
    path = tmp_path / "evidence.db"
    with Store.open(str(path)) as store, closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE outcomes")
        store.begin(RUN)
        with pytest.raises(StoreError, match=r"expected tables .*outcomes"):
            store.records(RUN.id)


def test_a_number_too_large(planned: Store) -> None:
    """A whole number beyond 64 bits is an explained error, and stores nothing."""
    case = examples.case(0, layers=2**64)
    planned.begin(examples.run(1))
    with pytest.raises(StoreError, match="reported an error"):
        planned.add_cases(examples.run(1).id, [case])
    assert [] == planned.records(examples.run(1).id)


def test_a_missing_driver() -> None:
    """A URL whose driver is not installed names the driver and how to get one; the password stays hidden."""
    message = _refused("postgresql+pg8000://ann:secret@db.example/evidence", "pg8000", "pip install", "ann:***@")
    assert "secret" not in message


@pytest.mark.parametrize("address", ["nosuch://ann:secret@db.example/evidence", "://ann:x/secret@db.example/x"])
def test_an_address_that_is_none(address: str) -> None:
    """An unknown or malformed URL is explained; the password stays hidden."""
    assert "secret" not in _refused(address, "postgresql+psycopg://")


def test_a_server_that_does_not_answer() -> None:
    """A server that is not there is named, without the password."""
    pytest.importorskip("psycopg", reason="psycopg comes with the extra 'service'")
    message = _refused("postgresql://ann:secret@127.0.0.1:1/evidence", "cannot be reached", "127.0.0.1:1", "psql")
    assert "secret" not in message


@pytest.fixture
def clerk(empty_postgres: str) -> Iterator[str]:
    """The address of a store for a user who owns nothing."""
    name = f"clerk_{uuid.uuid4().hex}"
    Store.open(empty_postgres).close()
    _execute(empty_postgres, f"CREATE ROLE {name} LOGIN PASSWORD 'hunter2'")
    url = make_url(empty_postgres)
    yield url.set(username=name, password="hunter2").render_as_string(hide_password=False)
    _execute(empty_postgres, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def test_a_server_that_takes_no_evidence_is_known_before(empty_postgres: str, new_postgres: str, clerk: str) -> None:
    """A user who only reads, one who may make no store, and a server that is read-only: as a run would find it."""
    here, user = make_url(clerk), make_url(clerk).username
    _execute(empty_postgres, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}")
    anew = here.set(database=make_url(new_postgres).database).render_as_string(hide_password=False)
    for address in (clerk, anew):
        with pytest.raises(StoreError, match="the database user lacks a right"):
            check_takes_evidence(address)
    _execute(empty_postgres, f"GRANT INSERT ON ALL TABLES IN SCHEMA public TO {user}")
    for address in (clerk, empty_postgres, new_postgres):
        check_takes_evidence(address)
    engine = create_engine(new_postgres)
    assert [] == inspect(engine).get_table_names()
    engine.dispose()
    with Store.open(empty_postgres) as store:
        assert [] == store.runs()
    only = here.update_query_dict({"options": "-c default_transaction_read_only=on"})
    with pytest.raises(StoreError, match="read-only by a setting"):
        check_takes_evidence(only.render_as_string(hide_password=False))


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("ALTER ROLE {user} CONNECTION LIMIT 0", "too many connections for role"),
        ("ALTER ROLE {user} NOLOGIN", "is not permitted to log in"),
        ("REVOKE CONNECT ON DATABASE {name} FROM PUBLIC", "permission denied for database"),
    ],
    ids=["slots", "login", "right"],
)
def test_a_server_that_refuses_the_connection(empty_postgres: str, clerk: str, statement: str, reason: str) -> None:
    """Nobody looks for a server that is down where it answered with its reason; a run waits, as for one that is."""
    url = make_url(clerk)
    _execute(empty_postgres, statement.format(user=url.username, name=url.database))
    with pytest.raises(StoreError, match="the database server refused the connection") as told:
        Store.open(clerk, create=False)
    assert reason in str(told.value)
    assert "probably down" not in str(told.value)
    assert "hunter2" not in str(told.value)
    assert told.value.passing


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("REVOKE CREATE ON SCHEMA public FROM PUBLIC", "lacks a right .*schema public.*GRANT CREATE ON SCHEMA public"),
        ("ALTER DATABASE {name} SET search_path = nowhere", "no schema to make tables in .*search_path"),
    ],
    ids=["right", "schema"],
)
def test_a_store_that_may_not_be_made(empty_postgres: str, clerk: str, statement: str, words: str) -> None:
    """Somebody who gives qualify a new database reads what to grant or to correct."""
    url = make_url(clerk)
    _execute(
        empty_postgres, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "GRANT USAGE ON SCHEMA public TO PUBLIC"
    )
    _execute(empty_postgres, statement.format(name=url.database))
    with pytest.raises(StoreError, match=words) as told:
        Store.open(clerk)
    assert not told.value.passing


def test_a_table_that_one_may_not_read(clerk: str) -> None:
    """A verdict on the rest is none: the right that lacks is named, and how it is granted."""
    with pytest.raises(StoreError, match=r"lacks a right .*denied for table.*GRANT SELECT ON ALL TABLES"):
        Store.open(clerk, create=False)


def test_an_older_store_that_one_may_only_read(empty_postgres: str, clerk: str) -> None:
    """The right to read is there: what helps is that the owner brings the store forward."""
    user = make_url(clerk).username
    _execute(empty_postgres, "UPDATE qualify_version SET version_num = '0003'")
    _execute(empty_postgres, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}")
    told = _refused(clerk, "its schema is at revision 0003, and this program needs", "permission denied", create=False)
    assert told.endswith("Have the user who made the store do it, with the same program: qualify db upgrade")
    assert "GRANT" not in told


def test_a_server_without_the_database(empty_postgres: str) -> None:
    """It answers, too; what to do about it is said."""
    address = make_url(empty_postgres).set(database="nowhere").render_as_string(hide_password=False)
    assert "probably down" not in _refused(address, "refused the connection", '"nowhere" does not exist', "create the")


def test_a_machine_that_vanished_is_given_up() -> None:
    """A lost network is noticed in seconds and not in hours: libpq is told so, and what an address says comes first."""
    conninfo = pytest.importorskip("psycopg.conninfo", reason="psycopg comes with the extra 'service'")
    database = Database(parse("postgresql://ann@db.example/evidence?tcp_user_timeout=5000"), busy_timeout_s=1)
    asked: dict[str, Any] = {}

    def ask(dialect: object, record: object, arguments: object, parameters: dict[str, Any]) -> None:
        asked.update(parameters)
        raise OperationalError("", None, Exception("nothing is connected here"))

    event.listen(database.engine, "do_connect", ask)
    with pytest.raises(StoreError, match="nothing is connected here"), database.reading():
        pass
    names = ("connect_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
    connect_s, idle_s, interval_s, probes, silent_ms = (int(asked[name]) for name in names)
    conninfo.make_conninfo(**{name: asked[name] for name in names})  # it refuses a word that libpq does not know
    assert 10 == connect_s
    assert idle_s + interval_s * probes <= 30
    assert 5000 == silent_ms


def test_a_password_in_the_query_is_hidden() -> None:
    """A password given as a parameter is hidden as well."""
    pytest.importorskip("psycopg", reason="psycopg comes with the extra 'service'")
    message = _refused("postgresql://ann@127.0.0.1:1/evidence?password=secret", "cannot be reached")
    assert "secret" not in message


MISTYPED = [
    "postgresql:/u:hunter2@h/db",
    "postgresql:u:hunter2@h/db",
    "postgres//u:hunter2@h/db",
    "postgresql;//u:hunter2@h/db",
    "u:hunter2@h/db",
    "sqlite:///u:hunter2@h/db",
    "sqlite://u:hunter2@h/db",
    "postgresql://u:hunter2@h:port/db",
    "postgresql://u@h:hunter2/db",
    "host=h user=u password=hunter2",
    "psql:hunter2",
]


@pytest.mark.parametrize("address", MISTYPED)
def test_a_mistyped_address_tells_no_password(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither printed nor taken for the name of a file; nobody knows where in it the password stands."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError) as told:
        Store.open(address)
    assert "hunter2" not in str(told.value)
    assert "sqlite:///PATH" in str(told.value)
    assert [] == list(tmp_path.rglob("*"))


@pytest.mark.parametrize("name", ["run 12:30.db", "mail@example.db", "u:x/evidence.db"])
def test_a_path_may_hold_colons(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be mistaken for a user and a password is a path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "u:x").mkdir()
    Store.open(name).close()
    assert (tmp_path / name).is_file()


def test_a_mistyped_parameter_is_hidden() -> None:
    """Whatever is called like a password is one."""
    assert "hunter2" not in shown(parse("postgresql://h/db?passwrod=hunter2&user=u"))


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_store_is_a_regular_file(tmp_path: Path, kind: str) -> None:
    """Nothing is opened that waits for a writer or never ends."""
    path = tmp_path / "evidence.db"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    _refused(str(path), f"it is a {kind}", "Give a file")


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("postgresql://ann:s/e@cr:et@db:5432/x", "postgresql://ann:***@db:5432/x"),
        ("--db=postgresql+psycopg://ann:secret@/x?host=/tmp", "--db=postgresql+psycopg://ann:***@/x?host=/tmp"),
        ("postgresql://db/x?sslpassword=s&user=a&password=t", "postgresql://db/x?sslpassword=***&user=a&password=***"),
        ("postgresql://ann@db:5432/x", "postgresql://ann@db:5432/x"),
        ("unexpected argument (postgresql:/u:secret@h/d)", "unexpected argument (postgresql:/u:***@h/d)"),
        ("postgresql:u:secret@h/d", "postgresql:***@h/d"),
        (
            "store postgresql://ann:***@db/x: it is old. Try: qualify db upgrade --db postgresql://ann@db/x",
            "store postgresql://ann:***@db/x: it is old. Try: qualify db upgrade --db postgresql://ann@db/x",
        ),
        (
            "store postgresql://ann:***@db/x: it is old. Was: postgresql://ann:secret@db/x",
            "store postgresql://ann:***@db/x: it is old. Was: postgresql://ann:***@db/x",
        ),
        ("evidence.db", "evidence.db"),
        ("m.yaml:3:4: kernels[0]: flash-attn-2@next", "m.yaml:3:4: kernels[0]: flash-attn-2@next"),
        ("*/decode/*", "*/decode/*"),
    ],
)
def test_an_argument_is_repeated_without_its_password(argument: str, expected: str) -> None:
    """Whatever else a word of the command line says stays readable."""
    assert expected == without_password(argument)


def test_password_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's URL without a password gets that of the file; one that has its own, and a path, are left alone."""
    file = tmp_path / "password"
    file.write_text("p@ss:w/rd?\nsecond line\n", encoding="utf-8")
    monkeypatch.setenv(PASSWORD_FILE, str(file))
    assert parse("postgresql+psycopg://me@host/name").password == "p@ss:w/rd?"
    assert parse("postgresql+psycopg://me:own@host/name").password == "own"
    assert parse(str(tmp_path / "evidence.db")).password is None
    assert "p@ss" not in shown(parse("postgresql+psycopg://me@host/name"))


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read (No such file"), (b"", "empty"), (b"\xff", "not text")]
)
def test_password_file_without_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, words: str
) -> None:
    """What is wrong with the file is said, and with which variable it was named."""
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv(PASSWORD_FILE, str(file))
    _refused("postgresql+psycopg://me@host/name", PASSWORD_FILE, words)


DYING = """CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql
AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'"""


def test_a_server_that_dies_while_outcomes_are_sent(empty_postgres: str) -> None:
    """The connection ends while a table is filled: the outcomes are not there, and the next ones are."""
    records = [examples.simple(case) for case in examples.cases(10)]
    with Store.open(empty_postgres) as store:
        store.begin(RUN)
        store.add_cases(RUN.id, examples.cases(10))
        _execute(empty_postgres, DYING)
        _execute(empty_postgres, "CREATE TRIGGER die BEFORE INSERT ON outcomes EXECUTE FUNCTION die()")
        with pytest.raises(StoreError, match="cannot be reached"):
            store.add(RUN.id, records)
        assert set() == store.done(RUN.id)
        _execute(empty_postgres, "DROP TRIGGER die ON outcomes")
        store.add(RUN.id, records)
        assert 10 == len(store.done(RUN.id))


@pytest.mark.parametrize("ended", ["COMMIT", "ROLLBACK"])
def test_a_connection_that_is_lost_during_the_commit(empty_postgres: str, ended: str) -> None:
    """What was committed is not written again by who gets an error, because none is raised; else nothing is stored."""
    records = [examples.simple(case) for case in examples.cases(3)]
    with Store.open(empty_postgres) as store:
        store.claim(RUN.id, this_process(), 60)
        store.begin(RUN)
        store.add_cases(RUN.id, examples.cases(10))

        def lose(connection: Connection) -> None:
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            for statement in (ended, "BEGIN"):  # so that the driver has something to commit
                connection.exec_driver_sql(statement)
            _execute(empty_postgres, f"SELECT pg_terminate_backend({pid}, 5000)")

        event.listen(store._database.engine, "commit", lose, once=True)
        with nullcontext() if ended == "COMMIT" else pytest.raises(StoreError, match="cannot be reached"):
            store.add(RUN.id, records)
        assert {"COMMIT": 3, "ROLLBACK": 0}[ended] == len(store.evidence(RUN.id).outcomes)
        store.add(RUN.id, records[:1])
        assert {"COMMIT": 4, "ROLLBACK": 1}[ended] == len(store.evidence(RUN.id).outcomes)


@pytest.mark.parametrize("ended", ["COMMIT", "ROLLBACK"])
def test_outcomes_that_are_tried_again_are_stored_once(empty_postgres: str, ended: str) -> None:
    """The server goes away during the commit, so nobody can tell whether it was made; the next attempt looks."""
    records = [examples.simple(case) for case in examples.cases(3)]
    with Store.open(empty_postgres) as store, Outage(empty_postgres) as outage:
        store.claim(RUN.id, this_process(), 60)
        store.begin(RUN)
        store.add_cases(RUN.id, examples.cases(10))

        def lose(connection: Connection) -> None:
            for statement in (ended, "BEGIN"):  # so that the driver has something to commit
                connection.exec_driver_sql(statement)
            outage.begin()

        event.listen(store._database.engine, "commit", lose, once=True)
        for words in ("cannot be reached", "refused the connection"):
            with pytest.raises(StoreError, match=words) as told:
                store.add(RUN.id, records)
            assert told.value.passing
        outage.end()
        store.add(RUN.id, records)
        store.add(RUN.id, records[:1])
        assert 4 == len(store.evidence(RUN.id).outcomes)


def test_a_duel_that_is_tried_again_is_stored_once(empty_postgres: str) -> None:
    """Its commit was made, and the server went away before it said so."""
    with Store.open(empty_postgres) as store, Outage(empty_postgres) as outage:

        def lose(connection: Connection) -> None:
            for statement in ("COMMIT", "BEGIN"):
                connection.exec_driver_sql(statement)
            outage.begin()

        event.listen(store._database.engine, "commit", lose, once=True)
        for words in ("cannot be reached", "refused the connection"):
            with pytest.raises(StoreError, match=words):
                store.add_duel(examples.duel())
        outage.end()
        store.add_duel(examples.duel())
        assert [examples.duel().id] == [duel.id for duel in store.duels()]
        for _ in range(2):
            with pytest.raises(StoreError, match="stored before"):
                store.add_duel(examples.duel())


def test_an_interrupt_during_the_commit_stores_nothing_twice(planned: Store) -> None:
    """Ctrl-C may come when the outcomes are stored already; whoever tidies up gives them once more."""
    records = [examples.simple(case) for case in examples.cases(3)]

    def interrupt(connection: Connection) -> None:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("COMMIT")
        else:
            connection.connection.driver_connection.commit()
        raise KeyboardInterrupt

    event.listen(planned._database.engine, "commit", interrupt, once=True)
    with pytest.raises(KeyboardInterrupt):
        planned.add(RUN.id, records)
    for _ in range(2):
        planned.add(RUN.id, list(records))
    assert 6 == len(planned.evidence(RUN.id).outcomes)


def test_a_signal_while_another_process_writes(tmp_path: Path) -> None:
    """Who waits for a lock still answers Ctrl-C; who was told to end waits only a moment more.

    Whoever would wait on gets the lock in the end, and the test fails.
    """
    path = tmp_path / "evidence.db"
    with (
        Store.open(str(path), busy_timeout_s=3600) as store,
        closing(sqlite3.connect(path, check_same_thread=False)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(30.0, other.rollback)
        release.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                _interrupted(lambda: store.begin(RUN))
            assert other.in_transaction
            store.hurry()
            with pytest.raises(StoreError, match="stayed locked"):
                store.begin(RUN)
        finally:
            release.cancel()
            release.join()


def _interrupted(wait: Callable[[], object]) -> None:
    """Calls what waits, and sends Ctrl-C meanwhile."""
    main = threading.get_ident()
    sending = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))
    sending.start()
    try:
        wait()
    finally:
        sending.join()


def _execute(address: str, *statements: str) -> None:
    engine = create_engine(address, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()
