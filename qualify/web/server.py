"""The process: its address, its signals, its log."""

from __future__ import annotations

import ipaddress
import re
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvicorn

from qualify.errors import InfrastructureError, UsageError
from qualify.web.access import Access
from qualify.web.app import create_app
from qualify.web.connections import BACKLOG, Connection
from qualify.web.site import Site

SWITCH_S = 0.0005
"""seconds for which a computing thread may hold Python's lock: an answer waits for it some forty times"""
LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")
HOST_NAME = re.compile(r"\*|(\*\.)?\w([\w.-]*\w)?\.?|\[[0-9a-fA-F:.]+\]", re.ASCII)
"""a name as requests have it, an IPv6 address in brackets, ``*.`` before a domain, or ``*`` for any"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int
    """0 = any free one"""
    exposed: bool
    """whether other machines may reach it"""
    login: bool
    """whether the access file has tokens, or a provider whose tokens are verified"""
    names: Sequence[str]
    """host names that requests may use, besides loopback's"""


def bind(address: Address) -> socket.socket:
    """The listening socket.

    Raises:
        UsageError: other machines would reach it, and --expose or a login is missing; or no request can use a name.
        InfrastructureError: the address is taken or not allowed.
    """
    host = _resolved(address)
    if wrong := next((name for name in address.names if not HOST_NAME.fullmatch(name)), None):
        raise UsageError(
            f"--name {wrong}: no request has that host name. Give it without a scheme, a port and a path, for example "
            "qualify.example.org"
        )
    if not host.is_loopback and not address.login:
        raise UsageError(
            f"--host {address.host}: other machines reach that address, and there is no login. Give --access FILE with "
            "tokens or jwt (docs/service.md), or put a proxy with a login before the loopback address."
        )
    if not host.is_loopback and not address.exposed:
        raise UsageError(f"--host {address.host}: other machines reach that address. Add --expose if you want that.")
    family = socket.AF_INET6 if host.version == 6 else socket.AF_INET
    try:
        return socket.create_server((str(host), address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise InfrastructureError(
            f"port {address.port} of {address.host} cannot be opened: {error.strerror}. Something else probably "
            f"listens there (ss -ltnp): choose another one with --port, or 0 for any."
        ) from error


def _resolved(address: Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    text = "127.0.0.1" if address.host == "localhost" else address.host.strip("[]")
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise UsageError(f"--host {address.host}: give an IP address, for example 127.0.0.1") from None


def on_loopback(address: Address) -> bool:
    """Whether only this machine reaches it."""
    return bool(_resolved(address).is_loopback)


def serve(site: Site, listening: socket.socket, address: Address, access: Access, say: Callable[[str], None]) -> None:
    """Answer until a signal: SIGTERM ends it quietly, Ctrl-C and SIGHUP raise KeyboardInterrupt."""
    exposed = not on_loopback(address)
    if exposed:
        say(f"qualify web: warning: {address.host} is served without TLS. Put a proxy with TLS before it")
    elif address.exposed:
        say(f"qualify web: note: --expose has no effect: only this machine reaches {address.host}. Give --host, too")
    sys.setswitchinterval(SWITCH_S)
    site.prepare()
    site.verdicts.start()
    site.shown_fleets.start()
    hosts = [*LOOPBACK, *address.names] if address.names or not exposed else ["*"]
    config = uvicorn.Config(
        create_app(site, hosts, access),
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
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # uvicorn does not know it
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGINT))
    uvicorn.Server(config).run(sockets=[listening])


def url_of(listening: socket.socket) -> str:
    """The address to type into a browser."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"http://[{shown}]:{port}/" if ":" in shown else f"http://{shown}:{port}/"
