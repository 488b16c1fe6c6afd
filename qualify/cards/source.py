"""Bytes to plain data, with the place of every key and value. Nothing in a file can make this run code or hang.

YAML is read as a stream of parser events; no constructor is involved, so a tag can build nothing. Scalars
follow the YAML 1.2 core schema: ``yes`` and ``-inf`` are text, ``-.inf`` is a number. JSON is YAML 1.2, so
the same events give its places, but it must pass the JSON parser too.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from ruamel.yaml.reader import ReaderError

from qualify.cards.words import Where
from qualify.errors import CardError, Place
from qualify.files import IrregularFileError, open_regular

LIMIT_BYTES = 1 << 20
LIMIT_LINE = 1 << 16
"""characters of one line; ruamel needs quadratic time for some longer ones"""
LIMIT_DEPTH = 32
LIMIT_VALUES = 50_000
"""values of one file, each alias counted as all that it stands for"""

Spot = tuple[int, int]
"""line and column, from 1"""

_NULL = ("", "~", "null", "Null", "NULL")
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LONG = re.compile(r"\d{4301,}")
"""a whole number that Python does not read"""
_YAML = re.compile(r"(---|[\w-]+:|- )(\s|$)")
"""how a file of YAML begins"""
_CONSTANTS = ("NaN", "Infinity", "-Infinity")
"""numbers that Python reads and writes as JSON, which has no word for them"""
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file that was read: its text, its data, and where everything stands."""

    path: Path
    text: str
    data: object
    """dictionaries, lists, strings, numbers, booleans, None"""
    values: Mapping[Where, Spot]
    keys: Mapping[Where, Spot]
    problems: tuple[tuple[Place, str], ...]
    """what is wrong although it could be read: duplicate keys"""

    def nearest(self, where: Where) -> Where:
        """The longest beginning of the way that exists in the file."""
        while where and where not in self.values:
            where = where[:-1]
        return where

    def place(self, where: Where) -> Place:
        """Where the value stands; the enclosing one where the file does not have it."""
        line, column = self.values.get(self.nearest(where), (0, 0))
        return Place(path=str(self.path), line=line, column=column)

    def key_place(self, where: Where) -> Place:
        """Where the key stands that leads to the value."""
        if where not in self.keys:
            return self.place(where)
        line, column = self.keys[where]
        return Place(path=str(self.path), line=line, column=column)


def read(path: Path) -> Source:
    """Read one card. Raises CardError for everything that can be wrong with a file or its syntax."""
    return parse(path, text_of(path))


def read_config(path: Path) -> Source:
    """Read a model's config: JSON, whatever the file is called.

    Python writes numbers that JSON has no word for, and configs of state-space models have one (``time_step_limit``).
    """
    return parse(path, text_of(path), constant=float)


def parse(path: Path, text: str, constant: Callable[[str], float] | None = None) -> Source:
    """The same for a text that stood in the file ``path``; ``constant`` makes numbers of NaN and Infinity in JSON."""
    is_json = path.suffix == ".json" or constant is not None
    parsed = _parse_json(path, text, constant or float) if is_json else None
    builder = _Builder(path, text.replace("\t", " ") if is_json else text, is_json=is_json, strict=constant is None)
    data = builder.document()
    return Source(
        path=path,
        text=text,
        data=parsed if is_json else data,
        values=builder.values,
        keys=builder.keys,
        problems=tuple(builder.problems),
    )


def fail(path: Path, message: str, spot: Spot = (0, 0)) -> NoReturn:
    """Raise CardError with one problem."""
    raise CardError([(Place(path=str(path), line=spot[0], column=spot[1]), message)])


def _bytes(path: Path) -> bytes:
    try:
        with open_regular(path) as stream:
            content = stream.read(LIMIT_BYTES + 1)
    except IrregularFileError as error:
        fail(
            path, "is a folder; give a file" if path.is_dir() else f"is not a regular file ({error.kind}); give a file"
        )
    except FileNotFoundError:
        fail(path, f"no such file{_near(path)}; check the path, which counts from the working directory")
    except PermissionError:
        fail(path, "no permission to read it; see its owner and mode with ls -l")
    except OSError as error:
        fail(path, f"cannot be read: {error.strerror}")
    except ValueError as error:  # a zero byte in the path
        fail(path, f"cannot be read: {error}")
    if len(content) > LIMIT_BYTES:
        fail(path, f"is larger than {LIMIT_BYTES} bytes; a card is not that large, so this is probably another file")
    return content


