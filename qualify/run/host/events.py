"""The events of a profiler session as messages: many are alike but for their times, and are sent as numbers.

A kernel that loops in Python launches tens of thousands of times. As Chrome's format has them, the events of one such
call are longer than a message may be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from qualify.run.host import messages as says

AT_ONCE = 20_000
"""events of a message: a few megabytes at most, where no two of them are alike"""
MOST_PARTS = 50
"""messages of a session; a million events take half a gigabyte of the judge's memory"""
MOST_FIELDS = 64
"""fields of an event, and of its arguments; a judge reads fewer than ten of them"""


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
        ValueError: it has rows of kinds that are not there, or kinds whose name or arguments are none or too many.
    """
    if any(len(kind) > MOST_FIELDS for kind in message.kinds):
        raise ValueError("too many fields")
    return [_event(message, *row) for row in message.rows]


def _event(
    message: says.Events, kind: int, ts: float, duration: float | None, correlation: int | None
) -> dict[str, Any]:
    if not 0 <= kind < len(message.kinds):
        raise ValueError(kind)
    event = dict(message.kinds[kind])
    name, args = event.get("name"), event.get("args", {})
    if (
        not isinstance(name, int)
        or not 0 <= name < len(message.names)
        or not isinstance(args, dict)
        or len(args) > MOST_FIELDS
    ):
        raise ValueError(event)
    event |= {"name": message.names[name], "ts": ts}
    if duration is not None:
        event["dur"] = duration
    if correlation is not None:
        event["args"] = {**args, "correlation": correlation}
    return event
