"""Finds the run or duel that a typed id means, or says why it means none, or several.

Every function that reads works inside the transaction of its connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from heapq import nlargest

from sqlalchemy import Connection, select

from qualify.errors import NoVerdict, UsageError
from qualify.store import reading
from qualify.store.deletions import gone
from qualify.store.tables import cases

LATEST = "latest"
NAMED = 5
"""ids that a message names"""
COMPARED = 200
"""ids of cases that are compared with a typed one letter by letter"""
ALIKE = 0.5
"""how much of a typed id a stored one must share, so that it may be meant"""


def resolved(connection: Connection, where: str, what: str, typed: str, ids: Sequence[str], maker: str) -> str:
    """The id that was meant.

    Args:
        where: the store, as messages name it.
        what: a run or a duel.
        typed: an id, the beginning of one, or ``latest``.
        ids: those that are stored, newest first.
        maker: the command that makes one.

    Raises NoVerdict where nothing is stored yet, UsageError where the id means none, several, or a deleted one.
    """
    if typed == LATEST and ids:
        return ids[0]
    if typed in ids:
        return typed
    matches = [known for known in ids if typed and known.startswith(typed)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(_several(what, typed, matches))
    if typed and typed != LATEST and (told := gone(connection, typed)):
        raise UsageError(f"{where}: {told}")
    if not ids:
        raise NoVerdict(f"no {what} in {where} yet: {maker} makes one")
    raise UsageError(unknown(what, typed, ids, where))


def check_run(connection: Connection, where: str, run_id: str) -> None:
    """Raises UsageError where no run has that full id, with what became of it."""
    if reading.has_run(connection, run_id):
        return
    if run_id and (told := gone(connection, run_id)):
        raise UsageError(f"{where}: {told}")
    raise UsageError(unknown("run", run_id, reading.run_ids(connection), where))


def case_ids(connection: Connection, run_id: str) -> list[str]:
    """The ids of the run's cases."""
    return list(connection.execute(select(cases.c.case_id).where(cases.c.run_id == run_id)).scalars())


def unknown_case(
    connection: Connection, typed: str, run_id: str | None, where: str, command: Callable[[str, str], str] | None
) -> str:
    """The message that no run has a case of that id, or that only other runs than the given one have it.

    Args:
        run_id: the run in which it was to be; None = any.
        command: what to type for a case and a run that has it; None = nothing.
    """

    def advice(case: str, run: str) -> str:
        return f": {command(case, run)}" if command else "."

    there = _newest_with(connection, typed)
    if there and run_id:
        return f"run {run_id} has no case {typed!r}; run {there} has it{advice(typed, there)}"
    known = _sharing(typed, case_ids(connection, run_id)) if run_id else []
    near = get_close_matches(typed, known, n=1, cutoff=ALIKE)
    found = run_id if near else None
    if not near:
        known = _sharing(
            typed, connection.execute(select(cases.c.case_id).distinct().order_by(cases.c.case_id)).scalars()
        )
        near = get_close_matches(typed, known, n=1, cutoff=ALIKE)
    told = unknown("case", typed, known, where)
    if not near:
        return told
    found = found or _newest_with(connection, near[0])
    return f"{told} Run {found} has the first{advice(near[0], found)}"


def _sharing(typed: str, known: Iterable[str]) -> list[str]:
    """The ids with the most parts of the typed one: to compare every letter of thousands of ids takes many seconds."""
    parts = {*typed.split("/")}
    return nlargest(COMPARED, known, key=lambda one: len(parts.intersection(one.split("/"))))


def _newest_with(connection: Connection, case_id: str) -> str:
    """The newest run that has the case; empty where none has."""
    having = set(connection.execute(select(cases.c.run_id).where(cases.c.case_id == case_id)).scalars())
    return next((run for run in reading.run_ids(connection) if run in having), "") if having else ""


def unknown(what: str, value: str, known: Sequence[str], where: str) -> str:
    """The message that nothing of that name is stored, with the names that the user may have meant."""
    words = {one.lower(): one for one in [*known, *([LATEST] if known and what != "case" else [])]}
    if near := get_close_matches(value.lower(), words, n=NAMED, cutoff=ALIKE):
        hint = f"Perhaps you meant {', '.join(words[one] for one in near)}."
    elif known:
        hint = f"It has {', '.join(known[:NAMED])}{', …' if len(known) > NAMED else ''}."
    else:
        kind, maker = ("duel", "qualify duel A B") if what == "duel" else ("run", "qualify run MATRIX")
        hint = f"No {kind} is stored there yet: `{maker}` stores one"
    return f"no {what} {value!r} in {where}. {hint}"


def _several(what: str, typed: str, matches: list[str]) -> str:
    more = ", …" if len(matches) > NAMED else ""
    return f"{what} {typed!r} may be any of {len(matches)}: {', '.join(matches[:NAMED])}{more}. Type more of its id."
