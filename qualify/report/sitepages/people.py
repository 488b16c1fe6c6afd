"""Pages for people: sign-offs and comments of a run, the audit log, and the login."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from qualify.facts.people import AuditEntry, Comment, SignOff
from qualify.judge.judged import Judged
from qualify.report.columns import AnyTable, Column, Table
from qualify.report.signoffs import signoff_data, signoffs_table
from qualify.report.site import ACCOUNT
from qualify.report.sitepages.cases import comments_part
from qualify.report.sitepages.parts import (
    Form,
    FormField,
    PageLink,
    PagePart,
    PartsPage,
    address,
    run_address,
    run_words,
)
from qualify.report.verdict_text import verdict_line

REASON = FormField(name="reason", label="Reason", kind="textarea", longest=4000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A run on which a person decides, and what that person may do."""

    judged: Judged
    sha256: str
    """digest of the evidence that the page shows; a sign-off covers exactly this evidence"""
    comments: Sequence[Comment]
    accepted: bool
    """whether there is a baseline to compare with"""
    why_not: str
    """why nobody may sign the run; empty where somebody may"""
    newer: Sequence[str]
    """notes on newer runs that are not qualified"""
    roles: Sequence[str]
    """roles in which the person may sign; empty = none"""
    done: Collection[str]
    """roles in which the person has signed"""
    may_write: bool
    """whether the person may comment"""
    proven: bool
    """whether a token proves who the person is"""

    @property
    def at(self) -> str:
        """Address of the run."""
        return run_address(self.judged.run.id)


def decision_page(it: Decision) -> PartsPage:
    """Where people sign a run, revoke a sign-off and comment."""
    run, signed = it.judged.run, it.judged.signoffs
    signoffs = PagePart(
        key="signoffs",
        heading="Sign-offs",
        notes=_why_no_form(it),
        table=signoffs_table(signed),
        empty="Nobody has signed.",
        forms=_forms(it),
    )
    comments = comments_part(it.comments, (_comment_form(run.id),) if it.may_write else ())
    return PartsPage(
        title=f"Decide on run {run.id}",
        summary=f"{run.matrix} on {run.stack.device.variant if run.stack else 'an unknown device'}",
        here="/runs",
        twin=f"{it.at}/decision.json",
        parts=(_what(it), signoffs, comments),
        more={
            "signed": [signoff_data(one) for one in signed],
            "may_be_signed": not it.why_not,
            "why_not": it.why_not,
            "notes": list(it.newer),
        },
    )


def _what(it: Decision) -> PagePart:
    """What a sign-off covers: the verdict and the digest of the evidence."""
    compare = [PageLink(text="Compare with the baseline", href=f"{it.at}/against/baseline")] if it.accepted else []
    return PagePart(
        key="run",
        heading="What is signed",
        terms=(
            ("Verdict", run_words(it.judged.conclusion)),
            ("In words", verdict_line(it.judged)),
            ("Digest of the evidence", it.sha256),
        ),
        notes=tuple(it.newer),
        links=(PageLink(text="The report", href=it.at), *compare),
    )


def _why_no_form(it: Decision) -> tuple[str, ...]:
    if it.why_not:
        return (f"Nobody may sign this run: {it.why_not}.",)
    if not it.roles:
        needs = "a sign-off needs a role and the right `sign`, and you do not have both here"
        return (f"You may not sign: {needs}. Whoever runs this site gives them in the file of `qualify web --access`.",)
    if not _open_roles(it):
        return (f"You have signed this run as {' and as '.join(it.roles)}; a sign-off is given once.",)
    return () if it.proven else ("No token proves who you are here, so your sign-off is unproven and does not count.",)


def _comment_form(run_id: str) -> Form:
    return Form(
        title="Add a comment",
        action="/comments",
        button="Comment",
        fields=(
            FormField(name="run", kind="hidden", value=run_id),
            FormField(name="text", label="What others must know of this run", kind="textarea", longest=4000),
        ),
    )


def _forms(it: Decision) -> tuple[Form, ...]:
    """Forms for what the person may sign or revoke."""
    if not it.roles:
        return ()
    revocable = [one.signoff for one in it.judged.signoffs if one.state != "revoked"]
    signable = not it.why_not and _open_roles(it)
    return (*([_sign_form(it)] if signable else []), *map(_revoke_form, revocable))


def _open_roles(it: Decision) -> tuple[str, ...]:
    """The roles in which the person may still sign."""
    return tuple(role for role in it.roles if role not in it.done)


