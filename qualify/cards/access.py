"""The access file: who may read the site, who may write there, and who may sign evidence in which role."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from qualify.cards.problems import refuse_doubtful, validate
from qualify.cards.source import read
from qualify.cards.waivers import Day
from qualify.cards.words import Card, Name, Some, Text, Where, refuse
from qualify.files import beside

Right = Literal["read", "comment", "sign"]
"""read: every page; comment: also comments and holds; sign: also sign-offs and their revocation"""
RIGHTS: tuple[Right, ...] = ("read", "comment", "sign")
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""signatures by a key pair: with a shared secret the site could make tokens itself"""
HASH = r"^scrypt\$[0-9]{1,8}\$[0-9]{1,2}\$[0-9]{1,2}\$[0-9a-f]{32}\$[0-9a-f]{64}$"
HEADER = r"^[A-Za-z0-9-]{1,64}$"
EVERYBODY_READS: dict[str, tuple[Right, ...]] = {"*": ("read",)}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
PersonName = Annotated[str, Field(min_length=1, max_length=200)]


def _address(value: str) -> str:
    """An address of keys: https, or http on this machine; anything without :// is a file."""
    if "://" not in value:
        return value
    parts = urlsplit(value)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK):
        return value
    raise ValueError(
        "must be an https:// address, an http:// address of this machine, or a file: without TLS, anybody on the way "
        "could replace the keys"
    )


class Token(Card):
    """A bearer token. The file holds a hash of it, which `qualify access token` prints."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """the first part of the token, which is no secret"""
    name: PersonName
    """who has it: the name in sign-offs, comments and the audit log"""
    hash: Annotated[str, Field(pattern=HASH)]
    """scrypt$N$r$p$SALT$HASH"""
    rights: Some[Right] = ("read",)
    """read, comment, sign: what it may be used for"""
    expires: Day
    """last day on which it is accepted, UTC"""


class Jwt(Card):
    """Tokens of an OpenID provider, which a proxy hands on in a header. The site verifies each token itself."""

    issuer: Text
    """value that the claim iss must have"""
    audience: Text
    """value that the claim aud must hold"""
    algorithms: Some[Algorithm] = ("RS256",)
    """signatures that are accepted; those with a shared secret never are"""
    jwks: Annotated[Text, AfterValidator(_address)]
    """the provider's public keys: a file relative to this one, or an https address"""
    header: Annotated[str, Field(pattern=HEADER)] = "Authorization"
    """header that holds the token, with or without the word Bearer"""
    name_claim: Text = "email"
    """claim that names the person"""
    groups_claim: Text = "groups"
    """claim that lists the person's groups"""
    rights: dict[Text, Some[Right]] = Field(default_factory=lambda: dict(EVERYBODY_READS))
    """rights by group; * = everybody with a valid token"""


class Local(Card):
    """The person whose requests have no token, where the site listens on loopback."""

    name: PersonName
    """the person at this machine"""
    rights: Some[Right] = ("read", "comment", "sign")
    """what that person may do"""


class Signer(Card):
    """A person who may sign evidence, on the site and with `qualify signoff`."""

    name: PersonName
    """name of the person, as the token, the claim or --by has it"""
    roles: Some[Name]
    """roles in which the person may sign, for example release"""


class AccessCard(Card):
    """Who may do what. `qualify web --access FILE` and `qualify signoff --access FILE` read it."""

    access: Name
    """name of the file's purpose, for example site"""
    tokens: tuple[Token, ...] = ()
    """bearer tokens"""
    jwt: Jwt | None = None
    """tokens of an OpenID provider"""
    local: Local | None = None
    """requests without a token, on loopback only"""
    signers: tuple[Signer, ...] = ()
    """who may sign; nobody else can, whatever a token's rights are"""

    @model_validator(mode="after")
    def _fits(self) -> AccessCard:
        problems: list[tuple[Where, str]] = []
        for key, values in (("id", [it.id for it in self.tokens]), ("name", [it.name for it in self.signers])):
            where = "tokens" if key == "id" else "signers"
            problems += [
                ((where, at, key), f"names {values[at]} again; rename or remove one") for at in _repeated(values)
            ]
        refuse(problems)
        return self

    def roles_of(self, name: str) -> tuple[str, ...]:
        """The roles in which somebody may sign; empty = in none."""
        return next((signer.roles for signer in self.signers if signer.name == name), ())

    @property
    def needs_login(self) -> bool:
        """Whether it lets in anybody besides the person at the machine."""
        return bool(self.tokens or self.jwt)


def _repeated(values: Iterable[str]) -> list[int]:
    """The places of values that repeat an earlier value."""
    seen: Counter[str] = Counter()
    found = []
    for index, value in enumerate(values):
        seen[value] += 1
        if seen[value] > 1:
            found.append(index)
    return found


def load_access(path: Path) -> AccessCard:
    """The access file. Raises CardError with every problem of it."""
    source = read(path)
    card = validate(source, AccessCard)
    refuse_doubtful(source)
    return card


def rights_of(groups: Iterable[str], rights: Mapping[str, Iterable[Right]]) -> frozenset[Right]:
    """The rights of somebody in these groups."""
    return frozenset(right for group in ("*", *groups) for right in rights.get(group, ()))


def in_force(token: Token, today: date) -> bool:
    """Whether a token is still accepted."""
    return today <= token.expires


def keys_beside(card: Path, jwks: str) -> str:
    """The place of the provider's keys: an address as it is, a file relative to the access file."""
    return jwks if re.match(r"https?://", jwks) else str(beside(card, jwks))
