"""The run that a fleet's shares make up: gated, accepted and shown as any other, never more than was covered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stored_runs as stored
from cli_process import Ended, call
from sealing import new_pair
from sharing_nodes import CELLS, LOST, Sharing, again, cards_of, share

from qualify.errors import NoVerdict
from qualify.facts.case import Case
from qualify.facts.fleet import NodePlan
from qualify.facts.outcome import Crashed, NotRun, Outcome, card_of
from qualify.facts.run import Run
from qualify.judge.fleet import coverage_of
from qualify.report.fleet_text import coverage_data, coverage_lines
from qualify.seal.keys import SIGNING_KEY
from qualify.store.store import Store
from qualify.verdict.origin import origin_of

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
    assert "on n2 does not count: REFUSED, it runs on another stack than the other nodes" in reasons(gate)
    assert "torch 2.11.0 → 2.12.0" in reasons(gate)


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
    """With one key for nodes and leader the gate accepts it; a share of another key does not count."""
    mine, other = new_pair(tmp_path, "mine"), new_pair(tmp_path, "other")
    monkeypatch.setenv(SIGNING_KEY, str(mine.private))
    for pair, code in ((mine, 0), (other, 5)):
        with Store.open(str(tmp_path / "s.db")) as store:
            share(store, tmp_path, cards_of("n1", "n2"), key=pair.signing)
        gate = command(tmp_path, "gate", "--json", "--require-signed-by", mine.public)
        assert (code, True) == (gate.code, "is sealed by" in reasons(gate)), gate.out


def test_a_leader_takes_only_what_named_keys_sealed(tmp_path: Path) -> None:
    """Nodes with a key of their own; unsealed shares are refused when they come."""
    node = new_pair(tmp_path, "node")
    keys = tuple(node.trusted)
    with Store.open(str(tmp_path / "s.db")) as store:
        _, fleet = share(store, tmp_path, cards_of("n1"), key=node.signing, keys=keys)
        assert CASES == len(store.records(whole_of(store, fleet).id))
        _, fleet = share(store, tmp_path, cards_of("n1"), keys=keys)
        assert (None, "LOST") == (store.fleets.whole(store.fleets.fleet(fleet)), store.fleets.cards(fleet)[0].state)
