"""A fire on a fleet: the matrix on every card of a cluster, and what follows for the fleet and for each of its nodes.

A fire has one fleet, called after it, so that (fire, GPU UUID, attempt) is unique in the store. Every write checks the
epoch of the fleet's lease. Where the leader died, the next one takes that lease over at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from qualify.canary.advice import WORST, Counsel, advise
from qualify.canary.messages import ClusterOrder, FleetSeen, Order
from qualify.canary.seeing import judge_run, seen_of
from qualify.cards.load import load_matrix
from qualify.errors import InfrastructureError, NoVerdict
from qualify.facts.canary import Advice, NodeOutcome
from qualify.facts.fleet import Coverage, FleetCard, NodePlan
from qualify.facts.typed import Typed
from qualify.facts.vote import Vote
from qualify.fleet.drive import FleetOrder
from qualify.fleet.engine import FleetEngine
from qualify.fleet.lead import run_fleet, spool_in, take_left
from qualify.fleet.shared import NOTHING_LEFT
from qualify.fleet.shares import cells_to_share
from qualify.judge.fleet import VERDICTS, coverage_of, exit_code_of
from qualify.report.fleet_text import covered_words, percent
from qualify.store.leases import OF_FLEETS
from qualify.store.store import Store

NAMED = 5
"""cards that the reasons name"""
Say = Callable[[str], None]


def fleet_id(fire: int) -> str:
    """What the fleet of a fire is called."""
    return f"fire-{fire}"


def cover(order: Order, fleet: ClusterOrder, store: Store, typed: Typed, say: Say) -> FleetSeen:
    """Run the fire on its fleet, or go on where an earlier attempt ended. Returns the verdict and the advice.

    Raises:
        InfrastructureError: there is no cluster at the address, or ray is not installed.
        LeaseLost: another leader has the fleet now; nothing more was written.
        NoVerdict: no node has a card.
        RunBusy: the earlier leader still writes the fleet.
    """
    name = fleet_id(order.fire)
    known = next((found for found in store.fleets.fleets(limit=None) if found.id == name), None)
    if known is None or known.state != "ended" or (known.cells and store.fleets.whole(known) is None):
        _drive(order, fleet, store, say, name, typed, again=known is not None)
    found, votes = coverage_of(store, name, tuple(map(Path, order.cards)))
    return _seen(order, store, found, votes, typed)


def _drive(order: Order, fleet: ClusterOrder, store: Store, say: Say, name: str, typed: Typed, *, again: bool) -> None:
    loaded = load_matrix(order.matrix, tuple(map(Path, order.cards)))
    plan = NodePlan(
        matrix=str(loaded.path.resolve()) if Path(order.matrix).exists() else order.matrix,
        matrix_hash=loaded.content_hash,
        select=order.select,
        kernel=order.kernel,
        level=order.level,
        device=fleet.device,
        spread=fleet.spread,
        cards=tuple(str(Path(card).resolve()) for card in order.cards),
        deadline_s=fleet.deadline_s,
    )
    asked = FleetOrder(
        plan=plan,
        matrix=loaded.card.matrix,
        least_coverage=fleet.coverage,
        start_s=fleet.start_s,
        again=name if again else "",
        id=name,
        dead=store.canaries.lease(f"{OF_FLEETS}{name}"),
        cells=cells_to_share(loaded, plan),
    )
    take_left(Path(order.out), name, store, say)
    with spool_in(Path(order.out), say, typed, name) as spool:
        try:
            run_fleet(_engine(fleet), asked, store, spool, say)
        except NoVerdict:
            if not again:  # else every card was covered when the earlier leader ended
                raise


def _engine(fleet: ClusterOrder) -> FleetEngine:
    """The cluster."""
    try:
        from qualify.fleet.ray_engine import RayEngine
    except ImportError as error:
        raise InfrastructureError(
            f"a canary with fleet needs ray, which is not installed ({error}): pip install 'attn-qualify[fleet]'"
        ) from error
    return RayEngine(fleet.address)


def _seen(order: Order, store: Store, found: Coverage, votes: Sequence[Vote], typed: Typed) -> FleetSeen:
    """The verdict on the fleet, its advice and that of each node."""
    told = _StackAdvice(order, store, found, votes, typed)
    verdict = VERDICTS[exit_code_of(found, votes)]
    told_of = (card.node for card in found.cards if card.reason != NOTHING_LEFT)  # an idle card is no reason to act
    nodes = tuple(told.of_node(name) for name in dict.fromkeys(told_of))
    given: list[Advice] = [counsel.advice for counsel in told.counsels.values()]
    if verdict != "PASS":
        given.append("hold")
    reasons = [
        _share(found),
        *_uncovered(found),
        *(f"{one.kind}: {one.detail}" for one in votes[:NAMED]),
        *(reason for counsel in told.counsels.values() for reason in counsel.reasons),
    ]
    return FleetSeen(
        fleet=found.fleet.id,
        matrix=found.fleet.matrix,
        verdict=verdict,
        advice=next(advice for advice in WORST if advice in given),
        reasons=tuple(dict.fromkeys(reasons)),
        nodes=nodes,
    )


class _StackAdvice:
    """The advice on each stack, by one of its runs, a failed one if any; on the whole run where nodes share it."""

    def __init__(self, order: Order, store: Store, found: Coverage, votes: Sequence[Vote], typed: Typed) -> None:
        self._cards, self._votes = found.cards, votes
        covered = {card.run_id: card for card in found.cards if card.state == "COVERED" and card.run_id}
        whole = [found.whole] if found.whole else []
        self._prints = store.fleets.fingerprints(sorted([*covered, *whole]))
        self.counsels: dict[str, Counsel] = {}
        self._variants: dict[str, str] = {}
        worst = sorted(covered, key=lambda run: (covered[run].verdict != "FAIL", covered[run].verdict == "PASS"))
        for run_id in whole or worst:
            fingerprint = self._prints.get(run_id, "")
            if fingerprint not in self.counsels:
                judged = judge_run(order, store, run_id)
                seen = seen_of(judged, order.slower)
                self.counsels[fingerprint] = advise(seen, typed=typed)
                self._variants[fingerprint] = seen.variant

    def of_node(self, name: str) -> NodeOutcome:
        """The worst of what its cards say; a node is held where a card is not covered, or its bits are in question."""
        given: list[Advice] = []
        reasons: list[str] = []
        variants: dict[str, None] = {}
        for card in self._cards:
            if card.node != name:
                continue
            fingerprint = self._prints.get(card.run_id or "", "")
            counsel = self.counsels.get(fingerprint) if card.state == "COVERED" else None
            doubts = [f"{card.uuid}: {one.kind}: {one.detail}" for one in self._votes if _concerns(one, card)]
            advice = _advice(card, counsel)
            given.append("hold" if doubts and advice == "promote" else advice)
            reasons += doubts
            if advice != "promote":
                reasons += [_why(card)] if card.state != "COVERED" or card.verdict != "PASS" or not counsel else []
                reasons += counsel.reasons if counsel else []
            if variant := self._variants.get(fingerprint):
                variants[variant] = None
        advice = next(it for it in WORST if it in given)
        return NodeOutcome(
            node=name, variant=", ".join(variants), advice=advice, reasons=tuple(dict.fromkeys(reasons))[:NAMED]
        )


def _advice(card: FleetCard, counsel: Counsel | None) -> Advice:
    """The advice on one card: that of its stack, unless the card's own verdict calls for another."""
    if counsel is None:
        return "hold"
    if card.verdict == "FAIL":
        return "roll back" if counsel.advice == "roll back" else "hold"
    return "hold" if counsel.advice == "roll back" or card.verdict != "PASS" else counsel.advice


