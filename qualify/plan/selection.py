"""What ``--select`` means: words and globs over case ids, several of them, some with ``!`` in front.

::

    decode              a word: part of the id, wherever it stands
    gemma-2*            a glob: of the whole id, or of whole parts between its slashes
    decode fp16         several, with spaces or commas: what any of them matches
    decode !fp16        without what a word behind ! matches
    ragged, paged       what other projects call a phase or a cache
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NOT = "!"
ALIASES = {"ragged": "varlen", "speculative": "verify", "paged": "*.p[0-9]*"}
"""what phases and paged caches are called elsewhere, and what ids call them"""
PARTS = ("model", "phase", "shape", "dtype", "mask", "kernel")
SHOWN = 4
"""a message names the values of a part of the id, where they are at most so many"""
TYPED = 20
"""words that a person types at most; programs select a share of a matrix by thousands of ids"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What the command line narrows a matrix to."""

    select: str = ""
    """words and globs over case ids, with a space between them; empty = all"""
    kernel: str = ""
    """name of one kernel, or a glob over names; empty = all"""


def selected_by(select: str) -> Callable[[str], bool] | None:
    """Whether an id is selected; None where every one is."""
    terms = _terms(select)
    wanted = [_term(term) for term in terms if not term.startswith(NOT)]
    unwanted = [_term(term.removeprefix(NOT)) for term in terms if term.startswith(NOT)]
    if not terms:
        return None

    def selected(case_id: str) -> bool:
        if any(match(case_id) for match in unwanted):
            return False
        return not wanted or any(match(case_id) for match in wanted)

    return selected


def _terms(select: str) -> list[str]:
    return [term for term in re.split(r"[\s,]+", select) if term]


def _term(term: str) -> Callable[[str], bool]:
    if not (other := ALIASES.get(term)):
        return _word(term)
    matches = _word(other)
    return lambda case_id: term in case_id or matches(case_id)


def _word(word: str) -> Callable[[str], bool]:
    if not re.search(r"[*?\[]", word):
        return lambda case_id: word in case_id
    whole = re.compile(fnmatch.translate(word)).match
    parts = re.compile(fnmatch.translate(f"*/{word}/*")).match
    return lambda case_id: bool(whole(case_id) or parts(f"/{case_id}/"))


def matched_words(select: str, ids: Sequence[str], among: Sequence[str]) -> str:
    """How much a selection matched, and which values of each part of the id it has, where they are few.

    Args:
        ids: of the cases that it matched.
        among: of the cases that it could have matched.
    """
    columns = zip(*(case_id.split("/") for case_id in ids if case_id.count("/") == len(PARTS) - 1), strict=True)
    values = [(part, list(dict.fromkeys(column))) for part, column in zip(PARTS, columns, strict=False)]
    few = [f"{part} {', '.join(found)}" for part, found in values if len(found) <= SHOWN]
    told = f"--select {select!r} matches {len(ids)} of {len(among)} cases"
    if idle := _idle(select, among):
        told += f" (nothing has {' or '.join(map(repr, idle))})"
    return told + (f": {'; '.join(few)}" if few else "")


def _idle(select: str, among: Sequence[str]) -> list[str]:
    """The words that match no case, which are probably mistyped."""
    words = [term.removeprefix(NOT) for term in _terms(select)]
    if len(words) > TYPED:
        return []
    return [word for word in words if not any(map(_term(word), among))]