def _near(path: Path) -> str:
    """The file of nearly that name in the same folder, as the end of a sentence."""
    try:
        near = difflib.get_close_matches(path.name, [each.name for each in path.parent.iterdir()], n=1, cutoff=0.7)
    except OSError:
        return ""
    return f"; perhaps you meant {path.parent / near[0]}" if near else ""


def text_of(path: Path) -> str:
    """The text of a card's file. Raises CardError where it is none."""
    content = _bytes(path)
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        fail(path, "is UTF-16; save it as UTF-8")
    if b"\0" in content:
        fail(path, "is a binary file (it holds a zero byte); give a YAML or JSON text file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", errors="replace")
        spot = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        fail(path, f"is not UTF-8: byte 0x{content[error.start]:02x}; save it as UTF-8, or is it no text?", spot)
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > LIMIT_LINE:
            fail(path, f"has a line of {len(line)} characters, the limit is {LIMIT_LINE}; break it", (number, 1))
    return text


def _parse_json(path: Path, text: str, constant: Callable[[str], float]) -> object:
    try:
        return json.loads(text, parse_constant=constant)
    except json.JSONDecodeError as error:
        fail(path, f"is not valid JSON: {error.msg}{_json_hint(text, error)}", (error.lineno, error.colno))
    except ValueError as error:
        long = _LONG.search(text)
        if long is None:
            fail(path, f"is not valid JSON: {error}")
        spot = (text.count("\n", 0, long.start()) + 1, long.start() - text.rfind("\n", 0, long.start()))
        fail(path, f"holds a number of {len(long[0])} digits; nothing that a model has is so large", spot)
    except RecursionError:
        fail(path, f"is nested deeper than {LIMIT_DEPTH} levels")


def _json_hint(text: str, error: json.JSONDecodeError) -> str:
    """The likely cause, as the end of a sentence."""
    start = text.lstrip()
    if not start:
        return ": the file is empty"
    if start.startswith("<"):
        return ": this is a web page, not the file; download the file itself"
    if start.startswith("version https://git-lfs"):
        return ": this is a pointer of Git LFS, not the file; get the file with git lfs pull"
    rest = text[error.pos :].lstrip()
    if rest.startswith(("//", "/*", "#")):
        return "; JSON has no comments"
    if rest.startswith("'"):
        return '; JSON quotes with " alone'
    if (rest[:1] in {"}", "]"} and text[: error.pos].rstrip().endswith(",")) or error.msg.startswith(
        "Illegal trailing"
    ):
        return "; JSON has no comma before the end of a mapping or list"
    if error.pos >= len(text.rstrip()):
        return ": the file ends too early"
    if error.msg.startswith("Unterminated string"):
        return "; its closing quote is missing, or the file was cut off"
    if error.msg == "Extra data":
        return "; the file holds more than one value, so keep one"
    if error.pos == len(text) - len(start) and _YAML.match(start):
        return "; this looks like YAML, and it must be JSON"
    return ""


