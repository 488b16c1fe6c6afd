"""The table of checks answers what others would otherwise spell: which finding is about what."""

from __future__ import annotations

from qualify.facts.checks import CHECKS, NEIGHBOURS, findings_shown_by, proofs_of


def test_findings_are_found_by_what_they_are() -> None:
    """One finding blames the neighbours of a case; those of the LSE are shown by the LSE alone."""
    assert "history" == NEIGHBOURS
    assert 1 == sum(known.neighbours for known in CHECKS)
    assert ("lse",) == findings_shown_by("lse")
    assert all(proofs_of(name) == ("form",) for name in findings_shown_by("form"))
