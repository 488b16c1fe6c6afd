"""A message between two processes of qualify as one line of JSON: how it is read, whoever wrote it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from qualify.facts import codec

SHOWN = 40
"""bytes of a wrong line that the reason shows"""

M = TypeVar("M")


class WrongMessage(ValueError):
    """A line that is no message; its text says what is wrong with it."""


def decode_line(line: bytes, kinds: Mapping[str, type[M]], most_items: float = math.inf) -> M:
    """The message in a line. Raises WrongMessage for a line that holds none.

    Args:
        kinds: the class of the message, by the event that the line names.
        most_items: so many items its lists and mappings may have together. Whatever is wrong with an item is noted
            before the first of these notes is told, in a hundred times the memory that the line takes.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise WrongMessage(f"{line[:SHOWN]!r}") from None
    event = data.pop("event", None) if isinstance(data, dict) else None
    if not isinstance(event, str):
        raise WrongMessage(f"{line[:SHOWN]!r}")
    if event not in kinds:
        raise WrongMessage(f"unknown event {event[:SHOWN]!r}")
    if len(line) > most_items and _has_more(data, most_items):
        raise WrongMessage(f"event {event!r} with more than {most_items:,} items")
    try:
        message: M = codec.from_data(kinds[event], data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise WrongMessage(f"event {event!r}, {place}: {first['msg']}"[:200]) from error
    return message


def _has_more(data: object, most_items: float) -> bool:
    """Whether lists and mappings, on all levels, have more items together."""
    found, waiting = 0, [data]
    while waiting:
        whole = waiting.pop()
        inside = whole.values() if isinstance(whole, dict) else whole if isinstance(whole, list) else ()
        found += len(inside)
        if found > most_items:
            return True
        waiting += [item for item in inside if isinstance(item, list | dict)]
    return False
