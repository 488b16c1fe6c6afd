"""A matrix that nodes share: who takes which shapes, what a lost node leaves to others, and what counts in the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stored_runs as stored
from sharing_nodes import CELLS, LOST, Sharing, again, cards_of, share

from qualify.errors import NoVerdict
from qualify.facts.fleet import FleetCard, NodePlan
from qualify.fleet.engine import NodeBegun, NodeDone
from qualify.fleet.shares import Shapes, cells_of
from qualify.judge.fleet import coverage_of, exit_code_of
from qualify.plan.plan import make_plan
from qualify.plan.selection import Selection, selected_by
from qualify.report.fleet_text import coverage_lines
from qualify.store.store import Store


def states(store: Store, fleet: str) -> dict[str, str]:
    """By node."""
    return {card.node: card.state for card in store.fleets.cards(fleet)}


def test_shapes_are_given_out_in_ever_smaller_shares() -> None:
    """Every shape once; two nodes take turns, one with three cards takes three times as much."""
    shapes = Shapes([f"c{number}" for number in range(64)], 4)
    taken = []
    while shapes:
        taken += [shapes.take(3), shapes.take(1)]
    assert [f"c{number}" for number in range(64)] == [cell for some in taken for cell in some]
    assert [36, 6, 13, 4, 5] == [len(some) for some in taken if some]


@pytest.mark.parametrize(
    ("nodes", "shape_s", "at_most"), [(2, 1.0, 0.85), (2, 5.0, 0.6), (8, 5.0, 0.25), (8, 30.0, 0.16)]
)
def test_what_nodes_share_ends_soon(nodes: int, shape_s: float, at_most: float) -> None:
    """Simulated nodes, which need 25 s to start for each share: the time until the last one ends, over that of one."""
    shapes, start_s, total = Shapes([f"c{number}" for number in range(160)], nodes), 25.0, 160
    ends = [0.0] * nodes
    while shapes:
        first = ends.index(min(ends))
        ends[first] += start_s + shape_s * len(shapes.take(1))
    assert at_most >= max(ends) / (start_s + shape_s * total)


def test_a_shape_that_takes_nodes_along_is_given_up() -> None:
    """After three nodes; the other shapes of those shares are not: they ran elsewhere meanwhile."""
    shapes = Shapes(["deadly", "b", "c", "d"], 4)
    lost = []
    for _ in range(3):
        lost += shapes.give_back(shapes.take(1))
    assert (["deadly"], ("b",)) == (lost, shapes.take(1))


def test_what_select_takes_for_each_shape(tmp_path: Path) -> None:
    """All kernels of a shape together; where a part was selected exactly that part, and no longer id."""
    (tmp_path / "serving.yaml").write_text(stored.MATRIX)
    from qualify.cards.load import load_matrix

    loaded = load_matrix(str(tmp_path / "serving.yaml"), (), {})
    whole = cells_of(make_plan(loaded, stored.shipped_kernels()), selected=False)
    assert tuple(f"{stored.CELL.format(size)}/*" for size in (8, 9)) == whole
    part = make_plan(loaded, stored.shipped_kernels(), selection=Selection(select="*/tiled-torch"))
    (first, _) = cells_of(part, selected=True)
    chosen = selected_by(first)
    assert chosen is not None
    assert [True, False, False] == [chosen(it) for it in (stored.IDS[0], stored.IDS[1], f"{stored.IDS[0]}-next")]


def test_nodes_share_the_matrix(store: Store, tmp_path: Path) -> None:
    """Every shape runs once, both kernels of it on one card; coverage says which card ran what."""
    engine, fleet = share(store, tmp_path, cards_of("n1", "n2"))
    found, votes = coverage_of(store, fleet)
    assert (1.0, 0, []) == (found.share, exit_code_of(found, votes), votes)
    given = [cell for some in engine.selected.values() for text in some for cell in text.split()]
    assert (sorted(CELLS), {"n1", "n2"}) == (sorted(given), set(engine.selected))
    assert 24 == sum(map(len, found.ran.values()))
    assert all(len(cases) % 2 == 0 for cases in found.ran.values())
    lines = list(coverage_lines(found, votes))
    assert any("12 of 12 production shapes covered" in line for line in lines)
    assert f"  GPU-n1 ran {len(found.ran['GPU-n1'])} cases" in lines
    with pytest.raises(NoVerdict, match="every production shape"):
        share(store, tmp_path, cards_of("n1"), again=fleet)


def test_others_run_what_a_lost_node_did_not_end(store: Store, tmp_path: Path) -> None:
    """Its first share counts; its second one, at which it dies, is run by the other node. The card is LOST."""

    def dies(engine: Sharing, node: str, number: int) -> Any:
        if (node, number) != ("n2", 2):
            return None
        engine.gone.add(node)
        return [NodeBegun(node=node), replace(LOST, node=node)]

    engine, fleet = share(store, tmp_path, cards_of("n1", "n2"), dies)
    found, votes = coverage_of(store, fleet)
    assert (1.0, 0) == (found.share, exit_code_of(found, votes))
    assert {"n1": "COVERED", "n2": "LOST"} == states(store, fleet)
    counted = {(it.node, cell) for it in found.shares if it.state == "COVERED" for cell in it.cells}
    first, second = (text.split() for text in engine.selected["n2"])
    assert {("n2", cell) for cell in first} | {("n1", cell) for cell in second} <= counted
    assert len(CELLS) == len(counted)
    assert any("the node died" in line for line in coverage_lines(found, votes))


def test_what_nobody_could_run_is_run_by_another_attempt(store: Store, tmp_path: Path) -> None:
    """All nodes are lost: exit 5. The next attempt runs only what is open; the fleet remembers that it is shared."""

    def dies(engine: Sharing, node: str, number: int) -> Any:
        return [replace(LOST, node=node)] if number == 2 else None

    _, fleet = share(store, tmp_path, cards_of("n1", "n2"), dies)
    found, votes = coverage_of(store, fleet)
    assert (5, {"n1": "LOST", "n2": "LOST"}) == (exit_code_of(found, votes), states(store, fleet))
    done = {cell for it in found.shares if it.state == "COVERED" for cell in it.cells}
    plan = NodePlan(matrix=str(tmp_path / "serving.yaml"), device="cpu:1", spread="repeat")
    second, _ = share(store, tmp_path, cards_of("n1", "n2"), again=fleet, plan=plan)
    given = {cell for some in second.selected.values() for text in some for cell in text.split()}
    assert set(CELLS) - done == given
    assert 0 == exit_code_of(*coverage_of(store, fleet))


def test_a_node_that_listed_no_cards_takes_part_in_another_attempt(store: Store, tmp_path: Path) -> None:
    """The only node with cards was lost; the silent one is asked again, and runs the whole matrix."""
    silent: dict[str, Any] = {**cards_of("n1"), "n2": []}
    _, fleet = share(store, tmp_path, silent, lambda *_: [replace(LOST, node="n1")], lists={"n2": "no answer"})
    assert (0.0, {"n1": "LOST", "n2": "LOST"}) == (coverage_of(store, fleet)[0].share, states(store, fleet))
    share(store, tmp_path, cards_of("n2"), again=fleet)
    assert 1.0 == coverage_of(store, fleet)[0].share
    assert ["GPU-n1", "GPU-n2"] == sorted(it.uuid for it in store.fleets.cards(fleet))


def test_a_bad_card_loses_its_share(store: Store, tmp_path: Path) -> None:
    """Its node answers, and sets its run aside; the card is BAD, and the other node runs its shapes."""

    def fails(engine: Sharing, node: str, number: int) -> Any:
        if node != "n2":
            return None
        done = engine.ran(again(store, engine, node), stack=stored.make_stack())[-1]
        assert isinstance(done, NodeDone)
        bad = tuple(replace(it, state="BAD", reason="XID 94", verdict=None) for it in done.verdict.cards)
        return [NodeBegun(node=node), replace(done, verdict=replace(done.verdict, cards=bad))]

    _, fleet = share(store, tmp_path, cards_of("n1", "n2"), fails)
    found, _ = coverage_of(store, fleet)
    assert (1.0, {"n1": "COVERED", "n2": "BAD"}) == (found.share, states(store, fleet))
    assert [("LOST", "XID 94")] == [(it.state, it.reason) for it in found.shares if it.node == "n2"]


def test_a_node_that_answers_for_a_strange_card_ends_nothing(store: Store, tmp_path: Path) -> None:
    """What it says of a card that nobody expects of it is left out, and a run of that card covers no share."""

    def strange(engine: Sharing, node: str, number: int) -> Any:
        if node != "n2":
            return None
        plan = again(store, engine, node)
        begun, file, done = engine.ran(replace(plan, expected=("GPU-x",)), stack=stored.make_stack())
        assert isinstance(done, NodeDone)
        (told,) = done.verdict.cards
        cards = (told, *([replace(told, uuid="GPU-n2")] if number == 1 else []))
        return [begun, file, replace(done, verdict=replace(done.verdict, cards=cards))]

    _, fleet = share(store, tmp_path, cards_of("n1", "n2"), strange)
    found, _ = coverage_of(store, fleet)
    assert (1.0, {"n1": "COVERED", "n2": "LOST"}) == (found.share, states(store, fleet))
    (lost,) = (it for it in found.shares if it.state != "COVERED")
    assert ("n2", "LOST") == (lost.node, lost.state)
    assert lost.reason.endswith("was measured on another card, GPU-x")


def test_only_runs_of_one_stack_count(store: Store, tmp_path: Path) -> None:
    """The odd node's shapes run again on the others; its evidence stays, and its card is REFUSED."""

    def odd(engine: Sharing, node: str, number: int) -> Any:
        return engine.ran(again(store, engine, node), stack=stored.make_stack(torch="2.12.0")) if node == "n2" else None

    _, fleet = share(store, tmp_path, cards_of("n1", "n2", "n3"), odd)
    found, votes = coverage_of(store, fleet)
    assert (1.0, 0, "REFUSED") == (found.share, exit_code_of(found, votes), states(store, fleet)["n2"])
    assert {"REFUSED"} == {it.state for it in found.shares if it.node == "n2"}
    assert {"GPU-n1", "GPU-n3"} == set(found.ran)
    assert 2 == len(found.stacks)


