"""Tokens of an OpenID provider: PyJWT verifies signature, issuer, audience and time with the provider's keys."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any
from unicodedata import category

import jwt

from qualify.cards.access import Jwt, keys_beside
from qualify.errors import UsageError
from qualify.facts.people import LONGEST_NAME
from qualify.files import open_regular

LEEWAY_S = 30.0
"""seconds by which the provider's clock may differ"""
FETCH_S = 5.0
"""longest time to fetch the provider's keys"""
AGAIN_S = 60.0
"""least time between two fetches, however many unknown keys are named"""
FRESH_S = 3600.0
"""seconds after which the provider's keys are fetched anew, so that a key ends that it withdrew"""
LONGEST = 16_384
"""characters of a token"""
LONGEST_KEYS = 1 << 20
"""bytes of a file of keys"""
NEEDED = ("exp", "iss", "aud")
JOINERS = "\u200c\u200d"
"""invisible characters that names of some languages need"""


class InvalidJwt(Exception):
    """Why a token is not accepted."""


def _is_strange(character: str) -> bool:
    """Whether a character of a name is invisible, steers a terminal, or turns what follows around."""
    return category(character) in ("Cc", "Cf", "Cs") and character not in JOINERS


class JwtVerifier:
    """Verifies tokens of one provider; safe for several threads.

    Raises UsageError where the file of keys cannot be read.
    """

    def __init__(self, card: Jwt, path: Path) -> None:
        self._card = card
        self._place = keys_beside(path, card.jwks)
        self._remote = self._place.startswith(("https://", "http://"))
        self._lock = Lock()
        self._asked = -AGAIN_S
        self._fetched = 0.0
        """when the provider gave its keys (monotonic, s)"""
        self._keys: dict[str, jwt.PyJWK] = {} if self._remote else self._from_file(Path(self._place))

    def token_of(self, headers: Mapping[str, str]) -> str:
        """The token in the header; empty where there is none."""
        text = headers.get(self._card.header.lower(), "").strip()
        kind, _, rest = text.partition(" ")
        return rest.strip() if kind.lower() == "bearer" else text if not rest else ""

    def verify(self, text: str) -> tuple[str, tuple[str, ...]]:
        """The person's name and groups. Raises InvalidJwt where the token is not accepted."""
        if len(text) > LONGEST:
            raise InvalidJwt(f"it has more than {LONGEST:,} characters")
        try:
            header = jwt.get_unverified_header(text)
            key = self._key(str(header.get("kid", "")), str(header.get("alg", "")))
            claims: dict[str, Any] = jwt.decode(
                text,
                key,
                algorithms=list(self._card.algorithms),
                audience=self._card.audience,
                issuer=self._card.issuer,
                leeway=LEEWAY_S,
                options={"require": list(NEEDED)},
            )
        except jwt.PyJWTError as error:
            raise InvalidJwt(f"{error}") from error
        name, groups = self._name_in(claims), claims.get(self._card.groups_claim, [])
        listed = groups if isinstance(groups, list) else [groups]
        return name, tuple(group for group in listed if isinstance(group, str) and group != "*")

    def _name_in(self, claims: Mapping[str, Any]) -> str:
        """The person's name. Raises InvalidJwt where the claim has none, or anybody may have written it there."""
        claim = self._card.name_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not name.strip():
            raise InvalidJwt(f"it has no claim {claim!r} that names a person")
        # At many providers people write any address into their account; this says that nobody has checked it.
        if claim == "email" and claims.get("email_verified", True) not in (True, "true"):
            raise InvalidJwt("its claim 'email' is not verified: the provider says that it may be anybody's address")
        if len(name.strip()) > LONGEST_NAME:
            raise InvalidJwt(f"its claim {claim!r} has more than {LONGEST_NAME} characters")
        if strange := next((it for it in name.strip() if _is_strange(it)), None):
            raise InvalidJwt(f"its claim {claim!r} has a character that no name has, U+{ord(strange):04X}")
        return name.strip()

    def _key(self, kid: str, algorithm: str) -> jwt.PyJWK:
        """The provider's key of that name."""
        if algorithm not in self._card.algorithms:
            raise InvalidJwt(f"its algorithm {algorithm!r} is none of {', '.join(self._card.algorithms)}")
        if self._remote and (kid not in self._keys or time.monotonic() - self._fetched >= FRESH_S):
            self._fetch(kid)
        found = self._keys.get(kid)
        if found is None:
            raise InvalidJwt(f"the provider has no key {kid!r}")
        return found

    def _fetch(self, kid: str) -> None:
        """Fetches the provider's keys, at most once in AGAIN_S.

        Args:
            kid: the key that is needed. If it is known, nobody waits for a fetch of others, or fails with a provider
                that does not answer.
        """
        known = kid in self._keys
        if not self._lock.acquire(blocking=not known):
            return
        try:
            if time.monotonic() - self._asked < AGAIN_S:
                return
            self._asked = time.monotonic()
            client = jwt.PyJWKClient(self._place, cache_keys=False, cache_jwk_set=False, timeout=FETCH_S)
            self._keys = {str(key.key_id): key for key in client.get_signing_keys()}
            self._fetched = time.monotonic()
        except jwt.PyJWKClientConnectionError:
            if not known:
                raise
        except (jwt.PyJWKClientError, jwt.PyJWKSetError):  # it has no key that signs
            self._keys = {}
        finally:
            self._lock.release()

    @staticmethod
    def _from_file(path: Path) -> dict[str, jwt.PyJWK]:
        try:
            with open_regular(path) as file:
                data = json.loads(file.read(LONGEST_KEYS))
            return {str(key.key_id): key for key in jwt.PyJWKSet.from_dict(data).keys}
        except (OSError, ValueError, AttributeError, jwt.PyJWTError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(
                f"{path}: the provider's keys cannot be read ({reason}). It must be a JWKS file, as the provider's "
                "jwks_uri gives it."
            ) from error
