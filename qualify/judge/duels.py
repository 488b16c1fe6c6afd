"""Whether a duel proves what it says: its verdicts are computed again from its stored times, never believed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qualify.errors import UsageError
from qualify.facts.duel import Duel
from qualify.statistics.installed import install, missing
from qualify.store.archive import Archive, DuelArchive


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelCheck:
    """What was found out about the verdicts of a duel."""

    contradictions: tuple[str, ...] = ()
    """what the duel says although its stored times say otherwise"""
    unchecked: str = ""
    """why its verdicts were not computed again; empty where they were"""

    @property
    def why_not(self) -> str:
        """Why the duel proves nothing; empty where its stored times confirm all that it says."""
        if not self.contradictions:
            return self.unchecked
        more = f", and {len(self.contradictions) - 1} more" if self.contradictions[1:] else ""
        return f"it contradicts itself: {self.contradictions[0]}{more}"


def check_duel(duel: Duel) -> DuelCheck:
    """Computes the verdicts of a duel again, where numpy and scipy are installed."""
    if names := missing():
        told = f"its verdicts were not computed again: {' and '.join(names)} is missing. Install it: {install()}"
        return DuelCheck(unchecked=told)
    # Importing numpy and scipy takes longer than a whole gate that needs no duel.
    from qualify.verdict.duelled import duel_contradictions  # noqa: PLC0415

    return DuelCheck(contradictions=tuple(duel_contradictions(duel)))


def refuse_edited(path: Path, given: Archive) -> str:
    """Why the verdicts of a file's duel could not be computed again; empty where they were, and for a run.

    Raises:
        UsageError: the stored times of the duel contradict what it says.
    """
    if not isinstance(given, DuelArchive):
        return ""
    found = check_duel(given.duel)
    if found.contradictions:
        raise UsageError(
            f"{path}: duel {given.id}: {found.why_not}. Nothing was imported. It was probably edited: take the file "
            f"from where the duel was fought. What differs: qualify verify {path}"
        )
    return found.unchecked
