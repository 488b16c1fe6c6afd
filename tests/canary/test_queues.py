"""Which service runs what: two services on one store, leaders and followers on machines of their own."""

from __future__ import annotations

import itertools
import signal
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_process import alive, descendants
from outages import Outage
from service_process import LEASE_S, SLOW, SPARE_S, Place, Site, on, stack_fires, wait_for
from sqlalchemy import create_engine, text
from stored_runs import make_stack

from qualify.canary.deck import Deck
from qualify.canary.log import plain_log
from qualify.canary.nodes import leader_lacks
from qualify.canary.options import Options
from qualify.canary.runner import ATTEMPTS, Runner
from qualify.canary.scope import Scopes
from qualify.canary.service import Service
from qualify.canary.upgrades import Upgrades
from qualify.canary.watch import Watcher
from qualify.cli.canary import ask
from qualify.errors import InfrastructureError, StoreError, UsageError
from qualify.facts.baseline import Baseline
from qualify.facts.canary import Due, Fire, Node, own_lease
from qualify.store import Store

DEADLY = """\
canary: deadly
matrix: smoke
alerts:
  - {target: chat, kind: slack, url_env: NO_SUCH_URL, events: [failed]}
"""


def watched(place: Place, node: str, lease: str = "canary") -> bool:
    """Whether a machine's stack is in the tables."""
    with Store.open(place.address) as store:
        return bool(store.canaries.watched(own_lease(lease, node)))


def accept_a_run(place: Place) -> None:
    """A run of the canary ``stack`` is its baseline."""
    with Store.open(place.address) as store:
        run = place.until(place.ask("stack"), "completed").run_id
        store.accept(Baseline(matrix="m-stack", variant=store.run(run).stack.device.variant, run_id=run,
                              accepted_by="me", reason="first", accepted_at=store.canaries.now()))  # fmt: skip


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_two_services_on_one_store(kind: str, request: pytest.FixtureRequest) -> None:
    """Of two leases each runs its own fires on its own machine, whatever the other owes; so are alerts its own."""
    place: Place = request.getfixturevalue(f"{kind}_place")
    alert = "[{target: chat, kind: slack, url_env: NO_SUCH_URL, events: [failed]}]"
    place.canary("good", "correct", select="no-such-case", alerts=alert)
    one, two = place.start("n1", "--lease", "h100"), place.start("n2", "--lease", "h200")
    one.said("leads with epoch")
    two.said("leads with epoch")
    asked = [place.ask("good", lease) for lease in ("h100", "h200", "h200", "h100", "h200")]
    ended = [place.until(fire_id, "failed") for fire_id in asked]
    assert ["n1", "n2", "n2", "n1", "n2"] == [fire.node for fire in ended]
    with Store.open(place.address) as store:
        assert {"n1": asked[3], "n2": asked[4]} == {hold.node: hold.fire_id for hold in store.canaries.holds()}
        bodies = [alert.body for alert in store.canaries.alerts()]
    assert {(body["fire"], body["node"]) for body in bodies} == {(fire.id, fire.node) for fire in ended}


def test_a_followers_upgrade(sqlite_place: Place, tmp_path: Path) -> None:
    """Every replica watches its own machine: the follower's upgrade fires there, while another one leads."""
    place = sqlite_place
    place.canary("stack", "correct", stack_change="{settle: 1s}", select="no-such-case")
    sites = {node: Site(tmp_path / node) for node in ("n1", "n2")}
    for site in sites.values():
        site.write("2.8.0")
    leader = on(place, "n1", sites["n1"])
    leader.said("leads with epoch")
    follower = on(place, "n2", sites["n2"])
    wait_for(lambda: watched(place, "n1") and watched(place, "n2"), "first looks", 30, leader, follower)
    sites["n2"].write("2.9.0")
    wait_for(lambda: stack_fires(place), "a fire", 30, leader, follower)
    (fire,) = stack_fires(place)
    ended = place.until(fire.id, "failed")
    assert ("n2", "canary@n2") == (ended.node, ended.lease)
    assert "leads" not in str(follower)
    with Store.open(place.address) as store:
        assert ["n2"] == [hold.node for hold in store.canaries.holds()]


