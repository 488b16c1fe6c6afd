"""What the store keeps of fleets, under the epoch of their lease."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import store_examples as examples

from qualify.errors import LeaseLost, NoVerdict, StoreError, UsageError
from qualify.facts.fleet import Fleet, FleetCard, FleetShare
from qualify.facts.outcome import Measured
from qualify.facts.run import Record
from qualify.store import Store

FLEET = Fleet(
    id="f-1",
    matrix="hopper",
    matrix_hash="ab" * 32,
    engine="ray",
    device="cuda",
    spread="repeat",
    least_coverage=0.95,
    state="running",
    epoch=0,
    created_at=examples.STARTED,
    finished_at=None,
    notes=("GPU-9 is claimed by n1 and n2",),
)


def card(uuid: str, **changes: Any) -> FleetCard:
    """An expected card."""
    return replace(FleetCard(node="n1", uuid=uuid, name="NVIDIA H100 80GB HBM3", attempt=1, state="PLANNED"), **changes)


def test_a_copy_of_the_file_alone_knows_what_is_still_to_run(empty_sqlite: str, tmp_path: Path) -> None:
    """A store in use is copied without its log: no older fleet or attempt is taken for the newest."""

    def copied() -> list[FleetCard]:
        with Store.open(str(shutil.copy(empty_sqlite, tmp_path / "copy.db"))) as copy:
            return copy.fleets.cards(copy.fleets.fleet("latest").id)

    with Store.open(empty_sqlite) as store:
        lease = store.fleets.lead("f-1", "me", 60)
        store.fleets.plan(lease, FLEET, [card("GPU-1")])
        assert [card("GPU-1", epoch=1)] == copied()
        store.fleets.attempt(lease, "f-1", [card("GPU-1", attempt=2)])
        assert [card("GPU-1", attempt=2, epoch=1)] == copied()


def test_a_fleet_is_planned_settled_and_ended(store: Store) -> None:
    """The expected cards are stored first; of several attempts on a card the newest counts."""
    lease = store.fleets.lead("f-1", "me", 60)
    assert lease is not None
    store.fleets.plan(lease, FLEET, [card("GPU-1"), card("GPU-2", node="n2")])
    covered = card("GPU-1", state="COVERED", run_id="run-1")
    store.fleets.settle(lease, "f-1", [covered, card("GPU-2", node="n2", state="BUSY", reason="in use")])
    store.fleets.attempt(lease, "f-1", [card("GPU-2", node="n2", attempt=2)])
    store.fleets.end(lease, "f-1")
    expected = [replace(covered, epoch=1), card("GPU-2", node="n2", attempt=2, epoch=1)]
    assert expected == store.fleets.cards("f-1")
    found = store.fleets.fleet("latest")
    assert ("ended", 1, FLEET.notes, True) == (found.state, found.epoch, found.notes, found.finished_at is not None)
    assert [] == store.canaries.leases()


def test_notes_are_texts(empty_sqlite: str) -> None:
    """Whatever else somebody wrote there is damage, which is told."""
    with Store.open(empty_sqlite) as store:
        store.fleets.plan(store.fleets.lead("f-1", "me", 60), FLEET, [card("GPU-1")])
        with closing(sqlite3.connect(empty_sqlite)) as connection, connection:
            connection.execute("""UPDATE fleets SET notes = '[{"x":1}]'""")
        with pytest.raises(StoreError, match="a list of texts is"):
            store.fleets.fleets()


def test_shares_of_a_matrix_are_stored_before_and_after(store: Store) -> None:
    """Each once, with the shapes that it is about; what became of it replaces what was known before."""
    lease = store.fleets.lead("f-1", "me", 60)
    assert lease is not None
    cells = ("toy/decode/*", "toy/prefill/*")
    store.fleets.plan(lease, replace(FLEET, cells=cells), [card("GPU-1")])
    first = FleetShare(number=1, node="n1", cells=cells[:1], state="PLANNED", epoch=1)
    second = replace(first, number=2, node="n2", cells=cells[1:])
    for share in (first, second, ended := replace(first, state="COVERED", run_id="run-1", verdict="PASS")):
        store.fleets.share(lease, "f-1", share)
    assert [ended, second] == store.fleets.shares("f-1")
    assert cells == store.fleets.fleet("f-1").cells


def test_a_leader_that_wakes_late_writes_nothing(store: Store) -> None:
    """Another one took the fleet over meanwhile: its epoch counts, whatever the first one still wants to say."""
    late = store.fleets.lead("f-1", "first", 0.0)
    assert late is not None
    store.fleets.plan(late, FLEET, [card("GPU-1")])
    now = store.fleets.lead("f-1", "second", 60)
    assert now is not None
    assert None is store.fleets.lead("f-1", "third", 60)
    for write in (
        lambda: store.fleets.settle(late, "f-1", [card("GPU-1", state="LOST")]),
        lambda: store.fleets.attempt(late, "f-1", [card("GPU-1", attempt=2)]),
        lambda: store.fleets.share(late, "f-1", FleetShare(number=1, node="n1", cells=(), state="PLANNED")),
        lambda: store.fleets.end(late, "f-1"),
        lambda: store.fleets.renew(late, 60),
    ):
        with pytest.raises(LeaseLost):
            write()
    store.fleets.settle(now, "f-1", [card("GPU-1", state="COVERED", run_id="run-1")])
    assert [("COVERED", 2)] == [(found.state, found.epoch) for found in store.fleets.cards("f-1")]


def test_a_card_is_there_once_in_each_attempt(store: Store) -> None:
    """Neither two nodes nor two leaders have one card twice, and nobody settles a card that was not expected."""
    lease = store.fleets.lead("f-1", "me", 60)
    assert lease is not None
    with pytest.raises(NoVerdict, match=r"no fleet in .* yet: `qualify fleet MATRIX` runs one"):
        store.fleets.fleet("latest")
    with pytest.raises(StoreError):
        store.fleets.plan(lease, FLEET, [card("GPU-1"), card("GPU-1", node="n2")])
    store.fleets.plan(lease, FLEET, [card("GPU-1")])
    with pytest.raises(UsageError, match="expects no card GPU-3"):
        store.fleets.settle(lease, "f-1", [card("GPU-3", state="COVERED")])
    with pytest.raises(UsageError, match=r"no fleet begins with 'x'\. Fleets that are stored: f-1"):
        store.fleets.fleet("x")


def test_ballots_are_the_digests_of_the_outcomes_that_count(store: Store) -> None:
    """By case: the card that ran it, which is the run's where none is named, and whether a check found fault."""
    for number, uuid in ((1, "GPU-1"), (2, "GPU-2")):
        run = examples.run(number)
        store.begin(run)
        store.set_stack(run.id, examples.stack(uuid), None)
        planned = examples.cases(2)
        store.add_cases(run.id, planned)
        own = examples.evidence(device_uuid="" if number == 1 else "GPU-3", findings=())
        store.add(run.id, [Record(case=planned[0], outcome=Measured(evidence=examples.evidence()))])
        store.add(run.id, [Record(case=planned[0], outcome=Measured(evidence=own))])
        store.add(run.id, [examples.simple(planned[1])])
    ids = [examples.run(number).id for number in (1, 2)]
    found = list(store.fleets.ballots(ids))
    assert [("GPU-1", False), ("GPU-3", False)] == [(ballot.card, ballot.failed) for ballot in found]
    assert {("ab" * 32, "cd" * 32, examples.stack().fingerprint)} == {(it.output, it.inputs, it.stack) for it in found}
    assert ["GPU-1", "GPU-3"] == sorted(uuid for uuid, _, _ in store.fleets.times(ids))
    assert {examples.stack().fingerprint} == set(store.fleets.fingerprints(ids).values())