def test_only_cards_of_one_model_take_part(store: Store, tmp_path: Path) -> None:
    """The most frequent one; the others are refused with the reason."""
    cards = cards_of("n1", "n2") | cards_of("n3", model="A100")
    engine, fleet = share(store, tmp_path, cards)
    assert {"n1", "n2"} == set(engine.selected)
    found, _ = coverage_of(store, fleet)
    assert ("REFUSED", True) == (states(store, fleet)["n3"], "this fleet uses H100" in found.fleet.notes[0])


def test_a_share_that_fails_fails_the_fleet(store: Store, tmp_path: Path) -> None:
    """Whatever the others say."""

    def fails(engine: Sharing, node: str, number: int) -> Any:
        if (node, number) != ("n2", 1):
            return None
        return engine.ran(again(store, engine, node), stack=stored.make_stack(), verdict="FAIL")

    _, fleet = share(store, tmp_path, cards_of("n1", "n2"), fails)
    found, votes = coverage_of(store, fleet)
    verdicts = {card.node: card.verdict for card in store.fleets.cards(fleet)}
    assert (1.0, 1, {"n1": "PASS", "n2": "FAIL"}) == (found.share, exit_code_of(found, votes), verdicts)


def test_a_card_that_came_too_late_ran_nothing(store: Store, tmp_path: Path) -> None:
    """There are fewer shapes than cards: nothing is wrong with it, and it proves nothing."""
    _, fleet = share(store, tmp_path, cards_of("n1", "n2", "n3"), cells=CELLS[:1])
    by_state = {card.state: card for card in store.fleets.cards(fleet)}
    assert {"COVERED", "REFUSED"} == set(by_state)
    late: FleetCard = by_state["REFUSED"]
    assert "the other cards had run everything" in late.reason
