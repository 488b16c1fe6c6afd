"""Sign-offs for people and machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qualify.facts.people import SignedOff, SignOff, SignOffState
from qualify.report.columns import AnyTable, Column, Table
from qualify.text import one_line

WORDS: dict[SignOffState, tuple[str, str]] = {
    "valid": ("✓", "in force"),
    "revoked": ("✗", "revoked"),
    "changed": ("!", "evidence changed since"),
    "imported": ("?", "imported, and nobody here checked who signed"),
    "unproven": ("?", "unproven: signed without a token, so it does not count"),
}
"""glyph and words for each state"""
TONES: dict[SignOffState, str] = {
    "valid": "PASS",
    "revoked": "NOT_REQUIRED",
    "changed": "FAIL",
    "imported": "INCONCLUSIVE",
    "unproven": "INCONCLUSIVE",
}
"""style class of each state: the classes of the verdicts serve for both"""


def signoff_line(signed: SignedOff) -> str:
    """A sign-off on one line: state, person, role, moment, reason, and what is known of the evidence."""
    it = signed.signoff
    text = f"{WORDS[signed.state][1]}: {it.by} as {it.role} on {it.at:%Y-%m-%d %H:%M} UTC: {it.reason}"
    if it.revoked:
        text += f"; revoked by {it.revoked.by} on {it.revoked.at:%Y-%m-%d %H:%M} UTC: {it.revoked.reason}"
    sealed = "sealed evidence" if it.sealed else "evidence without a seal"
    origin = f", from {it.origin}" if it.origin else ""
    known = f", known by {it.how}" if it.how else ""
    return one_line(f"{text} (sign-off {it.id}{origin}{known}, {sealed} {it.sha256[:12]})")


def signoff_lines(signoffs: Sequence[SignedOff]) -> list[str]:
    """The lines of the gate's text; none where nobody signed."""
    return [f"signed: {signoff_line(it)}" for it in signoffs]


def signoff_data(signed: SignedOff) -> dict[str, Any]:
    """A sign-off and its state, as JSON."""
    return {"state": signed.state, **plain_data(signed.signoff)}


def plain_data(it: SignOff) -> dict[str, Any]:
    """A sign-off as JSON, without its state, which depends on the evidence."""
    return {
        "id": it.id,
        "run": it.run_id,
        "sha256": it.sha256,
        "sealed": it.sealed,
        "verdict": it.verdict,
        "by": it.by,
        "role": it.role,
        "reason": it.reason,
        "at": it.at.isoformat(),
        "origin": it.origin or None,
        "how": it.how or None,
        "revoked": {"by": it.revoked.by, "reason": it.revoked.reason, "at": it.revoked.at.isoformat()}
        if it.revoked
        else None,
    }


def _ended(signed: SignedOff) -> str:
    ended = signed.signoff.revoked
    return f"{ended.by}, {ended.at:%Y-%m-%d %H:%M}: {ended.reason}" if ended else ""


COLUMNS: tuple[Column[SignedOff], ...] = (
    Column(
        key="state",
        title="State",
        name=True,
        cell=lambda it: " ".join(WORDS[it.state]),
        tone=lambda it: TONES[it.state],
    ),
    Column(key="by", title="By", cell=lambda it: it.signoff.by),
    Column(key="role", title="Role", cell=lambda it: it.signoff.role),
    Column(key="how", title="Known by", name=True, cell=lambda it: it.signoff.how),
    Column(key="at", title="When (UTC)", cell=lambda it: f"{it.signoff.at:%Y-%m-%d %H:%M}"),
    Column(key="verdict", title="Verdict then", cell=lambda it: it.signoff.verdict.replace("_", " ").lower()),
    Column(key="reason", title="Reason", sentence=True, cell=lambda it: it.signoff.reason),
    Column(key="revoked", title="Revoked", sentence=True, cell=_ended),
    Column(
        key="sha256",
        title="Digest of the evidence",
        code=True,
        cell=lambda it: f"{it.signoff.sha256[:16]} {'sealed' if it.signoff.sealed else 'not sealed'}",
    ),
    Column(key="origin", title="Imported from", sentence=True, cell=lambda it: it.signoff.origin),
    Column(key="id", title="Number", cell=lambda it: it.signoff.id, number=True),
)


def signoffs_table(signoffs: Sequence[SignedOff]) -> AnyTable:
    """A row for each sign-off, in the given order."""
    return Table(caption="Who vouches for this evidence", columns=COLUMNS, rows=tuple(signoffs))
