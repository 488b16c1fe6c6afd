"""What in a stored run cannot be true together: somebody edited it, so it proves nothing."""

from __future__ import annotations

from collections.abc import Sequence

from qualify.errors import NoVerdict
from qualify.facts.typed import Typed
from qualify.store.archive import Archive, RunArchive
from qualify.verdict.consistency import contradictions_of


def contradictions_in(given: RunArchive) -> tuple[str, ...]:
    """How the evidence of a run contradicts itself; empty where it does not."""
    return (*filter(None, [given.edited]), *contradictions_of(given.run, given.records))


def edited_message(run_id: str, found: Sequence[str], typed: Typed) -> str:
    """What to tell of a run that contradicts itself: how, the likely cause, and the command that names all."""
    more = f", and {len(found) - 1} more" if found[1:] else ""
    return (
        f"run {run_id} contradicts itself: {found[0]}{more}. Somebody probably edited the store, so the run is no "
        f"evidence. What does not fit: {typed.command('verify', run_id)}"
    )


def refuse_contradicting(given: Archive, typed: Typed) -> None:
    """Raises NoVerdict where it is a run that contradicts itself."""
    if isinstance(given, RunArchive) and (found := contradictions_in(given)):
        raise NoVerdict(f"{edited_message(given.id, found, typed)}. Nothing was written.")
