"""Helpers for every kind of row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qualify.store.failures import DamagedError

Row = dict[str, Any]
"""values by column"""


def are_texts(value: Any) -> bool:
    """Whether it is a dictionary of texts, as JSON gives it."""
    return type(value) is dict and {str} >= set(map(type, value.values()))


def fields(record: object, names: Iterable[str]) -> Row:
    """A row with the fields of these names."""
    return {name: getattr(record, name) for name in names}


def pick(row: Row, names: Iterable[str]) -> Row:
    """The columns of these names."""
    return {name: row[name] for name in names}


def present(row: Row, names: Iterable[str]) -> Row:
    """The columns of these names, which this kind of outcome needs. Raises DamagedError where one of them is NULL."""
    picked = pick(row, names)
    if None in picked.values():
        missing = next(name for name, value in picked.items() if value is None)
        raise DamagedError(f"an outcome {row['outcome']!r:.60} has no {missing}")
    return picked
