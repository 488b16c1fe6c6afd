"""Makes bearer tokens, and compares a token with the hash in the access file.

A token is ``qfy_ID_SECRET``. The id finds the token's entry, so the site computes at most one hash for a request,
whatever a client tries. The secret is 256 random bits. The file holds its scrypt hash, so somebody who reads the file
has no token.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

PREFIX = "qfy_"
FORM = re.compile(r"qfy_([0-9a-f]{16})_([0-9a-f]{64})")
N, R, P = 1 << 14, 8, 1
"""parameters of scrypt: one hash takes 16 MiB and about 50 ms"""
_MOST_BYTES = 1 << 26
"""bytes of memory for one hash, whatever the access file says"""


def make_token() -> tuple[str, str, str]:
    """A new token, its id, and the hash for the access file."""
    number, secret, salt = secrets.token_hex(8), secrets.token_hex(32), secrets.token_bytes(16)
    digest = _scrypt(secret, salt, N, R, P)
    return f"{PREFIX}{number}_{secret}", number, f"scrypt${N}${R}${P}${salt.hex()}${digest.hex()}"


def id_of(token: str) -> str:
    """The id in a token; empty where it is none."""
    found = FORM.fullmatch(token)
    return found[1] if found else ""


def holds(token: str, stored: str) -> bool:
    """Whether the hash was made of this token. The time that it takes does not show how much of the token is right."""
    found = FORM.fullmatch(token)
    if not found:
        return False
    _, n, r, p, salt, digest = stored.split("$")
    try:
        computed = _scrypt(found[2], bytes.fromhex(salt), int(n), int(r), int(p))
    except ValueError:  # the file asks for more memory than is given, or for what scrypt cannot do
        return False
    return hmac.compare_digest(computed, bytes.fromhex(digest))


def _scrypt(secret: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(secret.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MOST_BYTES, dklen=32)
