"""Who asks, and what that person may do: bearer tokens, verified tokens of an OpenID provider, or loopback."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from qualify.cards.access import RIGHTS, AccessCard, Right, Token, in_force, rights_of
from qualify.cards.tokens import PREFIX, holds, id_of
from qualify.facts.people import LONGEST_NAME
from qualify.judge.signing import Person
from qualify.web.jwt import InvalidJwt, JwtVerifier

COOKIE = "qualify_session"
SESSION_S = 8 * 3600
MOST_SESSIONS = 1_000
REMEMBERED = 1_000
"""tokens whose slow hash was checked once and is not computed again"""
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""headers that a proxy adds when it forwards a request; they only ever take rights away"""
ANONYMOUS = "somebody on this machine"
"""the name of a caller on loopback where the access file names nobody"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who asks."""

    person: Person
    rights: frozenset[Right]
    ambient: bool
    """the browser sends the proof by itself, so another site's page could ask in the person's name"""


class AccessRefused(Exception):
    """The caller is not known, or may not do this."""

    def __init__(self, status: int, text: str, who: str = "", *, tried: bool = True) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.tried = tried
        """whether the request carried a token or a session"""
        self.who = who
        """the name that the request claims; empty = none"""


class Access:
    """Finds out who asks; safe for several threads.

    Args:
        card: the access file; None = everybody reads, and nobody writes. Only on loopback.
        path: where it lies.
        loopback: whether only this machine reaches the site.
    """

    def __init__(self, card: AccessCard | None, path: Path | None, *, loopback: bool) -> None:
        self.card = card or AccessCard(access="none")
        self._tokens = {token.id: token for token in self.card.tokens}
        self._jwt = JwtVerifier(self.card.jwt, path) if self.card.jwt and path else None
        self._loopback = loopback
        self._key = secrets.token_bytes(32)
        self._verified: OrderedDict[bytes, str] = OrderedDict()
        self._sessions: OrderedDict[str, tuple[float, str, str]] = OrderedDict()
        self._lock = Lock()

    @property
    def open(self) -> bool:
        """Whether requests without a token are answered."""
        return self._loopback and not self.card.needs_login

    @property
    def has_tokens(self) -> bool:
        """Whether a person can log in with a token."""
        return bool(self._tokens)

    def caller(self, headers: Mapping[str, str], cookies: Mapping[str, str], address: str) -> Caller:
        """Who asks. Raises AccessRefused (401) where the request does not say so credibly."""
        if self._jwt and (text := self._jwt.token_of(headers)) and not text.startswith(PREFIX):
            return self._by_jwt(text, address)
        kind, _, text = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._by_token(text.strip(), address)
        if session := cookies.get(COOKIE):
            return self._by_session(session, address)
        if self.open:
            # A request that a proxy forwards is not from the person at this machine, although the proxy runs here.
            local = None if any(name in headers for name in FORWARDED) else self.card.local
            name, rights = (local.name, local.rights) if local else (ANONYMOUS, ("read",))
            person = Person(name=name, how="loopback", address=address)
            return Caller(person=person, rights=frozenset(rights), ambient=True)
        raise AccessRefused(401, "This site needs a login: a bearer token, or the proxy that logs you in.", tried=False)

    def log_in(self, token: str, address: str) -> tuple[str, Caller]:
        """A new session for a browser, and its person. Raises AccessRefused (401) where the token is not accepted."""
        caller = self._by_token(token, address)
        session = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[session] = time.monotonic() + SESSION_S, id_of(token), caller.person.name
            while len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        return session, caller

    def log_out(self, session: str, address: str) -> Person | None:
        """Ends a session; returns whose it was, None where there is no such session."""
        with self._lock:
            _, number, name = self._sessions.pop(session, (0.0, "", ""))
        return Person(name=name, how=f"session {number}", address=address) if name else None

    def _by_session(self, session: str, address: str) -> Caller:
        with self._lock:
            until, number, name = self._sessions.get(session, (0.0, "", ""))
        token = self._tokens.get(number)
        if time.monotonic() >= until or token is None or not in_force(token, datetime.now(UTC).date()):
            raise AccessRefused(401, "The session has ended. Log in again.", name)
        person = Person(name=token.name, how=f"session {token.id}", address=address)
        return Caller(person=person, rights=frozenset(token.rights), ambient=True)

    def _by_token(self, text: str, address: str) -> Caller:
        token = self._tokens.get(id_of(text))
        if token is None or not self._holds(text, token):
            raise AccessRefused(401, "The token is not accepted. It is mistyped, or the access file no longer has it.")
        if not in_force(token, datetime.now(UTC).date()):
            raise AccessRefused(
                401, f"The token of {token.name} expired on {token.expires}. Ask for a new one.", token.name
            )
        person = Person(name=token.name, how=f"token {token.id}", address=address)
        return Caller(person=person, rights=frozenset(token.rights), ambient=False)

    def _holds(self, text: str, token: Token) -> bool:
        """Whether the text is this token; the slow hash is computed once for each text."""
        quick = hmac.digest(self._key, text.encode(), hashlib.sha256)
        if self._verified.get(quick) == token.hash:
            return True
        if not holds(text, token.hash):
            return False
        with self._lock:
            self._verified[quick] = token.hash
            while len(self._verified) > REMEMBERED:
                self._verified.popitem(last=False)
        return True

    def _by_jwt(self, text: str, address: str) -> Caller:
        assert self._jwt is not None
        assert self.card.jwt is not None
        try:
            name, groups = self._jwt.verify(text)
        except InvalidJwt as error:
            raise AccessRefused(401, f"The token of the proxy is not accepted: {error}") from error
        rights = rights_of(groups, self.card.jwt.rights)
        person = Person(name=name[:LONGEST_NAME], how="jwt", address=address)
        return Caller(person=person, rights=rights, ambient=True)


def require(caller: Caller, right: Right) -> None:
    """Raises AccessRefused (403) where the person lacks the right."""
    if right not in caller.rights:
        had = ", ".join(it for it in RIGHTS if it in caller.rights) or "none"
        raise AccessRefused(
            403, f"{caller.person.name} does not have the right {right!r} here (has: {had}).", caller.person.name
        )
