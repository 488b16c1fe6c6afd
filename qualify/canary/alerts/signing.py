"""The signature of Standard Webhooks 1.0 (https://www.standardwebhooks.com): HMAC-SHA256 over id, time and body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from qualify.canary.alerts.undelivered import Undelivered

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64
"""bytes of a key"""


def signed(key: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers of a webhook.

    Args:
        key: ``whsec_`` and 24 to 64 bytes in base64; several, separated by spaces, while a key is being rotated.
        timestamp: of this attempt, in seconds since 1970.
    """
    content = f"{message_id}.{timestamp}.".encode() + body
    macs = [hmac.new(_decoded(item), content, hashlib.sha256).digest() for item in key.split()]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(mac).decode()}" for mac in macs),
    }


def _decoded(key: str) -> bytes:
    try:
        raw = base64.b64decode(key.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raw = b""
    if not key.startswith(PREFIX) or not SHORTEST <= len(raw) <= LONGEST:
        raise Undelivered(
            f"the secret is no webhook key: {PREFIX} and {SHORTEST} to {LONGEST} bytes in base64. "
            f'Make one: echo "{PREFIX}$(openssl rand -base64 32)"'
        )
    return raw
