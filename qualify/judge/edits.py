"""What in a stored run or duel cannot be true together: somebody edited it, so it proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qualify.errors import NoVerdict, UsageError
from qualify.facts.typed import Typed
from qualify.judge.duels import check_duel
from qualify.store.archive import Archive, DuelArchive, RunArchive
from qualify.verdict.consistency import contradictions_of


def contradictions_in(given: RunArchive) -> tuple[str, ...]:
    """How the evidence of a run contradicts itself; empty where it does not."""
    return (*filter(None, [given.edited]), *contradictions_of(given.run, given.records))


def edited_message(what: str, its_id: str, found: Sequence[str], typed: Typed) -> str:
    """What to tell of a run or duel that contradicts itself: how, the likely cause, and the command that names all.

    Args:
        what: ``run`` or ``duel``.
    """
    more = f", and {len(found) - 1} more" if found[1:] else ""
    return (
        f"{what} {its_id} contradicts itself: {found[0]}{more}. Somebody probably edited the store, so the "
        f"{what} is no evidence. What does not fit: {typed.command('verify', its_id)}"
    )


def refuse_contradicting(given: Archive, typed: Typed) -> None:
    """Raises NoVerdict where it is a run or a duel that contradicts itself."""
    if found := _found_in(given)[0]:
        raise NoVerdict(f"{edited_message(given.what, given.id, found, typed)}. Nothing was written.")


def refuse_edited(path: Path, given: Archive) -> str:
    """Why the verdicts of a file's duel could not be computed again; empty where they were, and for a run.

    Raises:
        UsageError: the run or the duel contradicts itself.
    """
    found, unchecked = _found_in(given)
    if found:
        more = f", and {len(found) - 1} more" if found[1:] else ""
        raise UsageError(
            f"{path}: {given.what} {given.id} contradicts itself: {found[0]}{more}. Nothing was imported. It was "
            f"probably edited: take the file from where it was made. What differs: qualify verify {path}"
        )
    return unchecked


def _found_in(given: Archive) -> tuple[tuple[str, ...], str]:
    """How a run or a duel contradicts itself, and why a duel was not checked."""
    if isinstance(given, DuelArchive):
        checked = check_duel(given.duel)
        return checked.contradictions, checked.unchecked
    assert isinstance(given, RunArchive)
    return contradictions_in(given), ""
