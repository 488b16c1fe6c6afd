"""Column types that bring back exactly what was stored, on SQLite and on PostgreSQL.

Where there are many values, the processors are replaced whole: SQLAlchemy's wrapper around them costs as much as they.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, overload

from sqlalchemy import DateTime, Dialect, Double, Text
from sqlalchemy.types import TypeDecorator

_UNSTORABLE = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED = re.compile("\x1a([0-9a-f]{4})")


class Real(TypeDecorator[float]):
    """A double whose NaN survives.

    SQLite turns NaN into NULL, so there it is stored as the text ``NaN``, which sorts above every number: the
    same order that PostgreSQL gives its native NaN. Infinities are native on both.
    """

    impl = Double
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """What makes a value ready for the driver."""
        return _nan_to_text if dialect.name == "sqlite" else super().bind_processor(dialect)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """What makes the driver's value a number again."""
        return _text_to_nan if dialect.name == "sqlite" else super().result_processor(dialect, coltype)


def _nan_to_text(value: float | None) -> float | str | None:
    return "NaN" if value is not None and math.isnan(value) else value


def _text_to_nan(value: float | str | None) -> float | None:
    return float(value) if isinstance(value, str) else value


class Words(TypeDecorator[str]):
    """Text from outside (logs, kernel names), which may hold what a database refuses.

    PostgreSQL takes no NUL and no database takes a lone surrogate. Each becomes U+001A and four hexadecimal
    digits, as does U+001A itself, so that the text comes back unchanged.
    """

    impl = Text
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        """What makes a text ready for the driver."""
        return _escaped

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """What makes the driver's text the one that was stored."""
        return unescaped


def _escaped(value: str | None) -> str | None:
    if value is None or not _UNSTORABLE.search(value):
        return value
    return _UNSTORABLE.sub(lambda found: f"\x1a{ord(found[0]):04x}", value)


@overload
def unescaped(value: str) -> str: ...


@overload
def unescaped(value: None) -> None: ...


def unescaped(value: str | None) -> str | None:
    """The text that was stored, from what the database has."""
    if value is None or "\x1a" not in value:
        return value
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), value)


class Json(TypeDecorator[Any]):
    """A list or a dictionary as JSON text; NaN and infinities are written as Python's json writes them."""

    impl = Text
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        """What makes one line of ASCII."""
        return _encoded

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """What makes lists and dictionaries again."""
        return decoded


class Repeated(Json):
    """The same, where most rows hold equal text: it is read once, and all of them share what it holds."""

    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """What makes lists and dictionaries again."""
        return _decoded_once


# Made once: json.dumps and json.loads with options of their own make one for every value.
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_DECODER = json.JSONDecoder()


def _encoded(value: Any) -> str | None:
    if value == {}:  # half of all findings
        return "{}"
    return None if value is None else _ENCODER.encode(value)


def decoded(value: str | None) -> Any:
    """The list or dictionary that was stored, from what the database has."""
    if value == "{}":
        return {}
    if value is None:
        return None
    # decode() would look for blanks around the value first, which costs as much as the value.
    data, end = _DECODER.raw_decode(value)
    if end != len(value):
        raise ValueError(f"{value[:80]!r} holds more than one JSON value")
    return data


@lru_cache(maxsize=64)
def _decoded_once(value: str | None) -> Any:
    return decoded(value)


class UtcTime(TypeDecorator[datetime]):
    """An aware time: UTC in the database, UTC when it comes back. A naive time is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The time in UTC; without its zone on SQLite, which has none."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; the store takes aware times only")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The time, aware and in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)
