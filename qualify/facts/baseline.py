"""A baseline: evidence that somebody accepted. Never a moving average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from qualify.facts.people import is_proven


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """One acceptance. The newest one of a matrix, a variant and a name is the current one."""

    matrix: str
    variant: str
    """the device model that it holds for (``Device.variant``)"""
    run_id: str
    accepted_by: str
    reason: str
    accepted_at: datetime
    """aware UTC"""
    waivers: Mapping[str, str] | None = None
    """the waivers in force on that day whose glob leaves the kernel or the case open: by glob, their checks, each on a
    line of its own; None where an older qualify accepted the run, and did not note them"""
    name: str = ""
    """what the baseline is for, for example a branch; empty = the baseline that all others fall back to"""
    how: str = ""
    """how the person is known, as in :class:`AuditEntry`; empty = it was imported, or an older qualify accepted it"""

    @property
    def proven(self) -> bool:
        """Whether a token proved here who accepted it."""
        return is_proven(self.how)

    @property
    def who(self) -> str:
        """Who accepted it, in words: a name that nothing proves is marked."""
        return self.accepted_by if self.proven else f"{self.accepted_by} (unproven)"
