"""Globs over case ids that match nothing: which they are, and what they were perhaps meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterator, Sequence
from fnmatch import fnmatchcase

from qualify.cards.load import LoadedMatrix
from qualify.cards.matrix import Expectation, MatrixCard
from qualify.cards.places import dotted
from qualify.cards.problems import Problem, shown
from qualify.cards.source import parse
from qualify.cards.words import Where
from qualify.facts.case import INCIDENTS
from qualify.facts.environment import kernel_in
from qualify.plan.shapes import count_shapes

NAMED = 3
"""ids that a message names"""
COMPARED = 500
"""ids that are compared letter by letter, spread over the plan"""


def expected(matrix: MatrixCard, cell: str) -> Expectation | None:
    """The first expectation that is about a call, a cell of the matrix: its glob matches it, and something can meet it.

    The glob matches the id of the cell, with or without the kernel behind it. An incident that does not try the kernel
    has no case that could meet the expectation.
    """
    return next((item for item in matrix.expect if _matches(item, cell) and _tries(matrix, item, cell)), None)


def _matches(expectation: Expectation, cell: str) -> bool:
    return fnmatchcase(cell, expectation.select) or fnmatchcase(f"{cell}/{expectation.kernel}", expectation.select)


def _tries(matrix: MatrixCard, expectation: Expectation, cell: str) -> bool:
    """Whether the kernel is among those of the incident; true for a production shape."""
    first, _, rest = cell.partition("/")
    if first != INCIDENTS:
        return True
    name, kernel = rest.partition("/")[0], kernel_in(expectation.kernel)
    globs = next((incident.kernels for incident in matrix.incidents if incident.incident == name), ("*",))
    return any(fnmatchcase(kernel, glob) for glob in globs)


def unmatched(
    matrix: LoadedMatrix, ids: Sequence[str], kept: Sequence[str], excluding: Container[int]
) -> list[Problem]:
    """Every exclusion, expectation and model of the matrix that is about no case, with its place.

    Args:
        ids: of all cases of the matrix, refused ones and excluded ones too.
        kept: those that no exclusion matches.
        excluding: numbers of the exclusions that match one.
    """
    found = [*_models(matrix), *_exclusions(matrix, ids, excluding), *_expectations(matrix, ids, kept)]
    if not found:
        return []
    source = parse(matrix.path, matrix.source)
    return [(source.place(where), f"{dotted(source.nearest(where))}: {message}") for where, message in found]


def _models(matrix: LoadedMatrix) -> Iterator[tuple[Where, str]]:
    """Models whose layers make no call in the phases of the matrix and its traffic."""
    phases = dict.fromkeys(count_shapes(matrix.card.phases) if matrix.card.phases else ())
    phases |= dict.fromkeys(bucket.phase for bucket in (matrix.traffic.buckets if matrix.traffic else ()))
    for index, entry in enumerate(matrix.card.models):
        groups = matrix.models[entry.model].groups
        if all(group.phases and not phases.keys() & set(group.phases) for group in groups):
            own = dict.fromkeys(phase for group in groups for phase in group.phases)
            made = f"{entry.model} makes no call in {' and '.join(phases)}, only in {' and '.join(own)}"
            yield ("models", index), f"{made}; add such a phase, or remove the model"


def _exclusions(matrix: LoadedMatrix, ids: Sequence[str], excluding: Container[int]) -> Iterator[tuple[Where, str]]:
    for index, glob in enumerate(matrix.card.exclude):
        if index not in excluding:
            yield ("exclude", index), f"{shown(glob)} matches no case of this matrix; {_hint(glob, ids)}"


def _expectations(matrix: LoadedMatrix, ids: Sequence[str], kept: Sequence[str]) -> Iterator[tuple[Where, str]]:
    if not matrix.card.expect:
        return
    cells = list(dict.fromkeys(name.rpartition("/")[0] for name in kept))
    first: dict[str, int] = {}
    for index, expectation in enumerate(matrix.card.expect):
        found = [cell for cell in cells if _matches(expectation, cell)]
        matched = [cell for cell in found if _tries(matrix.card, expectation, cell)]
        earlier = sorted({first.setdefault(cell, index) for cell in matched})
        if index in earlier:
            continue
        where: Where = ("expect", index, "select")
        glob = shown(expectation.select)
        if matched:
            taken = " and ".join(f"expect[{number}]" for number in earlier[:NAMED])
            verb = "matches" if len(earlier) == 1 else "match"
            counts = "the first entry that matches a case counts for it; put this one before, or remove it"
            yield where, f"{glob} matches only cases that {taken} {verb} too, and {counts}"
        elif found:
            untried = f"{glob} matches only incidents that do not try {expectation.kernel}"
            yield where, f"{untried}; add it to their kernels, or expect one of those"
        elif any(_matches(expectation, name.rpartition("/")[0]) for name in ids):
            yield where, f"{glob} matches only cases that exclude leaves out; correct one of the two"
        else:
            yield where, f"{glob} matches no case of this matrix; {_hint(expectation.select, [*cells, *kept])}"


def _hint(glob: str, ids: Sequence[str]) -> str:
    near = nearest(glob, ids)
    return f"perhaps you meant one like {near[0]}" if near else "correct it, or remove it"


def nearest(glob: str, ids: Sequence[str]) -> list[str]:
    """Up to three ids that a glob without any match was perhaps meant to match."""
    corrected = _corrected(glob, ids)
    for attempt in (f"*{glob}*", corrected, f"*{corrected}*"):
        if found := [name for name in ids if fnmatchcase(name, attempt)]:
            return found[:NAMED]
    some = ids[:: max(1, len(ids) // COMPARED)]
    return difflib.get_close_matches(glob, some, n=NAMED, cutoff=0.3)


def _corrected(glob: str, ids: Sequence[str]) -> str:
    """The glob, in which the nearest part of any id replaces each part that no id has."""
    known = list(dict.fromkeys(part for name in ids for part in name.split("/")))
    return "/".join(_nearest_part(part, known) for part in glob.split("/"))


def _nearest_part(part: str, known: Sequence[str]) -> str:
    word = part.strip("*")
    if not word or any(fnmatchcase(name, part) for name in known):
        return part
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return near[0] if near else part
