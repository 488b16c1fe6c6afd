"""HTTP servers that take alerts: one that behaves, and those that fail, stall, redirect and lie."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Received:
    """One request, as it came."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """A server, where it is, what it got, and what it answers next: (status, headers, body), the last for ever."""

    url: str = ""
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=lambda: [(200, {}, b"ok")])
    received: list[Received] = field(default_factory=list)


@contextmanager
def receiving(tls: tuple[Path, Path] | None = None, host: str = "127.0.0.1") -> Iterator[Receiver]:
    """A server that answers as it is told. With TLS: certificate and key."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(path=self.path, headers=headers, body=body))
            status, more, text = receiver.answers.pop(0) if len(receiver.answers) > 1 else receiver.answers[0]
            self.send_response(status)
            for name, value in ({"content-length": str(len(text))} | more).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            receiver.received.append(Received(path=f"GET {self.path}", headers={}, body=b""))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
    receiver.url = f"{'https' if tls else 'http'}://{host}:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def raw(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """A server that does with each connection what it likes, until the event; yields its URL."""
    ended = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while not ended.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                answer(connection, ended)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/hook"
    finally:
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def read_request(connection: socket.socket) -> None:
    """All of a request, so that closing the connection does not reset it."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(65536)
    head, _, body = got.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)[1])
    while len(body) < length:
        body += connection.recv(65536)


def stall(_: socket.socket, ended: threading.Event) -> None:
    """Takes the connection and says nothing."""
    ended.wait(30)


def drip(connection: socket.socket, ended: threading.Event) -> None:
    """A byte of the header now and then: no single read takes long, the answer never ends."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nx-slow: ")
    while not ended.wait(0.05):
        connection.sendall(b"a")


def flood(connection: socket.socket, ended: threading.Event) -> None:
    """A body without end, said to be compressed."""
    read_request(connection)
    connection.sendall(b"HTTP/1.1 500 Oops\r\ncontent-encoding: gzip\r\ncontent-length: 99999999999\r\n\r\n")
    while not ended.is_set():
        connection.sendall(b"\x00" * 65536)


def babble(connection: socket.socket, _: threading.Event) -> None:
    """No HTTP at all."""
    read_request(connection)
    connection.sendall(b"220 mail.example.com ESMTP\r\n")


def hang_up(connection: socket.socket, _: threading.Event) -> None:
    """Reads the request, and goes."""
    read_request(connection)


def cut(connection: socket.socket, _: threading.Event) -> None:
    """Says 200 and promises more than it sends."""
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nok")


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for that name or address, signed by itself, and its key."""
    openssl = shutil.which("openssl") or pytest.skip("no openssl on the PATH")
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    kind = "IP" if name[0].isdigit() else "DNS"
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={kind}:{name}", "-days", "1"]
    outputs = ["-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run([*command, *names, *outputs], check=True, capture_output=True)
    return paths
