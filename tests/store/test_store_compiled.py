"""What one store compiled, the next one of the same process finds."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import store_examples as examples
from sqlalchemy import Engine, event, text
from sqlalchemy.engine.interfaces import CacheStats

from qualify.store import Store


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


def use(path: Path, count: int) -> int:
    """A store with a run of so many cases; how many it gives back."""
    with Store.open(str(path)) as store:
        store.begin(examples.run())
        store.add_cases(examples.run().id, examples.cases(count))
        return len(store.records(examples.run().id))


def test_a_second_store_compiles_nothing(tmp_path: Path) -> None:
    """Every store answers from its own file."""
    assert 10 == use(tmp_path / "first.db", 10)
    with compiling() as compiled:
        assert 10 == use(tmp_path / "second.db", 10)
    assert [] == compiled
    new = f"SELECT {secrets.randbits(60)}"
    with compiling() as compiled, Store.open(str(tmp_path / "first.db")) as store, store._database.reading() as reading:
        reading.execute(text(new))
    assert [new] == compiled, "what is new is compiled"
