"""Adds an exported file to a store, and makes the report of an export or an import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection

from qualify.errors import StoreError, UsageError
from qualify.facts.clock import is_future
from qualify.facts.people import LONGEST_NAME
from qualify.facts.typed import Typed
from qualify.store import archive, people, retention, transfer, writing
from qualify.store.archive import Archive, Exported, Moved, MovedDuel, RunArchive
from qualify.store.clock import now_of
from qualify.store.database import Database
from qualify.text import one_line

Became = Literal["new", "grown", "there"]
"""grown: the store had a part of the run"""


def receive(database: Database, path: Path, vouch: Callable[[Archive, str], object] | None) -> Moved:
    """Adds the parts of an exported file that the store does not have; see :meth:`qualify.store.Store.import_run`."""
    try:
        given = transfer.read(path)
    except UsageError as error:
        raise UsageError(f"{error} Nothing was imported.") from error
    digests = _digests_of(path, given, vouch)
    try:
        became, said, ahead = _add(database, path, given, digests)
    except StoreError:
        if database.sqlite:  # whoever writes there waits for its turn first: nobody can be faster
            raise
        with database.reading() as connection:
            if not any(archive.is_there(connection, one) for one in given.archives):
                raise
        became, said, ahead = _add(database, path, given, digests)  # another process was faster
    return replace(moved(given, digests, became, said), ahead=ahead)


def _digests_of(path: Path, given: Exported, vouch: Callable[[Archive, str], object] | None) -> list[str]:
    """The digest of the run and of each duel.

    Raises UsageError where a seal does not fit the content, where cases of the run are missing, or where ``vouch``
    refuses the run or a duel.
    """
    found = []
    for one in given.archives:
        found.append(one.sha256)
        transfer.refuse_other_seal(path, one, found[-1])
        if isinstance(one, RunArchive):
            transfer.refuse_lost(path, one)
        if vouch:
            vouch(one, found[-1])
    return found


def _add(
    database: Database, path: Path, given: Exported, digests: Sequence[str]
) -> tuple[list[Became], tuple[int, int], datetime | None]:
    """Adds what the store does not have, in one transaction.

    Returns what the run and each duel became, how many sign-offs and comments are new, and the run's latest date where
    that is in the future.
    """
    with database.writing(in_file=True) as connection:
        became = _add_evidence(connection, path, database, given, digests)
        return became, _add_people(connection, path, given), _ahead(given.run, now_of(connection))


def _ahead(given: RunArchive | None, now: datetime) -> datetime | None:
    """The latest date of a run where that is in the future; else None."""
    if given is None:
        return None
    latest = max(given.run.started_at, given.run.finished_at or given.run.started_at)
    return latest if is_future(latest, now) else None


def _add_evidence(
    connection: Connection, path: Path, database: Database, given: Exported, digests: Sequence[str]
) -> list[Became]:
    """Adds what the store does not have, also of an unfinished run, and missing seals.

    Raises UsageError where the store has one of them with other content.
    """
    became: list[Became] = []
    writing.add_stacks(connection, (stack for one in given.archives for stack in one.stacks))
    for one, sha256 in zip(given.archives, digests, strict=True):
        if not archive.is_there(connection, one):
            # Whoever deleted its row by hand may have left the rest: it belongs to nothing, and would be in the way.
            (retention.clear_run if one.what == "run" else retention.clear_duel)(connection, one.id)
            archive.insert(connection, one, now_of(connection))
            became.append("new")
        elif one.seal is None or one.seal != archive.seal_of(connection, one):
            became.append(_compare(connection, path, database, one, sha256))
        else:
            became.append("there")
    return became


def _compare(connection: Connection, path: Path, database: Database, given: Archive, sha256: str) -> Became:
    """Adds what an unfinished run lacks, and the given seal where the stored one is missing.

    Raises UsageError where the stored content is another.
    """
    archive.lock(connection, given)
    stored = archive.stored(connection, given)
    if stored.sha256 == sha256:
        if not stored.seal:
            archive.set_seal(connection, given)
        return "there"
    why = transfer.why_not_more(stored, given, Typed(db=database.address).command("verify", stored.id))
    if why or not (isinstance(stored, RunArchive) and isinstance(given, RunArchive)):
        raise transfer.differs(path, database.where, stored, given, why)
    archive.go_on(connection, stored, given, now_of(connection))
    return "grown"


def _add_people(connection: Connection, path: Path, given: Exported) -> tuple[int, int]:
    """Adds what people said of the run in other stores; returns how many sign-offs and comments are new."""
    origin = one_line(path.name)[:LONGEST_NAME]
    return people.receive(connection, given.beside.signoffs, given.beside.comments, origin)


def moved(
    given: Exported, digests: Sequence[str], became: Sequence[Became] = (), said: tuple[int, int] | None = None
) -> Moved:
    """The report of an export or an import.

    Args:
        digests: sha256 of the run, where there is one, then of each duel.
        became: what each of them became; empty = this is an export.
        said: how many sign-offs and comments were added; None = this is an export of all that the file has.
    """
    run, pairs = given.run, list(zip(digests, became or ["there"] * len(digests), strict=True))
    sha256, added = pairs.pop(0) if run else ("", "there")
    signoffs, comments = said or (len(given.beside.signoffs), len(given.beside.comments))
    return Moved(
        run=run.id if run else "",
        cases=len(run.cases) if run else 0,
        outcomes=len(run.outcomes) if run else 0,
        sha256=sha256,
        new=added == "new",
        grown=added == "grown",
        duels=tuple(
            MovedDuel(duel=it.id, cells=len(it.duel.cells), sha256=digest, sealed=it.seal is not None, new=how == "new")
            for it, (digest, how) in zip(given.beside.duels, pairs, strict=True)
        ),
        signoffs=signoffs,
        comments=comments,
    )
