"""The outbox is emptied over real HTTP, from a real database of both kinds: at least once, and never silently not."""

from __future__ import annotations

import re
import resource
import signal
import socket
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import receivers
from alert_examples import BODY, KEY
from cli_process import Begun, environment
from sqlalchemy import create_engine, make_url, text

from qualify.canary.alerts.delivery import tell
from qualify.canary.alerts.postman import BATCH, Pace, Postman
from qualify.canary.log import plain_log
from qualify.cards.load import load_canary
from qualify.facts.canary import Due, FireResult, Letter
from qualify.store import Store

PACE = Pace(every_s=0.05, deadline_s=60.0, first_s=0.05, longest_s=0.1, attempts=3, orphaned_s=0.0)
CARD = """\
canary: nightly
matrix: smoke
alerts:
  - {{target: oncall, kind: webhook, url: "{url}", secret_env: HOOK_KEY, allow_private: true}}
  - {{target: chat, kind: slack, url: "{url}", allow_private: true}}
"""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of webhooks, in the environment."""
    monkeypatch.setenv("HOOK_KEY", KEY)


@pytest.fixture
def any_store(empty_store):
    """An empty store of both kinds."""
    with Store.open(empty_store) as store:
        yield store


@pytest.fixture
def receiver():
    """A server that takes everything."""
    with receivers.receiving() as receiver:
        yield receiver


def file(store: Store, *targets: str, kind="hold", node="node-1") -> None:
    """A fire that ended, and an alert for each target."""
    lease = store.canaries.acquire("canary", "a", 60)
    store.canaries.file(
        lease, [Due(canary="nightly", scheduled_for=store.canaries.now(), trigger="cron", reason="c", matrix="smoke")]
    )
    fire = store.canaries.take(lease, "node-1")
    result = FireResult(
        state="completed",
        matrix="smoke",
        run_id=None,
        variant="CPU",
        verdict="FAIL",
        advice="hold",
        reasons=("it failed",),
        numerics_only=(),
    )
    letters = [Letter(target=target, kind=kind, body={**BODY, "node": node}) for target in targets]
    store.canaries.finish(lease, fire.id, result, lambda *_: letters)
    store.canaries.release(lease)


def cards(folder: Path, url: str):
    """The canary of the alerts."""
    path = folder / "nightly.yaml"
    path.write_text(CARD.format(url=url))
    return {"nightly": load_canary(path, ["smoke"])}


def deliver(store: Store, loaded, pace: Pace = PACE, until_s: float = 10) -> list[str]:
    """Rounds until nothing is pending; returns what was said."""
    said: list[str] = []
    postman = Postman(store.canaries, lambda: loaded, plain_log(said.append), pace)
    end = time.monotonic() + until_s
    while store.canaries.alert_counts()["pending"] and time.monotonic() < end:
        postman.deliver()
        time.sleep(0.03)
    return said


def test_every_target_is_told_once(store, receiver, tmp_path):
    """Where nothing fails, each alert arrives once, and a later round sends nothing."""
    file(store, "oncall", "chat")
    loaded = cards(tmp_path, receiver.url)
    deliver(store, loaded)
    assert 0 == Postman(store.canaries, lambda: loaded, plain_log(print), PACE).deliver()
    assert {"pending": 0, "sent": 2, "dead": 0} == store.canaries.alert_counts()
    assert 2 == len(receiver.received)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning")
def test_alerts_wait_for_a_machine_that_has_no_file_left(store, receiver, tmp_path):
    """It is said, and no part of the service breaks: it may be over in a moment."""
    file(store, "oncall")
    loaded, said = cards(tmp_path, receiver.url), []
    postman = Postman(store.canaries, lambda: loaded, plain_log(said.append), PACE)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())), hard))
    try:
        postman.start()
        while not said and postman.is_alive():
            time.sleep(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert postman.is_alive()
    postman.stop()
    postman.join()
    assert ["alerts wait: [Errno 24] Too many open files"] == said
    assert 1 == store.canaries.alert_counts()["pending"]


def test_failure_is_tried_again_under_the_same_id(any_store, receiver, tmp_path):
    """Two failures, then success: the id by which a receiver drops repeats stays the same."""
    file(any_store, "oncall")
    receiver.answers = [(500, {}, b""), (503, {}, b""), (200, {}, b"")]
    deliver(any_store, cards(tmp_path, receiver.url))
    (alert,) = any_store.canaries.alerts("sent")
    assert [alert.id] * 3 == [got.headers["webhook-id"] for got in receiver.received]
    assert (3, "") == (alert.attempts, alert.last_error)


def test_given_up_visibly(store, receiver, tmp_path):
    """After the last attempt the alert is dead, with its reason, and is not tried again."""
    file(store, "oncall")
    receiver.answers = [(500, {}, b"")]
    said = deliver(store, cards(tmp_path, receiver.url))
    (dead,) = store.canaries.alerts("dead")
    assert (3, "HTTP 500") == (dead.attempts, dead.last_error)
    assert 3 == len(receiver.received)
    assert said[-1].endswith("HTTP 500; given up after 3 attempts")
    assert KEY not in "".join(said)


def test_gone_target_is_given_up_at_once(store, receiver, tmp_path):
    """410 ends it after one attempt."""
    file(store, "oncall")
    receiver.answers = [(410, {}, b"")]
    deliver(store, cards(tmp_path, receiver.url))
    assert (1, 1) == (store.canaries.alert_counts()["dead"], len(receiver.received))


@pytest.mark.parametrize("text", ["canary: nightly\nmatrix: smoke\n", None])
def test_target_that_no_card_has(store, tmp_path, text):
    """An alert whose target or canary has gone from the cards is not lost without a word."""
    file(store, "oncall")
    path = tmp_path / "nightly.yaml"
    path.write_text(text or "")
    deliver(store, {"nightly": load_canary(path, ["smoke"])} if text else {})
    (dead,) = store.canaries.alerts("dead")
    assert "nightly" in dead.last_error


def test_stalling_target_does_not_hold_up_others(store, receiver, tmp_path):
    """While one target does not answer, the others are told."""
    with receivers.raw(receivers.stall) as stalling:
        urls = {f"t{number}": receiver.url for number in range(5)} | {"stalling": stalling}
        file(store, *urls)
        targets = [
            f'  - {{target: {name}, kind: webhook, url: "{url}", secret_env: HOOK_KEY, allow_private: true}}\n'
            for name, url in urls.items()
        ]
        path = tmp_path / "nightly.yaml"
        path.write_text("canary: nightly\nmatrix: smoke\nalerts:\n" + "".join(targets))
        loaded = {"nightly": load_canary(path, ["smoke"])}
        said: list[str] = []
        Postman(store.canaries, lambda: loaded, plain_log(said.append), replace(PACE, deadline_s=10)).deliver()
    assert {"pending": 1, "sent": 5, "dead": 0} == store.canaries.alert_counts()
    assert ["sent"] * 5 == [line.rpartition(": ")[2] for line in said[:5]]
    assert "no answer within 10 s" in said[5], "it is filed as the last one"


def test_a_name_that_does_not_resolve_holds_up_no_later_round(store, tmp_path, monkeypatch):
    """The round ends at the deadline of the attempt, also while the resolver still waits for its name server."""
    real, answers = socket.getaddrinfo, threading.Event()

    def slow(host, *words, **more):
        if host == "dead.example.com":
            answers.wait(20)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(host, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    loaded = cards(tmp_path, "https://dead.example.com/x")
    file(store, "oncall")
    said: list[str] = []
    Postman(store.canaries, lambda: loaded, plain_log(said.append), replace(PACE, deadline_s=0.2)).deliver()
    assert "no answer within 0.2 s" in said[0]
    waits = [thread for thread in threading.enumerate() if thread.name.startswith("alerts")]
    assert waits, "the resolver is still asked"
    answers.set()
    for thread in waits:
        thread.join()


@pytest.mark.parametrize("kind", [EOFError, subprocess.SubprocessError])
def test_an_error_that_nobody_expected_holds_up_no_other_alert(store, receiver, tmp_path, monkeypatch, kind):
    """It costs its own alert an attempt; what is stored says where it was, without words that may be secret."""

    async def broken(alert, *words, **more):
        if alert.target == "chat":
            raise kind("https://hooks.example.com/secret")
        await tell(alert, *words, **more)

    monkeypatch.setattr("qualify.canary.alerts.postman.tell", broken)
    file(store, "oncall", "chat")
    said = deliver(store, cards(tmp_path, receiver.url))
    (dead,) = store.canaries.alerts("dead")
    assert ("chat", 3) == (dead.target, dead.attempts)
    assert re.fullmatch(
        kind.__name__ + r" in test_postman.py, line \d+: this is probably a mistake of qualify", dead.last_error
    )
    assert "secret" not in "".join(said)
    assert 1 == store.canaries.alert_counts()["sent"]


def test_thread_survives_a_database_that_goes_away(new_postgres, receiver, tmp_path):
    """Connections that the server cuts cost a complaint, and the alert is delivered afterwards."""
    said: list[str] = []
    with Store.open(new_postgres) as store:
        loaded = cards(tmp_path, receiver.url)
        postman = Postman(store.canaries, lambda: loaded, plain_log(said.append), PACE)
        postman.start()
        place = make_url(new_postgres)
        admin = create_engine(place.set(database="postgres"), isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.execute(text(f"ALTER DATABASE {place.database} ALLOW_CONNECTIONS false"))
            cut = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
            connection.execute(cut, {"name": place.database})
            until(lambda: said)
            assert said[0].startswith("alerts wait: evidence store")
            connection.execute(text(f"ALTER DATABASE {place.database} ALLOW_CONNECTIONS true"))
        admin.dispose()
        file(store, "oncall")
        until(lambda: receiver.received)
        postman.stop()
        postman.join(5)
        assert not postman.is_alive()
        assert {"pending": 0, "sent": 1, "dead": 0} == store.canaries.alert_counts()


def until(condition) -> None:
    """Waits for it, at most a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


