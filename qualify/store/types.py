"""Column types that bring back exactly what was stored, on SQLite and on PostgreSQL.

Where there are many values, a type replaces SQLAlchemy's processor, not only the conversion inside it: SQLAlchemy's
wrapper takes as much time as the conversion.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from sys import intern
from typing import Any, overload

from sqlalchemy import BigInteger, Boolean, DateTime, Dialect, Double, Text
from sqlalchemy.types import TypeDecorator

from qualify.store.failures import DamagedError

_UNSTORABLE = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED = re.compile("\x1a([0-9a-f]{4})")


class Stored(TypeDecorator[Any]):
    """A column type that checks its values, because SQLite stores a value of any type in any column.

    Reading raises DamagedError for a value of another type, for NULL where there can be none, and for a word that the
    column does not know. PostgreSQL refuses such values itself.
    """

    impl: Any = Text
    cache_ok = True
    kind: type = str

    def __init__(self, name: str, *, nullable: bool = False, words: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.name = name
        self.nullable = nullable
        self.words = words

    def convert(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """The function that turns a driver's value of the right type into the stored one; None where both are equal."""
        return None

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """The function that checks a driver's value and turns it into the stored one."""
        convert = self.convert(dialect)
        if dialect.name != "sqlite":
            return convert
        kind, nullable, words = self.kind, self.nullable, self.words

        # Three functions, each as short as it can be, because a run has millions of values.
        def converted(value: Any) -> Any:
            if type(value) is kind:
                return convert(value) if convert else value
            return self._missing(value)

        def plain(value: Any) -> Any:
            return value if type(value) is kind else self._missing(value)

        def word(value: Any) -> Any:
            return intern(value) if value in words else None if value is None and nullable else self._missing(value)

        return word if words else converted if convert else plain

    def _missing(self, value: Any) -> None:
        """Returns None for a NULL that the column allows; raises DamagedError for every other value."""
        if value is None and self.nullable:
            return
        right = f"none of {', '.join(sorted(self.words))}" if self.words else f"no {NAMES[self.kind]}"
        raise DamagedError(f"{self.name} is {value!r:.60}, which is {right}")


NAMES: dict[type, str] = {str: "text", int: "whole number", float: "number"}
"""what a column holds, in a message"""


