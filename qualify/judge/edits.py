"""What in a stored run or duel cannot be true together: somebody edited it, so it proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qualify.errors import NoVerdict, UsageError
from qualify.facts.typed import Typed
from qualify.judge.duels import check_duel
from qualify.store.archive import Archive, DuelArchive, RunArchive
from qualify.text import shell_word
from qualify.verdict.consistency import contradictions_of


def contradictions_in(given: RunArchive) -> tuple[str, ...]:
    """How the evidence of a run contradicts itself; empty where it does not."""
    return (*filter(None, [given.edited]), *contradictions_of(given.run, given.records))


def edited_message(what: str, its_id: str, found: Sequence[str], typed: Typed) -> str:
    """What to tell of a run or duel that contradicts itself: how, the likely cause, and the command that names all.

    Args:
        what: ``run`` or ``duel``.
    """
    return (
        f"{contradiction(what, its_id, found)}. Somebody probably edited the store, so the {what} is no evidence. "
        f"What does not fit: {typed.command('verify', its_id)}"
    )


def contradiction(what: str, its_id: str, found: Sequence[str]) -> str:
    """How a run or duel contradicts itself: the first contradiction, and the number of the others."""
    more = f", and {len(found) - 1} more" if found[1:] else ""
    return f"{what} {its_id} contradicts itself: {found[0]}{more}"


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
        raise UsageError(
            f"{path}: {contradiction(given.what, given.id, found)}. Nothing was imported. It was probably edited: take "
            f"the file from where it was made. What differs: qualify verify {shell_word(str(path))}"
        )
    return unchecked


def _found_in(given: Archive) -> tuple[tuple[str, ...], str]:
    """How a run or a duel contradicts itself, and why a duel was not checked."""
    if isinstance(given, DuelArchive):
        checked = check_duel(given.duel)
        return checked.contradictions, checked.unchecked
    assert isinstance(given, RunArchive)
    return contradictions_in(given), ""
