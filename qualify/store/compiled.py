"""Lets a process compile each statement once, and not once for each database that it opens.

Compiling the fifty statements of a run takes a third of the time that storing the run takes. SQLAlchemy looks up a
compiled statement by the dialect object of its engine, and each engine has one of its own. What a dialect compiles
depends on its class and on the version of the server, or of the SQLite library: here they take its place.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.util import LRUCache

MOST = 2000
"""how many compiled statements are kept"""


class _Compiled(LRUCache[Any, Any]):
    """Compiled statements; SQLAlchemy's keys begin with the dialect."""

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        """What any dialect that compiles alike has compiled."""
        return super().get(_alike(key), default)

    def __setitem__(self, key: tuple[Any, ...], value: Any) -> None:
        super().__setitem__(_alike(key), value)


def _alike(key: tuple[Any, ...]) -> tuple[Any, ...]:
    dialect, *rest = key
    return type(dialect), dialect.server_version_info, *rest


COMPILED_ONCE = {"compiled_cache": _Compiled(MOST)}
"""options of an engine that shares its compiled statements with all others of the process"""
