"""The canonical form of a run's evidence: the lines that a seal signs and an exported file holds.

First comes a line of JSON for every case, in the order of the plan. Then comes one for every outcome, in the order in
which they were stored. The last line is the run. Equal evidence gives equal lines, whichever database it comes from:

* Fields stand in the order in which their record declares them. Other keys are sorted, except the values of a finding,
  which stand as its check gave them. There is no space between them, and all is ASCII.
* A field that holds its default is left out, so a field that a later version adds changes no earlier line. The word
  that tells outcomes apart always stands.
* A number is written with the fewest digits that give it back. -0.0 is 0.0, because SQLite keeps no sign of zero. NaN
  and infinities are written as Python's json writes them.
* A moment is ISO 8601 in UTC.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from qualify.facts.case import Case
from qualify.facts.outcome import Finding, Outcome
from qualify.facts.run import Run

FORM = "qualify.evidence/1"
"""version of these lines; raise it when equal evidence gives other lines than before"""
TAG = "outcome"
"""the field that tells the kinds of outcome apart"""

_AS_THEY_ARE = frozenset({str, int, bool, type(None)})
# Made once: json.dumps with options of its own makes one for every line.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def run_data(run: Run) -> dict[str, Any]:
    """The line of a run, before it is written. When it came to a store is that store's knowledge, and no evidence."""
    return {"run": plain(replace(run, received_at=None))}


def case_data(case: Case) -> dict[str, Any]:
    """The line of a case."""
    return {"case": plain(case)}


def outcome_data(place: int, outcome: Outcome) -> dict[str, Any]:
    """The line of an outcome; ``place`` is the place of its case in the plan."""
    return {"of": place, "outcome": plain(outcome)}


def line(data: Mapping[str, Any]) -> bytes:
    """The line as it is written, with its end."""
    return _ENCODER.encode(data).encode("ascii") + b"\n"


def plain(value: Any) -> Any:
    """A fact as dictionaries, lists, texts and numbers, in the form that the module describes."""
    kind = type(value)
    # By exact type first: a run of 500 cases has a hundred thousand values.
    if kind in _AS_THEY_ARE:
        return value
    if kind is float:
        return value + 0.0  # of -0.0 that is 0.0
    if kind is Finding:
        values = {"values": {key: plain(item) for key, item in value.values.items()}} if value.values else {}
        return {"check": value.check, "verdict": value.verdict, "detail": value.detail, **values}
    if kind is tuple or kind is list:
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, str | int):
        return value
    return value + 0.0 if isinstance(value, float) else _record(value, kind)


def _record(record: Any, kind: type) -> dict[str, Any]:
    """The fields of a record that do not hold their default."""
    said = {}
    for name, default in _defaults(kind):
        item = getattr(record, name)
        if name == TAG or item != default:
            said[name] = item if type(item) in _AS_THEY_ARE else plain(item)
    return said


@lru_cache(maxsize=64)
def _defaults(kind: type) -> tuple[tuple[str, Any], ...]:
    """The fields of a class with their defaults. A field without a default gets one that no value equals."""
    return tuple((field.name, _default(field)) for field in dataclasses.fields(kind))


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
