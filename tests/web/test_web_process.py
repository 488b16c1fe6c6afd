"""How the server starts, what it says when it cannot, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_process import call
from sqlalchemy import create_engine, make_url, text
from web_examples import fill, serving, start

from qualify.store import Store


@pytest.fixture
def evidence(tmp_path: Path) -> str:
    """An empty store."""
    address = str(tmp_path / "evidence.db")
    Store.open(address).close()
    return address


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 130)])
def test_signals(evidence, tmp_path, number, code):
    """SIGTERM is the way a service ends; Ctrl-C is an interrupt, and so is a terminal that closes."""
    process = start(evidence, "--port", 0, folder=tmp_path)
    url = process.stdout.readline().strip()
    assert 200 == urllib.request.urlopen(f"{url}healthz").status
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert code == process.returncode
    assert "Traceback" not in err


def test_the_process_that_judges_ends_with_it(tmp_path):
    """Also where nobody could end it, because the server was killed."""
    with Store.open(str(tmp_path / "evidence.db")) as store:
        fill(store, tmp_path)
    process = start(str(tmp_path / "evidence.db"), "--port", 0, folder=tmp_path, forks=False)
    process.stdout.readline()
    judging = wait_for(lambda: [pid for pid in children(process.pid) if "spawn_main" in command(pid)])
    process.kill()
    process.communicate()
    assert wait_for(lambda: not any(command(pid) for pid in judging))


def wait_for(what: Callable[[], Any]) -> Any:
    """What it gives, as soon as that is anything."""
    until = time.monotonic() + 60
    while not (found := what()) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def children(pid: int) -> list[int]:
    """The processes that one started."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(number) for text in texts for number in text.split()]


def command(pid: int) -> str:
    """The command line of a process; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_a_program_starts_it(evidence, tmp_path):
    """With --json one line says where it listens, on which store, and who may read; the site then goes on."""
    process = start(evidence, "--port", 0, "--json", folder=tmp_path)
    told = json.loads(process.stdout.readline())
    assert ("qualify.web/1", "open", False) == (told["schema"], told["access"], told["exposed"])
    assert evidence == told["store"]
    assert 200 == urllib.request.urlopen(f"{told['address']}healthz").status
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert ("", 0) == (out, process.returncode)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--db", "gone.db"), 4, "no such file"),
        (("--host", "0.0.0.0"), 2, "there is no login"),
        (("--access", "gone.yaml"), 2, "gone.yaml"),
        (("--port", "abc"), 2, '"abc". Try: qualify web --help'),
    ],
)
def test_a_program_learns_why_it_does_not_start(evidence, tmp_path, options, code, words):
    """One line of JSON with the message and the exit code, also where the parser refuses the command line."""
    given = () if "--db" in options else ("--db", evidence)
    ended = call("web", "--port", 0, "--json", *given, *options, cwd=tmp_path)
    told = json.loads(ended.out)
    assert ("qualify.error/1", code, code) == (told["schema"], ended.code, told["exit_code"])
    assert words in told["error"]
    assert "" == ended.err


def test_port_in_use(evidence, tmp_path):
    """One message with the next command, exit code 4."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = call("web", "--db", evidence, "--port", taken.getsockname()[1], cwd=tmp_path)
    assert 4 == ended.code
    assert "Something else probably listens there" in ended.err.replace("\n", " ")
    assert "--port" in ended.err


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_addresses_need_a_word(evidence, tmp_path, host):
    """Nobody exposes evidence by a typing mistake."""
    ended = call("web", "--db", evidence, "--port", 0, "--host", host, cwd=tmp_path)
    assert (2, "") == (ended.code, ended.out)
    assert "there is no login" in ended.err.replace("\n", " ")


@pytest.mark.parametrize(("host", "told"), [("example.com", "give an IP address"), ("", "--host is empty")])
def test_no_address(evidence, tmp_path, host, told):
    """A name is no address, and neither is nothing."""
    ended = call("web", "--db", evidence, "--host", host, cwd=tmp_path)
    assert 2 == ended.code
    assert told in ended.err


@pytest.mark.parametrize(
    "name", ["http://foo/", "bar:8321", "foo bar", "foo/", "-foo", "a.*.b", "*foo", "x\ny", "[::1]:80", "2001:db8::1"]
)
def test_a_name_that_no_request_can_have(evidence, tmp_path, name):
    """It would never match, and nobody would be told."""
    ended = call("web", "--db", evidence, "--port", 0, "--name", name, cwd=tmp_path)
    assert (2, "") == (ended.code, ended.out)
    assert "no request has that host name. Give it without a scheme" in ended.err


