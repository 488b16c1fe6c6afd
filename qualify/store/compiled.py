"""Statements are compiled once in a process, and not once for each SQLite file that it opens.

To compile the fifty statements of a run takes a third of the time that storing it takes. SQLAlchemy finds a compiled
statement by the dialect's identity, and each engine has a dialect of its own. A process has only one SQLite library, so
these dialects compile alike, and say that they are equal.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

DRIVER = "sqlite+once"
MOST = 2000
"""statements that are kept"""


class OnceDialect(SQLiteDialect_pysqlite):
    """Python's sqlite3, whose compiled statements are every engine's."""

    supports_statement_cache = True

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


registry.register("sqlite.once", __name__, OnceDialect.__name__)
_COMPILED: LRUCache[Any, Any] = LRUCache(MOST)


def compiled_once(url: URL) -> tuple[URL, dict[str, Any]]:
    """The address of an SQLite file for ``create_engine``, and an option with which its engine shares statements."""
    return url.set(drivername=DRIVER), {"execution_options": {"compiled_cache": _COMPILED}}