def test_an_upgrade_with_a_new_name_and_what_is_blamed(sqlite_place: Place, tmp_path: Path) -> None:
    """A new machine is compared with the accepted stack; the alert names the version that the run ran on."""
    place = sqlite_place
    place.canary("slow", "slow", SLOW)
    place.canary("stack", "correct", stack_change="{settle: 1s}")
    site = Site(tmp_path / "site")
    site.write("2.7.0")
    first = on(place, "old", site)
    first.said("leads")
    accept_a_run(place)
    assert 0 == first.stop()
    same = on(place, "same", site)
    wait_for(lambda: watched(place, "same"), "a first look", 30, same)
    assert 0 == same.stop()
    assert [] == stack_fires(place)
    site.write("2.8.0")
    hold = place.cards / "hold"
    hold.touch()  # "slow" does not end before it is gone
    new = on(place, "new", site)
    new.said("leads")
    place.until(place.ask("slow"), "running")
    wait_for(lambda: stack_fires(place), "a fire", 30, new)
    (fire,) = stack_fires(place)
    assert "pending" == fire.state, "another one runs"
    assert "flash-attn 2.7.0" in fire.reason
    assert "→ 2.8.0" in fire.reason
    site.write("2.9.0")
    hold.unlink()
    ended = place.until(fire.id, "completed")
    assert "new" == ended.node
    assert "2.8.0" not in f"{ended.reason} {ended.changes}"
    assert "→ 2.9.0" in ended.reason
    (change,) = [item for item in ended.changes if item.component == "flash-attn"]
    assert ("2.7.0", "2.9.0") == (change.before.split()[0], change.after.split()[0])


def test_a_change_that_no_run_can_know_is_told_as_it_was_seen(sqlite_place: Place, tmp_path: Path) -> None:
    """A watched file is in the stack of no run: the alert names it all the same, and says nothing of an equal stack."""
    place = sqlite_place
    watched_file = tmp_path / "own.so"
    watched_file.write_text("1")
    place.canary("stack", "correct", stack_change=f"{{settle: 1s, files: [{watched_file}]}}")
    site = Site(tmp_path / "site")
    replica = on(place, "n", site)
    replica.said("leads")
    accept_a_run(place)
    wait_for(lambda: watched(place, "n"), "a first look", 30, replica)
    watched_file.write_text("2")
    wait_for(lambda: stack_fires(place), "a fire", 30, replica)
    (fire,) = stack_fires(place)
    ended = place.until(fire.id, "completed")
    assert str(watched_file) in fire.reason
    assert (fire.reason, fire.changes) == (ended.reason, ended.changes)


def test_pip_at_work(sqlite_place: Place, tmp_path: Path) -> None:
    """A look that fails ends no watcher: it is said, unhealthy when it lasts, and the upgrade is seen at last."""
    from cli_process import call

    place = sqlite_place
    place.canary("stack", "correct", stack_change="{settle: 1s}", select="no-such-case")
    site = Site(tmp_path / "site")
    site.write("2.8.0")
    replica = on(place, "n", site)
    wait_for(lambda: watched(place, "n"), "a first look", 30, replica)
    health = ("canary", "health", "--node", "n", "--db", place.address, "--max-age")
    assert 0 == call(*health, "1m", cwd=tmp_path).code
    site.half_written()
    replica.said("the stack cannot be read (UnicodeDecodeError")
    wait_for(lambda: 4 == call(*health, "4s", cwd=tmp_path).code, "bad health", 30, replica, pause_s=0.5)
    wait_for(
        lambda: "UnicodeDecodeError" in call(*health, "4s", cwd=tmp_path).err, "the cause", 30, replica, pause_s=0.5
    )
    assert "the service has not seen the stack of n since" in call(*health, "4s", cwd=tmp_path).err
    site.write("2.9.0")
    replica.said("the stack can be read again")
    wait_for(lambda: stack_fires(place), "a fire", 30, replica)
    assert ["2.9.0"] == [fire.changes[0].after.split()[0] for fire in stack_fires(place)]
    wait_for(lambda: 0 == call(*health, "4s", cwd=tmp_path).code, "good health", 30, replica, pause_s=0.5)
    assert 0 == replica.stop()
    assert 4 == call(*health, "1m", cwd=tmp_path).code