def test_what_has_no_effect_is_told(evidence, tmp_path):
    """Whoever exposes loopback believes that others reach it; names, wildcards and addresses are taken."""
    names = [word for name in ("web", "Q.example.org", "*.example.org", "[2001:db8::1]") for word in ("--name", name)]
    process = start(evidence, "--port", 0, "--expose", *names, folder=tmp_path)
    assert 200 == urllib.request.urlopen(f"{process.stdout.readline().strip()}healthz").status
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert "note: --expose has no effect: only this machine reaches 127.0.0.1" in err


def test_exposed(evidence, tmp_path):
    """With a login and the word it is served, with a warning; given names are the only ones, besides loopback's."""
    made = json.loads(call("access", "token", "jane", "--json", cwd=tmp_path).out)
    (tmp_path / "access.yaml").write_text(json.dumps({"access": "site", "tokens": [made["entry"]]}))
    options = ("--port", 0, "--host", "0.0.0.0", "--access", tmp_path / "access.yaml", "--name", "web")
    refused = call("web", "--db", evidence, *options, cwd=tmp_path)
    assert (2, True) == (refused.code, "Add --expose" in refused.err)
    process = start(evidence, *options, "--expose", folder=tmp_path)
    url = process.stdout.readline().strip()
    request = urllib.request.Request(f"{url}healthz", headers={"Host": "web:8321"})
    assert 200 == urllib.request.urlopen(request).status
    for headers, status in (({"Host": "evil.example.com"}, 400), ({}, 401)):
        with pytest.raises(urllib.error.HTTPError, match=str(status)):
            urllib.request.urlopen(urllib.request.Request(url, headers=headers))
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {made['token']}"})
    assert 200 == urllib.request.urlopen(request).status
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert "warning: 0.0.0.0 is served without TLS" in err


def test_no_store(tmp_path):
    """A store that is not there is said at once, and no port is left open."""
    ended = call("web", "--port", 0, "--db", tmp_path / "gone.db", cwd=tmp_path)
    assert 4 == ended.code
    assert "no such file" in ended.err


def test_outdated_schema(evidence, tmp_path):
    """A reader migrates nothing: it says who does."""
    engine = create_engine(f"sqlite:///{evidence}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE qualify_version SET version_num = '0003'"))
    ended = call("web", "--port", 0, "--db", evidence, cwd=tmp_path)
    assert 4 == ended.code
    assert "schema is at revision 0003" in ended.err
    assert "qualify db upgrade" in ended.err
    with engine.begin() as connection:
        assert "0003" == connection.execute(text("SELECT version_num FROM qualify_version")).scalar_one()
    engine.dispose()


def get(url: str) -> tuple[int, str]:
    """Status and body."""
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_database_away(new_postgres, tmp_path):
    """While the database is away the process lives, is not ready, and says so without a password; then it goes on."""
    with Store.open(new_postgres) as store:
        store.check()
    place = make_url(new_postgres)
    address = place.set(password="hunter2").render_as_string(hide_password=False)
    admin = create_engine(place.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with serving(address, tmp_path) as url, admin.connect() as connection:
        assert (200, {"ready": True, "schema": json.loads(get(f"{url}readyz")[1])["schema"]}) == (
            get(f"{url}readyz")[0],
            json.loads(get(f"{url}readyz")[1]),
        )
        connection.execute(text(f"ALTER DATABASE {place.database} ALLOW_CONNECTIONS false"))
        cut = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
        connection.execute(cut, {"name": place.database})
        time.sleep(0.2)
        assert 200 == get(f"{url}healthz")[0]
        assert 503 == get(f"{url}readyz")[0] == get(url)[0] == get(f"{url}runs.json")[0]
        assert "qualify_store_up 0.0" in get(f"{url}metrics")[1]
        assert "hunter2" not in "".join(get(f"{url}{path}")[1] for path in ("", "readyz", "runs.json", "metrics"))
        connection.execute(text(f"ALTER DATABASE {place.database} ALLOW_CONNECTIONS true"))
        assert 200 == get(f"{url}readyz")[0] == get(url)[0]
    admin.dispose()
