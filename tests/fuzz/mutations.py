"""Ways to damage what a user gives: text, the values in JSON, bytes, the cells and pages of an SQLite file."""

from __future__ import annotations

import copy
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

HUGE = 2**31 - 1
WORDS = (
    "", "~", "null", "true", "no", "0", "-1", "1.5", "1e400", str(HUGE), str(HUGE + 1), "9" * 400, ".nan", "-.inf",
    "NaN", "Infinity", "1e-320", "0x7fffffff", "0o17", "*", "**", "[", "]", "{", "}", "{}", "[]", "[[]]", "- x",
    "a: b", "&a", "*a", "<<: *a", "!!python/object:os.system x", "!x", "|", ">", "'", '"', "%", "@", "`", "#", "---",
    "...", "\t", "\x0c", "\x00", "\x1b[31m", "\u202e", "\ufeff", "\ud800", "\U0001f600", "\u2028", "é", "::error::x",
    "##[error]", "../../etc/passwd", "/dev/zero", "x" * 3000, "2026-02-30", "9999-12-31", "0001-01-01", "[0-9",
    "(?P<x", "(a+)+$", "a" * 60 + "!", "contiguous", "model", "causal", "window0", f"window{HUGE}", "bf16",
    "fp8_e4m3", "%s%n", "{0.__class__}", "${HOME}", "$(id)", "a,b;c",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, HUGE, HUGE + 1, -(2**63), 2**64, 10**300, 1.5, -0.0, 1e-320, 1e308, float("nan"),
    float("inf"), float("-inf"), "", " ", "x", "x" * 5000, "\u202e", "\x1b]0;x\x07", "\x00", "\ud800", "1", "NaN", [],
    {}, [[]], [None], [0] * 1000, {"": {}}, {"a": [1]}, ["full_attention"] * 3, "causal", "2026-11-21T03:00:00Z",
    "../x", "hf://a/b",
)  # fmt: skip
CELLS: tuple[Any, ...] = (
    None, "", " ", 0, -1, 2**63 - 1, -(2**63), 1.5, float("inf"), "x" * 50, b"\xff\xfe\x00", "NaN", "{}", "[]",
    "null", "[1", '{"a": ', '"x"', '["x"]', '{"x": {"y": "z"}}', "1e999", "[[1, 2]]", "[[0, 1, 2]]", "9" * 400,
    "8192x99999999", "1x-3", "\u202e\x1b[31m", "2026-13-45", "0001-01-01 00:00:00.000000",
    "9999-12-31 23:59:59.999999", "measured", "completed", "pass",
)  # fmt: skip

_PLACE = st.integers(0, 2**20)
_WORD = st.sampled_from(WORDS) | st.text(max_size=20)
TEXT_EDITS = st.lists(
    st.tuples(
        st.sampled_from(
            ["token"] * 6
            + ["value"] * 4
            + ["insert", "drop", "double", "swap", "indent", "cut", "join", "nest", "long"]
        ),
        _PLACE,
        _PLACE,
        _WORD,
    ),
    min_size=1,
    max_size=4,
)
BYTE_EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "insert", "remove", "encode", "mark"]), _PLACE, st.binary(min_size=1, max_size=8)
    ),
    max_size=2,
)
DATA_EDITS = st.lists(
    st.tuples(
        st.sampled_from(["set"] * 5 + ["remove", "rename", "repeat"]),
        _PLACE,
        st.sampled_from(VALUES) | st.integers() | st.floats() | st.text(max_size=10),
    ),
    min_size=1,
    max_size=4,
)
"""edits of JSON: what, where, and which value"""


def edit_text(text: str, edits: list[tuple[str, int, int, str]]) -> str:
    """The text after all edits; at most some 200 kB."""
    for what, where, other, word in edits:
        text = _EDIT_TEXT[what](text, where, other, word)[:200_000]
    return text


def _token(text: str, where: int, _: int, word: str) -> str:
    """Another word in place of one."""
    found = list(re.finditer(r"[^\s,:\[\]{}\"']+", text))
    if not found:
        return word
    at = found[where % len(found)]
    return text[: at.start()] + word + text[at.end() :]


def _value(text: str, where: int, _: int, word: str) -> str:
    """Another value behind a key."""
    found = list(re.finditer(r"(?<=: )[^\n,}]+", text))
    if not found:
        return text + word
    at = found[where % len(found)]
    return text[: at.start()] + word + text[at.end() :]


