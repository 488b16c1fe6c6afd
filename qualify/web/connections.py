"""Connections that nobody uses make room: the server answers new clients, whatever the old ones hold open."""

from __future__ import annotations

import asyncio

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 256
"""connections that stay open at the same time; far below the 1,024 files that a process usually may open"""
BACKLOG = 128
"""connections that wait to be accepted"""
REQUEST_SECONDS = 10.0
"""longest time for a client to send a request, from its connection or the last answer on"""
STALL_SECONDS = 30.0
"""longest time in which a client may read nothing of its answer"""
BUSY = 64
"""requests that are answered at the same time; more are told to come back"""
ALIVE = "/healthz"
"""also answered by a busy server: a restart for a missing answer would make things worse"""


class Connection(H11Protocol):
    """One connection. It ends when its client is late, or when it has waited longest and there are too many."""

    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _since = 0.0
    """when it began to wait for a request; seconds of the event loop's clock"""

    @property
    def waits(self) -> bool:
        """Whether no request of it is being answered: none came, or not all of one."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected: wait for its request, and end the oldest connection where there are too many."""
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > MOST:
            waiting = [other for other in self.connections if isinstance(other, Connection) and other.waits]
            oldest = min(waiting, key=lambda other: other._since)
            self.connections.discard(oldest)  # not only when it is lost: many may come before that
            oldest.transport.abort()

    def handle_events(self) -> None:
        """Bytes arrived. A client that sends its request slowly gets no more time for it."""
        super().handle_events()
        if not self.waits:
            self._cancel(self._deadline)

    def on_response_complete(self) -> None:
        """The answer is sent: wait for the next request."""
        self._await_request()
        super().on_response_complete()

    def shutdown(self) -> None:
        """The server ends: it waits for its answers, and not for clients that have not sent their request."""
        if self.waits:
            self.transport.close()
        else:
            super().shutdown()

    def pause_writing(self) -> None:
        """The client reads slowly: watch that it reads at all."""
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The client has read most of the answer."""
        super().resume_writing()
        self._cancel(self._stalled)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended: stop both timers."""
        self._cancel(self._deadline)
        self._cancel(self._stalled)
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self._cancel(self._deadline)
        self._since = self.loop.time()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

    def _watch(self, owed_bytes: int) -> None:
        """End the connection where the client has read nothing meanwhile."""

        def check() -> None:
            left_bytes = self.transport.get_write_buffer_size()
            if left_bytes < owed_bytes:
                self._watch(left_bytes)
            else:
                self.transport.abort()

        self._stalled = self.loop.call_later(STALL_SECONDS, check)

    @staticmethod
    def _cancel(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


class RequestLimit:
    """Answers at most ``BUSY`` requests at the same time; idle connections do not count."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._answering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if self._answering >= BUSY and scope["path"] != ALIVE:
            text = f"{BUSY} requests are being answered already; ask again in a few seconds.\n"
            await PlainTextResponse(text, 503, {"retry-after": "5"})(scope, receive, send)
            return
        self._answering += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._answering -= 1
