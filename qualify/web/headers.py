"""Security headers of every answer (what a page may load, and that nobody caches or frames it), and refused gzip."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qualify.report.page import header_policy

NO_GZIP = re.compile(rb"gzip\s*;\s*q\s*=\s*0(\.0*)?", re.IGNORECASE)
"""how a client says in its Accept-Encoding that it takes no gzip"""


class RefusedGzip:
    """Drops the Accept-Encoding of a client that refuses gzip: what compresses looks for nothing but that word."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        headers = scope.get("headers", [])
        kept = [(name, value) for name, value in headers if name != b"accept-encoding" or not _refuses(value)]
        await self._app({**scope, "headers": kept} if len(kept) < len(headers) else scope, receive, send)


def _refuses(accepted: bytes) -> bool:
    return any(NO_GZIP.fullmatch(it.strip()) for it in accepted.split(b","))


class SafeHeaders:
    """Adds the headers to every answer, also to errors that no route made."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        headers = {
            "content-security-policy": header_policy(),
            "x-content-type-options": "nosniff",
            # Not no-referrer: a browser would hide the origin of our own forms, too.
            "referrer-policy": "same-origin",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
            "permissions-policy": "camera=(), geolocation=(), microphone=()",
            "cache-control": "no-store",
        }
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        await self._app(scope, receive, send_with_headers)
