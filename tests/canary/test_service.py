"""The service as processes: leaders that die and come back; clocks, cards, stacks and databases that misbehave."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from cli_process import Begun, alive, call, descendants, environment
from service_process import LEASE_S, SLOW, SPARE_S, OwnPostgres, Place, wait_for
from sqlalchemy import create_engine, text

from qualify.store import Store
from qualify.store.database import STOPPED_S

JUMPED = "SELECT pg_catalog.clock_timestamp() + (SELECT hours FROM jump.by) * interval '1 hour'"
AWAY_S = 20
"""seconds without the database: ten leases"""


def test_the_leader_is_killed_in_mid_fire(sqlite_place: Place) -> None:
    """The follower takes over once the lease has run out, and finishes the same run: one fire, none lost."""
    place = sqlite_place
    place.canary("slow", "slow", SLOW)
    first = place.start("n")
    first.said("leads with epoch")
    second = place.start("n2", "--node", "n")
    fire = place.until(place.ask("slow"), "running")
    wait_for(lambda: _stored(place, fire.run_id), "a stored run", 30, first)
    family = descendants(first.process.pid)
    assert family
    first.process.kill()
    wait_for(lambda: place.epoch() == 2, "new leader", LEASE_S + SPARE_S, second)
    ended = place.until(fire.id, "completed")
    assert (2, fire.run_id, 2) == (ended.attempts, ended.run_id, ended.epoch)
    assert 1 == len(place.fires())
    with Store.open(place.address) as store:
        assert ["completed"] == [run.state for run in store.runs()]
        assert 1 == len(store.canaries.holds())
    wait_for(lambda: not any(map(alive, family)), "end of the first leader's children", SPARE_S)
    assert 0 == second.stop()


def test_two_leaders_are_forced(postgres_place: Place) -> None:
    """A leader that is stopped beyond its lease is succeeded; when it wakes, it stops its fire and writes nothing.

    Where it was stopped in the middle of a write, PostgreSQL has to end that first.
    """
    place = postgres_place
    place.canary("slow", "slow", SLOW)
    first = place.start("n")
    first.said("leads with epoch")
    fire = place.until(place.ask("slow"), "running")
    second = place.start("n2")
    first.tell(signal.SIGSTOP)
    second.said("leads with epoch 2", STOPPED_S + SPARE_S)
    place.until(fire.id, "running")
    first.tell(signal.SIGCONT)
    ended = place.until(fire.id, "completed")
    assert (2, 2) == (ended.epoch, ended.attempts)
    wait_for(lambda: not descendants(first.process.pid), "end of the old leader's fire", 20, first, second)
    assert 2 == place.epoch()
    assert "hold" not in str(first)


@pytest.mark.slow
def test_the_database_is_away(tmp_path: Path, own_postgres: OwnPostgres) -> None:
    """Server stopped in mid-fire for ten leases: the service says so once, leads again, and the fire ends once."""
    place = Place(tmp_path, own_postgres.url)
    place.canary("slow", "slow", SLOW)
    replica = place.start("n")
    try:
        replica.said("leads with epoch")
        fire = place.until(place.ask("slow"), "running")
        own_postgres.stop()
        replica.said("cannot be reached")
        time.sleep(AWAY_S)
        assert replica.process.poll() is None
        own_postgres.start()
        replica.said("the database answers again")
        ended = place.until(fire.id, "completed", 90)
        assert ended.attempts >= 2
        assert 1 == len(place.fires())
        assert str(replica).count("cannot be reached") <= 3
    finally:
        replica.process.kill()
        replica.process.wait()


def test_a_hung_kernel_is_killed_with_its_fire(sqlite_place: Place) -> None:
    """The limit of the canary counts where no other does; nothing is left behind, and the next fire runs."""
    place = sqlite_place
    place.canary("hangs", "hangs", timeout="6s")
    place.canary("good", "correct", select="no-such-case")
    replica = place.start("n")
    replica.said("leads")
    hung, good = place.ask("hangs"), place.ask("good")
    ended = place.until(hung, "failed")
    assert ("hold", ("killed: it took longer than 6 s",), 1) == (ended.advice, ended.reasons, ended.attempts)
    place.until(good, "failed")
    assert [] == descendants(replica.process.pid)


def test_the_disk_is_full(sqlite_place: Place) -> None:
    """No file can grow: the service says so and goes on; when there is room again, it fires."""
    place = sqlite_place
    place.canary("good", "correct", select="no-such-case")
    replica = place.start("n")
    replica.said("leads")
    import resource

    room = resource.prlimit(replica.process.pid, resource.RLIMIT_FSIZE)
    full = Path(place.address).stat().st_size
    resource.prlimit(replica.process.pid, resource.RLIMIT_FSIZE, (4096, room[1]))
    replica.said("evidence store", 30)
    fire = place.ask("good")
    assert replica.process.poll() is None
    resource.prlimit(replica.process.pid, resource.RLIMIT_FSIZE, room)
    replica.said("the database answers again")
    assert "failed" == place.until(fire, "failed").state
    assert Path(place.address).stat().st_size >= full


def test_the_databases_clock_jumps(postgres_place: Place) -> None:
    """A day forward: one fire for the moments in between. A day back: the leader leads on, and fires what comes."""
    place = postgres_place
    place.canary("day", "correct", cron='"0 3 * * *"', select="no-such-case")
    engine = create_engine(place.address, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in (
            "CREATE SCHEMA jump",
            "CREATE TABLE jump.by (hours double precision)",
            "INSERT INTO jump.by VALUES (0)",
            f"CREATE FUNCTION jump.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ {JUMPED} $$",
            f"ALTER DATABASE {engine.url.database} SET search_path = jump, pg_catalog, public",
        ):
            connection.execute(text(statement))

    def jump(hours: float) -> None:
        with engine.connect() as connection:
            connection.execute(text("UPDATE jump.by SET hours = :hours"), {"hours": hours})

    first = place.start("n")
    first.said("leads with epoch")
    assert [] == place.fires()
    jump(75)
    wait_for(lambda: len(place.fires()) == 1, "one fire", 20, first)
    place.until(place.fires()[0].id, "failed")
    jump(-30)
    second = place.start("n2")
    time.sleep(LEASE_S + 1)
    assert 1 == place.epoch(), "the leader lives, whatever the clock says"
    first.process.kill()
    second.said("leads with epoch 2", LEASE_S * 2 + SPARE_S)
    jump(-30 + 24)
    wait_for(lambda: len(place.fires()) >= 2, "the fire of the next day", 20, second)
    moments = [item.scheduled_for for item in place.fires()]
    assert len(moments) == len(set(moments))
    engine.dispose()


def test_a_card_is_broken_while_it_is_served(sqlite_place: Place) -> None:
    """The last good one stays in force; the log and `canary list` say why; the repaired one counts from now."""
    place = sqlite_place
    place.canary("good", "correct", cron='"0 3 * * *"', select="no-such-case")
    replica = place.start("n")
    replica.said("leads")
    path = place.cards / "t-good.yaml"
    good = path.read_text()
    path.write_text(good.replace("0 3", "0 33"))
    replica.said(f"{path}:5:7: cron: must have a value of hour from 0 to 23, not '33'")
    ended = place.until(place.ask("good"), "failed")
    assert "no case of m-good matches" in ended.reasons[0]

    def told() -> bool:
        with Store.open(place.address) as store:
            return "t-good.yaml:5:7" in store.canaries.lease("canary").trouble

    wait_for(told, "trouble in the lease", 10, replica)
    path.write_text(good.replace("0 3", "0 4"))
    replica.said("cards were read again")

    def known() -> bool:
        ended = call("canary", "list", "--cards", place.cards, "--db", place.address, "--json", cwd=place.folder)
        data = json.loads(ended.out)
        (item,) = [item for item in data["canaries"] if item["canary"] == "t-good"]
        return item["next"][11:16] == "04:00" and not data["leader"]["trouble"]

    wait_for(known, "new times", 20, replica)
    assert 0 == replica.stop()


def test_schedules_survive_a_restart(sqlite_place: Place) -> None:
    """What came due while nobody served is made up for once, and what was fired before is not fired again."""
    place = sqlite_place
    place.canary("minute", "correct", cron='"* * * * *"', select="no-such-case")
    first = place.start("n")
    first.said("leads")
    assert 0 == first.stop()
    with Store.open(place.address) as store:
        lease = store.canaries.acquire("canary", "test", 1)
        known = store.canaries.know_schedules(lease, {"t-minute": "* * * * *"})["t-minute"]
        store.canaries.release(lease)
    _age_schedule(place, minutes=10)
    before = place.fires()
    second = place.start("n")
    wait_for(lambda: len(place.fires()) > len(before), "the missed fire", 20, second)
    made_up = place.fires()[-1]
    assert made_up.scheduled_for.second == 0
    assert known.cron == "* * * * *"
    assert len(place.fires()) - len(before) <= 2, "one for ten missed minutes, and perhaps that of a minute that began"
    place.until(made_up.id, "failed")
    assert 0 == second.stop()


def _age_schedule(place: Place, minutes: int) -> None:
    """As if the service had been stopped for a while."""
    engine = create_engine(f"sqlite:///{place.address}")
    with engine.begin() as connection:
        statement = f"UPDATE schedules SET since = strftime('%Y-%m-%d %H:%M:%f000', since, '-{minutes} minutes')"
        assert 1 == connection.execute(text(statement)).rowcount
    engine.dispose()


def test_a_stop_gives_everything_back(sqlite_place: Place) -> None:
    """SIGTERM in mid-fire: exit 0, the fire is pending with its run, the lease free at once, no process left."""
    place = sqlite_place
    place.canary("slow", "slow", SLOW)
    first = place.start("n")
    first.said("leads")
    fire = place.until(place.ask("slow"), "running")
    wait_for(lambda: _stored(place, fire.run_id), "a stored run", 30, first)
    family = descendants(first.process.pid)
    assert 0 == first.stop()
    assert not any(map(alive, family))
    stopped = place.fire(fire.id)
    assert ("pending", ("the service was stopped",), fire.run_id) == (stopped.state, stopped.reasons, stopped.run_id)
    second = place.start("n")
    ended = place.until(fire.id, "completed")
    assert fire.run_id == ended.run_id
    assert 130 == second.stop(signal.SIGHUP), "as Ctrl-C"


STOPPED_INSIDE = """\
import os, signal, sys
from qualify.canary.service import Service
from qualify.cli import main

