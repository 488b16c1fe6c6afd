"""A message between two processes of qualify as one line of JSON: how it is read, whoever wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from qualify.facts import codec

SHOWN = 40
"""bytes of a wrong line that the reason shows"""

M = TypeVar("M")


class WrongMessage(ValueError):
    """A line that is no message; its text says what is wrong with it."""


def decode_line(line: bytes, kinds: Mapping[str, type[M]]) -> M:
    """The message in a line. Raises WrongMessage for a line that holds none.

    Args:
        kinds: the class of the message, by the event that the line names.
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
    try:
        message: M = codec.from_data(kinds[event], data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise WrongMessage(f"event {event!r}, {place}: {first['msg']}"[:200]) from error
    return message
