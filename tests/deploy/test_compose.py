"""docker-compose.yml: what it promises about every service, and the whole flow through its real commands."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
import receivers
from cli_process import write_cards, write_matrix
from compose import COMPOSE, ROOT, SERVICES, Machine
from sqlalchemy import make_url

from qualify.cards.tokens import make_token

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("qualify")]
EXACT = re.compile(r"[\w./-]+:v?\d+\.\d+(\.\d+)?(-[\w.-]+)?")


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened(name):
    """Not root, a root file system that nobody writes, no capabilities, an exact image; ports on loopback only."""
    service = SERVICES[name]
    assert service["user"] not in ("", "root", "0")
    assert service["read_only"] is True
    assert ["ALL"] == service["cap_drop"]
    assert ["no-new-privileges:true"] == service["security_opt"]
    assert EXACT.fullmatch(service["image"])
    assert "privileged" not in service
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert "healthcheck" in service or service["restart"] == "no"


@pytest.mark.parametrize("name", [name for name in OURS if "canary" in SERVICES[name].get("command", ())])
def test_what_a_killed_fire_leaves_is_waited_for(name):
    """The service waits for its own children only: as the first process of a container it would collect the rest."""
    assert SERVICES[name]["init"] is True


def test_no_secret_in_the_file():
    """Passwords come from files."""
    text = (ROOT / "docker-compose.yml").read_text()
    assert not re.search(r"(?i)_password: *[^ {/]|://[^@/\s]*:[^@/\s]*@", text)
    assert all("PASSWORD" not in name or name.endswith("_FILE") for it in SERVICES.values() for name in _variables(it))


def _variables(service: dict[str, Any]) -> list[str]:
    return list(service.get("environment", {}))


def test_profiles():
    """One profile works without a GPU, the other reserves one; without a profile nothing runs kernels."""
    profiles = {name: service.get("profiles") for name, service in SERVICES.items() if service.get("profiles")}
    assert {"canary": ["cpu"], "gpu-worker": ["gpu"]} == profiles
    (device,) = SERVICES["gpu-worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert ("nvidia", ["gpu"]) == (device["driver"], device["capabilities"])
    assert "deploy" not in SERVICES["canary"]


def test_what_is_named_exists():
    """Networks, volumes, secrets, build targets and mounted folders."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    for service in SERVICES.values():
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"])
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).is_dir()
        if "build" in service:
            assert f" AS {service['build']['target']}\n" in dockerfile
    assert "/deploy/secrets/" in (ROOT / ".gitignore").read_text()
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert {version} == {SERVICES[name]["image"].rpartition(":")[2] for name in OURS}


def test_dockerfile_copies_what_the_wheel_needs():
    """Every folder that the package is built from is in the image, and in the build's context."""
    text, ignored = ((ROOT / name).read_text() for name in ("deploy/Dockerfile", ".dockerignore"))
    project = (ROOT / "pyproject.toml").read_text()
    folders = json.loads(re.search(r"^only-include = (\[.*\])", project, re.MULTILINE)[1])
    for folder in folders:
        assert f"COPY {folder} {folder}\n" in text
        assert f"!{folder}\n" in ignored
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"] * 2
    assert EXACT.fullmatch(re.match(r"(?:#.*\n)*FROM (\S+) AS base", text)[1])


def test_both_images_can_sign_and_check_seals():
    """Nodes seal runs in the worker's image, and the site says who did; the Ray job names its own image."""
    text = (ROOT / "deploy/Dockerfile").read_text()
    usual = re.search(r"^ARG EXTRAS=(.*)$", text, re.MULTILINE)[1]
    installed = [found.replace("${EXTRAS}", usual).split(",") for found in re.findall(r'"\.\[(.*)\]"', text)]
    assert [["service", "sign"], ["run", "service", "sign"]] == installed
    assert f"EXTRAS={usual},fleet " in (ROOT / "deploy/ray/rayjob.yaml").read_text()


def free_port() -> int:
    """A port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def machine(new_postgres, tmp_path, monkeypatch):
    """The services' places on this machine: a real PostgreSQL, a card that fires by hand and tells a webhook."""
    monkeypatch.setenv("HOOK_KEY", KEY)
    for folder in ("secrets", "home"):
        (tmp_path / folder).mkdir()
    (tmp_path / "secrets" / "postgres_password").write_text("not asked for here\n")
    token, number, hashed = make_token()
    (tmp_path / "secrets" / "metrics_token").write_text(token)
    entry = {"id": number, "name": "prometheus", "hash": hashed, "rights": ["read"], "expires": "2099-01-01"}
    (tmp_path / "secrets" / "access").write_text(json.dumps({"access": "site", "tokens": [entry]}))
    cards = write_cards(tmp_path / "cards", "correct")
    write_matrix(cards / "m-tiny.yaml", "correct")
    place = make_url(new_postgres)
    port = free_port()
    places = {
        "qualify@db:5432/qualify": f"{place.username}@/{place.database}?host={place.query['host']}",
        "/run/secrets/": f"{tmp_path / 'secrets'}/",
        "/var/lib/qualify": str(tmp_path / "home"),
        "/etc/qualify/cards": str(cards),
        "8321": str(port),
    }
    machine = Machine(tmp_path / "home", places)
    machine.url = f"http://127.0.0.1:{port}"
    machine.token = token
    yield machine
    machine.stop()


