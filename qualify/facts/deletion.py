"""What is left of evidence that was deleted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Deletable = Literal["run", "duel"]
BY_HAND = "SQL"
"""``how`` for a row that no command of qualify deleted: the database itself noted that it went"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deletion:
    """Somebody deleted a run or a duel. This stays."""

    what: Deletable
    name: str
    """id of the run or the duel"""
    matrix: str
    started_at: datetime
    """when the run or the duel began; aware UTC"""
    sha256: str
    """digest that its seal stated; empty = it was not sealed, or the database noted the deletion"""
    by: str
    """who deleted it; empty = unknown"""
    how: str
    """the command with its policy, or ``SQL``"""
    reason: str
    at: datetime
    """by the database's clock; aware UTC"""


def deletion_words(it: Deletion) -> str:
    """One sentence: what was deleted, when, by whom, how and why."""
    told = f"{it.what} {it.name} of {it.matrix} was deleted on {it.at:%Y-%m-%d}"
    if it.how == BY_HAND:
        return f"{told} by hand: somebody removed its row with SQL, and no command of qualify did"
    sealed = f"; its seal stated the sha256 {it.sha256[:12]}…" if it.sha256 else "; it was not sealed"
    return f"{told} by {it.by or 'somebody'} with `{it.how}`: {it.reason}{sealed}"
