"""The run that a fleet's shares make up: gated, accepted and shown as any other, never more than was covered."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import stored_runs as stored
from builders import answered, budget_of, lse_of, make_evidence, make_statistics, make_timing, make_witness, make_xid
from cli_process import Ended, call
from sealing import new_pair
from sharing_nodes import CELLS, LOST, Sharing, again, cards_of, share

from qualify.errors import NoVerdict
from qualify.facts.case import Case
from qualify.facts.fleet import FleetShare, ListedCard, NodePlan, ShareState
from qualify.facts.outcome import Crashed, Measured, NotRun, Outcome, Statistics, card_of, noted
from qualify.facts.run import Run
from qualify.fleet.shares import Shapes
from qualify.judge.fleet import coverage_of, exit_code_of
from qualify.judge.whole import whole_notes
from qualify.report.fleet_text import coverage_data, coverage_lines
from qualify.seal.keys import SIGNING_KEY
from qualify.store.store import Store
from qualify.verdict.origin import origin_of, origins_of, taken_over

CASES = 24


def whole_of(store: Store, fleet: str) -> Run:
    """The run of the whole matrix."""
    found = store.fleets.whole(store.fleets.fleet(fleet))
    assert found is not None
    return store.run(found)


def command(folder: Path, *words: object) -> Ended:
    """One command on the store of the folder."""
    return call(*words, "--db", folder / "s.db", cwd=folder)


def reasons(found: Ended) -> str:
    """What the JSON of a gate says of cases and notes."""
    data = json.loads(found.out)
    return "\n".join([*data["notes"], *(reason for case in data["cases"] for reason in case["reasons"])])


def test_the_whole_is_gated_accepted_and_compared(tmp_path: Path) -> None:
    """It is the newest run: `latest` means it. Each outcome names its card, and the run that measured it."""
    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, cards_of("n1", "n2", "n3"))
        run = whole_of(store, fleet)
        records = store.records(run.id)
        shares = {it.run_id: it.node for it in store.fleets.shares(fleet)}
        assert (None, True) == (run.received_at, all(store.run(str(it)).received_at for it in shares))
        lines = list(coverage_lines(*coverage_of(store, fleet)))
        data = coverage_data(*coverage_of(store, fleet), 0)
    assert (CASES, "", "completed") == (len(records), run.select, run.state)
    origins = [origin_of(record.outcome) for record in records]
    assert [f"GPU-{shares[it.run]}" for it in origins if it] == [card_of(record.outcome) for record in records]
    assert (run.id, True) == (data["whole"], f"the shares make up run {run.id}: qualify gate --run {run.id}" in lines)
    files = ("--junit", "j.xml", "--sarif", "s.sarif", "--markdown", "m.md", "--statement", "statement.json")
    gate = command(tmp_path, "gate", "--json", "--subject", f"image@sha256:{'ab' * 32}", *files)
    told = json.loads(gate.out)
    assert (0, run.id, {run.id, *shares}) == (gate.code, told["run"], set(told["runs"]))
    assert f"the cases ran on 3 cards of fleet {fleet}, in {len(shares)} runs" in reasons(gate)
    assert CASES + len(CELLS) + 1 == (tmp_path / "j.xml").read_text().count("<testcase ")
    assert all(it in (tmp_path / "s.sarif").read_text() for it in (run.id, *shares))
    assert f'"run": "{run.id}"' in (tmp_path / "statement.json").read_text()
    assert f"of fleet {fleet}" in (tmp_path / "m.md").read_text()
    accepted = command(tmp_path, "baseline", "accept", "latest", "--by", "jane", "--reason", "serves")
    assert (0, True) == (accepted.code, run.id in accepted.out), accepted.err
    assert 0 == command(tmp_path, "gate", "--against", "baseline").code
    assert run.id in command(tmp_path, "report", "latest", "--out", tmp_path / "out").out


def test_a_case_that_nobody_covered_is_no_verdict(tmp_path: Path) -> None:
    """Both nodes die: exit 5 with the node's fate. Another attempt makes a new whole, and that one qualifies."""

    def dies(engine: Sharing, node: str, number: int) -> Any:
        return [replace(LOST, node=node)] if number == 2 else None

    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, cards_of("n1", "n2"), dies)
        part = whole_of(store, fleet)
        open_ = [it.case.cell for it in store.records(part.id) if isinstance(it.outcome, NotRun)]
        covered = {cell for it in store.fleets.shares(fleet) if it.state == "COVERED" for cell in it.cells}
    assert {f"{cell}/*" for cell in open_} == set(CELLS) - covered != set()
    gate = command(tmp_path, "gate", "--json")
    assert 5 == gate.code
    assert "no card of the fleet covered it: share" in reasons(gate)
    assert "LOST, the node died" in reasons(gate)
    text = command(tmp_path, "gate").out
    advice = f"make fresh evidence on that stack: qualify fleet {tmp_path}/serving.yaml --again {fleet} --db"
    assert advice in text, text
    told = command(tmp_path, "coverage").out
    assert f"run what is not covered again: {advice.partition(': ')[2]}" in told, told
    assert f"qualify gate --run {part.id} --db" in told
    assert (
        "not everything was decided"
        in command(tmp_path, "baseline", "accept", "latest", "--by", "jane", "--reason", "no").err
    )
    with Store.open(str(tmp_path / "s.db")) as store:
        share(store, tmp_path, cards_of("n1", "n2"), again=fleet)
        assert part.id != whole_of(store, fleet).id
        with pytest.raises(NoVerdict, match="nothing is left to run"):
            share(store, tmp_path, cards_of("n1"), again=fleet)
    assert 0 == command(tmp_path, "gate").code


