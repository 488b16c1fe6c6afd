"""One matrix on the cards of many nodes: expected cards first, then placement, deadlines, and what became of each card.

The expected cards are stored before anything is placed, so a card that never answers is noticed.
Every write checks the epoch of the fleet's lease: a second leader, or one that wakes late, writes nothing. Runs come as
files, so a node that is lost takes only along what it had not exported.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from qualify.errors import NoVerdict, StoreError
from qualify.facts import codec
from qualify.facts.canary import Lease
from qualify.facts.code import Code, code_change
from qualify.facts.fleet import (
    FINAL,
    INTERIM,
    CardResult,
    CardState,
    Fleet,
    FleetCard,
    FleetShare,
    NodePlan,
)
from qualify.facts.run import Run, Verdict
from qualify.files import replacing
from qualify.fleet.agreement import AskedCases
from qualify.fleet.engine import FleetEngine, Heard, NodeBegun, NodeDone, NodeFile, NodeGone
from qualify.fleet.expected import expected_again, expected_cards
from qualify.fleet.intake import Intake
from qualify.fleet.inventory import kind_of
from qualify.fleet.patience import Patience
from qualify.judge.fleet import slow_cards_of
from qualify.judge.judged import judge
from qualify.seal.keys import PublicKey
from qualify.store.store import Store

LEASE_S = 60.0
BEAT_S = 15.0
HEAR_S = 0.5
LATE_S = 90.0
"""seconds after a node's deadline until its task is given up"""
LONGEST_AWAY_S = 3600.0
"""longest time for which the store may refuse to be written before the fleet ends"""
UNSTORED = "its run did not reach the store"
Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetOrder:
    """What a fleet shall do."""

    plan: NodePlan
    """for every node; its node, fleet, attempt and expected cards are filled in"""
    matrix: str
    """the name of the matrix"""
    least_coverage: float = 1.0
    start_s: float = 600.0
    """within which a node must begin"""
    inventory_s: float = 120.0
    """within which a node must list its cards"""
    again: str = ""
    """a fleet whose uncovered cards get another attempt; empty = a new fleet"""
    id: str = ""
    """id of a new fleet; empty = it is made from the present moment"""
    dead: Lease | None = None
    """lease of a leader that is known to be gone, which may be taken over at once; None = a lease is respected"""
    cells: tuple[str, ...] = ()
    """where nodes share the matrix: what ``--select`` takes for each of its production shapes"""
    keys: tuple[PublicKey, ...] = ()
    """one of these must have sealed what a node sends; empty = it needs no seal"""


@dataclass(kw_only=True, slots=True)
class PlacedNode:
    """One node while its task is placed."""

    cards: dict[str, FleetCard]
    placed: float
    begun: float | None = None
    files: dict[str, Path] = field(default_factory=dict)
    """files that came, by the id of their run"""
    share: FleetShare | None = None
    """what it runs, where nodes share the matrix"""
    refused: str = ""
    """why the store did not take one of its files"""


