"""A fleet's leader, whichever engine places the nodes' tasks: states, deadlines, leases, and what comes back."""

from __future__ import annotations

import json
import re
import resource
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import stored_runs as stored
from builders import make_evidence, make_timing
from outages import Outage

from qualify.errors import LeaseLost, NothingSelected, NoVerdict, RunBusy, StoreError, UsageError
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.fleet import (
    CardResult,
    CardState,
    Compared,
    Coverage,
    Fleet,
    FleetCard,
    ListedCard,
    NodePlan,
    NodeVerdict,
    Slow,
)
from qualify.facts.outcome import Measured
from qualify.facts.placement import Placement
from qualify.facts.run import Verdict
from qualify.facts.typed import Typed
from qualify.facts.vote import Vote, VoteKind
from qualify.fleet import drive, patience
from qualify.fleet.drive import Drive, FleetOrder
from qualify.fleet.engine import Heard, NodeBegun, NodeDone, NodeFile, NodeGone
from qualify.fleet.expected import expected_cards
from qualify.fleet.ingest import ingest
from qualify.fleet.lead import run_fleet, spool_in
from qualify.judge.fleet import VERDICTS, compared, coverage_of, exit_code_of, slow_cards
from qualify.report.fleet_text import coverage_lines, percent
from qualify.report.fleets import (
    NODE_COLUMNS,
    bad_nodes,
    cards_worst_first,
    fleets_page,
    is_well,
    node_words,
    nodes_of,
)
from qualify.report.sitepages.fleet import CardQuery, fleet_page
from qualify.report.sitepages.parts import parts_json, render_parts
from qualify.store import transfer
from qualify.store.store import Store
from qualify.web.fleet_metrics import fleet_metrics
from qualify.web.site import Site

ORDER = FleetOrder(plan=NodePlan(matrix="serving.yaml", device="cpu:1"), matrix="serving", start_s=60.0)
FLEET = Fleet(
    id="f",
    matrix="serving",
    matrix_hash="",
    engine="ray",
    device="cuda",
    spread="repeat",
    least_coverage=1.0,
    state="ended",
    epoch=1,
    created_at=stored.NOW,
    finished_at=None,
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order names the matrix that nodes run by a path that is relative."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serving.yaml").write_text(stored.MATRIX)


class Scripted:
    """An engine whose nodes say what a script tells."""

    name = "scripted"

    def __init__(self, script: Mapping[str, Callable[[NodePlan], list[Heard]]]) -> None:
        self.script = script
        self.waiting: list[Heard] = []
        self.cancelled: list[str] = []
        self.placed: list[NodePlan] = []

    def nodes(self) -> list[str]:
        return list(self.script)

    def inventory(self, device: str, wait_s: float) -> dict[str, Any]:
        return {name: (ListedCard(uuid=f"CPU-{name}-0", name="a CPU"),) for name in self.script}

    def place(self, plan: NodePlan) -> None:
        self.placed.append(plan)
        self.waiting += self.script[plan.node](plan)

    def left(self, node: str) -> tuple[CardState, str]:
        return "LOST", "the node died"

    def hear(self, wait_s: float) -> list[Heard]:
        said, self.waiting = self.waiting, []
        return said

    def cancel(self, node: str) -> None:
        self.cancelled.append(node)


@pytest.fixture
def runner(tmp_path: Path) -> Callable[..., list[Heard]]:
    """Makes what a node says that ran everything: its run as a file, and its verdict."""
    matrix = tmp_path / "serving.yaml"
    matrix.write_text(stored.MATRIX)

    def ran(
        plan: NodePlan,
        state: str = "completed",
        verdict: str = "PASS",
        name: str = "",
        answers: bool = True,
        latency_us: float = 10.0,
        digest: str = "ab" * 32,
        age: timedelta = timedelta(hours=1),
        matrix: Path = matrix,
        **changes: Any,
    ) -> Any:
        (uuid,) = plan.expected or ()
        place = Placement(node=plan.node, spread="repeat", cards=(uuid,), fleet=plan.fleet, attempt=plan.attempt)
        with Store.open(str(tmp_path / f"{plan.node}.db")) as store:
            evidence = replace(make_evidence(), timing=make_timing(latency_us), output_digest=digest)
            stack = replace(stored.make_stack(), device=replace(stored.DEVICE, uuid=uuid))
            outcome = Measured(evidence=evidence)
            run = stored.store_run(
                store, matrix, outcome, age=age, state=state, placement=place, stack=stack, **changes
            )
            path = tmp_path / f"{run.id}.jsonl.gz"
            store.export_run(run.id, path)
        result = CardResult(uuid=uuid, name="a CPU", state="COVERED", run=run.id, verdict=verdict)
        done = NodeVerdict(
            node=plan.node,
            fleet=plan.fleet,
            attempt=plan.attempt,
            device="cpu",
            matrix="serving",
            verdict=verdict,
            exit_code=0,
            cards=(result,),
            files=(path.name,),
            wall_s=1.0,
        )
        file = NodeFile(node=plan.node, name=name or path.name, content=path.read_bytes())
        return [NodeBegun(node=plan.node), file, *([NodeDone(node=plan.node, verdict=done)] if answers else [])]

    return ran


def lead(script: Mapping[str, Any], store: Store, tmp_path: Path, **changes: Any) -> tuple[Scripted, str]:
    """A fleet to its end."""
    engine = Scripted(script)
    spool = tmp_path / "spool"
    spool.mkdir(exist_ok=True)
    return engine, run_fleet(engine, replace(ORDER, **changes), store, spool, lambda _: None)


def states(store: Store, fleet: str) -> dict[str, tuple[str, int]]:
    """State and attempt by node."""
    return {card.node: (card.state, card.attempt) for card in store.fleets.cards(fleet)}


