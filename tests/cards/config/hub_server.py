"""A server with the hub's routes for one file: HEAD and GET of /{organisation}/{name}/resolve/{revision}/{file}."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Hub:
    """What is served, and what was asked for."""

    files: dict[tuple[str, str], bytes]
    """(repository, commit) to config.json"""
    answers_with: str = ""
    """another commit than the asked one, if not empty"""
    status: int = 200
    asked: list[str] = field(default_factory=list)
    """methods and paths"""
    url: str = ""


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serve it on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            repository, _, rest = self.path.strip("/").partition("/resolve/")
            commit, _, name = rest.partition("/")
            content = hub.files.get((repository, commit)) if name == "config.json" else None
            if hub.status != 200 or content is None:
                known = any(repository == each for each, _ in hub.files)
                code = {403: "GatedRepo"}.get(hub.status, "RevisionNotFound" if known else "RepoNotFound")
                self.send_response(404 if hub.status == 200 else hub.status)
                self.send_header("X-Error-Code", code)
                self.send_header("X-Error-Message", "as the test wants it")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("X-Repo-Commit", hub.answers_with or commit)
            self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