class Drive:
    """A fleet that is under way."""

    def __init__(
        self,
        engine: FleetEngine,
        order: FleetOrder,
        store: Store,
        spool: Path,
        say: Say,
        lease: Lease,
        fleet_id: str,
        detail: Say,
    ) -> None:
        self._engine, self._order, self._store, self._spool, self._say = engine, order, store, spool, say
        self._lease, self._fleet_id, self._detail = lease, fleet_id, detail
        self._nodes: dict[str, PlacedNode] = {}
        self._beat = time.monotonic()
        self._patience = Patience(say, LONGEST_AWAY_S)
        """with the store while nodes are at work: what they measure is not given up where it refuses for a moment"""
        self._intake = Intake(store, order.keys, self._patience)
        self._asked = AskedCases(order.plan)
        self._notes: list[str] = []

    def expect(self) -> list[FleetCard]:
        """Stores the expected cards of a new fleet; returns those to place."""
        self._asked.plan()
        listed = self._engine.inventory(self._order.plan.device, self._order.inventory_s)
        cards, notes = self._taking_part(*expected_cards(listed))
        if not cards:
            raise NoVerdict("no node of the cluster has a card: `ray status` shows what it has")
        plan = self._order.plan
        fleet = Fleet(
            id=self._fleet_id,
            matrix=self._order.matrix,
            matrix_hash=plan.matrix_hash,
            engine=self._engine.name,
            device=kind_of(plan.device),
            spread=plan.spread,
            least_coverage=self._order.least_coverage,
            state="running",
            epoch=0,
            created_at=datetime.now(UTC),
            finished_at=None,
            notes=tuple(notes),
            cells=self._order.cells,
        )
        self._store.fleets.plan(self._lease, fleet, cards)
        nodes = len({card.node for card in cards})
        self._say(f"fleet {self._fleet_id}: {len(cards)} cards expected on {nodes} nodes")
        return [card for card in cards if card.state == "PLANNED"]

    def _taking_part(self, cards: list[FleetCard], notes: list[str]) -> tuple[list[FleetCard], list[str]]:
        """The expected cards, with those refused that take no part; and the fleet's notes."""
        return cards, notes

    def expect_again(self) -> list[FleetCard]:
        """Stores another attempt on the cards that are not covered; none where the earlier leader had covered all."""
        known = self._store.fleets.cards(self._fleet_id)
        open_ = [card for card in known if card.state != "COVERED"]
        if not open_ and self._store.fleets.fleet(self._fleet_id).state == "running":
            return []  # the earlier leader was killed before it could end the fleet
        if not open_:
            raise NoVerdict(f"every card of fleet {self._fleet_id} is covered: nothing is left to run")
        return self._attempt(open_, known)

    def _attempt(
        self, open_: Sequence[FleetCard], known: Sequence[FleetCard], models: Collection[str] = ()
    ) -> list[FleetCard]:
        """Stores another attempt; returns the cards to place. Nodes whose cards nobody could name are asked again.

        Args:
            open_: the cards to try again.
            known: all that the fleet expects.
            models: the only ones that may run; empty = every one may.
        """
        silent = {card.node for card in known if card.unnamed}
        told = self._engine.inventory(self._order.plan.device, self._order.inventory_s) if silent else {}
        again = expected_again(known, open_, {name: found for name, found in told.items() if name in silent})
        cards = [_equal(card, models) for card in again.cards]
        self._store.fleets.attempt(self._lease, self._fleet_id, cards, again.named)
        self._notes += again.notes
        return [card for card in cards if card.state == "PLANNED"]

    def place(self, cards: Sequence[FleetCard]) -> None:
        """Place one task on every node that is still there."""
        here = set(self._engine.nodes())
        by_node: dict[tuple[str, int], dict[str, FleetCard]] = {}
        for card in cards:
            by_node.setdefault((card.node, card.attempt), {})[card.uuid] = card
        for (name, attempt), own in by_node.items():
            if name not in here:
                state, reason = self._engine.left(name)
                self._settle(replace(card, state=state, reason=reason) for card in own.values())
                continue
            plan = replace(self._order.plan, node=name, fleet=self._fleet_id, attempt=attempt, expected=tuple(own))
            self._engine.place(plan)
            self._nodes[name] = PlacedNode(cards=own, placed=time.monotonic())

    def listen(self) -> None:
        """Listen until every node has answered or was given up."""
        while self._nodes:
            for heard in self._engine.hear(HEAR_S):
                self._take(heard)
            self._give_up()
            self._renew()

    def end(self) -> None:
        """End the fleet, because nothing more runs; slow cards become a note."""
        if self._order.plan.spread == "repeat":
            self._settle(self._patiently(self._of_other_code))
        slow = [str(it) for it in self._patiently(lambda: slow_cards_of(self._store, self._fleet_id))]
        self._patiently(lambda: self._store.fleets.end(self._lease, self._fleet_id, [*self._notes, *slow]))

    def _of_other_code(self) -> list[FleetCard]:
        """Covered cards, refused now: their nodes have other code of a kernel than most nodes of the same stack.

        Beside the others such a pass would look like one of the same kernel, and other bits like a fault of the card.
        """
        covered = [it for it in self._store.fleets.cards(self._fleet_id) if it.state == "COVERED" and it.run_id]
        runs = self._store.runs_of([str(it.run_id) for it in covered])
        stacks: dict[str, list[tuple[FleetCard, Mapping[str, Code]]]] = defaultdict(list)
        for card in covered:
            run = runs.get(str(card.run_id))
            if run and run.stack and run.code is not None:
                stacks[run.stack.fingerprint].append((card, run.code))
        refused: list[FleetCard] = []
        for some in stacks.values():
            counts = Counter(codec.to_json(codec.to_data(code, dict[str, Code])) for _, code in some)
            usual = codec.from_data(dict[str, Code], json.loads(counts.most_common(1)[0][0]))
            for card, code in some:
                changes = ((name, code_change(usual.get(name, own), own)) for name, own in code.items())
                if why := next((f"{name}: {change}" for name, change in changes if change), ""):
                    reason = f"unlike most nodes of its stack: {why}"
                    self._say(f"{card.node}: {card.uuid}: REFUSED: {reason}")
                    refused.append(replace(card, state="REFUSED", reason=reason))
        return refused

    def close(self) -> None:
        """End every task and process, and free the lease, however the fleet ended."""
        for name in list(self._nodes):
            self._engine.cancel(name)
        self._intake.close()
        with suppress(StoreError):  # it runs out by itself
            self._store.fleets.release(self._lease)

    def _patiently(self, use: Callable[[], T]) -> T:
        """Use the store, and wait where it refuses."""
        with self._unheard():
            return self._patience.keep(use)

    @contextmanager
    def _unheard(self) -> Iterator[None]:
        """Nodes are not heard meanwhile, so this time does not count against them."""
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            for node in self._nodes.values():
                node.placed += took
                node.begun = None if node.begun is None else node.begun + took

    def _renew(self) -> None:
        if time.monotonic() - self._beat > BEAT_S:
            self._patiently(lambda: self._store.fleets.renew(self._lease, LEASE_S))
            self._beat = time.monotonic()

    def _take(self, heard: Heard) -> None:
        node = self._nodes.get(heard.node)
        if node is None:
            return  # it was given up
        match heard:
            case NodeBegun():
                node.begun = time.monotonic()
                self._detail(f"{heard.node}: it has begun")
            case NodeFile():
                self._keep(node, heard)
            case NodeDone():
                told = {it.uuid: it for it in heard.verdict.cards if it.uuid in node.cards}
                self._finish(heard.node, told, "MISSING", "the node did not say what became of it")
            case NodeGone():
                self._finish(heard.node, {}, heard.state, heard.reason)

    def _keep(self, node: PlacedNode, heard: NodeFile) -> None:
        """Keep a file; it replaces an earlier one of the same run."""
        run = heard.name.removesuffix(INTERIM).removesuffix(FINAL)
        path = self._spool / f"{run}{FINAL}"
        if not run or Path(heard.name).name != heard.name or not heard.name.endswith(FINAL):
            self._say(f"{heard.node}: a file called {heard.name!r} is no exported run, and was left out")
            return
        try:
            with replacing(path) as file:
                file.write(heard.content)
        except OSError as error:
            node.refused = f"run {run} cannot be kept in {self._spool.parent}: {error.strerror or error}"
            self._say(f"{heard.node}: {node.refused}")
            return
        node.files[run] = path
        self._detail(f"{heard.node}: run {run} came, {len(heard.content)} bytes")

    def _give_up(self) -> None:
        """Give up nodes that are busy or late."""
        now, deadline_s = time.monotonic(), self._order.plan.deadline_s
        for name, node in list(self._nodes.items()):
            if node.begun is None and now - node.placed > self._order.start_s:
                why = f"the node began nothing within {self._order.start_s:g} s: its cards are in use"
                self._engine.cancel(name)
                self._finish(name, {}, "BUSY", why)
            elif node.begun and deadline_s is not None and now - node.begun > deadline_s + LATE_S:
                self._engine.cancel(name)
                self._finish(name, {}, "LOST", f"the node did not answer within {deadline_s + LATE_S:g} s: it is late")

    def _finish(self, name: str, told: Mapping[str, CardResult], state: CardState, reason: str) -> None:
        """Take in the runs that a node left, and store what became of its cards."""
        node = self._nodes.pop(name)
        drop_bad(node, told)
        runs = self._ingested(node)
        lacking = {run: self._lacking(run) for run in runs}
        for uuid, card in node.cards.items():
            result = told.get(uuid)
            run = runs.get(result.run) if result else _run_of(uuid, runs.values())
            complete = run is not None and run.state == "completed"
            if result is None:
                verdict = self._judged(run) if run and complete else None
                found: CardState = "COVERED" if complete else state
                why = f"{reason}; its run had ended before" if complete else reason
            else:
                found, why, verdict = result.state, result.reason, result.verdict
                if found == "COVERED" and not complete:
                    found, why = "LOST", node.refused or UNSTORED
            if found == "COVERED" and run and (other := other_card(run, uuid)):
                found, why = "LOST", other
            if found == "COVERED" and run and lacking[run.id]:
                found, why = "REFUSED", lacking[run.id]
            node.cards[uuid] = replace(card, state=found, reason=why, run_id=run.id if run else None, verdict=verdict)
            self._say(f"{name}: {uuid}: {found}{f': {why}' if why else ''}")
        self._settle(node.cards.values())

    def _ingested(self, node: PlacedNode) -> dict[str, Run]:
        """The runs of the fleet that the node sent and that are stored now, by id."""
        found: dict[str, Run] = {}
        with self._unheard():
            for taken in self._intake.take(node.files.values()):
                if taken.moved is None:
                    node.refused = taken.refused
                    self._say(taken.refused)
                    continue
                run = self._patience.keep(partial(self._store.run, taken.moved.run))
                taken.file.unlink()
                if run.placement and run.placement.fleet == self._fleet_id:
                    found[run.id] = run
        return found

    def _judged(self, run: Run) -> Verdict:
        """The verdict on a run whose node did not live to give one."""
        now = datetime.now(UTC)
        judged = self._patiently(lambda: judge(self._store, run.id, self._asked.kernels, now=now, part=True))
        return judged.conclusion.verdict

    def _lacking(self, run_id: str, select: str = "") -> str:
        """Which cases that were asked for the run lacks, in words; empty where it has all."""
        return self._patiently(lambda: self._asked.lacking(self._store, self._store.run(run_id), select))

    def _settle(self, told: Iterable[FleetCard]) -> None:
        """Store what became of cards."""
        settled = list(told)
        self._patiently(lambda: self._store.fleets.settle(self._lease, self._fleet_id, settled))