def test_what_does_not_count_of_a_whole_is_named_and_counted(store: Store, tmp_path: Path) -> None:
    """Refused shares before lost ones, five at most, and how many more; the evidence is as old as its oldest run."""
    _, fleet = share(store, tmp_path, cards_of("n1"))
    run = whole_of(store, fleet)
    assert run.placement is not None
    early, late = (stored.make_run(started_at=stored.NOW - timedelta(hours=hours)) for hours in (30, 1))
    records = [
        replace(it, outcome=taken_over(stored.PASSED, late if n % 2 else early))
        for n, it in enumerate(store.records(run.id))
    ]
    lease = store.fleets.lead(fleet, "the test", 60)
    assert lease is not None
    states: list[ShareState] = ["LOST"] * 5 + ["REFUSED"] * 2
    for number, state in enumerate(states, 100):
        given = FleetShare(number=number, node="n9", cells=(), state=state, reason="a reason", epoch=lease.epoch)
        store.fleets.share(lease, fleet, given)
    made, *told = whole_notes(store, run.placement, origins_of(records))
    begun = f", in 2 runs, begun {early.started_at:%Y-%m-%d %H:%M} UTC at the earliest"
    assert (True, True) == (made.startswith("the cases ran on 1 cards of fleet "), made.endswith(begun))
    expected = [(105, "REFUSED"), (106, "REFUSED"), (100, "LOST"), (101, "LOST"), (102, "LOST")]
    named = [f"share {number} on n9 does not count: {state}, a reason" for number, state in expected]
    assert [*named, "2 more shares do not count"] == told


def test_what_a_refused_share_ran_counts_for_no_card(store: Store, tmp_path: Path) -> None:
    """Its run is stored, and its cases are none of those that count."""
    _, fleet = share(store, tmp_path, cards_of("n1"))
    first, *_ = store.fleets.shares(fleet)
    before, _ = coverage_of(store, fleet)
    lease = store.fleets.lead(fleet, "the test", 60)
    assert lease is not None
    store.fleets.share(lease, fleet, replace(first, state="REFUSED", epoch=lease.epoch))
    after, _ = coverage_of(store, fleet)
    lost = 2 * len(first.cells)
    assert [CASES, CASES - lost] == [sum(map(len, found.ran.values())) for found in (before, after)]