def _concerns(vote: Vote, card: FleetCard) -> bool:
    """Whether a vote speaks against what the card got, or leaves open whether it is right."""
    if vote.kind in {"outlier card", "undecided"}:
        return card.uuid in vote.who.split(", ")
    return vote.kind == "non-deterministic kernel"


def _why(card: FleetCard) -> str:
    """A card that is not covered, or did not pass."""
    told = card.state if card.state != "COVERED" else f"COVERED, {card.verdict}"
    return f"{card.uuid}: {told}{f', {card.reason}' if card.reason else ''}"


def _share(found: Coverage) -> str:
    """How much is covered, and how much was asked for, in words."""
    least = found.fleet.least_coverage
    told = f"{percent(found.share, least, 0)}%, {100 * least:g}% asked for"
    whole = f", which make up run {found.whole}" if found.whole else ""
    return f"{found.fleet.id}: {covered_words(found)} covered ({told}){whole}"


def _uncovered(found: Coverage) -> list[str]:
    """The first cards that are not covered, or did not pass."""
    open_ = [card for card in found.cards if card.state != "COVERED" or card.verdict != "PASS"]
    open_ = [card for card in open_ if card.reason != NOTHING_LEFT]
    more = [f"and {len(open_) - NAMED} more cards"] if len(open_) > NAMED else []
    return [*(f"{card.node}: {_why(card)}" for card in open_[:NAMED]), *more]
