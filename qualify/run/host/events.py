"""The events of a profiler session as messages: many are alike but for their times, and are sent as numbers.

A kernel that loops in Python launches tens of thousands of times. As Chrome's format has them, the events of one such
call are longer than a message may be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qualify.run.host import messages as says

AT_ONCE = 20_000
"""events of a message: a few megabytes at most, where no two of them are alike"""
MOST_PARTS = 50
"""messages of a session; a million events take half a gigabyte of the judge's memory"""
MOST_FIELDS = 10
"""fields of an event, and of its arguments; a judge reads fewer of them"""
COUNTS = ("correlation", "registers per thread", "shared memory", "stream", "Bytes", "Input elements")
"""arguments that are numbers; elements that cannot be counted are None"""
SIZES = ("grid", "block")
"""arguments that are three numbers"""
TIMED = ("cpu_op", "user_annotation")
"""categories of events that have a duration"""


def packed(events: Sequence[dict[str, Any]]) -> Iterator[says.Events]:
    """The messages, one at least; all but the last say that there is more."""
    for first in range(0, max(1, len(events)), AT_ONCE):
        yield _packed(events[first : first + AT_ONCE], more=first + AT_ONCE < len(events))


def _packed(events: Sequence[dict[str, Any]], *, more: bool) -> says.Events:
    names: dict[str, int] = {}
    kinds: dict[str, int] = {}
    rows = []
    for event in events:
        kind = {key: value for key, value in event.items() if key not in {"name", "ts", "dur", "args"}}
        kind["name"] = names.setdefault(event["name"], len(names))
        correlation = None
        if "args" in event:
            kind["args"] = {key: value for key, value in event["args"].items() if key != "correlation"}
            correlation = event["args"].get("correlation")
        number = kinds.setdefault(json.dumps(kind), len(kinds))
        rows.append((number, event["ts"], event.get("dur"), correlation))
    return says.Events(names=tuple(names), kinds=tuple(map(json.loads, kinds)), rows=tuple(rows), more=more)


def unpacked(message: says.Events) -> list[dict[str, Any]]:
    """The events of a message.

    Raises:
        ValueError: it has too many rows, rows of kinds that are not there, or kinds that no profiler makes.
    """
    if len(message.rows) > AT_ONCE:
        raise ValueError("too many events")
    for kind in message.kinds:
        _check(kind, len(message.names))
    return [_event(message, *row) for row in message.rows]


def _check(kind: Mapping[str, Any], names: int) -> None:
    """Raises ValueError for the kind of an event that no profiler makes."""
    name, category, args = kind.get("name"), kind.get("cat", ""), kind.get("args", {})
    named = isinstance(name, int) and 0 <= name < names and isinstance(category, str) and isinstance(args, dict)
    if not named or len(kind) > MOST_FIELDS or len(args) > MOST_FIELDS or (category == "cpu_op" and "args" not in kind):
        raise ValueError(f"an event of no kind: {kind}")
    counts = [args[key] for key in COUNTS if key in args and (key, args[key]) != ("Input elements", None)]
    sizes = [args[key] for key in SIZES if key in args]
    if not all(isinstance(size, list) and len(size) == 3 for size in sizes):
        raise ValueError(f"an event of no size: {kind}")
    numbers = [*counts, *(number for size in sizes for number in size)]
    if not all(isinstance(number, int | float) and abs(number) <= says.MOST for number in numbers):
        raise ValueError(f"an event that counts nothing: {kind}")


def _event(
    message: says.Events, kind: int, ts: float, duration: float | None, correlation: int | None
) -> dict[str, Any]:
    if not 0 <= kind < len(message.kinds):
        raise ValueError(kind)
    event = dict(message.kinds[kind])
    event |= {"name": message.names[event["name"]], "ts": ts}
    if duration is not None:
        event["dur"] = duration
    if event.get("cat") in TIMED and "dur" not in event:
        raise ValueError(f"an event without an end: {event}")
    if correlation is not None:
        event["args"] = {**event.get("args", {}), "correlation": correlation}
    return event
