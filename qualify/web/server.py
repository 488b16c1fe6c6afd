"""The process: its address, its signals, its log."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvicorn

from qualify.errors import InfrastructureError, UsageError
from qualify.web.app import create_app
from qualify.web.connections import BACKLOG, Connection
from qualify.web.site import Site

LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int
    """0 = any free one"""
    exposed: bool
    """others than this machine may be meant"""
    names: Sequence[str]
    """host names under which it may be asked, besides loopback's"""


def bind(address: Address) -> socket.socket:
    """The listening socket.

    Raises:
        UsageError: others would reach it, and nobody said that they shall.
        InfrastructureError: the address cannot be had.
    """
    host = _resolved(address)
    if not host.is_loopback and not address.exposed:
        raise UsageError(
            f"--host {address.host}: others reach that address, and everybody who reaches it reads all evidence: there "
            "is no login. Add --expose if that is meant, or put a proxy with a login before the loopback address."
        )
    family = socket.AF_INET6 if host.version == 6 else socket.AF_INET
    try:
        return socket.create_server((str(host), address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise InfrastructureError(
            f"port {address.port} of {address.host} cannot be had: {error.strerror}. Something else probably listens "
            f"there (ss -ltnp): choose another one with --port, or 0 for any."
        ) from error


def _resolved(address: Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    text = "127.0.0.1" if address.host == "localhost" else address.host.strip("[]")
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise UsageError(f"--host {address.host}: give an IP address, for example 127.0.0.1") from None


def serve(site: Site, listening: socket.socket, address: Address, say: Callable[[str], None]) -> None:
    """Answer until a signal: SIGTERM ends it quietly, Ctrl-C raises KeyboardInterrupt."""
    exposed = not _resolved(address).is_loopback
    if exposed:
        say(f"qualify web: warning: everybody who reaches {address.host} reads all evidence; there is no login")
    hosts = [*LOOPBACK, *address.names] if address.names or not exposed else ["*"]
    config = uvicorn.Config(
        create_app(site, hosts),
        http=Connection,
        ws="none",
        backlog=BACKLOG,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=5,
    )
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again, when it has ended
    uvicorn.Server(config).run(sockets=[listening])


def url_of(listening: socket.socket) -> str:
    """The address to type into a browser."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"
