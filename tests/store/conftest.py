"""The databases that the store's tests run on: SQLite and PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import store_examples as examples
from sqlalchemy import create_engine, make_url, text

from qualify.store import Store


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a database that does not hold anything yet."""
    if request.param == "sqlite":
        yield str(tmp_path / "evidence.db")
        return
    server: str = request.getfixturevalue("postgres")
    name = f"qualify_{uuid.uuid4().hex}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield make_url(server).set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    """An empty store."""
    with Store.open(address) as opened:
        yield opened


@pytest.fixture
def planned(store: Store) -> Store:
    """A store with one run of ten cases and no outcome."""
    store.begin(examples.run())
    store.add_cases(examples.run().id, examples.cases(10))
    return store