def test_low_coverage_is_no_verdict_and_another_attempt_raises_it(store: Store, runner: Any, tmp_path: Path) -> None:
    """One of two cards is lost: exit 5, and 0 where half is enough; the second attempt runs on that card only."""
    gone = lambda plan: [NodeGone(node=plan.node, state="LOST", reason="the node died")]  # noqa: E731
    _, fleet = lead({"n1": runner, "n2": gone}, store, tmp_path)
    found, votes = coverage_of(store, fleet)
    assert (0.5, False, 5) == (found.share, found.enough, exit_code_of(found, votes))
    assert f"do: run what is not covered again: qualify fleet serving --again {fleet}" in coverage_lines(found, votes)
    half = replace(found, fleet=replace(found.fleet, least_coverage=0.5))
    assert 0 == exit_code_of(half, votes)
    engine, again = lead({"n1": runner, "n2": runner}, store, tmp_path, again=fleet)
    assert (fleet, ["n2"]) == (again, [plan.node for plan in engine.placed])
    assert {"n1": ("COVERED", 1), "n2": ("COVERED", 2)} == states(store, fleet)
    assert 0 == exit_code_of(*coverage_of(store, fleet))
    assert [] == list((tmp_path / "spool").iterdir())
    with pytest.raises(NoVerdict, match="every card of fleet"):
        lead({"n1": runner}, store, tmp_path, again=fleet)


