"""Canaries on many nodes: who fires, in which wave, what each wave advises, and what a lost node does to it."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from canary_examples import result
from cli_process import call
from service_process import Place, Site, on, stack_fires, wait_for

from qualify.canary.deck import Deck
from qualify.canary.log import plain_log
from qualify.canary.nodes import chosen, serving, waves_of
from qualify.canary.overview import ailments, leader_data
from qualify.canary.results import letters_for
from qualify.canary.rollouts import PATIENCE, Rollouts
from qualify.canary.waves import wave_code, waves
from qualify.cards.canary import RolloutPlan
from qualify.cards.load import load_canary
from qualify.facts.canary import Fire, FireResult, Hold, Lease, Node, own_lease
from qualify.store import Store, canaries, fires, leases, rollouts
from qualify.store.canaries import Letters
from qualify.store.clock import LONGEST_WAIT, now_of

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
NAMES = [f"gpu-{number:02}" for number in range(10)]
CARD = """\
canary: fleet
matrix: smoke
on: every-node
rollout: {first: 1, waves: [0.5, 1.0]}
alerts:
  - {target: cordon, kind: command, command: [/bin/true, "{node}"], events: [hold, roll back]}
  - {target: chat, kind: slack, url_env: NO_SUCH_URL, events: [hold, roll back]}
  - {target: uncordon, kind: command, command: [/bin/true, "{node}"], events: [released]}
"""


def node(name: str, key: str = "one", *canaries: str) -> Node:
    """A machine that lives."""
    return Node(
        lease=own_lease("canary", name), service="canary", node=name, canaries=canaries or ("fleet",), stack_key=key,
        device="Test CPU", until=NOW + timedelta(seconds=15),
    )  # fmt: skip


def card(tmp_path: Path, **changes: str):
    """The canary's card with other lines."""
    lines = {"canary": "fleet", "matrix": "smoke", **changes}
    path = tmp_path / "fleet.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
    return load_canary(path, ["smoke"]).card


def test_one_of_each_stack_and_another_one_next_time(tmp_path: Path) -> None:
    """Every stack has its node; over some days every node has its turn."""
    nodes = [node(name, "one" if index < 7 else "two") for index, name in enumerate(NAMES)]
    one = card(tmp_path, on="one-per-stack")
    seen = set()
    for day in range(60):
        names = [item.node for item in chosen(one, nodes, NOW + timedelta(days=day))]
        assert 2 == len(names)
        assert {"one", "two"} == {item.stack_key for item in nodes if item.node in names}
        seen |= set(names)
    assert set(NAMES) == seen


def test_a_sample_and_every_node(tmp_path: Path) -> None:
    """As many as the card says, the same for the same moment; or all."""
    nodes = [node(name) for name in NAMES]
    some = card(tmp_path, on="sample", sample="3")
    assert 3 == len(chosen(some, nodes, NOW))
    assert chosen(some, nodes, NOW) == chosen(some, nodes[::-1], NOW)
    assert chosen(some, nodes, NOW) != chosen(some, nodes, NOW + timedelta(days=1))
    assert nodes == chosen(card(tmp_path, on="every-node"), nodes, NOW)


def test_who_serves() -> None:
    """Whoever lives and knows the canary."""
    late = NOW + timedelta(hours=1)
    nodes = [node("a"), node("b", "one", "other")]
    assert ["a"] == [item.node for item in serving(nodes, "fleet", NOW)]
    assert [] == serving(nodes, "fleet", late)


