"""A fleet whose nodes share one matrix: each takes production shapes, and whoever is free takes the next ones.

A share is a run of its own on one node, judged and sealed there. Where a node is lost, other nodes run all shapes of
its share again, because a run counts only where it has ended. Only cards of one model take part. At the end only the
runs of one stack count, and shapes that ran on another stack run again. The runs that count make up one run of the
whole matrix.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

from qualify.errors import NoVerdict
from qualify.facts.fleet import CardResult, CardState, FleetCard, FleetShare
from qualify.facts.run import Verdict
from qualify.fleet.agreement import odd_ones
from qualify.fleet.drive import LEASE_S, UNSTORED, Drive, PlacedNode, drop_bad, other_card
from qualify.fleet.shares import Shapes
from qualify.fleet.whole import store_whole

NOTHING_LEFT = "the other cards had run everything before it could"
WORST: tuple[Verdict, ...] = ("FAIL", "INCONCLUSIVE")


class SharedDrive(Drive):
    """A fleet under way whose nodes share the matrix."""

    _shapes: Shapes
    _shares: dict[int, FleetShare]
    """all shares so far, by number"""
    _cards: dict[str, dict[str, FleetCard]]
    """the cards that take part, by node; without those of nodes that were lost"""

    def _taking_part(self, cards: list[FleetCard], notes: list[str]) -> tuple[list[FleetCard], list[str]]:
        """Only the cards of the most frequent model: times of two models must not stand in one matrix."""
        models = Counter(card.name for card in cards if card.state == "PLANNED")
        if len(models) < 2:
            return cards, notes
        most = max(models, key=lambda name: (models[name], name))
        why = f"a shared matrix runs only on cards of one model, and this fleet uses {most}"
        others = [name for name in models if name != most]
        told = [f"{models[name]} cards of {name} take no part: {why}" for name in others]
        return [replace(it, state="REFUSED", reason=why) if it.name in others else it for it in cards], notes + told

    def expect_again(self) -> list[FleetCard]:
        """Another attempt on all cards that can run, for the shapes that are not covered."""
        self._known()
        if not self._open_cells():
            if self._store.fleets.whole(self._store.fleets.fleet(self._fleet_id)):
                raise NoVerdict(f"every production shape of fleet {self._fleet_id} is covered: nothing is left to run")
            return []  # an earlier leader ended before it could store the whole
        known = self._store.fleets.cards(self._fleet_id)
        names = {card.name for card in known if card.run_id}
        return self._attempt([card for card in known if not names or card.name in names], known, names)

    def place(self, cards: Sequence[FleetCard]) -> None:
        """Place a share on every node that is still there."""
        self._known()
        self._cards = defaultdict(dict)
        for card in cards:
            self._cards[card.node][card.uuid] = card
        for name in set(self._cards) - set(self._engine.nodes()):
            self._leave(name, *self._engine.left(name))
        self._shapes = Shapes(self._open_cells(), sum(map(len, self._cards.values())))
        self._fill()

    def end(self) -> None:
        """The fleet has ended, and the run of its whole matrix is stored."""
        super().end()
        self._patiently(lambda: self._store.fleets.renew(self._lease, LEASE_S))
        if whole := store_whole(self._store, self._fleet_id, self._order.plan, self._order.keys):
            self._say(f"fleet {self._fleet_id}: its shares make up run {whole.id}")

    def _known(self) -> None:
        """What is stored of the fleet's shares."""
        self._shares = {share.number: share for share in self._store.fleets.shares(self._fleet_id)}

    def _covered(self) -> list[FleetShare]:
        return [share for share in self._shares.values() if share.state == "COVERED"]

    def _open_cells(self) -> tuple[str, ...]:
        done = {cell for share in self._covered() for cell in share.cells}
        return tuple(cell for cell in self._store.fleets.fleet(self._fleet_id).cells if cell not in done)

    def _fill(self) -> None:
        """Every idle node takes shapes while there are some; where all have ended, says what became of the cards."""
        while self._shapes and (idle := [name for name in self._cards if name not in self._nodes]):
            for name in idle:
                if cells := self._shapes.take(len(self._cards[name])):
                    self._place_share(name, cells)
        if self._nodes:
            return
        if odd := self._odd():
            self._refuse(odd)
            self._fill()
            return
        for name in list(self._cards):
            self._leave(name, "REFUSED", NOTHING_LEFT)

    def _place_share(self, name: str, cells: tuple[str, ...]) -> None:
        share = FleetShare(number=len(self._shares) + 1, node=name, cells=cells, state="PLANNED")
        self._keep_share(share)
        if name not in self._engine.nodes():
            self._lose(share, *self._engine.left(name))
            return
        cards = self._cards[name]
        attempt = next(iter(cards.values())).attempt
        self._engine.place(
            replace(
                self._order.plan,
                node=name,
                fleet=self._fleet_id,
                attempt=attempt,
                expected=tuple(cards),
                select=" ".join(cells),
            )
        )
        self._nodes[name] = PlacedNode(cards=cards, placed=time.monotonic(), share=share)
        self._say(f"{name}: share {share.number}, {len(cells)} of {self._shapes.total} production shapes")

    def _keep_share(self, share: FleetShare) -> None:
        self._patiently(lambda: self._store.fleets.share(self._lease, self._fleet_id, share))
        self._shares[share.number] = share

    def _finish(self, name: str, told: Mapping[str, CardResult], state: CardState, reason: str) -> None:
        """A share that ended counts. Otherwise its node is given up, and other nodes get its shapes."""
        node = self._nodes.pop(name)
        assert node.share is not None
        drop_bad(node, told)
        runs = self._ingested(node)
        ended = {run.id: run for run in runs.values() if run.state == "completed"}
        said = [it for it in told.values() if it.state == "COVERED" and it.run in ended]
        others = {it.uuid: other_card(ended[it.run], it.uuid) for it in said}
        covered = [it for it in said if not others[it.uuid]]
        select = " ".join(node.share.cells)
        lacking = self._lacking(covered[0].run, select) if covered else ""
        if covered and not lacking:
            worst = reduce(worse_verdict, (it.verdict for it in covered))
            self._cover(replace(node.share, run_id=covered[0].run, verdict=worst), told)
        else:
            bad = next((it for it in told.values() if it.state != "COVERED"), None)
            other = next(filter(None, others.values()), "")
            why = (bad.state, bad.reason) if bad else ("LOST", other or node.refused or UNSTORED)
            why = ("REFUSED", lacking) if lacking else why
            self._lose(replace(node.share, run_id=next(iter(runs), None)), *(why if told else (state, reason)))
        self._fill()

    def _cover(self, share: FleetShare, told: Mapping[str, CardResult]) -> None:
        """The share counts; its cards have run, or say why not."""
        self._keep_share(replace(share, state="COVERED"))
        self._say(f"{share.node}: share {share.number}: {share.verdict}")
        cards = self._cards[share.node]
        for uuid, it in told.items():
            if it.state == "COVERED":
                verdict = worse_verdict(cards[uuid].verdict, it.verdict)
                cards[uuid] = replace(cards[uuid], state="COVERED", reason="", run_id=it.run, verdict=verdict)
            elif cards[uuid].state != "COVERED":
                cards[uuid] = replace(cards[uuid], state=it.state, reason=it.reason)

    def _lose(self, share: FleetShare, state: CardState, reason: str) -> None:
        """The share does not count, and its node takes no more."""
        given_up = self._shapes.give_back(share.cells)
        more = f"; {len(given_up)} of its shapes were lost with others before, and are given up" if given_up else ""
        self._keep_share(replace(share, state="LOST" if state == "BAD" else state, reason=reason + more))
        self._leave(share.node, state, reason, whole=True)

    def _leave(self, name: str, state: CardState, reason: str, *, whole: bool = False) -> None:
        """Store what became of a node's cards, and give it nothing more.

        Args:
            whole: the state is that of all its cards; else of those that have no result.
        """
        cards = self._cards.pop(name)
        told = [
            replace(card, state=state, reason=reason) if whole or card.state == "PLANNED" else card
            for card in cards.values()
        ]
        for card in told:
            self._say(f"{name}: {card.uuid}: {card.state}{f': {card.reason}' if card.reason else ''}")
        self._settle(told)

    def _odd(self) -> list[tuple[FleetShare, str]]:
        """Shares whose run does not agree with the runs of most shapes: another stack, or other code."""
        covered = self._covered()
        runs = self._patiently(lambda: self._store.runs_of([share.run_id for share in covered if share.run_id]))
        parts = [(share, runs[share.run_id]) for share in covered if share.run_id in runs]
        return odd_ones(parts, lambda share: len(share.cells), self._asked.matrix)

    def _refuse(self, odd: Sequence[tuple[FleetShare, str]]) -> None:
        """Refuse odd shares: their evidence stays and does not count, and the nodes that are left run their shapes."""
        for share, differs in odd:
            why = f"unlike the other nodes: {differs}"
            self._keep_share(replace(share, state="REFUSED", reason=why))
            self._shapes.again(share.cells)
            if share.node in self._cards:
                self._leave(share.node, "REFUSED", why, whole=True)


def worse_verdict(one: Verdict | None, other: Verdict | None) -> Verdict | None:
    """The worse one of two verdicts; None = there is none."""
    return next((verdict for verdict in WORST if verdict in (one, other)), other or one)
