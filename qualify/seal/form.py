"""The canonical form of a run's evidence: the lines that a seal signs and an exported file holds.

One line of JSON for every case in the order of the plan, then for every outcome in the order in which it was stored,
then for the run. Equal evidence gives equal lines, whichever database it comes from:

* fields stand in the order in which their record declares them, other keys are sorted, but for the values of a finding,
  which stand as its check gave them; nothing stands between them, and all is ASCII;
* a field that holds its default is left out, so a field that a later version adds changes no line of before; the word
  that tells outcomes apart always stands;
* a number is written with the fewest digits that give it back; -0.0 is 0.0, because SQLite keeps no sign of zero;
  NaN and infinities are written as Python's json writes them;
* a moment is ISO 8601 in UTC.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from qualify.facts.case import Case
from qualify.facts.outcome import Finding, Outcome
from qualify.facts.run import Run

FORM = "qualify.evidence/1"
"""of these lines; raise it where equal evidence gives other lines than before"""
TAG = "outcome"
"""the field that tells the kinds of outcome apart"""

# Made once: json.dumps with options of its own makes one for every line.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def run_data(run: Run) -> dict[str, Any]:
    """The line of a run, before it is written."""
    return {"run": plain(run)}


def case_data(case: Case) -> dict[str, Any]:
    """The line of a case."""
    return {"case": plain(case)}


def outcome_data(place: int, outcome: Outcome) -> dict[str, Any]:
    """The line of an outcome; ``place`` is that of its case in the plan."""
    return {"of": place, "outcome": plain(outcome)}


def line(data: Mapping[str, Any]) -> bytes:
    """The line as it is written, with its end."""
    return _ENCODER.encode(data).encode("ascii") + b"\n"


def plain(value: Any) -> Any:
    """A fact as dictionaries, lists, texts and numbers, in the form that the module describes."""
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, float):
        return value + 0.0  # of -0.0 that is 0.0
    if isinstance(value, Mapping):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Finding):
        values = {"values": {key: plain(item) for key, item in value.values.items()}} if value.values else {}
        return {"check": value.check, "verdict": value.verdict, "detail": value.detail, **values}
    return {name: plain(item) for name, item in _said(value)}


def _said(record: Any) -> Iterable[tuple[str, Any]]:
    """The fields of a record that do not hold their default."""
    kind: Any = type(record)
    for name, default in _defaults(kind):
        item = getattr(record, name)
        if name == TAG or item != default:
            yield name, item


@lru_cache(maxsize=64)
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    """The fields of a class with their defaults; one without a default has one that nothing equals."""
    return tuple((field.name, _default(field)) for field in dataclasses.fields(kind))


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