def test_a_share_on_another_stack_is_said(tmp_path: Path) -> None:
    """Others ran its shapes: the whole qualifies, and the note says which share does not count, and what differs."""

    def odd(engine: Sharing, node: str, number: int) -> Any:
        return engine.ran(again(store, engine, node), stack=stored.make_stack(torch="2.12.0")) if node == "n2" else None

    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, cards_of("n1", "n2", "n3"), odd)
        run = whole_of(store, fleet)
        assert {"GPU-n1", "GPU-n3"} == {card_of(it.outcome) for it in store.records(run.id)}
    gate = command(tmp_path, "gate", "--json")
    assert 0 == gate.code
    assert "on n2 does not count: REFUSED, unlike the other nodes: it is of another stack" in reasons(gate)
    assert "torch 2.11.0 → 2.12.0" in reasons(gate)


def test_a_share_that_contradicts_itself_covers_nothing(tmp_path: Path) -> None:
    """Somebody gave its run another date than its id has: in the run of the whole nobody would see that."""

    def edited(engine: Sharing, node: str, number: int) -> None:
        if number == 2:
            with closing(sqlite3.connect(tmp_path / "s.db")) as connection, connection:
                moved = "strftime('%Y-%m-%d %H:%M:%f000', started_at, '+2 hours')"
                connection.execute(f"UPDATE runs SET started_at = {moved}, finished_at = {moved}")

    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, cards_of("n1"), edited)
        assert 5 == fleet_code(store, fleet)
    gate = command(tmp_path, "gate", "--json")
    assert (5, True) == (gate.code, "it contradicts itself: its id says that it began at" in reasons(gate)), gate


def test_a_failure_on_one_card_fails_the_whole(tmp_path: Path) -> None:
    """Crashes name their run as well. A waiver is judged on the whole."""

    def crashes(case: Case) -> Outcome:
        if "/b1.q9.k9/" not in case.id:
            return stored.PASSED
        return Crashed(stage="call", error="SIGSEGV", log="", attempt=2)

    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, cards_of("n1", "n2"), outcome=crashes)
        run = whole_of(store, fleet)
        bad = [it.outcome for it in store.records(run.id) if isinstance(it.outcome, Crashed)]
    assert [True, True] == [origin_of(it) is not None and card_of(it) in {"GPU-n1", "GPU-n2"} for it in bad]
    assert 1 == command(tmp_path, "gate").code
    waivers = stored.write_waivers(tmp_path / "w.yaml", {"select": "*q9.k9*", "checks": ["crash"]})
    gate = command(tmp_path, "gate", "--json", "--waivers", waivers)
    assert 2 == json.loads(gate.out)["counts"]["verdicts"]["WAIVED"], gate.out


def test_a_selected_part_is_no_whole_matrix(tmp_path: Path) -> None:
    """The run says what was selected, as a run on one machine does."""
    plan = NodePlan(matrix=str(tmp_path / "serving.yaml"), device="cpu:1", spread="shard")
    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, cards_of("n1", "n2"), cells=CELLS[:3], plan=plan)
        assert " ".join(CELLS[:3]) == whole_of(store, fleet).select
    gate = command(tmp_path, "gate", "--json")
    assert (5, True) == (gate.code, "the rest of the matrix is not judged" in reasons(gate))


def test_a_leader_that_ended_before_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is covered, and the next attempt stores the whole."""
    from qualify.fleet import shared

    with Store.open(str(tmp_path / "s.db")) as store:
        with monkeypatch.context() as patched:
            patched.setattr(shared, "store_whole", lambda *_: None)
            _, fleet = share(store, tmp_path, cards_of("n1"))
        assert store.fleets.whole(store.fleets.fleet(fleet)) is None
        engine, _ = share(store, tmp_path, cards_of("n1"), again=fleet)
        assert ({}, CASES) == (engine.plans, len(store.records(whole_of(store, fleet).id)))


def test_a_sealed_whole_takes_only_sealed_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one key for nodes and leader the gate accepts it; a share of another key is not taken."""
    mine, other = new_pair(tmp_path, "mine"), new_pair(tmp_path, "other")
    monkeypatch.setenv(SIGNING_KEY, str(mine.private))
    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, cards_of("n1", "n2"), key=mine.signing)
        assert 0 == fleet_code(store, fleet)
        gate = command(tmp_path, "gate", "--json", "--require-signed-by", mine.public)
        assert (0, True) == (gate.code, "is sealed by" in reasons(gate)), gate.out
        _, fleet = share(store, tmp_path, cards_of("n1"), key=other.signing)
        (card,) = store.fleets.cards(fleet)
        assert (5, "LOST", True) == (fleet_code(store, fleet), card.state, "seal" in card.reason), card


