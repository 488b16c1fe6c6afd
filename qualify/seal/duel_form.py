"""The canonical form of a duel: the lines that its seal signs, in the shape of a run's (qualify.seal.form)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from qualify.facts import codec
from qualify.facts.duel import Duel, DuelCell, DuelPair
from qualify.facts.seal import Seal
from qualify.seal.form import line, plain
from qualify.seal.keys import SigningKey
from qualify.seal.parts import digest_of, parts_of
from qualify.seal.sealed import make_seal

STATE = "completed"


def duel_lines(duel: Duel) -> Iterator[dict[str, Any]]:
    """One line for each cell, one for the blocks of each timed cell, and one for the duel itself."""
    places = {cell.name: place for place, cell in enumerate(duel.cells)}
    for cell in duel.cells:
        yield {"case": {"id": cell.name, **plain(cell)}}
    for name in sorted(duel.samples, key=lambda name: places.get(name, len(places))):
        pairs = sorted(duel.samples[name], key=lambda pair: (pair.way, pair.pair))
        yield {"of": places.get(name, 0), "outcome": {"cell": name, "pairs": [plain(pair) for pair in pairs]}}
    yield {"run": plain(replace(duel, cells=(), samples={}, received_at=None))}


def duel_from(lines: Sequence[Mapping[str, Any]]) -> Duel:
    """The duel that these lines describe. Raises ValueError, KeyError or TypeError where they describe none."""
    cells = [codec.from_data(DuelCell, _without_id(data["case"])) for data in lines if "case" in data]
    blocks = [data["outcome"] for data in lines if "of" in data]
    samples = {it["cell"]: tuple(codec.from_data(DuelPair, pair) for pair in it["pairs"]) for it in blocks}
    own = [data["run"] for data in lines if "run" in data]
    names = {cell.name for cell in cells}
    if len(own) != 1 or len(names) < len(cells) or not names >= samples.keys():
        raise ValueError("a duel or a cell is missing, or there twice")
    made: Duel = codec.from_data(Duel, {**own[0], "cells": tuple(cells), "samples": samples})
    if b"".join(map(line, duel_lines(made))) != b"".join(map(line, lines)):
        raise ValueError(f"the lines of duel {made.id!r} are not those that qualify writes")
    return made


def _without_id(cell: Any) -> dict[str, Any]:
    """A cell without its id, which the line has beside the same name. Raises TypeError where it is no record."""
    if not isinstance(cell, dict):
        raise TypeError(f"a cell of a duel is {cell!r:.60}")
    return {key: value for key, value in cell.items() if key != "id"}


def seal_duel(duel: Duel, key: SigningKey) -> Seal:
    """The seal of a duel as it was fought."""
    lines = list(duel_lines(duel))
    return make_seal(duel.id, STATE, digest_of(lines), parts_of(lines), key)
