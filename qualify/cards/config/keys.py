"""Typed access to the keys of a config.json that remembers what is missing or wrong, and where."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qualify.cards.places import dotted
from qualify.cards.problems import Problem, shown
from qualify.cards.source import Source
from qualify.cards.words import INT32_MAX, Where

NOTHING = 1
"""stands for a count that could not be read, until the problems are raised"""
FLOAT_MAX = sys.float_info.max
"""a larger whole number does not fit into a float"""
MOST_LAYERS = 10_000
"""layers of a stack; more are an error in the file, or an attack"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigNote:
    """What a reader of the geometry should know about the config."""

    kind: str
    """names-code, unread or no-effect"""
    where: str
    """dotted way to the key"""
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """One mapping of a config.json. ``null`` is read as a missing key, unless said otherwise."""

    source: Source
    data: Mapping[str, Any]
    where: Where = ()
    problems: list[Problem] = field(default_factory=list)
    """shared by all mappings of the file"""
    findings: list[ConfigNote] = field(default_factory=list)
    """shared in the same way"""
    idle: set[int] = field(default_factory=set)
    """shared in the same way: layers of the main stack that have no attention"""
    asked: set[str] = field(default_factory=set)
    """names of this mapping's keys that were looked for"""
    compared: set[str] = field(default_factory=set)
    """those of them that decide nothing: they had to say what other keys say"""

    def value(self, name: str) -> Any:
        """What stands under a key; None where nothing does."""
        self.asked.add(name)
        return self.data.get(name)

    def has(self, name: str) -> bool:
        """Whether the key is there and not null."""
        return self.value(name) is not None

    def says(self, name: str) -> bool:
        """Whether the key is there, even with null."""
        self.asked.add(name)
        return name in self.data

    def way(self, name: str) -> str:
        """The dotted way to a key, for messages."""
        return dotted((*self.where, name))

    def wrong(self, name: str, message: str) -> None:
        """Remember a problem with a key."""
        where = (*self.where, name)
        self.problems.append((self.source.place(where), f"{dotted(where)}: {message}"))

    def note(self, kind: str, name: str, detail: str) -> None:
        """Remember a finding about a key."""
        self.findings.append(ConfigNote(kind=kind, where=self.way(name), detail=detail))

    def inner(self, name: str) -> Keys | None:
        """The mapping under a key; None where there is none."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(name, f"must be a mapping of keys and values, but is {shown(value)}")
            return None
        return replace(self, data=value, where=(*self.where, name), asked=set(), compared=set())

    def count(self, *names: str, default: int | None = None) -> int:
        """A positive whole number under any of the names. Without a default, one must be there."""
        there = [name for name in names if self.has(name)]
        if there:
            first = there[0]
            for name in there[1:]:
                if self.data[name] != self.data[first]:
                    other = f"{first}, another name of the same number, is {shown(self.data[first])}"
                    self.wrong(name, f"is {shown(self.data[name])}, but {other}; make them agree")
            return self._whole(first, least=1)
        if default is not None:
            return default
        self.needed(*names)
        return NOTHING

    def within(self, name: str, value: int, what: str) -> int:
        """A number computed from several keys. Where it is more than a kernel can count, the key ``name`` is wrong."""
        if value > INT32_MAX:
            check = "check this number, and the numbers that it is combined with"
            self.wrong(name, f"gives {value} {what}, but at most {INT32_MAX} are possible; {check}")
            return NOTHING
        return value

    def needed(self, *names: str) -> None:
        """Remember that a key is missing, under each of its names, or null."""
        null = next((name for name in names if name in self.data), "")
        looked = f"; looked for {', '.join(names)}" if len(names) > 1 else ""
        told = "is null. Write what is meant" if null else f"is missing{looked}. Add it"
        self.wrong(null or names[0], f"{told}, or give the geometry in a matrix (docs/models.md)")

    def layers(self, *names: str, default: int | None = None) -> int:
        """How many layers a stack has."""
        count = self.count(*names, default=default)
        if count > MOST_LAYERS:
            name = next(name for name in names if self.has(name))
            self.wrong(name, f"is {count} layers; no more than {MOST_LAYERS} are read")
            return NOTHING
        return count

    def number_from_0(self, name: str, *, default: int) -> int:
        """A whole number of at least 0, for example of a layer; the default where the key is null or missing."""
        return self._whole(name, least=0) if self.has(name) else default

    def maybe(self, name: str, *, absent: int | None) -> int | None:
        """A positive whole number, None where it is null, and ``absent`` where the key is not there."""
        if not self.says(name):
            return absent
        return self._whole(name, least=1) if self.has(name) else None

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(name, f"must be true or false, but is {shown(value)}")
            return default
        return value

    def number(self, name: str, *, default: float) -> float:
        """A positive number."""
        value = self.value(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= FLOAT_MAX:
            self.wrong(name, f"must be a number above 0, but is {shown(value)}")
            return default
        return float(value)

    def text(self, name: str) -> str:
        """Text; empty where there is none."""
        value = self.value(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.wrong(name, f"must be text, but is {shown(value)}")
            return ""
        return value

    def words(self, name: str, count: int, allowed: Iterable[str]) -> list[str] | None:
        """A list of ``count`` of the allowed words; None where there is none."""
        values = self._list(name)
        if values is None:
            return None
        known = list(allowed)
        for value in dict.fromkeys(map(str, values)):
            if value not in known:
                self.wrong(name, f"holds {shown(value)}, which is not read here; known are {', '.join(known)}")
                return None
        return self._right_length(name, values, count)

    def flags(self, name: str, count: int) -> list[bool] | None:
        """A list of ``count`` zeros and ones; None where there is none or it is empty."""
        values = self._list(name)
        if not values:
            return None
        if any(value not in (0, 1) for value in values):
            self.wrong(name, "must be a list of 0 and 1, one for each layer")
            return None
        found = self._right_length(name, values, count)
        return None if found is None else [bool(value) for value in found]

    def numbers(self, name: str, below: int) -> list[int] | None:
        """A list of different layer numbers; None where there is none."""
        values = self._list(name)
        if values is None:
            return None
        if not all(type(value) is int and 0 <= value < below for value in values) or len(set(values)) < len(values):
            self.wrong(name, f"must be a list of different layer numbers from 0 to {below - 1}")
            return None
        return sorted(values)

    def _list(self, name: str) -> list[Any] | None:
        value = self.value(name)
        if value is not None and not isinstance(value, list):
            self.wrong(name, f"must be a list, but is {shown(value)}")
            return None
        return value

    def _right_length(self, name: str, values: list[Any], count: int) -> list[Any] | None:
        if len(values) != count:
            self.wrong(name, f"has {len(values)} entries for {count} layers")
            return None
        return values

    def _whole(self, name: str, least: int) -> int:
        value = self.data[name]
        if type(value) is int and value > INT32_MAX:
            self.wrong(name, f"is {shown(value)}, but at most {INT32_MAX} is possible")
            return NOTHING
        if type(value) is not int or value < least:
            self.wrong(name, f"must be a whole number of at least {least}, but is {shown(value)}")
            return NOTHING
        return value