class Word(Stored):
    """Text of qualify's own: every database takes it as it is."""

    cache_ok = True

    def convert(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """The function that makes equal words of a closed list one object; None for other text."""
        return interned if self.words else None


class Whole(Stored):
    """A whole number."""

    impl = BigInteger
    cache_ok = True
    kind = int


class Flag(Stored):
    """True or false; SQLite has 1 and 0."""

    impl = Boolean
    cache_ok = True
    kind = int

    def convert(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """The function that turns SQLite's 0 or 1 into a flag; None on PostgreSQL."""
        return self._flag if dialect.name == "sqlite" else None

    def _flag(self, value: int) -> bool:
        if value not in (0, 1):
            raise DamagedError(f"{self.name} is {value}, which is neither 0 nor 1")
        return bool(value)


class Real(Stored):
    """A double whose NaN survives.

    SQLite turns NaN into NULL, so there it is stored as the text ``NaN``, which sorts above every number: the
    same order that PostgreSQL gives its native NaN. Infinities are native on both.
    """

    impl = Double
    cache_ok = True
    kind = float

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """The function that makes a value ready for the driver."""
        return _nan_to_text if dialect.name == "sqlite" else super().bind_processor(dialect)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """The function that turns the driver's value back into a number."""
        if dialect.name != "sqlite":
            return super().result_processor(dialect, coltype)

        def number(value: Any) -> Any:
            if type(value) is float:
                return value
            return math.nan if value == "NaN" else self._missing(value)

        return number


def _nan_to_text(value: float | None) -> float | str | None:
    return "NaN" if value is not None and math.isnan(value) else value


class Words(Stored):
    """Text from outside (logs, kernel names), which may hold what a database refuses.

    PostgreSQL takes no NUL and no database takes a lone surrogate. Each becomes U+001A and four hexadecimal
    digits, as does U+001A itself, so that the text comes back unchanged.
    """

    impl = Text
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        """The function that makes a text ready for the driver."""
        return escaped

    def convert(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """The function that turns the driver's text back into the stored one."""
        return unescaped


class SharedWords(Words):
    """The same for text that many rows share, such as a kernel's name: equal texts become one object."""

    cache_ok = True

    def convert(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """The function that turns the driver's text back into the stored one."""
        return _unescaped_once


@lru_cache(maxsize=1024)
def interned(value: str | None) -> str | None:
    """The text, as the one object that stands for all equal ones."""
    return None if value is None else intern(value)


@lru_cache(maxsize=1024)
def _unescaped_once(value: str | None) -> str | None:
    return interned(unescaped(value))


def escaped(value: str | None) -> str | None:
    """A text as it is stored: characters that a database does not take have a form of their own."""
    if value is None or not _UNSTORABLE.search(value):
        return value
    return _UNSTORABLE.sub(lambda found: f"\x1a{ord(found[0]):04x}", value)


@overload
def unescaped(value: str) -> str: ...


@overload
def unescaped(value: None) -> None: ...


def unescaped(value: str | None) -> str | None:
    """The text that was stored, from its form in the database."""
    if value is None or "\x1a" not in value:
        return value
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), value)


class Json(Stored):
    """A list or a dictionary as JSON text; NaN and infinities are written as Python's json writes them."""

    impl = Text
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        """The function that writes the value as one line of ASCII."""
        return _encoded

    def convert(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """The function that reads the lists and dictionaries back."""
        return decoded


class Repeated(Json):
    """The same for a column whose rows mostly hold equal text: it is parsed once, and all rows share the result."""

    cache_ok = True

    def convert(self, dialect: Dialect) -> Callable[[Any], Any] | None:
        """The function that reads the lists and dictionaries back."""
        return _decoded_once


# Made once: json.dumps and json.loads make a new encoder or decoder for every value where they get options.
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_DECODER = json.JSONDecoder()


def _encoded(value: Any) -> str | None:
    if value == {}:  # half of all findings
        return "{}"
    return None if value is None else _ENCODER.encode(value)


def decoded(value: str | None) -> Any:
    """The list or dictionary that was stored, from its text in the database."""
    if value == "{}":
        return {}
    if value is None:
        return None
    # decode() would look for blanks around the value first, which costs as much as the value.
    data, end = _DECODER.raw_decode(value)
    if end != len(value):
        raise ValueError(f"{value[:80]!r} holds more than one JSON value")
    return data


def texts(value: Any) -> tuple[str, ...]:
    """The list that a column of JSON held, as a tuple. Raises DamagedError where it is not a list of texts."""
    if type(value) is not list or not all(type(text) is str for text in value):
        raise DamagedError(f"a list of texts is {value!r:.60}")
    return tuple(value)


def texts_by_name(value: Any) -> dict[str, str]:
    """The texts by name that a column of JSON held. Raises DamagedError where a value is no text."""
    if type(value) is not dict or not all(type(text) is str for text in value.values()):
        raise DamagedError(f"texts by name are {value!r:.60}")
    return value


@lru_cache(maxsize=64)
def _decoded_once(value: str | None) -> Any:
    return decoded(value)


class UtcTime(TypeDecorator[datetime]):
    """An aware time: UTC in the database, UTC when it comes back. A naive time is refused."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def __init__(self, *, nullable: bool = False) -> None:
        super().__init__(timezone=True)
        self.nullable = nullable

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The time in UTC; without its zone on SQLite, which has none."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; the store takes aware times only")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The time, aware and in UTC. Raises DamagedError for NULL where there can be none."""
        if value is None:
            if not self.nullable:
                raise DamagedError("a time is missing")
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)