def fail_in_the_end(store: Store, folder: Path) -> Fire:
    """A fire that was begun as often as one may be, and ended never, as the next leader files it."""
    (folder / "deadly.yaml").write_text(DEADLY)
    deck = Deck((folder,), ("deadly",))
    store.canaries.ask("deadly", "smoke", "test", "canary")
    lease = None
    for number in range(ATTEMPTS + 1):
        lease = store.canaries.acquire("canary", f"killed {number}", 60, store.canaries.lease("canary"))
        assert lease is not None
        if number < ATTEMPTS:
            assert store.canaries.take(lease, "n") is not None
    options = Options(db=str(store.where), node="n", out=folder / "out")
    runner = Runner(store, deck, options, lambda: None, plain_log(print))
    runner.go_on([lease])
    runner.drop()
    (fire,) = store.canaries.fires("deadly")
    return fire


def test_a_fire_that_takes_its_machine_along_ends(store: Store, tmp_path: Path) -> None:
    """A machine that goes down whenever the fire runs does not try it for ever, in silence."""
    fire = fail_in_the_end(store, tmp_path)
    assert ("failed", "hold") == (fire.state, fire.advice)
    reason = "it was started 5 times and never finished; the last time, the service or the machine stopped first"
    assert (reason,) == fire.reasons
    assert ["failed"] == [alert.kind for alert in store.canaries.alerts("pending")]
    assert ["n"] == [hold.node for hold in store.canaries.holds("deadly")]


def test_a_machine_without_room_for_a_process_ends_no_service(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file or process is left, or an upgrade took the interpreter away: the fire tells why, and is tried again."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python-that-is-gone"))
    (tmp_path / "deadly.yaml").write_text(DEADLY)
    options = Options(db=str(store.where), node="n", out=tmp_path / "out")
    runner = Runner(store, Deck((tmp_path,), ("deadly",)), options, lambda: None, plain_log(print))
    asked = store.canaries.ask("deadly", "smoke", "test", "canary")
    lease = store.canaries.acquire("canary", "a", 60)
    assert lease is not None
    runner.go_on([lease])
    fire = store.canaries.fire(asked.id)
    assert fire is not None
    assert (False, "pending", 1) == (runner.busy, fire.state, fire.attempts)
    assert "no process can be started for it: [Errno 2]" in fire.reasons[0]
    monkeypatch.setattr("qualify.canary.runner.ATTEMPTS", 2)
    runner.go_on([lease])
    (fire,) = store.canaries.fires("deadly")
    assert ("failed", "hold", None) == (fire.state, fire.advice, fire.run_id)
    assert fire.reasons[0].endswith("(attempt 2)")


def test_fires_wait_for_a_service_of_the_stores_program(store: Store, tmp_path: Path) -> None:
    """An upgrade of qualify migrates the store before it reaches this machine: no fire fails, and no node is held."""
    (tmp_path / "deadly.yaml").write_text(DEADLY)
    asked = store.canaries.ask("deadly", "smoke", "test", "canary")
    engine = create_engine(f"sqlite:///{store.where}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE qualify_version SET version_num = 'next'"))
    engine.dispose()
    options = Options(db=str(store.where), node="n", out=tmp_path / "out")
    service = Service(store, store, Deck((tmp_path,), ("deadly",)), options, plain_log(print))
    end = time.monotonic() + 60
    with pytest.raises(InfrastructureError, match="A newer qualify wrote it: install that version here"):
        service.run(until=lambda: store.canaries.fire(asked.id) != asked or time.monotonic() > end)
    assert [asked] == store.canaries.fires("deadly")
    assert [] == store.canaries.alerts()


def test_fires_wait_for_a_folder_of_cards_that_is_away(store: Store, tmp_path: Path) -> None:
    """As for a database that is away: no attempt is made, so none fails."""
    folder = tmp_path / "cards"
    folder.mkdir()
    (folder / "deadly.yaml").write_text(DEADLY)
    options = Options(db=str(store.where), node="n", out=tmp_path / "out")
    runner = Runner(store, Deck((folder,), ("deadly",)), options, lambda: None, plain_log(print))
    folder.rename(tmp_path / "aside")
    asked = store.canaries.ask("deadly", "smoke", "test", "canary")
    lease = store.canaries.acquire("canary", "a", 60)
    assert lease is not None
    runner.go_on([lease])
    runner.drop()
    assert [asked] == store.canaries.fires("deadly")


