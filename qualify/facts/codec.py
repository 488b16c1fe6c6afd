"""Records to JSON and back. Never pickle: everything that crosses a process or a file goes through here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

from pydantic import TypeAdapter

HALVES = re.compile("[\ud800-\udfff]")
"""halves of characters (surrogates), which stand for undecodable bytes in a name; UTF-8 and some JSON readers refuse
them"""
HALF = "\\ud"
"""how the JSON escape of a half begins, and that of a whole character which is written as two halves"""
DELETE = "\x7f"
"""the one control character that Python's encoder leaves as it is; a terminal would obey it"""

_PORTION = 256
"""items of a list in one piece"""

# Made once: json.dumps makes a new encoder for every value where it gets options.
_ENCODER = json.JSONEncoder(allow_nan=False)


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_data(record: Any, kind: Any = None) -> Any:
    """The record as dictionaries, lists, strings and numbers (not-a-number and infinities stay floats)."""
    chosen: Any = kind or type(record)
    return _adapter(chosen).dump_python(record, mode="json")


def from_data(kind: Any, data: object) -> Any:
    """The record of that class (or union) from what :func:`to_data` gave.

    Raises:
        pydantic.ValidationError: the data is not such a record.
    """
    return _adapter(kind).validate_python(data)


def to_json(data: Any) -> str:
    """Strict JSON of dictionaries, lists, strings and numbers, as :func:`strict` makes them.

    Every item of a list at the top has a line of its own, which is easy to search and to compare. The rest is not
    indented: Python code would have to do that, and it would take longer than all else.
    """
    return "".join(to_pieces(data))


def to_pieces(data: Any) -> Iterator[str]:
    """The same in pieces. An iterator at the top is written as a list, and its items are never in memory together."""
    if not isinstance(data, dict):
        yield _encoded(data)
        return
    before = "{\n "
    for key, value in data.items():
        yield f"{before}{_encoded(key)}: "
        before = ",\n "
        if isinstance(value, list | tuple | Iterator):
            yield from _items(iter(value))
        else:
            yield _encoded(value)
    yield "\n}" if data else "{}"


def _items(items: Iterator[Any]) -> Iterator[str]:
    """A list, each item on a line of its own."""
    before = "[\n  "
    while some := list(islice(items, _PORTION)):
        yield before + ",\n  ".join(map(_encoded, some))
        before = ",\n  "
    yield "\n ]" if before == ",\n  " else "[]"


def _encoded(data: Any) -> str:
    """The data as one line of JSON. Data that is strict already is not copied first."""
    try:
        text = _ENCODER.encode(data)
    except ValueError:  # a number that JSON does not know
        text = HALF
    return (_ENCODER.encode(strict(data)) if HALF in text else text).replace(DELETE, "\\u007f")


def strict(data: Any) -> Any:
    """The data for strict JSON, which knows no NaN and no infinities: they become None. Half a character is escaped."""
    if isinstance(data, str):
        return whole(data)
    if isinstance(data, dict):
        return {whole(key): strict(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [strict(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


def whole(text: str) -> str:
    """The text with every half of a character written out, as Python writes it in a literal."""
    return text if text.isascii() else HALVES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