def test_a_leader_that_was_killed_before_the_end(
    store: Store, runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every card was covered, and nobody said so: the next attempt places nothing, and ends the fleet."""

    def dies(self: Drive) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Drive, "end", dies)
        with pytest.raises(KeyboardInterrupt):
            lead({"n1": runner}, store, tmp_path)
    fleet = store.fleets.fleet("latest")
    assert ("running", {"n1": ("COVERED", 1)}) == (fleet.state, states(store, fleet.id))
    engine, _ = lead({"n1": runner}, store, tmp_path, again=fleet.id)
    assert ([], "ended") == (engine.placed, store.fleets.fleet(fleet.id).state)
    with pytest.raises(NoVerdict, match="every card of fleet"):
        lead({"n1": runner}, store, tmp_path, again=fleet.id)


def test_a_card_whose_run_is_gone_is_no_pass(store: Store, runner: Any, tmp_path: Path) -> None:
    """Its bits cannot be compared any more: the fault that they showed must not become a pass when they are pruned."""
    script = {"n1": runner, "n2": runner, "n3": partial(runner, digest="cd" * 32)}
    _, fleet = lead(script, store, tmp_path)
    assert 1 == exit_code_of(*coverage_of(store, fleet))
    (odd,) = (card.run_id for card in store.fleets.cards(fleet) if card.node == "n3")
    assert store.retention.remove_run(str(odd), by="me", how="db prune", reason="old")
    found, votes = coverage_of(store, fleet)
    assert (5, []) == (exit_code_of(found, votes), votes)
    told = f"run {odd} is not stored any more, so nobody can compare its results: `qualify db deletions` says why"
    assert f"  COVERED  n3  CPU-n3-0  {told}" in coverage_lines(found, votes)
    assert "INCONCLUSIVE" == compared(store, fleet, {}).verdict
    for card in store.fleets.cards(fleet):
        store.retention.remove_run(str(card.run_id), by="me", how="db prune", reason="old")
    with pytest.raises(UsageError, match="none of its runs is stored any more"):
        lead(script, store, tmp_path, again=fleet)


def test_a_run_from_tomorrow_is_no_pass(store: Store, runner: Any, tmp_path: Path) -> None:
    """The clock of its node is wrong, or that of the store: its gate says the same. A failure stays one."""
    age = stored.NOW - datetime.now(UTC) - timedelta(days=1)
    _, fleet = lead({"n1": runner, "n2": partial(runner, age=age)}, store, tmp_path)
    found, votes = coverage_of(store, fleet)
    assert 5 == exit_code_of(found, votes)
    assert any("n2" in line and "is dated in the future" in line for line in coverage_lines(found, votes))
    _, fleet = lead({"n1": partial(runner, age=age, verdict="FAIL")}, store, tmp_path)
    assert 1 == exit_code_of(*coverage_of(store, fleet))


class Trouble(Scripted):
    """No file of the store can grow from the moment at which the node's file has come."""

    def hear(self, wait_s: float) -> list[Heard]:
        if isinstance(self.waiting[0], NodeDone):
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        said, self.waiting = self.waiting[:2], self.waiting[2:]
        return said


@pytest.mark.parametrize("back", [True, False])
def test_a_database_that_is_away(back: bool, runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs nothing that was measured: the leader waits, and where that is in vain the files stay for `ingest`."""
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(patience, "PAUSE_S", 0.0)
    monkeypatch.setattr(drive, "LONGEST_AWAY_S", drive.LONGEST_AWAY_S if back else -1.0)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if back and "It is tried again for 3600 s." in text:
            resource.setrlimit(resource.RLIMIT_FSIZE, room)

    def led(store: Store) -> str:
        with spool_in(tmp_path / "out", say, Typed(db="s.db")) as spool:
            return run_fleet(Trouble({"n1": runner}), ORDER, store, spool, say)

    with Store.open(str(tmp_path / "s.db")) as store:
        try:
            if back:
                assert {"n1": ("COVERED", 1)} == states(store, led(store))
            else:
                with pytest.raises(StoreError, match="the disk reported an error"):
                    led(store)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, room)
        files = list((tmp_path / "out").rglob("*.gz"))
        assert ("the evidence store takes writes again" in said, len(files)) == ((True, 0) if back else (False, 1)), (
            said
        )
        for file in files:
            assert said[-1].endswith(f"qualify ingest {file.parent} --db s.db")
            ingest(store, file)
        assert ["completed"] == [run.state for run in store.runs()]


def test_a_node_that_leaves_after_the_inventory(store: Store, runner: Any, tmp_path: Path) -> None:
    """The engine knows whether it was drained or died."""

    class Leaving(Scripted):
        def nodes(self) -> list[str]:
            return ["n1"]

    (tmp_path / "spool").mkdir()
    fleet = run_fleet(Leaving({"n1": runner, "n2": runner}), ORDER, store, tmp_path / "spool", lambda _: None)
    assert {"n1": ("COVERED", 1), "n2": ("LOST", 1)} == states(store, fleet)


def test_a_verbose_fleet_tells_what_its_nodes_send(store: Store, runner: Any, tmp_path: Path) -> None:
    """A node that begins and a file of it have a line each, apart from the usual log."""
    told: dict[str, list[str]] = {"log": [], "detail": []}
    (tmp_path / "spool").mkdir()
    run_fleet(Scripted({"n1": runner}), ORDER, store, tmp_path / "spool", told["log"].append, told["detail"].append)
    begun, came = told["detail"]
    assert "n1: it has begun" == begun
    assert re.fullmatch(r"n1: run \S+ came, \d+ bytes", came)
    assert 2 == len(told["log"])


def test_a_store_that_refuses_for_a_moment_costs_no_node(empty_store: str, runner: Any, tmp_path: Path) -> None:
    """The leader says so and waits; what its nodes sent is stored, and they go on meanwhile."""
    told: list[str] = []
    (tmp_path / "spool").mkdir()

    def ends_with_an_outage(plan: NodePlan) -> list[Heard]:
        said = runner(plan)
        outage.begin()
        return said

    def say(text: str) -> None:
        told.append(text)
        if text.endswith("It is tried again for 3600 s."):
            outage.end()

    engine = Scripted({"n1": ends_with_an_outage})
    with Store.open(empty_store, busy_timeout_s=0.05) as store, Outage(empty_store) as outage:
        fleet = run_fleet(engine, ORDER, store, tmp_path / "spool", say)
        assert {"n1": ("COVERED", 1)} == states(store, fleet)
        assert "ended" == store.fleets.fleet(fleet).state
    assert "the evidence store takes writes again" in told


def test_ctrl_c_while_the_store_refuses_is_one(empty_store: str, runner: Any, tmp_path: Path) -> None:
    """The leader ends as by any other interrupt; its lease runs out by itself."""
    (tmp_path / "spool").mkdir()

    def ends_with_an_outage(plan: NodePlan) -> list[Heard]:
        outage.begin()
        raise KeyboardInterrupt

    engine = Scripted({"n1": ends_with_an_outage})
    with (
        Store.open(empty_store, busy_timeout_s=0.05) as store,
        Outage(empty_store) as outage,
        pytest.raises(KeyboardInterrupt),
    ):
        run_fleet(engine, ORDER, store, tmp_path / "spool", lambda _: None)


def test_a_card_whose_run_fails_is_covered_and_not_qualified(store: Store, runner: Any, tmp_path: Path) -> None:
    """Coverage says that it ran, the verdict that it is wrong: exit 1."""
    _, fleet = lead({"n1": lambda plan: runner(plan, verdict="FAIL")}, store, tmp_path)
    found, votes = coverage_of(store, fleet)
    assert (True, 1) == (found.enough, exit_code_of(found, votes))
    (advice,) = (line for line in coverage_lines(found, votes) if line.startswith("do:"))
    assert f"do: see what failed: qualify report {found.cards[0].run_id}" == advice
    typed = Typed(cards=("my cards",), db="f.db")
    (advice,) = (line for line in coverage_lines(found, votes, typed) if line.startswith("do:"))
    assert f"do: see what failed: qualify report {found.cards[0].run_id} --cards 'my cards' --db f.db" == advice


def test_a_whole_run_counts_although_its_node_died_later(store: Store, runner: Any, tmp_path: Path) -> None:
    """What had ended is covered, and judged here; what had not is stored as an interrupted run of a lost card."""

    def dies(state: str) -> Any:
        return lambda plan: [
            *runner(plan, state=state, answers=False),
            NodeGone(node=plan.node, state="LOST", reason="the node died"),
        ]

    _, fleet = lead({"n1": dies("completed"), "n2": dies("interrupted")}, store, tmp_path)
    cards = {card.node: card for card in store.fleets.cards(fleet)}
    assert {"n1": ("COVERED", "PASS"), "n2": ("LOST", None)} == {
        name: (card.state, card.verdict) for name, card in cards.items()
    }
    assert "interrupted" == store.run(str(cards["n2"].run_id)).state


def test_an_answer_without_its_run_covers_nothing(store: Store, runner: Any, tmp_path: Path) -> None:
    """Neither one whose file got lost or damaged, nor one with a name that leads out of the folder."""

    def damaged(plan: NodePlan) -> list[Heard]:
        begun, file, done = runner(plan)
        return [begun, replace(file, content=file.content[:-9]), done]

    script = {
        "n1": damaged,
        "n2": lambda plan: runner(plan, name="../../out.jsonl.gz"),
        "n3": lambda plan: [said for said in runner(plan) if not isinstance(said, NodeFile)],
    }
    _, fleet = lead(script, store, tmp_path)
    assert dict.fromkeys(script, ("LOST", 1)) == states(store, fleet)
    assert [] == store.runs()
    assert not (tmp_path.parent / "out.jsonl.gz").exists()


def test_a_node_that_begins_or_ends_too_late_is_given_up(
    store: Store, runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUSY where it never began, LOST where it does not end; both tasks are cancelled."""
    monkeypatch.setattr(drive, "LATE_S", 0.0)
    plan = replace(ORDER.plan, deadline_s=0.05)
    script = {"n1": lambda plan: [], "n2": lambda plan: [NodeBegun(node=plan.node)]}
    engine, fleet = lead(script, store, tmp_path, start_s=0.05, plan=plan)
    assert {"n1": ("BUSY", 1), "n2": ("LOST", 1)} == states(store, fleet)
    assert {"n1", "n2"} == set(engine.cancelled)


DAYS_S = 3 * 86400.0
"""as long a lease seems to last that was taken while the clock was wrong"""


def test_a_lease_that_a_wrong_clock_dated_is_the_next_leaders(
    store: Store, runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder gives no sign of life for its whole time: nobody waits for days, and the holder writes no more."""
    _, fleet = lead({"n1": lambda plan: [NodeGone(node=plan.node, state="LOST", reason="died")]}, store, tmp_path)
    held = store.fleets.lead(fleet, "another", DAYS_S)
    assert held is not None
    monkeypatch.setattr(drive, "LEASE_S", 1.0)
    lead({"n1": runner}, store, tmp_path, again=fleet)
    assert {"n1": ("COVERED", 2)} == states(store, fleet)
    with pytest.raises(LeaseLost, match="Nothing was written"):
        store.fleets.end(held, fleet, ["late"])
    assert "late" not in store.fleets.fleet(fleet).notes


def test_a_leader_whose_clock_is_wrong_goes_on(
    store: Store, runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It renews its lease, so it lives, whatever its clock says: the second one is told to wait."""
    _, fleet = lead({"n1": lambda plan: [NodeGone(node=plan.node, state="LOST", reason="died")]}, store, tmp_path)
    held = store.fleets.lead(fleet, "another", DAYS_S)
    assert held is not None
    over = threading.Event()

    def renew() -> None:
        while not over.wait(0.2):
            store.fleets.renew(held, DAYS_S)

    monkeypatch.setattr(drive, "LEASE_S", 1.5)
    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        with pytest.raises(RunBusy, match="another process leads fleet"):
            lead({"n1": runner}, store, tmp_path, again=fleet)
    finally:
        over.set()
        renewing.join()
    store.fleets.end(held, fleet, ["still its own"])
    assert "still its own" in store.fleets.fleet(fleet).notes


def test_a_fleet_has_one_leader(store: Store, runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one is told to wait; a first one that was succeeded ends its tasks and writes nothing."""
    _, fleet = lead({"n1": lambda plan: [NodeGone(node=plan.node, state="LOST", reason="died")]}, store, tmp_path)
    held = store.fleets.lead(fleet, "another", 60)
    assert held is not None
    with pytest.raises(RunBusy, match="another process leads fleet"):
        lead({"n1": runner}, store, tmp_path, again=fleet)
    store.fleets.release(held)

    def succeeded(plan: NodePlan) -> list[Heard]:
        assert store.fleets.lead(fleet, "successor", 60) is not None
        return runner(plan)

    monkeypatch.setattr(drive, "LEASE_S", 0.0)
    engine = Scripted({"n1": succeeded})
    with pytest.raises(LeaseLost):
        run_fleet(engine, replace(ORDER, again=fleet), store, tmp_path / "spool", print)
    assert {"n1": ("PLANNED", 2)} == states(store, fleet)


def test_a_uuid_of_two_nodes_and_a_silent_node() -> None:
    """One card, refused with both names; cards that nobody could list count as lost."""
    twin = ListedCard(uuid="GPU-1", name="H100")
    cards, notes = expected_cards(
        {"n1": (twin,), "n2": (twin, ListedCard(uuid="GPU-2", name="H100")), "n3": "no answer"}
    )
    assert [("unknown cards of n3", "LOST"), ("GPU-1", "REFUSED"), ("GPU-2", "PLANNED")] == [
        (card.uuid, card.state) for card in cards
    ]
    assert ["GPU-1: n1 and n2 claim this UUID: which of them has the card?"] == notes


class Silent(Scripted):
    """Some nodes list something else than their one card."""

    lists: Mapping[str, Any]

    def inventory(self, device: str, wait_s: float) -> dict[str, Any]:
        return {**super().inventory(device, wait_s), **self.lists}


def lead_silent(script: Any, lists: Mapping[str, Any], store: Store, spool: Path, again: str = "") -> Silent:
    """A fleet to its end."""
    engine = Silent(script)
    engine.lists = lists
    spool.mkdir(exist_ok=True)
    run_fleet(engine, replace(ORDER, again=again), store, spool, lambda _: None)
    return engine


def cards_told(store: Store) -> list[tuple[str, str, str, int]]:
    """What the newest fleet says of its cards."""
    return [(it.node, it.uuid, it.state, it.attempt) for it in store.fleets.cards(store.fleets.fleet("latest").id)]


def test_another_attempt_heals_a_node_that_listed_no_cards(store: Store, runner: Any, tmp_path: Path) -> None:
    """It is asked again: its cards take the place of the unknown ones. While it is silent, it stays lost."""
    script = {"n1": runner, "n2": runner}
    lead_silent(script, {"n2": "no answer"}, store, tmp_path / "spool")
    fleet = store.fleets.fleet("latest").id
    assert ("n2", "unknown cards of n2", "LOST", 1) in cards_told(store)
    engine = lead_silent(script, {"n2": "still none"}, store, tmp_path / "spool", fleet)
    assert ([], ("n2", "unknown cards of n2", "LOST", 2)) == (engine.placed, cards_told(store)[-1])
    assert "still none" == store.fleets.cards(fleet)[-1].reason
    lead_silent(script, {}, store, tmp_path / "spool", fleet)
    assert [("n1", "CPU-n1-0", "COVERED", 1), ("n2", "CPU-n2-0", "COVERED", 3)] == cards_told(store)
    assert (1.0, 0) == (coverage_of(store, fleet)[0].share, exit_code_of(*coverage_of(store, fleet)))


def test_another_attempt_heals_a_gpu_that_was_counted_and_not_listed(store: Store, runner: Any, tmp_path: Path) -> None:
    """Its place in the count is filled by the UUID that NVML lists now; a node that is gone stays as it was."""
    counted, here = ListedCard(uuid="GPU 1 of n1", name=""), ListedCard(uuid="GPU-1", name="a CPU")
    missing = CardResult(uuid=counted.uuid, name="", state="MISSING", reason="this node does not have it")

    def lacks(plan: NodePlan) -> list[Heard]:
        done = next(it for it in runner(replace(plan, expected=("GPU-1",))) if isinstance(it, NodeDone))
        return [NodeDone(node=plan.node, verdict=replace(done.verdict, cards=(missing,)))]

    lead_silent({"n1": lacks, "n2": runner}, {"n1": (counted,), "n2": "no answer"}, store, tmp_path / "spool")
    fleet = store.fleets.fleet("latest").id
    assert [("n1", "GPU 1 of n1", "MISSING", 1), ("n2", "unknown cards of n2", "LOST", 1)] == cards_told(store)
    lead_silent({"n1": runner}, {"n1": (here,)}, store, tmp_path / "spool", fleet)
    assert [("n1", "GPU-1", "COVERED", 2), ("n2", "unknown cards of n2", "LOST", 2)] == cards_told(store)


def test_a_card_that_is_listed_late_and_expected_elsewhere_is_refused(
    store: Store, runner: Any, tmp_path: Path
) -> None:
    """Nobody knows which node has it, also where the other one has covered it."""
    script = {"n1": runner, "n2": runner}
    lead_silent(script, {"n2": "no answer"}, store, tmp_path / "spool")
    fleet = store.fleets.fleet("latest").id
    engine = lead_silent(script, {"n2": (ListedCard(uuid="CPU-n1-0", name=""),)}, store, tmp_path / "spool", fleet)
    assert ([], [("n1", "CPU-n1-0", "REFUSED", 2)]) == (engine.placed, cards_told(store))
    assert "n1 and n2 claim this UUID" in store.fleets.cards(fleet)[0].reason


def test_slow_cards_are_noted_among_equals() -> None:
    """By the median over cases, on one stack; where there are less than three nobody can say."""
    cards = [
        FleetCard(node="n", uuid=f"g{number}", name="H100", attempt=1, state="COVERED", run_id=f"r{number}")
        for number in range(5)
    ]
    prints = {"r0": "a", "r1": "a", "r2": "a", "r3": "b", "r4": "b"}
    times = [
        (f"g{card}", case, (1.2 if card in {2, 4} else 1.0) * base)
        for card in range(5)
        for case, base in (("c1", 10.0), ("c2", 90.0))
    ]
    assert (Slow(uuid="g2", node="n", factor=1.2, cases=2),) == slow_cards(times, cards, prints)


def test_a_slow_card_is_none_by_one_case_or_by_another_card() -> None:
    """One slow case of three is noise; times of a card that is not the fleet's, and of zero, slow nobody down."""
    cards = [FleetCard(node="n", uuid=f"g{n}", name="H100", attempt=1, state="COVERED", run_id="r") for n in range(4)]
    usual = [(f"g{n}", case, 10.0) for n in range(4) for case in ("c1", "c2")]
    odd = [("g0", "c3", 90.0), *((f"g{n}", "c3", 10.0) for n in (1, 2, 3))]
    others = [("stranger", "c1", 1.0), ("stranger", "c2", 1.0)]
    nothing = [(f"g{n}", "c4", 0.0) for n in range(4)]
    assert () == slow_cards([*usual, *odd, *others, *nothing], cards, {"r": "a"})


def test_the_slowest_card_comes_first() -> None:
    """Its node is looked at first."""
    factors = (1.0, 1.2, 1.5, 1.0, 1.0)
    cards = [FleetCard(node="n", uuid=f"g{n}", name="H100", attempt=1, state="COVERED", run_id="r") for n in range(5)]
    times = [(f"g{n}", "c", 10.0 * factor) for n, factor in enumerate(factors)]
    assert ["g2", "g1"] == [it.uuid for it in slow_cards(times, cards, {"r": "a"})]


@pytest.mark.parametrize(
    ("verdicts", "kind", "code"),
    [
        (("PASS", "PASS"), "", 0),
        (("PASS", "PASS"), "outlier stack", 0),
        (("PASS", "PASS"), "outlier card", 1),
        (("PASS", "PASS"), "non-deterministic kernel", 1),
        (("PASS", "PASS"), "undecided", 5),
        (("PASS", "INCONCLUSIVE"), "", 5),
        (("INCONCLUSIVE", "INCONCLUSIVE"), "outlier card", 1),
        (("PASS", "FAIL"), "undecided", 1),
    ],
)
def test_no_fleet_is_green_whose_cards_or_bits_are_not(
    verdicts: tuple[Verdict, ...], kind: VoteKind, code: int
) -> None:
    """Whatever is covered: a card that computes other bits than its equals fails the fleet, a tie decides nothing."""
    cards = tuple(
        FleetCard(node="n", uuid=f"g{n}", name="H100", attempt=1, state="COVERED", run_id=f"r{n}", verdict=verdict)
        for n, verdict in enumerate(verdicts)
    )
    votes = [Vote(kind=kind, who="g0", detail="", cases=(), ballots={})] if kind else []
    found = Coverage(fleet=FLEET, cards=cards)
    assert code == exit_code_of(found, votes)
    for told_of in (None, Compared(verdict=VERDICTS[code], whole_verdict=None, kinds=tuple(it.kind for it in votes))):
        told = replace(found, compared=told_of)
        verdict = VERDICTS[code] if told_of or "FAIL" in verdicts else "INCONCLUSIVE"
        glyph = {"PASS": "✓", "INCONCLUSIVE": "?", "FAIL": "✗"}[verdict]
        assert glyph == fleets_page([told]).fleets[0].glyph == fleet_page(told, CardQuery()).summary[0]


@pytest.mark.usefixtures("forked_helpers")
def test_the_site_shows_what_the_bits_of_the_cards_say(store: Store, runner: Any, tmp_path: Path) -> None:
    """Both cards are covered and pass, and they disagree: no tick, before and after the site has compared them."""
    _, fleet = lead({"n1": runner, "n2": lambda plan: runner(plan, digest="cd" * 32)}, store, tmp_path)
    assert 5 == exit_code_of(*coverage_of(store, fleet))
    site = Site(store, stored.shipped_kernels())
    before = site.fleet(fleet, CardQuery())
    assert ("? ", 1) == (before.summary[:2], len(before.notes))
    assert "not compared yet; 2 of 2 cards covered" in site.fleets(twin=False)
    home = render_parts(site.home())
    assert (False, True) == ("newest fleet" in home, "being worked out; reload" in home)
    site.shown_fleets.compare(fleet)
    after = site.fleet(fleet, CardQuery())
    assert "? the results of its cards differ (undecided); enough cards are covered" == after.summary
    assert after.notes[0].startswith("undecided: CPU-n1-0, CPU-n2-0: two cards disagree")
    assert "; run the same matrix on one more card of that stack: these have no majority (" in after.notes[0]
    assert "the results of its cards differ (undecided); 2 of 2 cards covered" in site.fleets(twin=False)
    assert 2 == render_parts(after).count("? differs from another card")
    (item,) = (it for it in json.loads(parts_json("home", site.home()))["attention"] if "fleet" in it["what"])
    assert ("? newest fleet has no verdict", f"fleet {fleet} of {FLEET.matrix}") == (item["what"], item["subject"])
    assert item["detail"] == (
        "the results of its cards differ (undecided); enough cards are covered; "
        "CPU-n1-0 on n1 differs from another card; CPU-n2-0 on n2 differs from another card"
    )
    lead({"n1": runner, "n2": runner}, store, tmp_path, id="equal")
    site.shown_fleets.compare("equal")
    assert "✓ enough cards are covered" == site.fleet("equal", CardQuery()).summary
    assert "newest fleet" not in render_parts(site.home())
    site.shown_fleets.end()


def test_the_row_of_an_odd_card_is_marked_and_comes_first() -> None:
    """In words, on both pages, however many cards are well; without an odd card the page has no such column."""
    cards = tuple(
        FleetCard(node="n", uuid=f"g{n}", name="H100", attempt=1, state="COVERED", run_id=f"r{n}", verdict="PASS")
        for n in range(60)
    )
    odd = Compared(verdict="FAIL", whole_verdict=None, kinds=("outlier card",), odd={"g42": "outlier card"})
    found = Coverage(fleet=FLEET, cards=cards, compared=odd)
    page = fleet_page(found, CardQuery())
    table = page.parts[-1].table
    assert table is not None
    told = [(row["uuid"], row["compared"]) for row in table.data()]
    assert ("g42", "✗ differs from its equals") == told[0]
    assert {""} == {words for _, words in told[1:]}
    (listed,) = fleets_page([found]).fleets
    assert ["g42"] == [row["uuid"] for row in listed.cards.data()]
    assert 1 == render_parts(page).count("✗ differs from its equals")
    alike = replace(found, compared=replace(odd, verdict="PASS", kinds=(), odd={}))
    assert ">Compared<" not in render_parts(fleet_page(alike, CardQuery()))


@pytest.mark.parametrize(
    ("share", "least", "digits", "told"),
    [
        (1.0, 1.0, 1, "100.0"),
        (2499 / 2500, 1.0, 1, "99.96"),
        (2499 / 2500, 0.99, 0, "99.96"),
        (0.98997, 0.99, 1, "98.997"),
        (0.99, 0.99, 1, "99.0"),
        (0.07, 0.07, 0, "7"),
        (238 / 240, 0.9, 1, "99.2"),
        (0.0, 0.0, 1, "0.0"),
        (1 / 3, 0.5, 0, "33"),
    ],
)
def test_coverage_is_never_rounded_up_to_what_it_is_not(share: float, least: float, digits: int, told: str) -> None:
    """99.96 % of the cards are neither all of them, nor what was asked for where that is more."""
    assert told == percent(share, least, digits)


def test_a_node_whose_run_is_not_decided_is_no_good_one() -> None:
    """It stands among the bad nodes, before those that are well; its card among the bad cards."""
    cards = [
        FleetCard(node=node, uuid=f"g-{node}", name="H100", attempt=1, state=state, verdict=verdict)
        for node, state, verdict in (
            ("a", "COVERED", "PASS"),
            ("b", "COVERED", "INCONCLUSIVE"),
            ("c", "LOST", None),
            ("d", "COVERED", "FAIL"),
        )
    ]
    rows = nodes_of(cards)
    states = [NODE_COLUMNS[0].cell(row) for row in rows]
    assert [("d", "✗ run failed"), ("c", "! not covered"), ("b", "? run not decided"), ("a", "✓ all covered")] == [
        (row.node, told) for row, told in zip(rows, states, strict=True)
    ]
    assert "On 1 of 4 nodes every card is covered, and every run passed" == node_words(rows)
    assert 3 == len(bad_nodes("f", rows).rows)
    assert ["d", "c", "b", "a"] == [card.node for card in cards_worst_first(Coverage(fleet=FLEET, cards=tuple(cards)))]
    assert [True, False, False, False] == [is_well(card) for card in cards]


def test_a_slow_card_is_noted_when_the_fleet_ends(store: Store, runner: Any, tmp_path: Path) -> None:
    """Once, in the fleet's own notes, which the site shows; it is no verdict."""
    slow = lambda plan: runner(plan, latency_us=13.0)  # noqa: E731
    _, fleet = lead({"n1": runner, "n2": slow, "n3": runner}, store, tmp_path)
    note = "CPU-n2-0 on n2 takes 1.30 times the median of its equals over 4 cases"
    assert (note,) == store.fleets.fleet(fleet).notes
    found, votes = coverage_of(store, fleet)
    assert (0, [f"note: {note}"]) == (
        exit_code_of(found, votes),
        [line for line in coverage_lines(found, votes) if "takes" in line],
    )
    assert note == fleets_page([found]).fleets[0].notes[0]
    assert Slow(uuid="CPU-n2-0", node="n2", factor=1.3, cases=4) == Slow.read(note)
    assert Slow.read("a UUID that n1 and n2 claim") is None
    lease = store.fleets.lead(fleet, "the next leader", 60)
    assert lease is not None
    store.fleets.end(lease, fleet, ["another note"])
    assert ("another note",) == store.fleets.fleet(fleet).notes


def test_an_interim_file_of_a_run_is_replaced_by_the_whole_one(store: Store, runner: Any, tmp_path: Path) -> None:
    """The same run comes twice; only its last file is taken in."""

    def twice(plan: NodePlan) -> list[Heard]:
        begun, file, done = runner(plan)
        run = file.name.removesuffix(".jsonl.gz")
        archive = transfer.read(tmp_path / file.name).run
        interim = tmp_path / f"{run}.interim.jsonl.gz"
        transfer.write(replace(archive, run=replace(archive.run, state="interrupted")), interim)
        return [begun, replace(file, name=interim.name, content=interim.read_bytes()), file, done]

    _, fleet = lead({"n1": twice}, store, tmp_path)
    (card,) = store.fleets.cards(fleet)
    assert ("COVERED", "completed") == (card.state, store.run(str(card.run_id)).state)


def test_an_answer_with_an_interim_file_alone_covers_nothing(store: Store, runner: Any, tmp_path: Path) -> None:
    """The node says that its run is complete, and what came is a part of it."""

    def part(plan: NodePlan) -> list[Heard]:
        begun, file, done = runner(plan, state="interrupted")
        return [begun, replace(file, name=file.name.replace(".", ".interim.", 1)), done]

    _, fleet = lead({"n1": part}, store, tmp_path)
    (card,) = store.fleets.cards(fleet)
    assert ("LOST", "its run did not reach the store") == (card.state, card.reason)
    assert "interrupted" == store.run(str(card.run_id)).state
    assert 5 == exit_code_of(*coverage_of(store, fleet))


def test_a_file_that_cannot_be_kept_costs_its_card_alone(store: Store, runner: Any, tmp_path: Path) -> None:
    """The leader's disk is full when one file comes: the fleet goes on, and the card says why it is not covered."""
    room = resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(plan: NodePlan) -> Iterator[Heard]:
        begun, file, done = runner(plan)
        yield begun
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, room[1]))
        yield file
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
        yield done

    class OneByOne(Scripted):
        def place(self, plan: NodePlan) -> None:
            self.waiting = chain(self.waiting, self.script[plan.node](plan))

    (tmp_path / "spool").mkdir()
    engine = OneByOne({"n1": full, "n2": runner})
    try:
        fleet = run_fleet(engine, ORDER, store, tmp_path / "spool", lambda _: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
    cards = {card.node: card for card in store.fleets.cards(fleet)}
    assert ("LOST", "COVERED") == (cards["n1"].state, cards["n2"].state)
    assert f"cannot be kept in {tmp_path}: File too large" in cards["n1"].reason
    assert [] == list((tmp_path / "spool").iterdir())


def test_what_a_bad_card_measured_reaches_no_store(store: Store, runner: Any, tmp_path: Path) -> None:
    """Its file had come before the node said that its hardware failed: the card is BAD, and nothing is covered."""

    def fails(plan: NodePlan) -> list[Heard]:
        begun, file, done = runner(plan, verdict="FAIL")
        bad = replace(done.verdict.cards[0], state="BAD", verdict="INCONCLUSIVE", reason="Xid 79")
        return [begun, file, replace(done, verdict=replace(done.verdict, cards=(bad,)))]

    _, fleet = lead({"n1": fails}, store, tmp_path)
    (card,) = store.fleets.cards(fleet)
    assert ("BAD", "INCONCLUSIVE", None) == (card.state, card.verdict, card.run_id)
    assert [] == store.runs()
    assert [] == list((tmp_path / "spool").iterdir())
    assert 5 == exit_code_of(*coverage_of(store, fleet))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"select": "*q8.k8*"}, "ran with --select (none), and not with"),
        ({"kernel": "torch-sdpa-math"}, "ran with --kernel"),
        ({"level": "full"}, "ran with --level smoke, and not with full"),
        ({"device": "cuda:all"}, "ran with --device cpu, and not with cuda"),
        ({"matrix_hash": "0" * 64}, "ran with MATRIX"),
    ],
)
def test_another_attempt_covers_no_card_by_other_cases(
    store: Store, runner: Any, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """Else a card would count as covered by fewer cases than its neighbours ran."""
    gone = lambda plan: [NodeGone(node=plan.node, state="LOST", reason="the node died")]  # noqa: E731
    order = replace(ORDER, plan=replace(ORDER.plan, matrix_hash="a" * 64))
    _, fleet = lead({"n1": runner, "n2": gone}, store, tmp_path, plan=order.plan)
    with pytest.raises(UsageError, match=re.escape(words)):
        lead({"n1": runner, "n2": runner}, store, tmp_path, again=fleet, plan=replace(order.plan, **changes))
    engine, _ = lead({"n1": runner, "n2": runner}, store, tmp_path, again=fleet, plan=order.plan)
    assert [("smoke", None)] == [(plan.level, plan.select) for plan in engine.placed]


def test_a_run_with_fewer_cases_than_were_asked_for_covers_no_card(store: Store, runner: Any, tmp_path: Path) -> None:
    """The node has another kernel card; whatever it ran has passed."""
    matrix = tmp_path / "wider.yaml"
    matrix.write_text(stored.MATRIX.replace("- 8\n", "- 8\n      - 12\n"))
    _, fleet = lead({"n1": runner}, store, tmp_path, plan=replace(ORDER.plan, matrix=str(matrix)))
    found, votes = coverage_of(store, fleet)
    assert ("REFUSED", 5) == (found.cards[0].state, exit_code_of(found, votes))
    assert "it ran another matrix" in found.cards[0].reason


def test_cards_that_ran_something_else_outvote_nobody(store: Store, runner: Any, tmp_path: Path) -> None:
    """Two nodes have another matrix of the same name, so they are refused: their bits say nothing about the third."""
    other = tmp_path / "other.yaml"
    other.write_text(stored.MATRIX.replace("- 8\n", "- 8\n      - 12\n"))
    odd = partial(runner, matrix=other, digest="cd" * 32, latency_us=99.0)
    _, fleet = lead({"n1": odd, "n2": odd, "n3": runner}, store, tmp_path)
    found, votes = coverage_of(store, fleet)
    assert ["REFUSED", "REFUSED", "COVERED"] == [card.state for card in found.cards]
    assert (5, [], ()) == (exit_code_of(found, votes), votes, found.slow)
    assert "INCONCLUSIVE" == compared(store, fleet, {}).verdict


def test_a_node_with_other_checks_covers_no_card(store: Store, runner: Any, tmp_path: Path) -> None:
    """It has another version of qualify, whose checks may find less; matrix and cases are the same."""
    older = partial(runner, check_version=CHECK_VERSION - 1, qualify_version="0.0.9")
    _, fleet = lead({"n1": older, "n2": runner}, store, tmp_path)
    found, votes = coverage_of(store, fleet)
    assert (["REFUSED", "COVERED"], 5) == ([card.state for card in found.cards], exit_code_of(found, votes))
    checks = f"version {CHECK_VERSION - 1} of the checks (qualify 0.0.9), and here they are version {CHECK_VERSION}"
    assert f"its node has {checks}" in found.cards[0].reason
    assert "install the same version of qualify on all nodes" in found.cards[0].reason


def test_a_node_with_other_code_of_a_kernel_covers_no_card(store: Store, runner: Any, tmp_path: Path) -> None:
    """The stack is the same: its pass is that of another kernel, and other bits are no fault of its card."""
    code = {"tiled-torch": {"a.py": "1" * 64}}
    other = partial(runner, code=code, digest="cd" * 32)
    _, fleet = lead({"n1": other, "n2": runner, "n3": runner}, store, tmp_path)
    found, votes = coverage_of(store, fleet)
    assert ["REFUSED", "COVERED", "COVERED"] == [card.state for card in found.cards]
    assert (5, []) == (exit_code_of(found, votes), votes)
    assert found.cards[0].reason.startswith("unlike most nodes of its stack: tiled-torch: its code changed since: ")
    lead({"n1": runner, "n2": runner, "n3": runner}, store, tmp_path, again=fleet)
    assert 0 == exit_code_of(*coverage_of(store, fleet))


def test_a_card_is_covered_by_its_own_run_alone(store: Store, runner: Any, tmp_path: Path) -> None:
    """Another file of the node names the card too: neither an older run of it, nor that of another card, counts."""
    named: list[str] = []

    def doubled(plan: NodePlan, other: str = "") -> list[Heard]:
        begun, file, done = runner(plan)
        (uuid,) = plan.expected or ()
        stack = replace(stored.make_stack(), device=replace(stored.DEVICE, uuid=other or uuid))
        place = Placement(node=plan.node, spread="repeat", cards=(uuid,), fleet=plan.fleet, attempt=plan.attempt)
        with Store.open(str(tmp_path / "more.db")) as more:
            run = stored.store_run(more, tmp_path / "serving.yaml", placement=place, stack=stack)
            more.export_run(run.id, tmp_path / f"{run.id}.jsonl.gz")
        second = replace(file, name=f"{run.id}.jsonl.gz", content=(tmp_path / f"{run.id}.jsonl.gz").read_bytes())
        (told,) = done.verdict.cards
        told = replace(told, run=run.id) if other else told
        named.append(told.run)
        return [begun, file, second, replace(done, verdict=replace(done.verdict, cards=(told,)))]

    _, fleet = lead({"n1": doubled, "n2": partial(doubled, other="CPU-n9-0")}, store, tmp_path)
    one, two = store.fleets.cards(fleet)
    assert ("COVERED", named[0]) == (one.state, one.run_id)
    assert ("LOST", f"run {named[1]} was measured on another card, CPU-n9-0") == (two.state, two.reason)


def test_a_fleet_that_covers_nothing_is_never_green(store: Store, tmp_path: Path) -> None:
    """Also where nothing was asked for: `--coverage 0`."""
    gone = lambda plan: [NodeGone(node=plan.node, state="LOST", reason="the node died")]  # noqa: E731
    _, fleet = lead({"n1": gone}, store, tmp_path, least_coverage=0.0)
    assert 5 == exit_code_of(*coverage_of(store, fleet))


def test_what_selects_nothing_is_told_before_any_node_is_asked(store: Store, runner: Any, tmp_path: Path) -> None:
    """In the same words as `qualify run`."""
    with pytest.raises(NothingSelected, match="--select"):
        lead({"n1": runner}, store, tmp_path, plan=replace(ORDER.plan, select="*no-such*"))
    assert [] == store.fleets.fleets()


@pytest.mark.parametrize("answer", ["", "[1]", "{}", "[" * 100_000])
def test_an_answer_that_is_none_costs_its_node_alone(answer: str) -> None:
    """Also one nested without end: the leader goes on with the other nodes."""
    pytest.importorskip("ray")
    from qualify.fleet.ray_engine import _heard

    told = "`qualify node` gave no verdict; it said: no room"
    assert NodeGone(node="n", state="LOST", reason=told) == _heard("n", ("done", answer, "log\nno room\n"))


def test_a_node_without_a_gpu_is_not_expected_and_a_card_that_is_gone_is() -> None:
    """The head of a cluster has no driver; a GPU that Ray counts and NVML does not list is missed."""
    pytest.importorskip("ray")
    from qualify.fleet.ray_engine import _unlisted

    cards, notes = expected_cards({"head": (), "n1": (ListedCard(uuid="GPU-1", name="H100"),)})
    assert (["GPU-1"], 1) == ([card.uuid for card in cards], len(notes))
    listed = (ListedCard(uuid="GPU-1", name="H100"),)
    missed = _unlisted("n1", {"Resources": {"GPU": 2.0}}, listed)
    assert [("GPU 2 of n1", "H100")] == [(card.uuid, card.name) for card in missed]
    assert () == _unlisted("n1", {"Resources": {"GPU": 1.0}}, listed)


def test_a_fleet_of_a_wrong_clock_does_not_hide_later_ones(store: Store, runner: Any, tmp_path: Path) -> None:
    """It was begun in the future: `latest`, pages and metrics mean the newest one that can be believed."""
    _, ahead = lead({"n1": runner}, store, tmp_path, id="ahead")
    later = datetime.now(UTC) + timedelta(days=6)
    with closing(sqlite3.connect(store.where)) as connection, connection:
        connection.execute("UPDATE fleets SET created_at = ?", [later.strftime("%Y-%m-%d %H:%M:%S.%f")])
    assert ahead == store.fleets.fleet("latest").id, "there is no other one"
    _, fleet = lead({"n1": runner}, store, tmp_path, id="now")
    assert [fleet, ahead] == [found.id for found in store.fleets.fleets()]
    (sample,) = next(it for it in fleet_metrics(store) if it.name == "qualify_fleet_timestamp_seconds").samples
    assert sample.value < later.timestamp()