def plain_scalar(text: str) -> object:
    """An unquoted scalar by the YAML 1.2 core schema; a number of more than 300 characters stays text."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if len(text) > 300:
        return text
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text)
    if special := _SPECIAL.fullmatch(text):
        return float("nan") if special[3] else float(f"{special[1]}inf")
    return text


class _Builder:
    """Builds the data of one document from parser events and remembers the places."""

    def __init__(self, path: Path, text: str, *, is_json: bool, strict: bool) -> None:
        self.path = path
        self._json = is_json
        self._strict = is_json and strict
        self.values: dict[Where, Spot] = {}
        self.keys: dict[Where, Spot] = {}
        self.problems: list[tuple[Place, str]] = []
        self._text = text
        self._events = self._guarded(YAML(typ="safe", pure=True).parse(text))
        self._anchors: dict[str, tuple[object, int]] = {}
        self._count = 0

    def _guarded(self, events: Iterator[Any]) -> Iterator[Any]:
        """The events; the parser's errors become CardError."""
        try:
            yield from events
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            spot = (mark.line + 1, mark.column + 1) if mark else (0, 0)
            # What the JSON parser took and the YAML parser does not is a key too long for it.
            long = "ends a key of more than 1024 characters; shorten it"
            fail(self.path, long if self._json else _syntax(error), spot)
        except ReaderError as error:
            before = self._text[: error.position]
            spot = (before.count("\n") + 1, len(before) - before.rfind("\n"))
            fail(self.path, f"a character that YAML forbids ({error.character:#x}); remove it", spot)
        except YAMLError as error:
            fail(self.path, f"is not valid YAML: {error}")

    def document(self) -> object:
        """The data of the only document; None where there is none."""
        data: object = None
        documents = 0
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._fail(event, "starts a second document; one file holds one card, so split it at the ---")
                data = self._node(next(self._events), (), 0)
            elif isinstance(event, StreamEndEvent):
                break
        return data

    def _node(self, event: Any, where: Where, depth: int) -> object:
        if depth > LIMIT_DEPTH:
            self._fail(event, f"is nested deeper than {LIMIT_DEPTH} levels; no card needs that")
        self.values[where] = _spot(event)
        self._add(event, 1)
        if isinstance(event, AliasEvent):
            return self._alias(event)
        if event.tag is not None:
            self._fail(event, f"has the tag {event.tag[:60]}; cards hold plain values without tags, so remove it")
        before = self._count
        data = self._value(event, where, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (data, self._count - before)
        return data

    def _value(self, event: Any, where: Where, depth: int) -> object:
        if isinstance(event, MappingStartEvent):
            return self._mapping(where, depth)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(where, depth)
        text = self._scalar_text(event)
        if self._strict and event.implicit[0] and text in _CONSTANTS:
            self._fail(event, f"{dotted(where)}: is {text}, and JSON has no such number; leave the key out")
        return plain_scalar(text) if event.implicit[0] else text

    def _scalar_text(self, event: Any) -> str:
        """The text; two escapes that are the halves of a character, as JSON writes an emoji, become the character."""
        text: str = event.value
        if any("\ud800" <= character <= "\udfff" for character in text):
            try:
                return text.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                self._fail(
                    event, "holds an escape that is half of a character (a surrogate); write the character itself"
                )
        return text

    def _sequence(self, where: Where, depth: int) -> list[object]:
        items: list[object] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            items.append(self._node(event, (*where, len(items)), depth + 1))
        return items

    def _mapping(self, where: Where, depth: int) -> dict[str, object]:
        """Keys are text as written; of duplicates the first stays and all are reported."""
        data: dict[str, object] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            if not isinstance(event, ScalarEvent):
                self._fail(event, "is a list, mapping or alias used as a key; a key must be text")
            key = self._scalar_text(event)
            inside: Where = (*where, key)
            if key in data:
                self._duplicate(event, inside)
                self._skip(depth)
                continue
            self.keys[inside] = _spot(event)
            data[key] = self._node(next(self._events), inside, depth + 1)
        return data

    def _duplicate(self, event: Any, inside: Where) -> None:
        first = Place(path=str(self.path), line=self.keys[inside][0], column=self.keys[inside][1])
        line, column = _spot(event)
        place = Place(path=str(self.path), line=line, column=column)
        self.problems.append((place, f"{dotted(inside)}: is given twice, first at {first}; keep one of them"))

    def _skip(self, depth: int) -> None:
        """Read the value of a duplicate key without keeping it or its places."""
        values, keys, problems = self.values, self.keys, self.problems
        self.values, self.keys, self.problems = {}, {}, []
        self._node(next(self._events), (), depth + 1)
        self.values, self.keys, self.problems = values, keys, problems

    def _alias(self, event: Any) -> object:
        if event.anchor not in self._anchors:
            self._fail(event, f"refers to *{event.anchor}, but no &{event.anchor} ends before it")
        data, size = self._anchors[event.anchor]
        self._add(event, size)
        return data

    def _add(self, event: Any, count: int) -> None:
        self._count += count
        if self._count > LIMIT_VALUES:
            self._fail(event, f"is past the limit of {LIMIT_VALUES} values in one file, aliases written out")

    def _fail(self, event: Any, message: str) -> NoReturn:
        fail(self.path, message, _spot(event))


def _spot(event: Any) -> Spot:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _syntax(error: MarkedYAMLError) -> str:
    problem = " ".join(str(error.problem or error.context or "cannot be read").split())
    if "'\\t'" in problem:
        return "a tab; YAML indents with spaces, so replace it"
    context = f" {error.context}" if error.context and error.context_mark and error.problem else ""
    started = f" that starts in line {error.context_mark.line + 1}" if context else ""
    hint = _hint(problem)
    return f"is not valid YAML: {problem}{context}{started}{hint}"


def _hint(problem: str) -> str:
    if "mapping values are not allowed" in problem:
        return "; a value that holds ': ' needs quotes, and keys of one mapping the same indentation"
    if "cannot start any token" in problem:
        return "; put the value in quotes"
    if "expected <block end>" in problem:
        return "; check the indentation"
    return ""


def dotted(where: Where) -> str:
    """A way in the notation of messages, for example ``phases.decode.page_size[1]``."""
    text = ""
    for part in where:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if re.fullmatch(r"[\w.*-]{1,60}", part) else json.dumps(part[:60])
            text += f".{word}" if text else word
    return text
