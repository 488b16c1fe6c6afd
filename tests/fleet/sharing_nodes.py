"""Nodes that share a matrix: an engine for tests, whose nodes answer with runs of a real plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import stored_runs as stored

from qualify.facts.case import Case
from qualify.facts.fleet import CardResult, CardState, ListedCard, NodePlan, NodeVerdict
from qualify.facts.outcome import Outcome
from qualify.facts.placement import Placement
from qualify.facts.run import Run
from qualify.fleet.drive import FleetOrder
from qualify.fleet.engine import Heard, NodeBegun, NodeDone, NodeFile, NodeGone
from qualify.fleet.lead import run_fleet
from qualify.fleet.sealing import Ledger
from qualify.plan.selection import selected_by
from qualify.seal.keys import SigningKey
from qualify.store.archive import RunArchive
from qualify.store.store import Store

CELLS = tuple(f"{stored.CELL.format(size)}/*" for size in range(8, 20))
MATRIX = stored.MATRIX.replace("- 8\n      - 9", "\n      ".join(f"- {size}" for size in range(8, 20)))
LOST = NodeGone(node="", state="LOST", reason="the node died")


class Sharing:
    """An engine whose nodes run what they are told, one share at a time in turns, unless ``trouble`` says otherwise."""

    name = "sharing"

    def __init__(self, folder: Path, cards: dict[str, list[ListedCard]], trouble: Callable[..., Any]) -> None:
        self.cards, self.trouble, self.folder = cards, trouble, folder
        self.placed: dict[str, NodePlan] = {}
        self.plans: dict[str, NodePlan] = {}
        self.selected: dict[str, list[str]] = defaultdict(list)
        self.gone: set[str] = set()
        self.lists: dict[str, str] = {}
        """why nodes did not list their cards"""
        self.outcome: Callable[[Case], Outcome] = passed
        self.key: SigningKey | None = None

    def nodes(self) -> list[str]:
        return [name for name in self.cards if name not in self.gone]

    def inventory(self, device: str, wait_s: float) -> dict[str, Any]:
        return {name: tuple(cards) for name, cards in self.cards.items()} | self.lists

    def place(self, plan: NodePlan) -> None:
        self.placed[plan.node] = self.plans[plan.node] = plan
        self.selected[plan.node].append(plan.select or "")

    def left(self, node: str) -> tuple[CardState, str]:
        return "LOST", "the node died"

    def hear(self, wait_s: float) -> list[Heard]:
        heard: list[Heard] = []
        for node, plan in list(self.placed.items()):
            del self.placed[node]
            number = len(self.selected[node])
            heard += self.trouble(self, node, number) or self.ran(plan, stack=stored.make_stack())
        return heard

    def cancel(self, node: str) -> None:
        self.placed.pop(node, None)

    @cached_property
    def planned(self) -> tuple[Run, RunArchive]:
        """A run of the whole matrix: every share has a part of it."""
        matrix = self.folder / "serving.yaml"
        run, found = _planned(matrix.read_text(), self.outcome)
        return replace(run, matrix_path=str(matrix)), found

    def ran(self, plan: NodePlan, **changes: Any) -> list[Heard]:
        """A run of the share on the node's cards."""
        uuids = tuple(plan.expected or ())
        place = Placement(node=plan.node, spread="shard", cards=uuids, fleet=plan.fleet, attempt=plan.attempt)
        stack = replace(changes["stack"], device=replace(stored.DEVICE, uuid=uuids[0]))
        verdict = changes.get("verdict", "PASS")
        run, found = self.planned
        selected, left_out = selected_by(plan.select or ""), changes.get("left_out", "nothing")
        assert selected is not None

        def mine(case_id: str) -> bool:
            return selected(case_id) and left_out not in case_id

        run = replace(run, id=stored.make_run().id, placement=place, stack=stack, select=plan.select)
        run = replace(run, state="running", finished_at=None, environments={})
        run = replace(run, **changes.get("run", {}))
        path = self.folder / f"{run.id}.jsonl.gz"
        with Store.open(str(self.folder / "node.db")) as store:
            store.begin(run)
            ledger = Ledger(store, run.id, self.key)
            ledger.add_cases([case for case in found.cases if mine(case.id)])
            ledger.add([record for record in found.outcomes if mine(record.case.id)])
            ledger.seal(ledger.finish(run, changes.get("state", "completed")))
            store.export_run(run.id, path)
        results = tuple(CardResult(uuid=it, name="", state="COVERED", run=run.id, verdict=verdict) for it in uuids)
        done = NodeVerdict(
            node=plan.node,
            fleet=plan.fleet,
            attempt=plan.attempt,
            device="cpu",
            matrix="serving",
            verdict=verdict,
            exit_code=0,
            cards=results,
            files=(path.name,),
            wall_s=1.0,
        )
        file = NodeFile(node=plan.node, name=path.name, content=path.read_bytes())
        return [NodeBegun(node=plan.node), file, NodeDone(node=plan.node, verdict=done)]


def passed(_: Case) -> Outcome:
    """What every case does, unless a test says otherwise."""
    return stored.PASSED


@cache
def _planned(text: str, outcome: Callable[[Case], Outcome]) -> tuple[Run, RunArchive]:
    """A run of the matrix, made once for all fleets that share it."""
    with TemporaryDirectory() as folder, Store.open(f"{folder}/plan.db") as store:
        matrix = Path(folder, "serving.yaml")
        matrix.write_text(text)
        run = stored.store_run(store, matrix, outcome)
        return run, store.evidence(run.id)


def cards_of(*nodes: str, model: str = "H100") -> dict[str, list[ListedCard]]:
    """One card each."""
    return {name: [ListedCard(uuid=f"GPU-{name}", name=model)] for name in nodes}


def share(
    store: Store, folder: Path, cards: dict[str, list[ListedCard]], trouble: Any = lambda *_: None, **changes: Any
) -> tuple[Sharing, str]:
    """A fleet to its end."""
    (folder / "serving.yaml").write_text(MATRIX + changes.pop("policy", ""))
    engine = Sharing(folder, cards, trouble)
    engine.outcome, engine.key = changes.pop("outcome", passed), changes.pop("key", None)
    engine.lists = changes.pop("lists", {})
    (folder / "spool").mkdir(exist_ok=True)
    plan = NodePlan(matrix=str(folder / "serving.yaml"), device="cpu:1", spread="shard")
    order = FleetOrder(plan=plan, matrix="serving", cells=CELLS)
    return engine, run_fleet(engine, replace(order, **changes), store, folder / "spool", lambda _: None)


def again(store: Store, engine: Sharing, node: str) -> NodePlan:
    """What the node was told last."""
    fleet = store.fleets.fleets(1)[0].id
    select = engine.selected[node][-1]
    return NodePlan(matrix="serving", node=node, fleet=fleet, expected=(f"GPU-{node}",), select=select)