def _sign_form(it: Decision) -> Form:
    roles = _open_roles(it)
    return Form(
        title="Sign",
        action=f"{it.at}/signoffs",
        button="Sign this evidence",
        note="A sign-off is never changed or removed. It can be revoked, with a reason.",
        fields=(
            FormField(name="role", label="Role", kind="select", options=roles, value=roles[0]),
            REASON,
            FormField(name="sha256", kind="hidden", value=it.sha256),
        ),
    )


def _revoke_form(signoff: SignOff) -> Form:
    return Form(
        title=f"Revoke sign-off {signoff.id} of {signoff.by} as {signoff.role}",
        action=f"/signoffs/{signoff.id}/revoke",
        button="Revoke",
        fields=(REASON,),
    )


AUDIT: tuple[Column[AuditEntry], ...] = (
    Column(key="id", title="Line", cell=lambda it: it.id, number=True),
    Column(key="at", title="When (UTC)", cell=lambda it: f"{it.at:%Y-%m-%d %H:%M:%S}" if it.at else ""),
    Column(
        key="allowed",
        title="Done",
        cell=lambda it: "✓ done" if it.allowed else "✗ refused",
        tone=lambda it: "PASS" if it.allowed else "FAIL",
    ),
    Column(key="who", title="Who", cell=lambda it: it.who or "nobody known"),
    Column(key="how", title="Known by", cell=lambda it: it.how),
    Column(key="address", title="From", cell=lambda it: it.address or "command line", code=True),
    Column(key="action", title="What", cell=lambda it: it.action),
    Column(key="subject", title="About", cell=lambda it: it.subject, sentence=True),
    Column(key="detail", title="Detail", cell=lambda it: it.detail, sentence=True),
)


def audit_table(entries: Sequence[AuditEntry]) -> AnyTable:
    """Lines of the audit log as a table."""
    return Table(caption="Who did what, the newest first", columns=AUDIT, rows=tuple(entries))


def audit_page(entries: Sequence[AuditEntry], older: int | None) -> PartsPage:
    """One page of the audit log.

    Args:
        older: number of a line; the next page shows the lines before it. None = there are no older lines.
    """
    links = (PageLink(text="Older lines", href=address("audit", before=older)),) if older else ()
    part = PagePart(
        key="audit", heading="Audit log", table=audit_table(entries), empty="Nobody has done anything.", links=links
    )
    return PartsPage(title="Audit log", here="", twin="/audit.json", csv="/audit.csv", parts=(part,))


def login_page(*, with_token: bool, why: str = "", back: str = "") -> PartsPage:
    """The page where a person logs in.

    Args:
        with_token: whether the site takes tokens; without, a proxy in front of it logs people in.
        why: why the person must log in, or why a login failed; empty = no note.
        back: address of the page that the person wanted; empty = the first page.
    """
    token = FormField(name="token", label="Token", kind="password", longest=200)
    asked = (FormField(name="back", kind="hidden", value=back),) if back else ()
    form = Form(title="Log in", action="/login", button="Log in", fields=(token, *asked))
    words = (
        "Paste your token. Whoever runs this site makes one: qualify access token NAME"
        if with_token
        else "This site takes no token: the login of your organisation, in front of this site, says who you are."
    )
    part = PagePart(key="login", heading="Log in", notes=(words,), forms=(form,) if with_token else ())
    return PartsPage(title="Log in", here=ACCOUNT, parts=(part,), notes=(why,) if why else ())


def account_page(name: str, how: str, rights: Sequence[str], roles: Sequence[str]) -> PartsPage:
    """Who somebody is on this site, what that person may do, and how to log out.

    Args:
        how: how the site knows the person, in the words of the audit log.
        roles: roles in which the person may sign.
    """
    session = how.startswith("session ")
    told = how.replace("session", "a login with token") if session else how
    known = {"loopback": "requests of this machine need no login", "jwt": "the proxy that logs you in"}.get(how, told)
    ends = "This site holds no session of yours. The proxy that logs you in also logs you out." if how == "jwt" else ""
    part = PagePart(
        key="account",
        heading="Account",
        terms=(
            ("Name", name),
            ("Known by", known),
            ("Rights", ", ".join(rights) or "none"),
            ("May sign as", ", ".join(roles) or "nobody"),
        ),
        notes=(ends,) if ends else (),
        links=(PageLink(text="Audit log", href="/audit"),) if "sign" in rights else (),
        forms=(Form(title="Log out", action="/logout", button="Log out", fields=()),) if session else (),
    )
    return PartsPage(title="Account", here=ACCOUNT, parts=(part,))