@pytest.mark.parametrize(
    ("plan", "sizes"),
    [
        ({"first": 1, "waves": (0.5, 1.0)}, [1, 4, 5]),
        ({"first": 2, "waves": (1.0,)}, [2, 8]),
        ({"first": ("gpu-00", "gpu-1*"), "waves": (0.1, 1.0)}, [1, 9]),
        ({"first": ("nobody",), "waves": (0.5, 1.0)}, [0, 10]),
        ({"first": 99}, [10]),
    ],
)
def test_nodes_in_their_waves(plan, sizes: list[int]) -> None:
    """Each node in one wave, none empty but a first one that names nobody who is there; shares count all nodes."""
    waves = waves_of(RolloutPlan(**plan), NAMES, "cron X")
    assert sizes == [len(wave) for wave in waves]
    assert NAMES == sorted(name for wave in waves for name in wave)
    if "gpu-00" in (plan["first"] if isinstance(plan["first"], tuple) else ()):
        assert ("gpu-00",) == waves[0]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ({"on": "sample"}, "on: sample and a number after sample belong together"),
        ({"on": "every-node", "sample": "3"}, "on: sample and a number after sample belong together"),
        ({"rollout": "{first: 1}"}, "belongs to on: every-node, and this canary has no on"),
        ({"on": "every-node", "rollout": "{waves: [0.5]}"}, "must rise and end with 1.0"),
        ({"on": "everywhere"}, "every-node"),
        ({"alerts": "[{target: x, kind: command, command: [kubectl]}]"}, "must begin with the path of a program"),
        ({"alerts": "[{target: x, kind: command, command: [/k, '{pod}']}]"}, "has {pod}; what can be filled in"),
        ({"alerts": "[{target: x, kind: command, command: [/k], url: 'https://x'}]"}, "has no meaning for kind"),
        ({"alerts": "[{target: x, kind: slack, url: 'https://x', command: [/k]}]"}, "only with kind: command"),
    ],
)
def test_wrong_cards(tmp_path: Path, lines: dict[str, str], expected: str) -> None:
    """Each says what is wrong."""
    from qualify.errors import CardError

    with pytest.raises(CardError) as found:
        card(tmp_path, **lines)
    assert expected in str(found.value)


