"""A fleet's leader, whichever engine places the nodes' tasks: states, deadlines, leases, and what comes back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stored_runs as stored
from builders import make_evidence, make_timing

from qualify.errors import LeaseLost, NoVerdict, RunBusy
from qualify.facts.fleet import CardResult, FleetCard, ListedCard, NodePlan, NodeVerdict, Slow
from qualify.facts.outcome import Measured
from qualify.facts.placement import Placement
from qualify.fleet import drive
from qualify.fleet.drive import FleetOrder, expected_cards
from qualify.fleet.engine import Heard, NodeBegun, NodeDone, NodeFile, NodeGone
from qualify.fleet.lead import run_fleet
from qualify.judge.fleet import coverage_of, exit_code_of, slow_cards
from qualify.report.fleet_text import coverage_lines
from qualify.report.fleets import fleets_page
from qualify.store import transfer
from qualify.store.store import Store

ORDER = FleetOrder(plan=NodePlan(matrix="serving", device="cpu:1"), matrix="serving", start_s=60.0)


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
    ) -> Any:
        (uuid,) = plan.expected or ()
        place = Placement(node=plan.node, spread="repeat", cards=(uuid,), fleet=plan.fleet, attempt=plan.attempt)
        with Store.open(str(tmp_path / f"{plan.node}.db")) as store:
            evidence = replace(make_evidence(), timing=make_timing(latency_us), output_digest="ab" * 32)
            stack = replace(stored.make_stack(), device=replace(stored.DEVICE, uuid=uuid))
            outcome = Measured(evidence=evidence)
            run = stored.store_run(store, matrix, outcome, state=state, placement=place, stack=stack)
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


def test_a_verbose_fleet_tells_what_its_nodes_send(store: Store, runner: Any, tmp_path: Path) -> None:
    """A node that begins and a file of it have a line each, apart from the usual log."""
    told: dict[str, list[str]] = {"log": [], "detail": []}
    (tmp_path / "spool").mkdir()
    run_fleet(Scripted({"n1": runner}), ORDER, store, tmp_path / "spool", told["log"].append, told["detail"].append)
    begun, came = told["detail"]
    assert "n1: it has begun" == begun
    assert re.fullmatch(r"n1: run \S+ came, \d+ bytes", came)
    assert 2 == len(told["log"])


def test_a_card_whose_run_fails_is_covered_and_not_qualified(store: Store, runner: Any, tmp_path: Path) -> None:
    """Coverage says that it ran, the verdict that it is wrong: exit 1."""
    _, fleet = lead({"n1": lambda plan: runner(plan, verdict="FAIL")}, store, tmp_path)
    found, votes = coverage_of(store, fleet)
    assert (True, 1) == (found.enough, exit_code_of(found, votes))
    (advice,) = (line for line in coverage_lines(found, votes) if line.startswith("do:"))
    assert f"do: see what failed: qualify report {found.cards[0].run_id}" == advice


def test_a_whole_run_counts_although_its_node_died_later(store: Store, runner: Any, tmp_path: Path) -> None:
    """What had ended is covered; what had not is stored as an interrupted run of a lost card."""

    def dies(state: str) -> Any:
        return lambda plan: [
            *runner(plan, state=state, answers=False),
            NodeGone(node=plan.node, state="LOST", reason="the node died"),
        ]

    _, fleet = lead({"n1": dies("completed"), "n2": dies("interrupted")}, store, tmp_path)
    cards = {card.node: card for card in store.fleets.cards(fleet)}
    assert {"n1": "COVERED", "n2": "LOST"} == {name: card.state for name, card in cards.items()}
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
    assert (note,) == fleets_page([found]).fleets[0].notes
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
