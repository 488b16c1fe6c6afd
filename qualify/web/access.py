"""Who asks, and what that person may do: bearer tokens, verified tokens of an OpenID provider, or loopback."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from qualify.cards.access import RIGHTS, AccessCard, Right, Token, in_force, rights_of
from qualify.cards.tokens import PREFIX, holds, id_of
from qualify.judge.signing import Person
from qualify.web.jwt import InvalidJwt, JwtVerifier

COOKIE = "qualify_session"
SESSION_S = 8 * 3600
MOST_SESSIONS = 1_000
REMEMBERED = 1_000
"""tokens whose slow hash was checked once and is not computed again"""
FORWARDED = re.compile(r"forwarded|x-forwarded-.*|x-real-ip|via")
"""names of headers that a proxy adds when it forwards a request; they only ever take rights away"""
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

    def guesses(self, headers: Mapping[str, str]) -> bool:
        """Whether the request gives a token of the access file: a client that gave wrong ones must not go on at once.

        Sessions and signatures of a provider cannot be guessed.
        """
        return not self._jwt_in(headers) and _bearer(headers) is not None

    def caller(self, headers: Mapping[str, str], cookies: Mapping[str, str], address: str) -> Caller:
        """Who asks. Raises AccessRefused (401) where the request does not say so credibly."""
        if text := self._jwt_in(headers):
            return self._by_jwt(text, address)
        if (token := _bearer(headers)) is not None:
            return self.holder(token, address)
        if session := cookies.get(COOKIE):
            return self._by_session(session, address)
        if self.open:
            # A request that a proxy forwards is not from the person at this machine, although the proxy runs here.
            local = None if any(map(FORWARDED.fullmatch, map(str.lower, headers))) else self.card.local
            name, rights = (local.name, local.rights) if local else (ANONYMOUS, ("read",))
            person = Person(name=name, how="loopback", address=address)
            return Caller(person=person, rights=frozenset(rights), ambient=True)
        raise AccessRefused(401, "This site needs a login: a bearer token, or the proxy that logs you in.", tried=False)

    def log_in(self, token: str, caller: Caller) -> str:
        """A new session for a browser.

        Where there are too many, the oldest one ends of the token that has the most, so nobody ends those of others.

        Args:
            caller: who holds the token.
        """
        session = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[session] = time.monotonic() + SESSION_S, id_of(token), caller.person.name
            if len(self._sessions) > MOST_SESSIONS:
                most = Counter(number for _, number, _ in self._sessions.values()).most_common(1)[0][0]
                del self._sessions[next(it for it, (_, number, _) in self._sessions.items() if number == most)]
        return session

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
            with self._lock:
                self._sessions.pop(session, None)
            # A browser sends the cookie of an earlier day, or of a site that began anew, again and again: it is no
            # guess. What the log says of it, it says once.
            raise AccessRefused(401, "The session has ended. Log in again.", name, tried=bool(name))
        person = Person(name=token.name, how=f"session {token.id}", address=address)
        return Caller(person=person, rights=frozenset(token.rights), ambient=True)

    def _jwt_in(self, headers: Mapping[str, str]) -> str:
        """The provider's token that the request gives; empty where it gives none."""
        text = self._jwt.token_of(headers) if self._jwt else ""
        return "" if text.startswith(PREFIX) else text

    def holder(self, text: str, address: str) -> Caller:
        """Who holds a token of the access file. Raises AccessRefused (401) where the token is not accepted."""
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
        person = Person(name=name, how="jwt", address=address)
        return Caller(person=person, rights=rights, ambient=True)


def _bearer(headers: Mapping[str, str]) -> str | None:
    """The bearer token of a request; None where it gives none."""
    kind, _, text = headers.get("authorization", "").partition(" ")
    return text.strip() if kind.lower() == "bearer" else None


def require(caller: Caller, right: Right) -> None:
    """Raises AccessRefused (403) where the person lacks the right."""
    if right not in caller.rights:
        had = ", ".join(it for it in RIGHTS if it in caller.rights) or "none"
        raise AccessRefused(
            403, f"{caller.person.name} does not have the right {right!r} here (has: {had}).", caller.person.name
        )