def test_canaries_that_the_leader_does_not_know_are_told(store: Store, tmp_path: Path) -> None:
    """Two services with other cards on one lease: the one that follows would wait for its times in silence."""
    (tmp_path / "deadly.yaml").write_text(DEADLY)
    holder, names = "gpu/7/12/abcdef", ("deadly", "nightly")
    leader = store.canaries.acquire("canary", holder, 60)
    assert leader is not None
    assert None is leader_lacks(store.canaries, "canary", names), "it has not told yet what it serves"
    own = store.canaries.acquire(own_lease("canary", "gpu/7"), holder, 60, node="gpu/7")
    assert own is not None
    told = {"lease": own.name, "service": "canary", "node": "gpu/7", "stack_key": "", "device": ""}
    store.canaries.tell(own, Node(**told, canaries=("nightly",), until=own.expires_at))
    assert ("gpu/7", ("deadly",)) == leader_lacks(store.canaries, "canary", names)
    assert None is leader_lacks(store.canaries, "canary", ("nightly",))
    assert None is leader_lacks(store.canaries, "other", names), "nobody leads"
    said: list[str] = []
    end = time.monotonic() + 30

    def warned() -> bool:
        return any("does not serve deadly" in line for line in said) or time.monotonic() > end

    options = Options(db=str(store.where), node="n", out=tmp_path / "out")
    deck = Deck((tmp_path,), ("deadly", "nightly"))
    with Store.open(str(store.where)) as keeping:
        Service(store, keeping, deck, options, plain_log(said.append)).run(until=warned)
    assert any("gpu/7, which leads, does not serve deadly" in line for line in said), said
    with pytest.raises(UsageError, match="gpu/7, which leads lease canary, does not serve deadly"):
        ask(store, deck.cards["deadly"], "test", "canary", "")
    assert [] == store.canaries.fires("deadly")


def test_a_fire_whose_machine_is_gone_ends_whatever_other_canaries_do(store: Store, tmp_path: Path) -> None:
    """An upgrade kills its machine in mid-fire: the leader tells of it, also where no canary has an `on:`."""
    (tmp_path / "deadly.yaml").write_text(f"{DEADLY}stack_change: {{settle: 10m}}\n")
    own = store.canaries.acquire(own_lease("canary", "gpu-7"), "a", 60, node="gpu-7")
    assert own is not None
    due = Due(canary="deadly", scheduled_for=store.canaries.now(), trigger="stack", reason="driver", matrix="smoke")
    store.canaries.file(own, [due])
    fire = store.canaries.take(own, "gpu-7")
    assert fire is not None
    engine = create_engine(f"sqlite:///{store.where}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE leases SET expires_at = '2020-01-01 00:00:00.000000'"))
    engine.dispose()
    end = time.monotonic() + 30

    def ended() -> bool:
        return bool(store.canaries.alerts()) or time.monotonic() > end

    options = Options(db=str(store.where), node="n", out=tmp_path / "out")
    with Store.open(str(store.where)) as keeping:
        Service(store, keeping, Deck((tmp_path,), ("deadly",)), options, plain_log(print)).run(until=ended)
    (failed,) = store.canaries.fires("deadly")
    assert ("failed", "gpu-7") == (failed.state, failed.node)
    assert "has given no sign of life for 1:00:00" in failed.reasons[0]
    assert ["failed"] == [alert.kind for alert in store.canaries.alerts()]
    assert ["gpu-7"] == [hold.node for hold in store.canaries.holds("deadly")]


def test_a_change_whose_commit_is_not_confirmed_fires_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes away after it has committed, before it says so: the same look is compared with what is stored."""
    (tmp_path / "deadly.yaml").write_text(f"{DEADLY}stack_change: {{settle: 1m}}\n")
    deck, log = Deck((tmp_path,), ("deadly",)), plain_log(print)
    scopes = Scopes(deck)
    watcher = Watcher(60.0, scopes.look, lambda: None, log)
    upgrades = Upgrades(store, deck, "n", watcher, scopes, log)
    own = store.canaries.acquire(own_lease("canary", "n"), "a", 60, node="n")
    assert own is not None
    for stack in (make_stack(), make_stack(torch="2.13.0")):
        watcher.seen = stack
        upgrades.compare(own)
    watch, began, minutes = type(store.canaries).watch, store.canaries.now(), itertools.count(2)
    monkeypatch.setattr(type(store.canaries), "now", lambda _: began + timedelta(minutes=next(minutes)))

    def unconfirmed(*given: Any) -> None:
        watch(*given)
        raise StoreError("the server closed the connection", "the database server cannot be reached", passing=True)

    watcher.seen = stack
    with monkeypatch.context() as away:
        away.setattr(type(store.canaries), "watch", unconfirmed)
        with pytest.raises(StoreError, match="closed the connection"):
            upgrades.compare(own)
    upgrades.compare(own)
    assert 1 == len(store.canaries.fires("deadly"))


def test_a_lease_tells_what_is_wrong_while_the_service_is_busy(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why a stack is not seen is filed with how long ago it was seen, however long one turn of the service takes."""

    def unreadable(*_: object) -> None:
        raise OSError("pip is at work")

    def told() -> bool:
        own = store.canaries.lease(own_lease("canary", "n"))
        return own is not None and "pip is at work" in own.trouble

    class Busy(Deck):
        def refresh(self) -> bool:
            wait_for(told, "the trouble in the lease", 30)
            return super().refresh()

    monkeypatch.setattr("qualify.canary.watch.look", unreadable)
    (tmp_path / "deadly.yaml").write_text(DEADLY)
    options = Options(db=str(store.where), node="n", out=tmp_path / "out", lease_s=2.0)
    with Store.open(str(store.where)) as keeping:
        Service(store, keeping, Busy((tmp_path,), ("deadly",)), options, plain_log(print)).run(until=told)