KILLED = """
import sys
from pathlib import Path
from qualify.canary.alerts import postman
from qualify.canary.log import plain_log
from qualify.cards.load import load_canary
from qualify.store import Store
postman.CLAIM_S = 0.5
with Store.open(sys.argv[1]) as store:
    loaded = {"nightly": load_canary(Path(sys.argv[2]), ["smoke"])}
    postman.Postman(store.canaries, lambda: loaded, plain_log(print), postman.Pace(deadline_s=30.0)).deliver()
"""


def test_kill_in_mid_attempt_loses_nothing(any_store, empty_store, receiver, tmp_path):
    """A process that dies while a target thinks leaves the alert to the next one, when its claim has run out."""
    with receivers.raw(receivers.stall) as stalling:
        file(any_store, "oncall")
        cards(tmp_path, stalling)
        script = tmp_path / "killed.py"
        script.write_text(KILLED)
        words = (empty_store, tmp_path / "nightly.yaml")
        process = Begun(*words, cwd=tmp_path, script=script, env=environment(HOOK_KEY=KEY))
        until(lambda: any_store.canaries.alerts("pending")[0].attempts)
        process.send_signal(signal.SIGKILL)
        process.wait()
    deliver(any_store, cards(tmp_path, receiver.url))
    (alert,) = any_store.canaries.alerts("sent")
    assert (2, 1) == (alert.attempts, len(receiver.received))


