"""A stored fleet: its coverage, nodes by stack, slow cards, and the votes about bits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from qualify.cards.load import load_kernels
from qualify.errors import NO_VERDICT, NOT_QUALIFIED, QUALIFIED
from qualify.facts.fleet import Coverage, Fleet, FleetCard, FleetShare, Slow
from qualify.facts.run import Verdict
from qualify.facts.vote import Vote
from qualify.judge.judged import judge
from qualify.store.store import Store
from qualify.verdict.vote import unsteady_kernels, vote

SLOWER = 1.05
"""a card whose times are larger by this factor is noted as slow"""
LEAST_EQUALS = 3
"""with fewer equal cards nobody can say which of them is slow"""


def state_of(store: Store, fleet: Fleet) -> Coverage:
    """The fleet's cards and stacks as stored now, without times and bits, which take longer."""
    return _state(store, fleet)[0]


def _state(store: Store, fleet: Fleet) -> tuple[Coverage, dict[str, str]]:
    """The same, and the fingerprint of each run's stack by run id."""
    cards = tuple(store.fleets.cards(fleet.id))
    shares = tuple(store.fleets.shares(fleet.id)) if fleet.cells else ()
    parts: list[FleetCard | FleetShare] = [*cards, *shares]
    run_ids = sorted({part.run_id for part in parts if part.run_id})
    prints = store.fleets.fingerprints(run_ids)
    stacks: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        if part.run_id in prints:
            stacks[prints[part.run_id]].add(part.node)
    nodes = {name: tuple(sorted(some)) for name, some in sorted(stacks.items(), key=lambda item: -len(item[1]))}
    whole = store.fleets.whole(fleet) if fleet.cells else None
    return Coverage(fleet=fleet, cards=cards, stacks=nodes, shares=shares, whole=whole), prints


def coverage_of(store: Store, fleet_id: str, cards: Sequence[Path] = ()) -> tuple[Coverage, list[Vote]]:
    """The fleet of that id (a prefix, or ``latest``) as it is stored now, and what its cards' bits say.

    Args:
        cards: folders of third parties' kernel cards.

    Raises:
        UsageError: there is no such fleet.
    """
    found, prints = _state(store, store.fleets.fleet(fleet_id))
    run_ids = sorted(prints)
    one_of_each = {fingerprint: run_id for run_id, fingerprint in prints.items()}
    unsteady = unsteady_kernels(store.run(run_id) for run_id in one_of_each.values())
    votes = vote(store.fleets.ballots(run_ids), unsteady) if run_ids else []
    slow = _slow_cards(store, found, prints)
    counted = [share.run_id for share in found.shares if share.state == "COVERED" and share.run_id]
    whole = _verdict(store, found.whole, cards) if found.whole else None
    return replace(found, slow=slow, ran=store.fleets.ran(counted), whole_verdict=whole), votes


def _verdict(store: Store, run_id: str, cards: Sequence[Path]) -> Verdict:
    """On the run of a whole matrix, by the matrix's own policy."""
    return judge(store, run_id, load_kernels(tuple(cards)), now=datetime.now(UTC), part=True).conclusion.verdict


def slow_cards_of(store: Store, fleet_id: str) -> tuple[Slow, ...]:
    """The slow cards of the fleet of that id, as it is stored now."""
    return _slow_cards(store, *_state(store, store.fleets.fleet(fleet_id)))


def _slow_cards(store: Store, found: Coverage, prints: Mapping[str, str]) -> tuple[Slow, ...]:
    return slow_cards(store.fleets.times(sorted(prints)), found.cards, prints) if prints else ()


def slow_cards(
    times: Sequence[tuple[str, str, float]], cards: Sequence[FleetCard], prints: Mapping[str, str]
) -> tuple[Slow, ...]:
    """Cards whose times lie beyond those of the cards on the same stack, the slowest first.

    Args:
        times: (card, case id, µs).
        prints: fingerprints by run.
    """
    known = {card.uuid: card for card in cards}
    stack_of = {card.uuid: prints.get(card.run_id or "", "") for card in cards}
    by_case: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for uuid, case, latency_us in times:
        if uuid in known:
            by_case[stack_of[uuid], case].append((uuid, latency_us))
    factors: dict[str, list[float]] = defaultdict(list)
    for some in by_case.values():
        if len(some) >= LEAST_EQUALS:
            middle = median(latency_us for _, latency_us in some)
            for uuid, latency_us in some:
                factors[uuid].append(latency_us / middle if middle else 1.0)
    slow = [
        Slow(uuid=uuid, node=known[uuid].node, factor=median(own), cases=len(own))
        for uuid, own in factors.items()
        if median(own) >= SLOWER
    ]
    return tuple(sorted(slow, key=lambda item: -item.factor))


def exit_code_of(found: Coverage, votes: Sequence[Vote]) -> int:
    """1 where a run or a card failed, 5 where too little is covered or something is not decided, else 0."""
    kinds = {one.kind for one in votes}
    if found.verdict == "FAIL" or kinds & {"outlier card", "non-deterministic kernel"}:
        return NOT_QUALIFIED
    if found.verdict != "PASS" or "undecided" in kinds:
        return NO_VERDICT
    return QUALIFIED
