"""The log of a service: time and level on every line, or one JSON object for each line; words alone for a person."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]
ABOUT = ("canary", "fire", "run", "source")
"""further fields that a line of JSON may have"""


class _Lines(logging.Handler):
    """Gives finished lines to whatever writes them; a log that cannot be written stops nothing."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(self.format(record))


class _Text(logging.Formatter):
    """``2026-11-23T04:42:07.123Z warning words``."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{_moment(record)} {record.levelname.lower():7} {record.getMessage()}"


class _Json(logging.Formatter):
    """An object with time, level and message, and what the line is about."""

    def __init__(self, always: Mapping[str, str]) -> None:
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        about = {name: getattr(record, name) for name in ABOUT if hasattr(record, name)}
        told = {"time": _moment(record), "level": record.levelname.lower(), **self._always, **about}
        return json.dumps({**told, "message": record.getMessage()})


def _moment(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"


def service_log(write: Callable[[str], None], form: LogFormat, **always: str) -> logging.Logger:
    """The log of a service.

    Args:
        write: takes a finished line.
        always: what every line of JSON says, for example the node.
    """
    return _logger(write, _Json(always) if form == "json" else _Text())


def plain_log(write: Callable[[str], None]) -> logging.Logger:
    """Words alone, for whoever waits at a terminal."""
    return _logger(write, logging.Formatter("%(message)s"))


def _logger(write: Callable[[str], None], formatter: logging.Formatter) -> logging.Logger:
    made = logging.Logger("qualify.canary", logging.INFO)  # noqa: LOG001 - of its own: no library's settings reach it
    handler = _Lines(write)
    handler.setFormatter(formatter)
    made.addHandler(handler)
    return made
