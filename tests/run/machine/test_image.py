"""Which container image a process runs in: from the deployment, podman, or the cluster over real HTTPS."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import receivers

from qualify.run.machine import image as module
from qualify.run.machine.image import from_kubernetes, from_podman, image

DIGEST = f"sha256:{'a' * 64}"


def test_podmans_file(tmp_path: Path) -> None:
    """Name and id; nothing where podman wrote nothing, or there is no such file."""
    path = tmp_path / ".containerenv"
    assert "" == from_podman(path)
    path.write_text("")
    assert "" == from_podman(path)
    path.write_text(f'engine="podman-4.3.1"\nname="x"\nimage="localhost/worker:1"\nimageid="{"a" * 64}"\n')
    assert f"localhost/worker:1@{DIGEST}" == from_podman(path)


class Cluster:
    """An API server that answers one pod's status to whoever has the token."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[tuple[str, str]] = []
        self.statuses: list[dict[str, str]] = []
        self.account = folder / "account"
        self.account.mkdir()
        public, key = receivers.certificate(folder, "127.0.0.1")
        for name, text in (("namespace", "gpu"), ("token", "t0"), ("ca.crt", public.read_text())):
            (self.account / name).write_text(text)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers["authorization"]))
                body = json.dumps({"status": {"containerStatuses": outer.statuses}}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(public, key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        port = str(self.server.server_address[1])
        self.variables = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT_HTTPS": port, "HOSTNAME": "pod-1",
        }  # fmt: skip


@pytest.fixture
def cluster(tmp_path: Path):
    """A cluster of one pod."""
    made = Cluster(tmp_path)
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_the_pods_status(cluster: Cluster) -> None:
    """The digest of the only container, or of the one that the deployment names; its own pod, with its own token."""
    cluster.statuses = [{"name": "canary", "imageID": f"registry/worker@{DIGEST}"}]
    assert f"registry/worker@{DIGEST}" == from_kubernetes(cluster.variables, cluster.account)
    assert [("/api/v1/namespaces/gpu/pods/pod-1", "Bearer t0")] == cluster.asked
    cluster.statuses.append({"name": "proxy", "imageID": f"docker-pullable://proxy@{DIGEST}"})
    assert "" == from_kubernetes(cluster.variables, cluster.account)
    assert f"proxy@{DIGEST}" == from_kubernetes({**cluster.variables, "QUALIFY_CONTAINER": "proxy"}, cluster.account)
    cluster.statuses = [{"name": "canary", "imageID": ""}]
    assert "" == from_kubernetes(cluster.variables, cluster.account)


def test_another_authority_is_not_believed(cluster: Cluster, tmp_path: Path) -> None:
    """The token goes to no server that the cluster's authority does not vouch for."""
    (tmp_path / "other").mkdir()
    other, _ = receivers.certificate(tmp_path / "other", "127.0.0.1")
    (cluster.account / "ca.crt").write_text(other.read_text())
    assert "" == from_kubernetes(cluster.variables, cluster.account)
    assert [] == cluster.asked


def test_outside_of_a_cluster(tmp_path: Path) -> None:
    """Nothing is asked."""
    assert "" == from_kubernetes({}, tmp_path)
    assert "" == from_kubernetes({"KUBERNETES_SERVICE_HOST": "127.0.0.1", "HOSTNAME": "x"}, tmp_path)


@pytest.mark.parametrize(
    ("said", "running", "expected"),
    [
        (f"a@{DIGEST}", "b", f"a@{DIGEST}"),
        ("a:latest", f"b@{DIGEST}", f"b@{DIGEST}"),
        ("a:latest", "", "a:latest"),
        ("", "", ""),
    ],
)
def test_whom_is_believed(said: str, running: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A digest from the deployment, else the runtime; a tag only where nobody knows better."""
    monkeypatch.setenv("QUALIFY_IMAGE", said)
    monkeypatch.setattr(module, "_running", lambda: running)
    assert expected == image()
