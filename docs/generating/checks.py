"""The table of checks in docs/numerics.md."""

from __future__ import annotations

from generating.tables import table
from qualify.facts.checks import CHECKS, KnownCheck


def checks_table() -> str:
    """A row for each check, in the order in which they run."""
    return table(["check", "question", "level", "needs", "findings"], [_row(known) for known in CHECKS])


def _row(known: KnownCheck) -> list[str]:
    findings = ", ".join(f"`{name}`" for name in known.findings)
    return [known.name, known.question, " and ".join(known.levels), known.needs or "–", findings]