def drop_bad(node: PlacedNode, told: Mapping[str, CardResult]) -> None:
    """Drop the runs of BAD cards: they say nothing about a kernel, so the store does not take them in."""
    for run in {result.run for result in told.values() if result.state == "BAD"} & node.files.keys():
        node.files.pop(run).unlink(missing_ok=True)


def _run_of(uuid: str, runs: Iterable[Run]) -> Run | None:
    """The run of a card whose node did not say which one it is: one that ended, if there is one."""
    own = [run for run in runs if run.placement and uuid in run.placement.cards and not other_card(run, uuid)]
    return next((run for run in own if run.state == "completed"), own[0] if own else None)


def other_card(run: Run, uuid: str) -> str:
    """Why a run is no evidence of a card: it was measured on another one. Empty where it is."""
    if run.placement and uuid not in run.placement.cards:
        return f"run {run.id} was measured on another card, {', '.join(run.placement.cards)}"
    alone = run.placement and run.placement.spread == "repeat"
    if alone and run.stack and run.stack.device.uuid != uuid:
        return f"run {run.id} was measured on another card, {run.stack.device.uuid}"
    return ""


def _equal(card: FleetCard, models: Collection[str]) -> FleetCard:
    """The card as it is expected: REFUSED where only other models may run; without models every one may."""
    if not models or card.name in models or card.state != "PLANNED":
        return card
    return replace(card, state="REFUSED", reason=f"a shared matrix runs only on cards of one model, here {min(models)}")