def _on_lines(text: str, where: int, other: int, what: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at, there = where % len(lines), other % len(lines)
    match what:
        case "drop":
            del lines[at]
        case "double":
            lines[there:there] = lines[at : at + 1 + other % 3]
        case "swap":
            lines[at], lines[there] = lines[there], lines[at]
        case "indent":
            lines[at:] = [f"{' ' * (other % 5)}{line}" for line in lines[at:]]
        case "join":
            lines[at] = lines[at].rstrip("\n")
    return "".join(lines)


_EDIT_TEXT: dict[str, Any] = {
    "token": _token,
    "value": _value,
    "insert": lambda text, where, _, word: text[: where % (len(text) + 1)] + word + text[where % (len(text) + 1) :],
    "cut": lambda text, where, *_: text[: where % (len(text) + 1)],
    "nest": lambda text, where, other, _: _value(text, where, 0, "[" * (other % 90) + "]" * (other % 90)),
    "long": lambda text, where, other, word: _value(text, where, 0, (word or "x") * (other % 30_000)),
    **{
        what: (lambda text, where, other, _, what=what: _on_lines(text, where, other, what))
        for what in ("drop", "double", "swap", "indent", "join")
    },
}


def edit_bytes(content: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    """The bytes after all edits."""
    for what, where, some in edits:
        at = where % (len(content) + 1)
        match what:
            case "flip":
                content = content[:at] + some + content[at + len(some) :]
            case "insert":
                content = content[:at] + some + content[at:]
            case "remove":
                content = content[:at] + content[at + len(some) * 7 :]
            case "encode":
                with suppress(UnicodeDecodeError):
                    content = content.decode().encode(("utf-16", "utf-32", "utf-16-be", "utf-7")[where % 4])
            case "mark":
                content = b"\xef\xbb\xbf" + content
    return content


def edit_data(data: Any, edits: list[tuple[str, int, Any]]) -> Any:
    """The data of JSON after all edits."""
    data = copy.deepcopy(data)
    for what, where, shared in edits:
        value = copy.deepcopy(shared)
        places = list(_places(data))
        if not places:
            return value
        holder, key = places[where % len(places)]
        if what == "set":
            holder[key] = value
        elif what == "remove":
            del holder[key]
        elif what == "rename" and isinstance(holder, dict):
            holder[str(value)[:50]] = holder.pop(key)
        elif what == "repeat" and isinstance(holder, list):
            holder[key:key] = [copy.deepcopy(holder[key]) for _ in range(where % 50)]
    return data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every holder with each of its keys."""
    for key, value in list(
        data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    ):
        yield data, key
        yield from _places(value)


def to_bytes(text: str) -> bytes:
    """The text as a file holds it; halves of characters too."""
    return text.encode("utf-8", "surrogatepass")


def dumped(data: Any) -> str:
    """JSON as Python writes it, with NaN."""
    return json.dumps(data)


DATABASE_EDITS = st.lists(
    st.tuples(
        st.sampled_from(
            ["cell"] * 6 + ["table", "column", "rows", "cut", "flip", "block", "page size", "version", "sql"]
        ),
        _PLACE,
        _PLACE,
        st.sampled_from(CELLS) | st.text(max_size=10) | st.integers(-(2**63), 2**63 - 1),
    ),
    min_size=1,
    max_size=2,
)


def edit_database(path: Path, edits: list[tuple[str, int, int, Any]]) -> None:
    """Changes the SQLite file in place."""
    for what, where, other, value in edits:
        if what in {"cut", "flip", "block", "page size"}:
            path.write_bytes(_edit_pages(path.read_bytes(), what, where, other))
            continue
        for edit in (_loosen, _edit_rows) if what == "cell" else (_edit_rows,):
            with suppress(sqlite3.Error, UnicodeError), closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("PRAGMA ignore_check_constraints = ON")
                connection.execute("PRAGMA writable_schema = ON")
                edit(connection, what, where, other, value)


def columns_of(path: Path) -> list[tuple[int, int]]:
    """The numbers of tables that have rows, each with those of its columns, as ``edit_database`` takes them."""
    with closing(sqlite3.connect(path)) as connection:
        return [
            (table, column)
            for table, name in enumerate(_tables(connection))
            if connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
            for column, _ in enumerate(connection.execute(f'PRAGMA table_info("{name}")'))
        ]


def _tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]


def _edit_pages(content: bytes, what: str, where: int, other: int) -> bytes:
    at = where % (len(content) + 1)
    match what:
        case "cut":
            return content[: at if other % 2 else at // 4096 * 4096]
        case "flip":
            return content[:at] + bytes([other % 256]) + content[at + 1 :]
        case "block":
            return content[:at] + bytes([other % 256]) * (other % 5000) + content[at + other % 5000 :]
    return content[:16] + (other % 65536).to_bytes(2, "big") + content[18:]


def _loosen(connection: sqlite3.Connection, *_: object) -> None:
    """Lets every column be NULL."""
    connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE type = 'table'")


def _edit_rows(connection: sqlite3.Connection, what: str, where: int, other: int, value: Any) -> None:
    tables = _tables(connection)
    if not tables:
        return
    table = tables[where % len(tables)]
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    if not columns:
        return
    column = columns[other % len(columns)]
    match what:
        case "cell":
            connection.execute(f'UPDATE "{table}" SET "{column}" = ?', (value,))
        case "table":
            connection.execute(f'DROP TABLE "{table}"')
        case "column":
            connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}_x"')
        case "rows":
            connection.execute(f'DELETE FROM "{table}"')
        case "version":
            connection.execute("UPDATE qualify_version SET version_num = ?", (value,))
        case "sql":
            connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (value, table))