def test_a_leader_takes_only_what_named_keys_sealed(tmp_path: Path) -> None:
    """Nodes with a key of their own; unsealed shares are refused when they come."""
    node = new_pair(tmp_path, "node")
    keys = tuple(node.trusted)
    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, cards_of("n1"), key=node.signing, keys=keys)
        assert CASES == len(store.records(whole_of(store, fleet).id))
        _, fleet = share(store, tmp_path, cards_of("n1"), keys=keys)
        assert (None, "LOST") == (store.fleets.whole(store.fleets.fleet(fleet)), store.fleets.cards(fleet)[0].state)


DRIFT = "policy: {drift: {kernels: fail, numbers: fail, times: fail}}\n"
FIRST = stored.IDS[0]


def drifted(statistics: Statistics | None = None, kernel: str = "one", latency_us: float = 100.0) -> Any:
    """Every case has numbers, a kernel and a time; the first one's are given."""

    def outcome(case: Case) -> Outcome:
        here = case.id == FIRST
        numbers = statistics if here and statistics else make_statistics(E=0.2, E_without_underflow=0.2)
        made = make_evidence(
            budget_of(numbers), lse_of(numbers), witness=make_witness("proven", kernel if here else "one")
        )
        timing = make_timing(latency_us if here else 100.0)
        return answered(Measured(evidence=replace(made, statistics=(numbers,), timing=timing)), "smoke")

    return outcome


@pytest.mark.parametrize(
    ("changes", "nodes", "code", "words"),
    [
        ({}, ("n1", "n2"), 0, ""),
        ({"kernel": "other"}, ("n1", "n2"), 1, "one -> other"),
        ({"statistics": make_statistics()}, ("n1", "n2"), 1, "error (worst element) 0.2 became 0.62"),
        ({"latency_us": 200.0}, ("n1", "n2"), 1, "slower"),
        ({"latency_us": 200.0}, ("n2", "n1"), 5, "the runs used two cards"),
        ({}, ("n1",), 5, "12 of 24 cases ran on another card"),
    ],
)
def test_the_policy_of_drift_holds_for_the_whole(
    tmp_path: Path, changes: dict[str, Any], nodes: tuple[str, ...], code: int, words: str
) -> None:
    """Against an accepted whole: another kernel, looser numbers, longer times of a case that ran on the same card.

    Where a case ran on another card, its times say nothing: no verdict, never a red or a green one.
    """

    def fleet(names: tuple[str, ...], outcome: Any) -> None:
        """Each node runs a half of the shapes; which one, its place says."""
        with Store.open(str(tmp_path / "s.db")) as store, pytest.MonkeyPatch.context() as patched:
            patched.setattr(Shapes, "take", lambda self, cards: _half(self, len(names)))
            share(store, tmp_path, cards_of(*names), outcome=outcome, policy=DRIFT)

    fleet(("n1", "n2"), drifted())
    accepted = command(tmp_path, "baseline", "accept", "latest", "--by", "jane", "--reason", "serves")
    assert 0 == accepted.code, accepted.err
    fleet(nodes, drifted(**changes))
    gate = command(tmp_path, "gate", "--against", "baseline")
    assert (code, True) == (gate.code, words in gate.out), gate.out + gate.err


