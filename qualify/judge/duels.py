"""Whether a duel proves what it says: its verdicts are computed again from its stored times, never believed."""

from __future__ import annotations

from dataclasses import dataclass

from qualify.facts.duel import Duel
from qualify.statistics.installed import install, missing


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
