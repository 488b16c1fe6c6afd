"""What one store compiled, the next one of the same process finds."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import store_examples as examples
from sqlalchemy import Engine, create_engine, event, literal, select, text
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine.interfaces import CacheStats

from qualify.store import Store
from qualify.store.compiled import COMPILED_ONCE


@contextmanager
def compiling() -> Iterator[list[str]]:
    """The statements that are compiled meanwhile."""
    compiled: list[str] = []

    def seen(_: Any, __: Any, statement: str, ___: Any, context: Any, ____: Any) -> None:
        if context.cache_hit is CacheStats.CACHE_MISS:
            compiled.append(statement)

    event.listen(Engine, "before_cursor_execute", seen)
    try:
        yield compiled
    finally:
        event.remove(Engine, "before_cursor_execute", seen)


def use(address: str, count: int) -> int:
    """A store with a run of so many cases; how many it gives back."""
    with Store.open(address) as store:
        store.begin(examples.run())
        store.add_cases(examples.run().id, examples.cases(count))
        return len(store.records(examples.run().id))


@pytest.fixture(params=["sqlite", "postgresql"])
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """The addresses of two databases of one kind."""
    if request.param == "sqlite":
        yield [str(tmp_path / "first.db"), str(tmp_path / "second.db")]
        return
    like, empty = request.getfixturevalue("postgres_like"), request.getfixturevalue("migrated_postgres")
    with like(empty) as first, like(empty) as second:
        yield [first, second]


def test_a_second_store_compiles_nothing(two: list[str]) -> None:
    """Every store answers from its own database."""
    first, second = two
    assert 10 == use(first, 10)
    with compiling() as compiled:
        assert 10 == use(second, 10)
    assert [] == compiled
    new = f"SELECT {secrets.randbits(60)}"
    with compiling() as compiled, Store.open(first) as store, store._database.reading() as reading:
        reading.execute(text(new))
    assert [new] == compiled, "what is new is compiled"


def test_servers_of_two_versions_share_nothing() -> None:
    """SQLAlchemy asks one of them for what the other one does not understand."""
    old, new = PGDialect(), PGDialect()
    old.server_version_info, new.server_version_info = (13, 4), (14, 1)
    statement = select(literal(1))
    for dialect in (old, new):
        _, _, _, hit = statement._compile_w_cache(dialect, column_keys=[], **COMPILED_ONCE)
        assert CacheStats.CACHE_MISS is hit, dialect.server_version_info


def test_every_server_reads_a_backslash_alike(empty_postgres: str) -> None:
    """By this setting SQLAlchemy writes it in two ways, and the statement would be shared."""
    engine = create_engine(empty_postgres, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {engine.url.database} SET standard_conforming_strings = off")
    engine.dispose()
    with Store.open(empty_postgres) as store, store._database.reading() as reading:
        assert "on" == reading.exec_driver_sql("SHOW standard_conforming_strings").scalar_one()
        written = select(literal("\\", literal_execute=True))
        assert "\\" == reading.execute(written).scalar_one(), "written out in the statement"