def _half(shapes: Any, parts: int) -> tuple[str, ...]:
    """The next half of all shapes, or all."""
    return tuple(shapes._waiting.popleft() for _ in range(min(len(shapes._waiting), shapes.total // parts)))


def fleet_code(store: Store, fleet: str) -> int:
    """What `qualify fleet` and `qualify coverage` end with."""
    return exit_code_of(*coverage_of(store, fleet))


def test_a_node_whose_cards_differ_covers_nothing(tmp_path: Path) -> None:
    """It plans one case less, and every case that it has passes: others run its shapes, or the exit code is 5."""

    def lacks(engine: Sharing, node: str, number: int) -> Any:
        plan = again(store, engine, node)
        return engine.ran(plan, stack=stored.make_stack(), left_out="/tiled-torch") if node == "n2" else None

    for nodes, code in ((("n1", "n2"), 0), (("n2",), 5)):
        with Store.open(str(tmp_path / f"{code}.db")) as store:
            _, fleet = share(store, tmp_path, cards_of(*nodes), lacks)
            (card,) = (it for it in store.fleets.cards(fleet) if it.node == "n2")
            assert (code, "REFUSED") == (fleet_code(store, fleet), card.state), card
            assert "as planned here: a kernel card on that node probably differs" in card.reason


@pytest.mark.parametrize("changes", [{"qualify_version": "9.9"}, {"code": {"tiled-torch": {"x.py": "ab"}}}])
def test_a_node_with_other_code_covers_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The stack is the same; the other nodes run its shapes, and the whole is complete."""

    def odd(engine: Sharing, node: str, number: int) -> Any:
        return engine.ran(again(store, engine, node), stack=stored.make_stack(), run=changes) if node == "n2" else None

    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, cards_of("n1", "n2", "n3"), odd)
        assert [] == [it.case.id for it in store.records(whole_of(store, fleet).id) if isinstance(it.outcome, NotRun)]
        assert {"GPU-n1", "GPU-n3"} == set(coverage_of(store, fleet)[0].ran)
        assert 0 == fleet_code(store, fleet)


def test_what_was_not_run_is_never_green(tmp_path: Path) -> None:
    """Whatever share of the matrix was asked for: cases that have not run give no verdict."""

    def dies(engine: Sharing, node: str, number: int) -> Any:
        return [replace(LOST, node=node)] if number == 2 else None

    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, cards_of("n1", "n2"), dies, least_coverage=0.1)
        found, votes = coverage_of(store, fleet)
        assert (True, {"PASS"}, 5) == (found.enough, found.verdicts, exit_code_of(found, votes))
        assert "is INCONCLUSIVE: the gate names the cases" in "\n".join(coverage_lines(found, votes))


def test_a_fleet_without_its_whole_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leader was killed before it could store the run of the whole matrix."""
    from qualify.fleet import shared

    monkeypatch.setattr(shared, "store_whole", lambda *_: None)
    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, cards_of("n1"))
        assert (1.0, 5) == (coverage_of(store, fleet)[0].share, fleet_code(store, fleet))


def test_a_card_that_fails_beside_one_that_passes_fails_the_fleet(tmp_path: Path) -> None:
    """Two cards share a share; the driver reported a fault of a program on the second one."""

    def faults(engine: Sharing, node: str, number: int) -> Any:
        plan = replace(again(store, engine, node), expected=("GPU-a", "GPU-b"))
        *said, done = engine.ran(plan, stack=stored.make_stack())
        first, second = done.verdict.cards
        cards = (first, replace(second, verdict="FAIL", reason="Xid 31"))
        return [*said, replace(done, verdict=replace(done.verdict, cards=cards))]

    two = {"n1": [ListedCard(uuid="GPU-a", name="H100"), ListedCard(uuid="GPU-b", name="H100")]}
    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, two, faults)
        assert (1, {"FAIL"}) == (fleet_code(store, fleet), coverage_of(store, fleet)[0].verdicts)


@pytest.mark.parametrize(
    ("number", "code", "verdict", "said"),
    [
        (31, 1, "FAIL", "Xid 31 (GPU memory page fault); a program on the card caused it, and nothing crashed or hung"),
        (79, 5, "INCONCLUSIVE", "GPU-n1 failed: the driver reported Xid 79 (the GPU has fallen off the bus)"),
    ],
)
def test_a_fault_that_a_node_noted_holds_for_the_whole(
    tmp_path: Path, number: int, code: int, verdict: str, said: str
) -> None:
    """The driver reported an error while one share ran, and every check passed."""

    def outcome(case: Case) -> Outcome:
        return noted(stored.PASSED, make_xid(number)) if case.id == FIRST else stored.PASSED

    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, cards_of("n1", "n2"), outcome=outcome)
        found, votes = coverage_of(store, fleet)
        assert (code, verdict) == (exit_code_of(found, votes), found.whole_verdict)
    gate = command(tmp_path, "gate", "--json")
    assert (code, True) == (gate.code, said in reasons(gate)), gate.out
