"""What a leader files at a moment for canaries that fire on many machines: once, and not before a machine is there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from qualify.canary.deck import Deck
from qualify.canary.log import plain_log
from qualify.canary.overview import explain, explain_lines, list_canaries, to_lines
from qualify.canary.timetable import Timetable
from qualify.facts.canary import Fire, Lease, Node, own_lease
from qualify.store import Store

CARD = "canary: fleet\nmatrix: smoke\ncron: '* * * * *'\n"


class Service:
    """Leaders of a service and its machines, on a real store."""

    def __init__(self, store: Store, folder: Path, lines: str, clock: pytest.MonkeyPatch) -> None:
        self.canaries, self.clock, self.said = store.canaries, clock, list[str]()
        (folder / "fleet.yaml").write_text(CARD + lines)
        self.deck = Deck((folder,), ("fleet",))
        self.machines: dict[str, Lease] = {}

    def leader(self, name: str) -> tuple[Timetable, Lease]:
        """A replica that has just taken over."""
        before = self.canaries.lease("canary")
        lease = self.canaries.acquire("canary", name, 60, before)
        assert lease is not None
        timetable = Timetable(self.canaries, self.deck, lambda: None, plain_log(self.said.append))
        timetable.learn(lease)
        return timetable, lease

    def edit(self, lines: str) -> None:
        """The card says something else from now on."""
        (self.deck.extra[0] / "fleet.yaml").write_text(CARD + lines)
        assert self.deck.refresh()

    def machine(self, name: str, key: str = "one", holder: str = "") -> None:
        """A machine tells of itself."""
        own = self.canaries.acquire(own_lease("canary", name), holder or name, 600, node=name)
        assert own is not None
        self.machines[name] = own
        told = Node(
            lease=own.name, service="canary", node=name, canaries=("fleet",), stack_key=key, device="",
            until=own.expires_at,
        )  # fmt: skip
        self.canaries.tell(own, told)

    def leave(self, name: str) -> None:
        """A machine stops its service."""
        self.canaries.release(self.machines.pop(name))

    def minutes_later(self, count: float) -> None:
        """The database's clock goes on; whoever leads and serves goes on with it."""
        real = type(self.canaries).now
        self.clock.setattr(type(self.canaries), "now", lambda canaries: real(canaries) + timedelta(minutes=count))

    def fires(self) -> list[Fire]:
        """All that were filed, the first one first."""
        return self.canaries.fires("fleet")[::-1]


@pytest.fixture
def service(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Service:
    """The parameter is what else the card says."""
    return Service(store, tmp_path, request.param, monkeypatch)


@pytest.mark.parametrize("service", ["on: every-node\n", "on: one-per-stack\n"], indirect=True)
def test_a_moment_waits_for_a_machine(service: Service) -> None:
    """A leader may be there before any machine, its own included, has told what it serves."""
    timetable, lease = service.leader("a")
    service.minutes_later(1)
    timetable.file_due(lease)
    timetable.file_due(lease)
    assert [] == service.fires()
    assert 1 == len(service.said), "it is said once"
    assert "is due, and no node serves it" in service.said[0]
    service.machine("gpu-1")
    timetable.file_due(lease)
    timetable.file_due(lease)
    assert [own_lease("canary", "gpu-1")] == [fire.lease for fire in service.fires()]


@pytest.mark.parametrize("service", [""], indirect=True)
def test_a_time_that_will_not_come_is_not_shown(service: Service, store: Store) -> None:
    """The leader files no time of a canary that it does not serve; who reads the list would wait for ever."""
    shown = service.deck.cards["fleet"]
    mine = replace(shown, card=shown.card.model_copy(update={"canary": "mine"}))
    cards = {"fleet": shown, "mine": mine}
    service.leader("gpu-1/7/x")
    before = list_canaries(store, cards, "canary")
    assert all(item["next"] and not item["not_served_by"] for item in before["canaries"]), "it has not told yet"
    service.machine("gpu-1", holder="gpu-1/7/x")
    found = list_canaries(store, cards, "canary")
    assert [(True, None), (False, "gpu-1")] == [(bool(it["next"]), it["not_served_by"]) for it in found["canaries"]]
    told = (
        "none: gpu-1, which leads, does not serve it. Start that service with this canary, or another with --lease NAME"
    )
    assert [f"  next   {told}"] == [line for line in to_lines(found, "") if "none:" in line]
    (explained,) = (line for line in explain_lines(explain(store, mine, "canary"), "") if "none:" in line)
    assert f"next     {told}" == explained


@pytest.mark.parametrize(
    "service", ["on: sample\nsample: 1\n", "on: one-per-stack\n", "on: every-node\n"], indirect=True
)
def test_the_next_leader_fires_no_moment_again_elsewhere(service: Service) -> None:
    """A machine has the moment; it goes, another one comes, and the leader changes: the moment is over all the same."""
    service.machine("gpu-1")
    timetable, lease = service.leader("a")
    service.minutes_later(1)
    timetable.file_due(lease)
    assert 1 == len(service.fires())
    service.leave("gpu-1")
    service.machine("gpu-2")
    timetable, lease = service.leader("b")
    timetable.file_due(lease)
    assert [own_lease("canary", "gpu-1")] == [fire.lease for fire in service.fires()]


@pytest.mark.parametrize(
    ("service", "later"), [("on: every-node\n", ""), ("", "on: every-node\n")], indirect=["service"]
)
def test_an_edit_of_the_card_fires_no_moment_again(service: Service, later: str) -> None:
    """The moment was fired; then somebody takes ``on`` off the card, or adds it, within the same minute."""
    service.machine("gpu-1")
    timetable, lease = service.leader("a")
    service.minutes_later(1)
    timetable.file_due(lease)
    (fire,) = service.fires()
    service.edit(later)
    timetable.learn(lease)
    timetable.file_due(lease)
    assert [fire.id] == [each.id for each in service.fires()]
