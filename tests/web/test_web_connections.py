"""Clients that hold connections open keep nobody else out: real sockets to the real server, on loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.responses import Response
from web_examples import serving

from qualify.store import Store
from qualify.web import connections
from qualify.web.connections import ALIVE, BUSY, MOST, REQUEST_SECONDS, Connection, RequestLimit

BEGUN = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
BODYLESS = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n"
UNSAID = b"POST /comments HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"
SLACK = 60.0
"""seconds that a loaded machine may be late"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of an empty store."""
    folder = tmp_path_factory.mktemp("connections")
    address = str(folder / "evidence.db")
    Store.open(address).close()
    with serving(address, folder) as found:
        yield found


@contextmanager
def clients(url: str, number: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open connections, each of which has sent these bytes."""
    place = urlsplit(url)
    assert place.hostname
    assert place.port
    with ExitStack() as stack:
        opened = []
        for _ in range(number):
            client = stack.enter_context(socket.create_connection((place.hostname, place.port), timeout=SLACK))
            client.sendall(first)
            opened.append(client)
        yield opened


def status(url: str, path: str = "healthz") -> int:
    """What a client gets that asks and goes."""
    with urllib.request.urlopen(url + path, timeout=SLACK) as answer:
        return int(answer.status)


def ended(client: socket.socket, limit_s: float, keep_at_it: Callable[[], object] = lambda: None) -> bool:
    """Whether the server ends a connection within the limit, while its client goes on as it does."""
    client.settimeout(0.5)
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        try:
            keep_at_it()
            if not client.recv(65536):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize(
    "first",
    [b"", BEGUN, WHOLE, BODYLESS, UNSAID],
    ids=["idle", "half a request", "kept", "half a body", "half a comment"],
)
@pytest.mark.parametrize("number", [BUSY, MOST + 64])
def test_others_are_answered(url, first, number):
    """As many connections as requests were allowed, and more than may stay open: pages and health answer at once."""
    with clients(url, number, first):
        assert (200, 200, 200) == (status(url), status(url, ""), status(url, "metrics"))


def test_a_late_request_ends_its_connection(url):
    """Neither silence nor one header or byte after the other holds a connection for longer than a request may take."""
    with (
        clients(url, 2, BEGUN) as (loris, trickling),
        clients(url, 1, UNSAID) as (typing,),
        clients(url, 1) as (silent,),
    ):
        began = time.monotonic()
        assert ended(trickling, REQUEST_SECONDS + SLACK, lambda: trickling.sendall(b"X-More: 1\r\n"))
        assert time.monotonic() - began > REQUEST_SECONDS / 2
        assert ended(loris, SLACK)
        assert ended(typing, SLACK, lambda: typing.sendall(b" "))
        assert ended(silent, SLACK)
    assert 200 == status(url)


def test_the_oldest_connection_makes_room(url):
    """A client whose request came in time loses nothing to those who came after it and went."""
    with clients(url, 1, b"") as (oldest,), clients(url, MOST):
        assert ended(oldest, REQUEST_SECONDS / 2)
        assert 200 == status(url)


def test_a_connection_is_kept_between_requests(url):
    """A client that asks in time asks again on the same connection."""
    with clients(url, 1) as (client,):
        for _ in range(3):
            client.sendall(WHOLE)
            received = b""
            while not received.endswith(b"}"):
                received += client.recv(65536) or b"}"
            assert b'{"alive":true}' == received.partition(b"\r\n\r\n")[2]


def test_a_busy_server_says_so():
    """Only requests count: the one too many is told when to come back, and the process still says that it lives."""

    async def scene() -> tuple[list[int], int]:
        go_on = asyncio.Event()

        async def slow(scope, receive, send):
            if scope["path"] != ALIVE:
                await go_on.wait()
            await Response()(scope, receive, send)

        async def ask(path: str) -> int:
            answers = []

            async def send(message):
                answers.append(message)

            await app({"type": "http", "method": "GET", "path": path, "headers": []}, None, send)
            return answers[0]["status"]

        app = RequestLimit(slow)
        asked = [asyncio.create_task(ask("/")) for _ in range(BUSY)]
        await asyncio.sleep(0)
        refused = [await ask("/"), await ask(ALIVE)]
        go_on.set()
        assert {200} == set(await asyncio.gather(*asked))
        return refused, await ask("/")

    assert ([503, 200], 200) == asyncio.run(scene())


def test_a_client_that_takes_nothing_is_given_up(monkeypatch):
    """An answer that nobody reads does not stay in memory; one that is read slowly comes whole."""
    monkeypatch.setattr(connections, "STALL_SECONDS", 0.5)
    size = 40_000_000

    async def large(scope, receive, send):
        await Response(b"x" * size)(scope, receive, send)

    config = uvicorn.Config(large, http=Connection, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = "http://{}:{}/".format(*listening.getsockname())
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with clients(url, 2, WHOLE) as (deaf, slow):
                received = 0
                while received < size and (part := slow.recv(1 << 20)):
                    received += len(part)
                    time.sleep(0.02)
                assert received > size
                got = 0
                while part := deaf.recv(1 << 20):
                    got += len(part)
                assert got < size
        finally:
            server.should_exit = True
            thread.join(20)
