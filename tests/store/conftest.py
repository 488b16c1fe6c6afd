"""Stores on both databases."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import dumps
import pytest
import store_examples as examples
from sqlalchemy import make_url

from qualify.store import Store

Like = Callable[[str], AbstractContextManager[str]]

# To fill a store takes longer than most of what is asked of it afterwards: many tests get a copy.


@pytest.fixture(scope="session")
def runs_sqlite(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store with two runs, to be copied."""
    path = Path(shutil.copy(migrated_sqlite, tmp_path_factory.mktemp("runs")))
    with Store.open(str(path)) as store:
        dumps.fill_runs(store)
    return path


@pytest.fixture(scope="session")
def runs_postgres(migrated_postgres: str, postgres_like: Like) -> Iterator[str]:
    """Name of a PostgreSQL database that holds such a store, to be copied."""
    with postgres_like(migrated_postgres) as address:
        with Store.open(address) as store:
            dumps.fill_runs(store)
        yield str(make_url(address).database)


@pytest.fixture
def sqlite_of_runs(runs_sqlite: Path, tmp_path: Path) -> str:
    """The address of an SQLite store with two runs."""
    return str(shutil.copy(runs_sqlite, tmp_path))


@pytest.fixture
def postgres_of_runs(runs_postgres: str, postgres_like: Like) -> Iterator[str]:
    """The address of a PostgreSQL store with two runs."""
    with postgres_like(runs_postgres) as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def store_of_runs(request: pytest.FixtureRequest) -> str:
    """The address of a store with two runs, of both kinds."""
    return request.getfixturevalue("sqlite_of_runs" if request.param == "sqlite" else "postgres_of_runs")


@pytest.fixture
def filled(store_of_runs: str) -> Iterator[Store]:
    """A store with two runs, open."""
    with Store.open(store_of_runs) as opened:
        yield opened


@pytest.fixture(scope="session")
def full_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a store with something in every table, to be copied."""
    path = tmp_path_factory.mktemp("full") / "full.db"
    with Store.open(str(path)) as store:
        dumps.fill(store)
    return path


@pytest.fixture
def store(empty_store: str) -> Iterator[Store]:
    """An empty store."""
    with Store.open(empty_store) as opened:
        yield opened


@pytest.fixture
def planned(store: Store) -> Store:
    """A store with one run of ten cases and no outcome."""
    store.begin(examples.run())
    store.add_cases(examples.run().id, examples.cases(10))
    return store
