"""A stored fleet: its coverage, nodes by stack, slow cards, and the votes about bits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from qualify.cards.load import LoadedKernel, load_kernels
from qualify.errors import NO_VERDICT, NOT_QUALIFIED, QUALIFIED
from qualify.facts.fleet import Compared, Coverage, Fleet, FleetCard, FleetShare, Slow
from qualify.facts.run import Verdict
from qualify.facts.vote import Vote
from qualify.judge.judged import Judged, judge
from qualify.store.store import Store
from qualify.verdict.vote import unsteady_kernels, vote

SLOWER = 1.05
"""a card whose times are larger by this factor is noted as slow"""
LEAST_EQUALS = 3
"""with fewer equal cards nobody can say which of them is slow"""
VERDICTS: Mapping[int, Verdict] = {QUALIFIED: "PASS", NOT_QUALIFIED: "FAIL", NO_VERDICT: "INCONCLUSIVE"}
"""what the exit codes of `qualify coverage` mean"""
TOLD = 5
"""votes that are told in words"""


def state_of(store: Store, fleet: Fleet) -> Coverage:
    """The fleet's cards and stacks as stored now, without times and bits, which take longer."""
    return _state(store, fleet)[0]


def _state(store: Store, fleet: Fleet) -> tuple[Coverage, dict[str, str]]:
    """The same, and by run id the fingerprint of each run's stack; without runs of what was refused.

    Such a run is evidence of something else, for example of another matrix: it is compared with none.
    """
    cards = tuple(store.fleets.cards(fleet.id))
    if not fleet.cells:  # else the verdict is that on the run of the whole matrix
        cards = _believed(store, cards)
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
    compared_runs = {part.run_id for part in parts if part.state != "REFUSED"}
    prints = {run_id: fingerprint for run_id, fingerprint in prints.items() if run_id in compared_runs}
    return Coverage(fleet=fleet, cards=cards, stacks=nodes, shares=shares, whole=whole), prints


def _believed(store: Store, cards: Sequence[FleetCard]) -> tuple[FleetCard, ...]:
    """The cards; one that is covered is no pass where its run is not stored any more, or dated in the future."""
    dated = store.fleets.dated(sorted({card.run_id for card in cards if card.run_id}))

    def believed(card: FleetCard) -> FleetCard:
        why = _doubt(card.run_id, dated) if card.run_id and card.state == "COVERED" else ""
        return replace(card, verdict="INCONCLUSIVE", reason=why) if why and card.verdict != "FAIL" else card

    return tuple(map(believed, cards))


def _doubt(run_id: str, dated: Mapping[str, bool]) -> str:
    """Why the run of a card proves nothing now; empty where it may."""
    if run_id not in dated:
        told = "is not stored any more, so nobody can compare its results: `qualify db deletions` says why"
        return f"run {run_id} {told}"
    wrong = "is dated in the future: the clock of its machine or of the store is wrong"
    return f"run {run_id} {wrong}" if dated[run_id] else ""


def coverage_of(store: Store, fleet_id: str, cards: Sequence[Path] = ()) -> tuple[Coverage, list[Vote]]:
    """The fleet of that id (a prefix, or ``latest``) as it is stored now, and what its cards' bits say.

    Args:
        cards: folders of third parties' kernel cards.

    Raises:
        UsageError: there is no such fleet.
    """
    found, prints = _state(store, store.fleets.fleet(fleet_id))
    votes = _votes(store, prints)
    slow = _slow_cards(store, found, prints)
    counted = [share.run_id for share in found.shares if share.state == "COVERED" and share.run_id]
    whole = _judged(store, found.whole, load_kernels(tuple(cards))).conclusion.verdict if found.whole else None
    return replace(found, slow=slow, ran=store.fleets.ran(counted), whole_verdict=whole), votes


def compared(store: Store, fleet_id: str, kernels: Mapping[str, LoadedKernel]) -> Compared:
    """What ``qualify coverage`` says of the fleet now. Raises as :func:`coverage_of`."""
    found, prints = _state(store, store.fleets.fleet(fleet_id))
    whole = _judged(store, found.whole, kernels) if found.whole else None
    found = replace(found, whole_verdict=whole.conclusion.verdict if whole else None)
    votes = _votes(store, prints)
    return Compared(
        verdict=VERDICTS[exit_code_of(found, votes)],
        whole_verdict=found.whole_verdict,
        waivers_path=whole.waivers_path if whole else "",
        kinds=tuple(dict.fromkeys(one.kind for one in votes)),
        told=tuple(
            f"{one.kind}: {one.who}: {one.detail}{f'; {one.advice}' if one.advice else ''}" for one in votes[:TOLD]
        ),
        odd={card: one.kind for one in reversed(votes) for card in one.cards},
    )


def _votes(store: Store, prints: Mapping[str, str]) -> list[Vote]:
    """What the bits of some runs say, given the fingerprints of their stacks."""
    one_of_each = {fingerprint: run_id for run_id, fingerprint in prints.items()}
    unsteady = unsteady_kernels(store.run(run_id) for run_id in one_of_each.values())
    return vote(store.fleets.ballots(sorted(prints)), unsteady) if prints else []


def _judged(store: Store, run_id: str, kernels: Mapping[str, LoadedKernel]) -> Judged:
    """The run of a whole matrix, by the matrix's own policy."""
    return judge(store, run_id, kernels, now=datetime.now(UTC), part=True)


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
