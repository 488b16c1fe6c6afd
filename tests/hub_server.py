"""A server with the hub's routes for one file, and what the hub answers where it does not hand the file over.

::

    /{organisation}/{name}/resolve/{revision}/{file} ── 200 ETag, X-Repo-Commit, the file
                         │                          ├── 307 to the new name of a repository, or to the cache of the hub
                         │                          ├── 401, 403, 404 X-Error-Code
                         │                          └── 429 Retry-After, 5xx
    /api/resolve-cache/models/{organisation}/{name}/{commit}/{file} ── the file
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

CACHE = "api/resolve-cache/models/"
"""where files lie that the hub redirects to"""


@dataclass
class Hub:
    """What is served, and what was asked for."""

    files: dict[tuple[str, str], bytes]
    """(repository, commit) to config.json"""
    answers_with: str = ""
    """another commit than the asked one, if not empty"""
    status: int = 200
    code: str = ""
    """X-Error-Code of another status; empty = what the hub says of it by itself"""
    token: str = ""
    """a gated repository: without this token it is 401"""
    renamed: dict[str, str] = field(default_factory=dict)
    """old to new names of repositories"""
    through_cache: bool = False
    """files are handed out by the hub's own cache, as huggingface.co does: the answer is a redirect"""
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
            path = self.path.strip("/")
            if path.startswith(CACHE):
                *names, commit, name = path.removeprefix(CACHE).split("/")
                repository = "/".join(names)
            else:
                repository, _, rest = path.partition("/resolve/")
                commit, _, name = rest.partition("/")
            content = hub.files.get((repository, commit)) if name == "config.json" else None
            found = {"X-Repo-Commit": hub.answers_with or commit}
            if repository in hub.renamed:
                to = self.path.replace(repository, hub.renamed[repository], 1)
                self._send(307, {"Location": to, "X-Error-Message": "it has another name"})
            elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._send(
                    401, {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to {repository} is restricted"}
                )
            elif hub.status != 200 or content is None:
                self._refuse(repository)
            elif hub.through_cache and not path.startswith(CACHE):
                tag = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Linked-Size": str(len(content))}
                self._send(307, {"Location": f"/{CACHE}{repository}/{commit}/{name}", **found, **tag})
            else:
                tag = {"ETag": f'W/"{hashlib.sha1(content).hexdigest()}"'}
                self._send(200, {**found, **tag}, content, body=body)

        def _refuse(self, repository: str) -> None:
            known = any(repository == each for each, _ in hub.files)
            code = {403: "GatedRepo"}.get(hub.status, "RevisionNotFound" if known else "RepoNotFound")
            said = {"X-Error-Code": hub.code or code, "X-Error-Message": "as the test wants it"}
            if hub.status == 429:
                said = {"Retry-After": "0", "X-Error-Message": "We had to rate limit your IP"}
            self._send(404 if hub.status == 200 else hub.status, said)

        def _send(self, status: int, headers: Mapping[str, str], content: bytes = b"", *, body: bool = False) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
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
