"""A card's file as plain data, with the place of every key and value.

JSON is YAML 1.2, so the events of YAML give its places, but it must pass the JSON parser too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qualify.cards.places import Spot
from qualify.cards.plain_json import parse_json
from qualify.cards.plain_text import text_of
from qualify.cards.plain_yaml import Builder
from qualify.cards.words import Where
from qualify.errors import Place, UsageError


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


def check_new(path: Path) -> None:
    """Raises UsageError for a new card whose name ends in .json: it is written as YAML, and would be read as JSON."""
    if path.suffix == ".json":
        raise UsageError(f"{path}: the file will be YAML, and .json would be read as JSON; call it {path.stem}.yaml")


def read_config(path: Path) -> Source:
    """Read a model's config: JSON, whatever the file is called.

    Python writes numbers that JSON has no word for, and configs of state-space models have one (``time_step_limit``).
    """
    return parse(path, text_of(path), constant=float)


def parse(path: Path, text: str, constant: Callable[[str], float] | None = None) -> Source:
    """The same for a text that stood in the file ``path``; ``constant`` makes numbers of NaN and Infinity in JSON."""
    is_json = path.suffix == ".json" or constant is not None
    parsed = parse_json(path, text, constant or float) if is_json else None
    builder = Builder(path, text.replace("\t", " ") if is_json else text, is_json=is_json, strict=constant is None)
    data = builder.document()
    return Source(
        path=path,
        text=text,
        data=parsed if is_json else data,
        values=builder.values,
        keys=builder.keys,
        problems=tuple(builder.problems),
    )
