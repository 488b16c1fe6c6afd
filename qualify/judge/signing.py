"""Somebody signs the evidence of a run, ends a sign-off, comments, or does something about a hold.

The site and the command line call these functions, so both refuse the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import get_args

from qualify.cards.access import AccessCard, Right, Token, in_force
from qualify.cards.tokens import holds, id_of
from qualify.errors import NO_VERDICT, NotAllowed, UsageError
from qualify.facts.people import (
    LONGEST_NAME,
    LONGEST_TEXT,
    AuditAction,
    AuditEntry,
    Comment,
    HoldAction,
    HoldActionKind,
    Revocation,
    SignOff,
    SignOffState,
    is_proven,
)
from qualify.facts.run import Conclusion, Run
from qualify.judge.judged import Judged
from qualify.seal.sealed import own_digest
from qualify.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """A person who does something, and how it is known who that is."""

    name: str
    how: str
    """``token ID``, ``session ID``, ``jwt``, ``loopback`` or ``command of LOGIN``"""
    address: str = ""
    """of the client; empty = this machine's command line"""

    def entry(self, action: AuditAction, subject: str, detail: str = "", *, allowed: bool = True) -> AuditEntry:
        """A line of the audit log."""
        return AuditEntry(
            who=self.name,
            how=self.how,
            address=self.address,
            action=action,
            subject=subject,
            allowed=allowed,
            detail=detail,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """What somebody wants to do, as the audit log says it."""

    action: AuditAction
    subject: str


def why_not_signed(judged: Judged) -> str:
    """Why nobody may sign a run; empty where somebody may."""
    if judged.future:
        return f"it is dated in the future ({judged.future:%Y-%m-%d %H:%M} UTC): a clock is wrong"
    why = why_unsignable(judged.run, judged.conclusion)
    return judged.outdated or why if judged.conclusion.exit_code == NO_VERDICT else why


def why_unsignable(run: Run, conclusion: Conclusion) -> str:
    """Why nobody may sign a run, by its state and verdict alone; empty where somebody may."""
    if run.state != "completed":
        return f"the run is {'not finished' if run.state == 'running' else run.state}"
    if run.narrowed:
        return "the run was narrowed by --select or --kernel, and a sign-off stands for the whole matrix"
    words = {1: "it is not qualified", 5: "there is no verdict on it"}
    return words.get(conclusion.exit_code, "")


def sign(
    store: Store,
    judged: Judged,
    person: Person,
    access: AccessCard,
    *,
    role: str,
    reason: str,
    now: datetime,
    sha256: str = "",
) -> SignOff:
    """A person signs the evidence of a run that qualified.

    Args:
        sha256: digest of the evidence that the person saw; empty = whatever is stored now.

    Raises:
        NotAllowed: the access file does not let the person sign in that role.
        UsageError: the reason is empty or too long; the person signed in that role already; or the evidence is not
            what the person saw, or not what its seal says.
    """
    run_id = judged.run.id
    with _refusals(store, person, "sign", f"run {run_id}"):
        check_signer(access, person.name, role)
    said = checked_text("reason", reason)
    _refuse_twice(judged, person, role)
    found, sealed = _to_sign(store, judged, sha256)
    signed = SignOff(
        id=0,
        run_id=run_id,
        sha256=found,
        sealed=sealed,
        verdict=judged.conclusion.verdict,
        by=person.name,
        role=role,
        reason=said,
        at=now,
        how=person.how,
    )
    return store.people.sign(signed, person.entry("sign", f"run {run_id}", f"as {role}: {said}"))


def signed_as(judged: Judged, person: Person) -> set[str]:
    """The roles in which a person signed a run. A proven sign-off may follow an unproven one."""
    same: tuple[SignOffState, ...] = ("valid",) if is_proven(person.how) else ("valid", "unproven")
    mine = [it.signoff for it in judged.signoffs if it.signoff.by == person.name and it.state in same]
    return {it.role for it in mine if it.run_id == judged.run.id}


def _refuse_twice(judged: Judged, person: Person, role: str) -> None:
    """Raises UsageError where the person signed the run in that role."""
    if role in signed_as(judged, person):
        raise UsageError(f"{person.name} signed run {judged.run.id} as {role} already; a sign-off is given once")


def _to_sign(store: Store, judged: Judged, seen: str) -> tuple[str, bool]:
    """The digest of the evidence as it is stored, and whether it is sealed.

    Args:
        seen: the digest that the person saw; empty = none.
    """
    run_id = judged.run.id
    evidence = store.evidence(run_id)
    found = evidence.sha256
    if seen and seen != found:
        raise UsageError(
            f"the evidence of run {run_id} has the digest {found[:12]}, and you saw {seen[:12]}: it was changed "
            "meanwhile. Read the report again before you sign."
        )
    if evidence.seal and own_digest(evidence.seal) != found:
        look = judged.typed.command("verify", run_id)
        raise UsageError(f"the evidence of run {run_id} is not what its seal says. See what differs: {look}")
    return found, evidence.seal is not None


def check_signer(access: AccessCard, name: str, role: str) -> None:
    """Raises NotAllowed where the access file does not let somebody sign in that role."""
    roles = access.roles_of(name)
    if role in roles:
        return
    if roles:
        raise NotAllowed(f"{name!r} may sign as {', '.join(roles)}, not as {role!r}: the access file says so")
    known = ", ".join(signer.name for signer in access.signers) or "nobody"
    raise NotAllowed(f"{name!r} may not sign: the access file lists {known} as signers")


def revoke(store: Store, number: int, person: Person, access: AccessCard, *, reason: str, now: datetime) -> SignOff:
    """A signer revokes a sign-off: the signer's own, or somebody else's in a role that both have.

    Raises:
        NotAllowed: the person has not that role, or only typed a name, and a token proved who signed.
        UsageError: there is no such sign-off, it has ended already, or the reason is empty or too long.
    """
    said, found = checked_text("reason", reason), store.people.signoff(number)
    subject = f"sign-off {number}" + (f" of run {found.run_id}" if found else "")
    with _refusals(store, person, "revoke", subject):
        _check_revoker(access, person, found)
    ended = Revocation(by=person.name, reason=said, at=now)
    return store.people.revoke(number, ended, person.entry("revoke", subject, said))


def _check_revoker(access: AccessCard, person: Person, found: SignOff | None) -> None:
    """Raises NotAllowed where a person may not end a sign-off."""
    if found and found.by != person.name:
        check_signer(access, person.name, found.role)
    if found and found.proven and not is_proven(person.how):
        raise NotAllowed(
            f"sign-off {found.id} was given with a token, so a typed name cannot revoke it: give a token with "
            "--token-file FILE, or revoke it on the site"
        )


def comment(store: Store, person: Person, *, run_id: str | None, case_id: str, text: str, now: datetime) -> Comment:
    """A person comments on a run, or on a case in all runs."""
    said = checked_text("text", text)
    written = Comment(id=0, run_id=run_id, case_id=case_id, by=person.name, text=said, at=now)
    subject = f"run {run_id}" if run_id is not None else f"case {case_id}"
    return store.people.comment(written, person.entry("comment", subject, said))


def act_on_hold(store: Store, hold: int, kind: str, person: Person, *, reason: str, now: datetime) -> HoldAction:
    """A person acknowledges a hold of a canary, or releases it."""
    said = checked_text("reason", reason)
    known: tuple[HoldActionKind, ...] = get_args(HoldActionKind)
    chosen = next((it for it in known if it == kind), None)
    if chosen is None:
        raise UsageError(f"{kind!r} is not an action on a hold; the actions are {', '.join(known)}")
    action = HoldAction(id=0, hold_id=hold, kind=chosen, by=person.name, reason=said, at=now, how=person.how)
    return store.people.act(action, person.entry(chosen, f"hold {hold}", said))


def checked_text(what: str, text: str, longest: int = LONGEST_TEXT) -> str:
    """The text without blanks around it. Raises UsageError where nothing is left, or it is too long."""
    found = text.strip()
    if not found:
        raise UsageError(f"the {what} is empty: say it in words, it stays for ever")
    if len(found) > longest:
        raise UsageError(f"the {what} has {len(found):,} characters, and at most {longest:,} are kept: shorten it")
    return found


def named(name: str, login: str) -> Person:
    """A person who only typed a name. Raises UsageError where the name is empty or too long.

    Args:
        login: of the operating system's user who typed it.
    """
    return Person(name=checked_text("name", name, LONGEST_NAME), how=f"command of {login}")


def by_token(store: Store, access: AccessCard, text: str, right: Right, tried: Tried, now: datetime) -> Person:
    """The person whom a bearer token proves.

    Args:
        tried: what the person wants to do, for the audit log.

    Raises:
        NotAllowed: the access file does not accept the token for that; the audit log has a line about it.
    """
    token = next((it for it in access.tokens if it.id == id_of(text)), None)
    proven = token is not None and holds(text, token.hash)
    who = Person(name=token.name, how=f"token {token.id}") if token and proven else Person(name="", how="")
    with _refusals(store, who, tried.action, tried.subject):
        _check_token(token if proven else None, right, now)
    return who


def _check_token(token: Token | None, right: Right, now: datetime) -> None:
    """Raises NotAllowed where a token is none of the file, has ended, or lacks the right."""
    if token is None:
        raise NotAllowed("the token is not accepted: it is mistyped, or the access file does not have it")
    if not in_force(token, now.date()):
        raise NotAllowed(f"the token of {token.name} expired on {token.expires}: ask for a new one")
    if right not in token.rights:
        raise NotAllowed(
            f"the token of {token.name} does not have the right {right!r}; it has {', '.join(token.rights)}"
        )


@contextmanager
def _refusals(store: Store, person: Person, action: AuditAction, subject: str) -> Iterator[None]:
    """Notes in the audit log that somebody was not allowed to do something."""
    try:
        yield
    except NotAllowed as error:
        store.people.log(person.entry(action, subject, str(error), allowed=False))
        raise
