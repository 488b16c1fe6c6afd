"""Security headers of every answer: what a page may load, and that nobody caches or frames it."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qualify.report.page import header_policy


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