class Fleet:
    """A leader and four nodes on a real store; each node ends its fires as it is told."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.canaries = store.canaries
        (folder / "cards").mkdir()
        (folder / "cards" / "fleet.yaml").write_text(CARD)
        self.deck = Deck((folder / "cards",), ("fleet",))
        self.said: list[str] = []
        lease = self.canaries.acquire("canary", "leader", 60)
        assert lease is not None
        self.lease = lease
        self.own: dict[str, Lease] = {}
        for name in NAMES[:4]:
            own = self.canaries.acquire(own_lease("canary", name), name, 60, node=name)
            assert own is not None
            self.own[name] = own
            self.canaries.tell(own, node(name))
        self.rollouts = Rollouts(self.canaries, self.deck, self.letters, plain_log(self.said.append))

    def letters(self, ended: FireResult) -> Letters:
        """Of the card."""
        return partial(letters_for, self.deck.known, ended)

    def ask(self) -> str:
        """A rollout by hand; returns its key."""
        nodes = self.canaries.nodes("canary")
        return self.canaries.ask_nodes("fleet", "smoke", "test", nodes, waves=True)[0].rollout

    def turn(self) -> None:
        """One of the leader."""
        self.rollouts.turn(self.lease)

    def ready(self) -> list[str]:
        """Nodes with a fire that may begin."""
        return sorted(fire.node for fire in self.canaries.open_fires() if fire.wave is not None)

    def end(self, advice: str, *names: str) -> None:
        """Nodes take their fire and end it."""
        for name in names:
            fire = self.canaries.take(self.own[name], name)
            assert fire is not None
            ended = result(advice=advice, reasons=(f"{advice} there",), run_id=None)
            self.canaries.finish(self.own[name], fire.id, ended, self.letters(ended))


@pytest.fixture
def fleet(store: Store, tmp_path: Path) -> Fleet:
    """On either database."""
    return Fleet(store, tmp_path)


def test_waves_go_on_while_they_promote(fleet: Fleet) -> None:
    """A node waits for its wave; each wave files its advice once; the last one ends the rollout."""
    key = fleet.ask()
    assert all(fleet.canaries.take(own, name) is None for name, own in fleet.own.items()), "no wave has begun"
    done: list[str] = []
    for size in (1, 1, 2):
        fleet.turn()
        fleet.turn()
        ready = fleet.ready()
        assert size == len(ready)
        fleet.end("promote", *ready)
        done += ready
        fleet.turn()
    assert sorted(fleet.own) == sorted(done)
    (rollout,) = fleet.canaries.rollouts("fleet")
    assert ("promote", 2, key) == (rollout.state, rollout.wave, rollout.key)
    sums = [fire for fire in fleet.canaries.fires("fleet") if not fire.node]
    assert [2, 1, 0] == [fire.wave for fire in sums]
    assert ["promote"] * 3 == [fire.advice for fire in sums]
    assert ("2 promote",) == sums[0].reasons
    fleet.turn()
    assert 3 == len([fire for fire in fleet.canaries.fires("fleet") if not fire.node])
    assert [] == fleet.canaries.holds()


def test_a_wave_that_does_not_promote_ends_it(fleet: Fleet) -> None:
    """What waits is refused and held, without an alert for each; the wave is told once; a pass releases each node."""
    fleet.ask()
    fleet.turn()
    (first,) = fleet.ready()
    fleet.end("roll back", first)
    fleet.turn()
    fleet.turn()
    assert [] == fleet.canaries.open_fires()
    (rollout,) = fleet.canaries.rollouts("fleet")
    assert ("roll back", 0) == (rollout.state, rollout.wave)
    refused = [fire for fire in fleet.canaries.fires("fleet") if fire.state == "refused"]
    assert 3 == len(refused)
    assert "advised roll back: the waves after it do not run" in refused[0].reasons[0]
    assert {"", *fleet.own} == {hold.node for hold in fleet.canaries.holds("fleet")}
    told = sorted((alert.target, alert.body["node"]) for alert in fleet.canaries.alerts())
    assert [("chat", ""), ("chat", first), ("cordon", first)] == told
    (summed,) = [fire for fire in fleet.canaries.fires("fleet") if not fire.node]
    assert ("1 roll back", f"{first}: roll back there") == summed.reasons
    fleet.ask()
    while fleet.canaries.open_fires():
        fleet.turn()
        fleet.end("promote", *fleet.ready())
        fleet.turn()
    assert [] == fleet.canaries.holds("fleet")
    released = {alert.body["node"] for alert in fleet.canaries.alerts() if alert.target == "uncordon"}
    assert set(fleet.own) == released, "a wave has no node to act on"


def test_a_node_is_released_when_nobody_holds_it_any_more(fleet: Fleet, tmp_path: Path) -> None:
    """The pass of one canary uncordons no node that another one, or another device model, still speaks against."""
    name = NAMES[0]
    other = tmp_path / "cards" / "other.yaml"
    other.write_text(CARD.replace("canary: fleet", "canary: other"))
    quiet = tmp_path / "cards" / "quiet.yaml"
    quiet.write_text("canary: quiet\nmatrix: smoke\n")
    cards = {path.stem: load_canary(path, ["smoke"]) for path in (tmp_path / "cards" / "fleet.yaml", other, quiet)}
    fire = replace(filed(fleet), node=name)
    passed = result(advice="promote", variant="H100", run_id=None)
    held = replace(hold("fleet", name, "H100"), released_at=NOW, released_by=fire.id)

    def told(*holds: Hold) -> set[str]:
        return {letter.target for letter in letters_for(cards, passed, fire, holds)}

    assert {"uncordon"} == told(held)
    assert {"uncordon"} == told(held, hold("quiet", name, "H100")), "it cordons nothing"
    assert {"uncordon"} == told(held, hold("other", NAMES[1], "H100"))
    assert set() == told(held, hold("other", name, ""))
    assert set() == told(held, hold("fleet", name, "A100"))
    assert set() == told(hold("other", name, ""))


def filed(fleet: Fleet) -> Fire:
    """A fire of the canary."""
    return fleet.canaries.ask_nodes("fleet", "smoke", "test", fleet.canaries.nodes("canary"), waves=False)[0]


def hold(canary: str, name: str, variant: str) -> Hold:
    """An open one."""
    return Hold(
        id=1, canary=canary, node=name, variant=variant, reason="", fire_id=1, since=NOW, released_at=None,
        released_by=None,
    )  # fmt: skip


def name_first(fleet: Fleet, name: str) -> None:
    """Let the card name the machine that goes first."""
    (fleet.deck.extra[0] / "fleet.yaml").write_text(CARD.replace("first: 1", f"first: [{name}]"))
    assert fleet.deck.refresh()


def test_a_rollout_waits_for_the_machines_that_go_first(fleet: Fleet) -> None:
    """No other machine takes the place of one that is named, and is away when the rollout should begin."""
    name_first(fleet, "brave")
    fleet.ask()
    fleet.turn()
    fleet.turn()
    assert ([], 0) == (fleet.ready(), len(fleet.canaries.rollouts("fleet")))
    assert 1 == len([line for line in fleet.said if "no machine that `rollout.first` names" in line])
    own = fleet.canaries.acquire(own_lease("canary", "brave"), "brave", 60, node="brave")
    assert own is not None
    fleet.own["brave"] = own
    fleet.canaries.tell(own, node("brave"))
    fleet.turn()
    assert ("brave",) == fleet.canaries.rollouts("fleet")[0].waves[0]


def test_a_rollout_whose_first_machines_stay_away_holds_the_others(fleet: Fleet) -> None:
    """After a while it ends with a hold and its reason: nothing began on machines that should not go first."""
    name_first(fleet, "brave")
    fleet.ask()
    patient = Rollouts(fleet.canaries, fleet.deck, fleet.letters, plain_log(print), timedelta(0))
    patient.turn(fleet.lease)
    patient.turn(fleet.lease)
    (rollout,) = fleet.canaries.rollouts("fleet")
    assert ("hold", 0, ()) == (rollout.state, rollout.wave, rollout.waves[0])
    (summed,) = [fire for fire in fleet.canaries.fires("fleet") if not fire.node]
    assert ("no node", "no machine that `rollout.first` names serves this canary") == summed.reasons
    assert ["refused"] * 4 == [fire.state for fire in fleet.canaries.fires("fleet") if fire.node]
    assert {"", *fleet.own} == {hold.node for hold in fleet.canaries.holds("fleet")}


def test_a_node_that_comes_after_the_end(fleet: Fleet) -> None:
    """It is turned away where the rollout did not promote."""
    key = fleet.ask()
    fleet.turn()
    fleet.end("hold", *fleet.ready())
    fleet.turn()
    fleet.turn()
    own = fleet.canaries.acquire(own_lease("canary", "late"), "late", 60, node="late")
    assert own is not None
    late = fleet.canaries.ask_nodes("fleet", "smoke", "late", [node("late")], waves=True)[0]
    with fleet.canaries._database.writing() as connection:
        from sqlalchemy import text

        connection.execute(text("UPDATE fires SET rollout = :key WHERE id = :id"), {"key": key, "id": late.id})
    fleet.turn()
    fire = fleet.canaries.fire(late.id)
    assert fire is not None
    assert "refused" == fire.state


def test_a_rollout_of_a_wrong_clock_does_not_hide_later_ones(fleet: Fleet) -> None:
    """A pipeline asks for the advice of the newest one: that is never the one that began in six days."""
    fleet.ask()
    fleet.turn()
    fleet.end("roll back", *fleet.ready())
    fleet.turn()
    fleet.turn()
    with fleet.canaries._database.writing() as connection:
        from sqlalchemy import update

        from qualify.store.tables import rollouts

        connection.execute(update(rollouts).values(opened_at=fleet.canaries.now() + timedelta(days=6)))
    key = fleet.ask()
    while fleet.canaries.open_fires():
        fleet.turn()
        fleet.end("promote", *fleet.ready())
    told = waves(fleet.canaries, "fleet", "canary")
    assert (key, 0) == (told["rollouts"][0]["key"], wave_code(told, 0))


def test_a_node_that_is_gone_costs_its_own_fire(fleet: Fleet) -> None:
    """After a while its fire is filed as failed, with a hold and an alert, and the rollout ends by it."""
    fleet.ask()
    fleet.turn()
    (first,) = fleet.ready()
    fleet.canaries.release(fleet.own[first])
    fleet.turn()
    assert [first] == fleet.ready(), "it may come back"
    time.sleep(0.05)
    patient = Rollouts(fleet.canaries, fleet.deck, fleet.letters, plain_log(print), timedelta(milliseconds=20))
    patient.turn(fleet.lease)
    patient.turn(fleet.lease)
    (rollout,) = fleet.canaries.rollouts("fleet")
    assert "hold" == rollout.state
    failed = [fire for fire in fleet.canaries.fires("fleet") if fire.state == "failed"]
    assert [first] == [fire.node for fire in failed]
    assert "has given no sign of life for" in failed[0].reasons[0]
    assert first in {hold.node for hold in fleet.canaries.holds("fleet")}


def test_a_node_that_died_under_a_wrong_clock_is_gone_within_hours(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last sign of life was dated six days ahead: the wave does not wait for that. One that lives goes on."""
    fleet.ask()
    fleet.turn()
    (first,) = fleet.ready()
    clock(monkeypatch, timedelta(days=6))
    for own in fleet.own.values():
        fleet.canaries.renew(own, 60, "", 0.0)
    monkeypatch.undo()
    fleet.rollouts.correct_clocks(fleet.lease)
    fleet.turn()
    told = fleet.canaries.lease(fleet.own[first].name)
    assert told is not None
    assert told.looked_at is not None
    assert told.looked_at <= fleet.canaries.now(), "the age of its last look grows again"
    clock(monkeypatch, LONGEST_WAIT + PATIENCE + timedelta(seconds=1))
    for name, own in fleet.own.items():
        if name != first:
            fleet.canaries.renew(own, 60)
    fleet.turn()
    fleet.turn()
    (rollout,) = fleet.canaries.rollouts("fleet")
    assert "hold" == rollout.state
    assert [first] == [fire.node for fire in fleet.canaries.fires("fleet") if fire.state == "failed"]