run, lines = Service.run, []


def called(frame, event, _):
    waits = frame.f_code.co_qualname in ("Event.clear", "Service._rest")
    return line if waits and frame.f_back.f_code is run.__code__ else None


def line(frame, event, _):
    lines.append(event)
    if lines == ["line", "line"]:
        os.kill(os.getpid(), signal.SIGTERM)


def traced(service, *words):
    sys.settrace(called)
    run(service, *words)


Service.run = traced
main()
"""


def test_a_signal_between_two_turns_ends_the_service(sqlite_place: Place) -> None:
    """It comes while the loop looks who woke it: nothing that the loop holds then may keep the signal's answer waiting.

    The signal is sent within the second line of what waits.
    """
    place = sqlite_place
    place.canary("good", "correct")
    script = place.folder / "stopped_inside.py"
    script.write_text(STOPPED_INSIDE)
    words = ("canary", "serve", "t-good", "--cards", place.cards, "--db", place.address, "--node", "n")
    service = Begun(*words, cwd=place.folder, script=script)
    try:
        assert 0 == service.wait(30)
    finally:
        service.kill()


def _stored(place: Place, run_id: str | None) -> bool:
    """Whether a run has begun; a fire names it before its stack is known, and an earlier stop begins another one."""
    with Store.open(place.address) as store:
        return run_id in store.runs_of([run_id or ""])


def test_a_changed_stack_is_noticed_settles_and_fires(sqlite_place: Place) -> None:
    """Noticed, fired once, with the component's name; a restart on the same stack fires nothing."""
    place = sqlite_place
    place.canary("stack", "correct", stack_change="{settle: 2s}", select="no-such-case")
    site = place.folder / "site"
    info = site / "flash_attn-2.8.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.0\n")
    paths = os.pathsep.join([str(site), environment()["PYTHONPATH"]])
    os.environ["PYTHONPATH"], before = paths, os.environ.get("PYTHONPATH")
    try:
        replica = place.start("n", "--poll", "1s")
        replica.said("leads")
        wait_for(lambda: _watched(place) == 1, "a first look", 20, replica)
        info.rename(site / "flash_attn-2.9.0.dist-info")
        (site / "flash_attn-2.9.0.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.9.0\n"
        )
        replica.said("the stack of n is changing: flash-attn 2.8.0 → 2.9.0; t-stack will fire if it stays")
        wait_for(lambda: len(place.fires()) == 1, "a fire", 20, replica)
        (fire,) = place.fires()
        assert ("stack", "n", "stack changed: flash-attn 2.8.0 → 2.9.0") == (fire.trigger, fire.node, fire.reason)
        assert ["flash-attn"] == [change.component for change in fire.changes]
        place.until(fire.id, "failed")
        assert 0 == replica.stop()
        again = place.start("n", "--poll", "1s")
        again.said("leads")
        time.sleep(3)
        assert 0 == again.stop()
        assert 1 == len(place.fires())
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _watched(place: Place) -> int:
    with Store.open(place.address) as store:
        return len(store.canaries.watched())


@pytest.mark.parametrize("count", [1000])
def test_a_thousand_canaries_in_one_second(sqlite_place: Place, count: int) -> None:
    """Every one is filed, once, in one go."""
    place = sqlite_place
    for number in range(count):
        (place.cards / f"t-{number:04}.yaml").write_text(
            f'canary: t-{number:04}\nmatrix: smoke\ncron: "0 3 * * *"\nselect: no-such-case\n'
        )
    first = place.start("n")
    first.said(f"{count} canaries", 60)
    assert 0 == first.stop()
    _age_schedules(place)
    second = place.start("n")
    second.said(f"{count} due", 60)
    second.stop(signal.SIGKILL)
    with Store.open(place.address) as store:
        fires = store.canaries.fires(limit=2 * count)
    assert count == len({fire.canary for fire in fires}) == len(fires)
    assert 1 == len({fire.scheduled_for for fire in fires})


def _age_schedules(place: Place) -> None:
    engine = create_engine(f"sqlite:///{place.address}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE schedules SET since = strftime('%Y-%m-%d %H:%M:%f000', since, '-1 day')"))
    engine.dispose()
