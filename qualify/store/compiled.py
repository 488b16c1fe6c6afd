"""Lets a process compile each statement once, and not once for each SQLite file that it opens.

Compiling the fifty statements of a run takes a third of the time that storing the run takes. SQLAlchemy looks up a
compiled statement by its dialect, and each engine has a dialect object of its own. A process has only one SQLite
library, so these dialects compile alike: here they compare equal, and share what was compiled.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache

DRIVER = "sqlite+once"
MOST = 2000
"""how many compiled statements are kept"""


class OnceDialect(SQLiteDialect_pysqlite):
    """The dialect for Python's sqlite3. All engines that use it share their compiled statements."""

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
