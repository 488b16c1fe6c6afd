"""What people say about evidence: sign-offs, comments, what they do about a hold; and the log of who did what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from qualify.facts.run import Verdict

HoldActionKind = Literal["acknowledge", "release"]
AuditAction = Literal["sign", "revoke", "comment", "acknowledge", "release", "accept", "login", "logout", "request"]
"""what somebody tried; ``accept`` = a run as baseline; ``request`` = any other request that was refused"""
SignOffState = Literal["valid", "revoked", "changed", "imported", "unproven"]
"""changed: the evidence of the run is no longer what was signed; imported: a file says so, and nobody here checked who
signed; unproven: somebody typed the name, without a token. Only a valid sign-off counts"""
LONGEST_TEXT = 4000
"""characters of a reason or a comment"""
LONGEST_NAME = 200
"""characters of a name or a role"""


def is_proven(how: str) -> bool:
    """Whether a token proved who somebody is.

    Args:
        how: how the person is known, as in :class:`AuditEntry`.
    """
    return how == "jwt" or how.startswith(("token ", "session "))


@dataclass(frozen=True, kw_only=True, slots=True)
class Revocation:
    """The end of a sign-off. The sign-off itself stays."""

    by: str
    reason: str
    at: datetime
    """aware UTC"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SignOff:
    """A person vouches for the evidence of a run, in a role. Nothing ever changes it."""

    id: int
    """0 = not stored yet"""
    run_id: str
    sha256: str
    """digest of the canonical lines of the evidence, which a seal of the run signs as well"""
    sealed: bool
    """whether the run was sealed when it was signed"""
    verdict: Verdict
    """verdict on the run, when it was signed"""
    by: str
    role: str
    reason: str
    at: datetime
    """aware UTC"""
    revoked: Revocation | None = None
    origin: str = ""
    """the imported file that it is from; empty = it was given here"""
    how: str = ""
    """how the person is known, as in :class:`AuditEntry`; empty = it was imported"""

    @property
    def proven(self) -> bool:
        """Whether it was given here, by somebody whom a token proved."""
        return not self.origin and is_proven(self.how)


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedOff:
    """A sign-off beside the evidence as it is now."""

    signoff: SignOff
    state: SignOffState


@dataclass(frozen=True, kw_only=True, slots=True)
class Comment:
    """What somebody says about a run, or about a case in all runs."""

    id: int
    """0 = not stored yet"""
    run_id: str | None
    """None = it is about a case"""
    case_id: str
    """empty = it is about a run"""
    by: str
    text: str
    at: datetime
    """aware UTC"""
    origin: str = ""
    """the imported file that it is from; empty = it was written here"""


@dataclass(frozen=True, kw_only=True, slots=True)
class HoldAction:
    """Somebody saw a hold, or ended it by hand."""

    id: int
    """0 = not stored yet"""
    hold_id: int
    kind: HoldActionKind
    by: str
    reason: str
    at: datetime
    """aware UTC"""
    how: str = ""
    """how the person is known, as in :class:`AuditEntry`"""

    @property
    def who(self) -> str:
        """Who did it, in words: a name that nothing proves is marked."""
        return self.by if is_proven(self.how) else f"{self.by} (unproven)"


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    """One line of the audit log: who tried what, and whether it was done."""

    who: str
    """name of the person; empty = nobody that is known"""
    how: str
    """how the person is known: ``token ID``, ``session ID``, ``jwt``, ``loopback`` or ``command of LOGIN``"""
    address: str
    """address of the client; empty = this machine's command line"""
    action: AuditAction
    subject: str
    """what it was about, for example ``run 2026…``"""
    allowed: bool
    detail: str = ""
    """why it was refused, or the reason that the person gave"""
    id: int = 0
    at: datetime | None = None
    """by the database's clock; None = not stored yet"""