def test_cards_that_change_while_the_store_refuses_are_learnt(
    empty_sqlite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader keeps its lease: it files no time of a card that is gone, and those of one that came."""
    monkeypatch.setattr("qualify.canary.service.BEAT_S", 0.05)
    folder, opened = tmp_path / "cards", partial(Store.open, empty_sqlite, busy_timeout_s=0.1)
    folder.mkdir()
    (folder / "old.yaml").write_text("canary: old\nmatrix: smoke\ncron: 0 3 * * *\n")
    said: list[str] = []
    end = time.monotonic() + 60
    with opened() as store, opened() as keeping, Outage(empty_sqlite) as outage:
        deck = Deck((folder,), ("old", "new"))

        def learnt() -> bool:
            if any("the database answers again" in line for line in said):
                return True
            if any("stayed locked" in line for line in said):
                outage.end()
            elif any("leads with epoch" in line for line in said) and (folder / "old.yaml").exists():
                outage.begin()
                (folder / "old.yaml").unlink()
                (folder / "new.yaml").write_text("canary: new\nmatrix: smoke\ncron: 0 4 * * *\n")
            return time.monotonic() > end

        options = Options(db=empty_sqlite, node="n", out=tmp_path / "out", lease_s=60.0)
        Service(store, keeping, deck, options, plain_log(said.append)).run(until=learnt)
        assert [("canary", "new")] == list(store.canaries.owed()), said


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("place", "name"),
    [("qualify.canary.watch.look", "stack-watch"), ("qualify.canary.alerts.postman.turns_of", "postman")],
)
def test_a_service_ends_where_a_part_of_it_breaks(
    place: str, name: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that nobody expected ends a thread: the service does not go on with nobody who looks, or who tells."""

    def broken(*_: object) -> None:
        raise EOFError("nobody expected that")

    monkeypatch.setattr(place, broken)
    fail_in_the_end(store, tmp_path)  # which leaves an alert to be told
    options = Options(db=str(store.where), node="n", out=tmp_path / "out")
    end = time.monotonic() + 60
    with Store.open(str(store.where)) as keeping:
        service = Service(store, keeping, Deck((tmp_path,), ("deadly",)), options, plain_log(print))
        with pytest.raises(InfrastructureError, match=name):
            service.run(until=lambda: time.monotonic() > end)


def test_a_stopped_leaders_fire_ends(postgres_place: Place) -> None:
    """The child of a leader that is stopped beyond its lease ends by itself: two never compute in one run."""
    place = postgres_place
    place.canary("slow", "slow", tuple(range(8, 128)))
    first = place.start("n")
    first.said("leads with epoch")
    fire = place.until(place.ask("slow"), "running")
    family = descendants(first.process.pid)
    assert any(map(alive, family))
    first.tell(signal.SIGSTOP)
    wait_for(lambda: not any(map(alive, family)), "end of the stopped leader's fire", LEASE_S + SPARE_S, first)
    second = place.start("n2")
    second.said("leads with epoch 2")
    ended = place.until(fire.id, "running", node="n2")
    assert (fire.run_id, "n2") == (ended.run_id, ended.node)
    first.tell(signal.SIGCONT)
    wait_for(lambda: not descendants(first.process.pid), "no child of the woken leader", 20, first, second)
    assert 2 == place.epoch()
    assert "hold" not in str(first)