def until(condition: Callable[[], Any], machine: Machine, timeout_s: float = 60) -> Any:
    """What it gives as soon as it is true."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, {name: machine.log(name) for name in machine.processes}
        time.sleep(0.2)
    return found


def get(url: str, token: str = "") -> str:
    """A page; empty while nobody answers."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
            return answer.read().decode()
    except OSError:
        return ""


@pytest.mark.slow
def test_the_whole_flow(machine, tmp_path):
    """Migrate, serve, fire, tell, report, measure: with the compose file's commands, environment and health checks."""
    with receivers.receiving() as receiver:
        target = f'target: oncall, kind: webhook, url: "{receiver.url}", secret_env: HOOK_KEY, allow_private: true'
        card = f"canary: t-tiny\nmatrix: ./m-tiny.yaml\nlevel: smoke\ndevice: cpu\nalerts: [{{{target}}}]\n"
        (tmp_path / "cards" / "t-tiny.yaml").write_text(card)
        migrated = machine.call("migrate", SERVICES["migrate"]["command"])
        assert 0 == migrated.code, migrated.err
        machine.start("web")
        machine.start("canary")
        until(lambda: machine.healthy("web"), machine)
        until(lambda: 'qualify_canary_leader{lease="cpu"} 1.0' in get(f"{machine.url}/metrics", machine.token), machine)
        assert machine.healthy("canary")
        by_hand = [
            "CMD",
            "qualify",
            *["canary", "fire", "t-tiny", "--no-wait", "--lease", "cpu", "--cards", "/etc/qualify/cards"],
        ]
        asked = machine.call("canary", by_hand)
        assert 0 == asked.code, asked.err
        got = until(lambda: receiver.received, machine)
        data = json.loads(until(lambda: get(f"{machine.url}/canaries/t-tiny.json", machine.token), machine))
        (fire,) = data["fires"]
        assert ("completed", "hold", "compose-cpu") == (fire["state"], fire["advice"], fire["node"])
        assert fire["run_id"] == json.loads(got[0].body)["data"]["run"]
        assert "nobody accepted a baseline" in data["holds"][0]["reason"]
        assert fire["run_id"] in get(f"{machine.url}/runs/{fire['run_id']}", machine.token)
        metrics = until(
            lambda: 'alerts{state="sent"} 1.0' in (text := get(f"{machine.url}/metrics", machine.token)) and text,
            machine,
        )
        assert 'qualify_canary_advice{advice="hold",canary="t-tiny"} 1.0' in metrics
        assert 'matrix="m-tiny",verdict="PASS"} 1.0' in metrics
        scraped(machine)
    assert {"web": 0, "canary": 0} == machine.stop()
    assert "not asked for here" not in machine.log("web") + machine.log("canary")


def scraped(machine: Machine) -> None:
    """A real Prometheus, where there is one, reads the metrics with the shipped configuration and rules."""
    program = shutil.which("prometheus")
    if program is None:
        return
    folder, port = machine.folder / "prometheus", free_port()
    shutil.copytree(ROOT / "deploy" / "prometheus", folder)
    text = (folder / "prometheus.yml").read_text().replace("web:8321", machine.url.removeprefix("http://"))
    text = text.replace("/run/secrets/", f"{machine.folder.parent / 'secrets'}/")
    (folder / "prometheus.yml").write_text(text.replace("30s", "1s").replace("25s", "1s"))
    given = [
        word for word in SERVICES["prometheus"]["command"] if not word.startswith(("--config", "--storage.tsdb.path"))
    ]
    command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", *given]
    with (machine.folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    query = f"http://127.0.0.1:{port}/api/v1/query?query=qualify_canary_holds"
    rules = f"http://127.0.0.1:{port}/api/v1/rules"
    try:
        found = until(lambda: json.loads(get(query) or '{"data": {"result": []}}')["data"]["result"], machine)
        assert ["t-tiny", "1"] == [found[0]["metric"]["canary"], found[0]["value"][1]]
        (group,) = json.loads(get(rules))["data"]["groups"]
        assert {"ok"} >= {rule["health"] for rule in group["rules"]} - {"unknown"}
    finally:
        process.kill()
        process.wait()
