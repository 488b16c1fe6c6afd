"""What in a stored run or duel cannot be true together: somebody edited it, so it proves nothing."""

from __future__ import annotations

from collections.abc import Sequence

from qualify.errors import NoVerdict
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
    if isinstance(given, DuelArchive):
        found = check_duel(given.duel).contradictions
    else:
        assert isinstance(given, RunArchive)
        found = contradictions_in(given)
    if found:
        raise NoVerdict(f"{edited_message(given.what, given.id, found, typed)}. Nothing was written.")