def test_a_service_that_died_under_a_wrong_clock_is_ill(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it was killed while the clock was six days ahead: nobody takes that for six days of health."""
    clock(monkeypatch, timedelta(days=6))
    assert store.canaries.acquire("canary", "a", 60)
    assert store.canaries.acquire(own_lease("canary", "gpu-1"), "a", 60, node="gpu-1")
    monkeypatch.undo()
    machine, leader = ailments(store, "canary", "gpu-1", 900.0)
    assert "no canary service has run on gpu-1, and a wrong clock dated" in machine
    assert "no service leads (lease canary)" == leader
    told = leader_data(store, "canary", store.canaries.now())
    assert told is not None
    assert not told["leads"]
    assert store.canaries.acquire("canary", "b", 60, store.canaries.lease("canary"))
    assert 1 == len(ailments(store, "canary", "gpu-1", 900.0))


def clock(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """The database's clock is ahead by so much."""
    for module in (canaries, fires, leases, rollouts):
        monkeypatch.setattr(module, "now_of", lambda connection: now_of(connection) + by)


def test_an_old_leader_ends_no_wave(fleet: Fleet) -> None:
    """Its epoch is over: nothing is filed."""
    from qualify.errors import LeaseLost

    fleet.ask()
    fleet.turn()
    fleet.end("promote", *fleet.ready())
    fleet.canaries.release(fleet.lease)
    new = fleet.canaries.acquire("canary", "new", 60)
    assert new is not None
    with pytest.raises(LeaseLost):
        fleet.turn()
    assert [] == [fire for fire in fleet.canaries.fires("fleet") if not fire.node]
    fleet.rollouts.turn(new)
    fleet.rollouts.turn(new)
    assert 1 == len([fire for fire in fleet.canaries.fires("fleet") if not fire.node])


def test_seats_are_taken_once(fleet: Fleet) -> None:
    """Of many nodes with one stack as many fire as there are seats, whoever comes first."""
    from canary_examples import due
    from stored_runs import make_stack

    from qualify.facts.canary import Watched

    filed = []
    for name, own in fleet.own.items():
        seen = Watched(
            lease=own.name, canary="fleet", node=name, stack=make_stack(), seen_at=NOW, changing_to="",
            changing_since=None,
        )  # fmt: skip
        one = due("fleet", NOW, trigger="stack", node=name)
        filed += [fleet.canaries.watch_for_many(own, seen, one, "canary", "key", 2) for _ in range(2)]
    assert [True, False, True, False, False, False, False, False] == filed
    assert 4 == len(fleet.canaries.watched())


@pytest.mark.slow
def test_three_machines_and_the_command_line(sqlite_place: Place, tmp_path: Path) -> None:
    """A rollout by hand over three services: one fails first, so two are refused; a pipeline reads it by exit code."""
    place = sqlite_place
    place.canary("good", "correct", on="every-node", rollout="{first: [n2], waves: [1.0]}")
    with (place.cards / "m-good.yaml").open("a") as matrix:
        matrix.write("environments: {gone: {python: /nowhere/python}}\n")  # so every fire fails
    replicas = [place.start(f"n{number}", "--poll", "1s") for number in (1, 2, 3)]

    def there() -> bool:
        with Store.open(place.address) as store:
            nodes = store.canaries.nodes("canary")
        return 3 == len(nodes) and all(item.stack_key for item in nodes)

    wait_for(there, "three nodes", 60, *replicas)
    options = ("--cards", place.cards, "--db", place.address)
    lost = call("canary", "fire", "t-good", "--on", "n9", *options, cwd=place.folder)
    assert 4 == lost.code
    assert "Those that do: n1, n2, n3" in lost.err
    filed = call("canary", "fire", "t-good", "--on", "every-node", *options, cwd=place.folder)
    assert (0, ["n1", "n2", "n3"]) == (filed.code, sorted(re.findall(r" on (n\d) pending ", filed.out))), filed.out
    wait_for(lambda: len(place.fires()) == 4 and not _open(place), "the end of the rollout", 40, *replicas)
    by_node = {fire.node: fire for fire in place.fires()}
    assert {"n2": "failed", "n1": "refused", "n3": "refused", "": "completed"} == {
        name: fire.state for name, fire in by_node.items()
    }
    shown = call("canary", "waves", "t-good", "--json", "--wave", "0", "--db", place.address, cwd=place.folder)
    assert 5 == shown.code
    (rollout,) = json.loads(shown.out)["rollouts"]
    assert [["n2"], ["n1", "n3"]] == [[item["node"] for item in wave["nodes"]] for wave in rollout["waves"]]
    assert ["hold", None] == [wave["advice"] for wave in rollout["waves"]]
    text = call("canary", "waves", "t-good", "--db", place.address, cwd=place.folder)
    assert "wave 0  hold: n2 failed" in text.out
    assert "wave 1  not run: n1 refused, n3 refused" in text.out
    assert 2 == call("canary", "waves", "t-good", "--wave", "7", "--db", place.address, cwd=place.folder).code
    one = call("canary", "fire", "t-good", "--on", "n3", "--json", *options, cwd=place.folder)
    assert ("n3", "failed") == (one.data["node"], one.data["state"])


def _open(place: Place) -> bool:
    with Store.open(place.address) as store:
        return bool(store.canaries.open_fires() or store.canaries.rollouts(opened=True))


@pytest.mark.slow
def test_one_per_stack_after_an_upgrade(sqlite_place: Place, tmp_path: Path) -> None:
    """Two machines get the same new library: one fires."""
    place = sqlite_place
    place.canary("stack", "correct", stack_change="{settle: 1s}", select="no-such-case", on="one-per-stack")
    sites = [Site(tmp_path / name) for name in ("n1", "n2")]
    for site in sites:
        site.write("2.8.0")
    replicas = [on(place, name, site) for name, site in zip(("n1", "n2"), sites, strict=True)]

    def watched() -> int:
        with Store.open(place.address) as store:
            return len([item for item in store.canaries.watched() if not item.changing_to])

    wait_for(lambda: watched() == 2, "first looks", 40, *replicas)
    for site in sites:
        site.write("2.9.0")
    told = "enough other nodes fire for this stack"
    wait_for(lambda: any(told in str(replica) for replica in replicas), "the other one", 40, *replicas)
    assert 1 == len(stack_fires(place))
