"""YAML to data, with the place of every key and value. Nothing in a file can make this run code or hang.

YAML is read as a stream of parser events; no constructor is involved, so a tag can build nothing. Scalars
follow the YAML 1.2 core schema: ``yes`` and ``-inf`` are text, ``-.inf`` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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

from qualify.cards.places import LIMIT_DEPTH, Spot, dotted, fail
from qualify.cards.words import Where
from qualify.errors import Place

LIMIT_VALUES = 50_000
"""values of one file, each alias counted as all that it stands for"""
STAR = "; put text that begins with * in quotes"
MERGE = "<<"
"""a key of YAML 1.1 that takes over the keys of another mapping"""
_NULL = ("", "~", "null", "Null", "NULL")
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS = ("NaN", "Infinity", "-Infinity")
"""numbers that Python reads and writes as JSON, which has no word for them"""
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


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


class Builder:
    """Builds the data of one document from parser events and remembers the places.

    Args:
        is_json: the text has passed the parser of JSON.
        strict: numbers that JSON has no word for are an error in it.
    """

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
            # The JSON parser accepted the text. Only a key that is too long for YAML can still fail here.
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
        absent = isinstance(event, ScalarEvent) and event.implicit[0] and not event.value
        self.values[where] = self.keys.get(where, _spot(event)) if absent else _spot(event)
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
            if key == MERGE and event.implicit[0] and not self._json:
                self._fail(event, "is a merge key, which cards do not have: write the keys themselves here")
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
            self._fail(event, f"refers to *{event.anchor}, but no &{event.anchor} ends before it{STAR}")
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
    hint = STAR if error.context == "while scanning an alias" else _hint(problem)
    return f"is not valid YAML: {problem}{context}{started}{hint}"


def _hint(problem: str) -> str:
    if "mapping values are not allowed" in problem:
        return "; a value that holds ': ' needs quotes, and keys of one mapping the same indentation"
    if "cannot start any token" in problem:
        return "; put the value in quotes"
    if "could not find expected ':'" in problem:
        return "; write a space after the colon of a key"
    if "expected ',' or" in problem:
        return "; close each bracket, and write a space after the colon of a key"
    if "expected <block end>" in problem:
        return "; check the indentation"
    if "expected '<document start>'" in problem:
        return "; what stands before it ended there: check the indentation of both"
    return ""