def test_pace():
    """Pauses double, vary, stay below the longest, and respect what the target asked for."""
    pace = Pace()
    for attempts, longest in ((1, 5), (2, 10), (5, 80), (12, 3600), (500, 3600)):
        pauses = [pace.pause_s(attempts) for _ in range(200)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest
        assert max(pauses) - min(pauses) > longest / 4
    assert 120 == pace.pause_s(1, after_s=120)
    assert 3600 == pace.pause_s(1, after_s=10**6)


def test_services_of_other_canaries_leave_it(store, receiver, tmp_path):
    """On one store several services may serve different canaries: only one that knows the target takes the alert."""
    file(store, "oncall")
    patient = replace(PACE, orphaned_s=3600.0)
    assert 0 == Postman(store.canaries, dict, plain_log(print), patient).deliver()
    deliver(store, cards(tmp_path, receiver.url), patient)
    (alert,) = store.canaries.alerts("sent")
    assert 1 == alert.attempts


def test_programs_that_take_long_hold_up_nobody(store, receiver, tmp_path):
    """A whole batch runs at once, however few cores there are: else a claim ran out, and a program ran twice."""
    here, program = tmp_path / "here", tmp_path / "meet"
    here.mkdir()
    program.write_text(
        f"#!/bin/sh\ntouch {here}/$$\nfor turn in $(seq 120); do\n"
        f'  [ "$(ls {here} | wc -l)" -ge {BATCH - 1} ] && exit 0\n  sleep 0.25\ndone\nexit 3\n'
    )
    program.chmod(0o755)
    targets = [f"  - {{target: t{number}, kind: command, command: [{program}]}}\n" for number in range(BATCH - 1)]
    path = tmp_path / "nightly.yaml"
    path.write_text(CARD.format(url=receiver.url) + "".join(targets))
    loaded = {"nightly": load_canary(path, ["smoke"])}
    file(store, *(f"t{number}" for number in range(BATCH - 1)), "chat")
    patient = replace(PACE, deadline_s=60)
    postman = Postman(store.canaries, lambda: loaded, plain_log(print), patient, programs=[str(program)])
    assert BATCH == postman.deliver()
    assert {"pending": 0, "sent": BATCH, "dead": 0} == store.canaries.alert_counts()


def test_programs_about_a_node_keep_their_order(any_store, tmp_path):
    """A cordon that failed, and is tried again after the node was released, must not come after the uncordon."""
    store, told, program = any_store, tmp_path / "told", tmp_path / "kubectl"
    told.touch()
    program.write_text(f'#!/bin/sh\n[ -e {tmp_path}/broken ] && [ "$2" = node-1 ] && exit 3\necho "$1 $2" >> {told}\n')
    program.chmod(0o755)
    (tmp_path / "nightly.yaml").write_text(
        f"canary: nightly\nmatrix: smoke\nalerts:\n"
        f'  - {{target: cordon, kind: command, command: [{program}, cordon, "{{node}}"], events: [hold]}}\n'
        f'  - {{target: free, kind: command, command: [{program}, uncordon, "{{node}}"], events: [released]}}\n'
    )
    loaded = {"nightly": load_canary(tmp_path / "nightly.yaml", ["smoke"])}
    slow = replace(PACE, first_s=3600.0, longest_s=3600.0)
    postman = Postman(store.canaries, lambda: loaded, plain_log(print), slow, programs=[str(program)])

    def again(target: str) -> list[str]:
        """The alert of that target is due now; what was told after a round."""
        for alert in store.canaries.alerts("pending"):
            if alert.target == target:
                store.canaries.settle_alert(alert.id, "pending")
        postman.deliver()
        return told.read_text().splitlines()

    (tmp_path / "broken").touch()
    file(store, "cordon")
    assert [] == again("cordon")
    file(store, "free", kind="promote")
    file(store, "cordon", node="node-2")
    assert ["cordon node-2"] == again("free"), "another node waits for nobody"
    (tmp_path / "broken").unlink()
    assert ["cordon node-2"] == again("free")
    assert ["cordon node-2", "cordon node-1"] == again("cordon")
    assert ["cordon node-2", "cordon node-1", "uncordon node-1"] == again("free")
    assert {"pending": 0, "sent": 3, "dead": 0} == store.canaries.alert_counts()
