"""Which part of the evidence differs from what was sealed: a short digest of every field, and their comparison.

A seal signs one digest of everything, which says that something differs and not what. The parts say what. They are
trees in the shape of the lines, with four hexadecimal digits in place of each value: enough to find an edit, and much
smaller than the evidence. Their sha256 is signed, so nobody can change them unnoticed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from qualify.seal.form import line

_DIGITS = 4
_REPEATED = frozenset({str, int, bool, type(None)})
"""types of values of which equal ones are written alike"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One place where the evidence is not what was sealed."""

    case: str
    """its id; empty where the run itself differs"""
    field: str
    """the path of the field, for example ``evidence.findings[3].verdict``; empty where a whole case differs"""
    what: str
    """for example ``changed``, ``removed`` or ``added``"""

    def words(self, of: str) -> str:
        """The place and what differs there; ``of`` is ``run`` or ``duel``."""
        return " ".join(part for part in (self.case or f"the {of}", self.field, self.what) if part)


@dataclass(kw_only=True, slots=True)
class FieldDigests:
    """The trees of a run, as they grow line by line."""

    cases: list[tuple[str, Any]] = field(default_factory=list)
    """the id of each case, and its tree"""
    outcomes: list[tuple[int, Any]] = field(default_factory=list)
    """the place of the case of each outcome, and its tree"""
    run: Any = None

    def add(self, data: Mapping[str, Any]) -> None:
        """Takes one line."""
        if "case" in data:
            self.cases.append((data["case"]["id"], digests(data["case"])))
        elif "of" in data:
            self.outcomes.append((data["of"], digests(data["outcome"])))
        else:
            self.run = digests(data["run"])

    def text(self) -> str:
        """The trees as they are stored: JSON, compressed, in base64."""
        return base64.b64encode(zlib.compress(self._json())).decode()

    @property
    def sha256(self) -> str:
        """The digest that is signed."""
        return hashlib.sha256(self._json()).hexdigest()

    def _json(self) -> bytes:
        return line({"cases": self.cases, "outcomes": self.outcomes, "run": self.run})


def parts_from(text: str, sha256: str) -> FieldDigests | None:
    """The stored trees; None where they do not have that digest."""
    try:
        content = zlib.decompress(base64.b64decode(text))
    except (ValueError, zlib.error):
        return None
    if hashlib.sha256(content).hexdigest() != sha256:
        return None
    found = json.loads(content)
    return FieldDigests(
        cases=[(name, tree) for name, tree in found["cases"]],
        outcomes=[(place, tree) for place, tree in found["outcomes"]],
        run=found["run"],
    )


def digests(data: Any) -> Any:
    """The tree of a line. A value that is no record and no list of records becomes a digest."""
    if isinstance(data, dict):
        return {key: digests(value) for key, value in data.items()}
    if isinstance(data, list) and data and all(isinstance(item, dict) for item in data):
        return [digests(item) for item in data]
    # By exact type: a float may be -0.0, which equals 0.0 and is written in another way.
    return _digest_again(data) if type(data) in _REPEATED else _digest(data)


def _digest(data: Any) -> str:
    return hashlib.sha256(line({"": data})).hexdigest()[:_DIGITS]


_digest_again = lru_cache(maxsize=1024, typed=True)(_digest)
"""The same words stand in every outcome: most digests of a run are those of a few values."""


def differences(sealed: FieldDigests, found: FieldDigests) -> Iterator[Difference]:
    """Every place where the evidence differs from the sealed evidence."""
    for path, what in _between(sealed.run, found.run, ""):
        yield Difference(case="", field=path, what=what)
    mine, theirs = dict(sealed.cases), dict(found.cases)
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        for path, what in _between(mine.get(name), theirs.get(name), ""):
            yield Difference(case=name, field=path and f"case.{path}", what=what)
    before, after = _by_case(sealed), _by_case(found)
    for name in [*before, *(name for name in after if name not in before)]:
        yield from _outcomes(name, before.get(name, []), after.get(name, []))
    if not _same_order(sealed, found):
        yield Difference(case="", field="", what="has its cases or outcomes in another order")


def _outcomes(name: str, sealed: Sequence[Any], found: Sequence[Any]) -> Iterator[Difference]:
    """What differs among the outcomes of one case."""
    if len(sealed) != len(found):
        what = "removed" if len(found) < len(sealed) else "added"
        yield Difference(case=name, field="outcome", what=f"{what}: {len(sealed)} sealed, {len(found)} here")
        return
    for number, (mine, theirs) in enumerate(zip(sealed, found, strict=True)):
        at = f"outcome {number + 1} of {len(sealed)}: " if len(sealed) > 1 else ""
        for path, what in _between(mine, theirs, ""):
            yield Difference(case=name, field=f"{at}{path or 'outcome'}", what=what)


def _between(sealed: Any, found: Any, path: str) -> Iterator[tuple[str, str]]:
    """The paths at which two trees differ, each with what differs there."""
    if sealed == found:
        return
    if isinstance(sealed, dict) and isinstance(found, dict):
        for key in sorted({*sealed, *found}):
            yield from _between(sealed.get(key), found.get(key), f"{path}.{key}" if path else key)
    elif isinstance(sealed, list) and isinstance(found, list) and len(sealed) == len(found):
        for index, (mine, theirs) in enumerate(zip(sealed, found, strict=True)):
            yield from _between(mine, theirs, f"{path}[{index}]")
    elif isinstance(sealed, list) and isinstance(found, list):
        yield path, f"changed: {len(sealed)} sealed, {len(found)} here"
    else:
        yield path, "added" if sealed is None else "removed" if found is None else "changed"


def _by_case(parts: FieldDigests) -> dict[str, list[Any]]:
    """The trees of the outcomes of each case, by its id."""
    found: dict[str, list[Any]] = {}
    for place, tree in parts.outcomes:
        found.setdefault(parts.cases[place][0], []).append(tree)
    return found


def _same_order(sealed: FieldDigests, found: FieldDigests) -> bool:
    """Whether cases and outcomes are the same on both sides, in the same order."""
    return [name for name, _ in sealed.cases] == [name for name, _ in found.cases] and _places(sealed) == _places(found)


def _places(parts: FieldDigests) -> list[str]:
    return [parts.cases[place][0] for place, _ in parts.outcomes]


def digest_of(lines: Iterable[Mapping[str, Any]]) -> str:
    """The sha256 of all lines."""
    digest = hashlib.sha256()
    for data in lines:
        digest.update(line(data))
    return digest.hexdigest()


def parts_of(lines: Iterable[Mapping[str, Any]]) -> FieldDigests:
    """The trees of all lines."""
    parts = FieldDigests()
    for data in lines:
        parts.add(data)
    return parts
