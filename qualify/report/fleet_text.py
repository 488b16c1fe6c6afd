"""A node's verdict, a fleet's coverage, and the votes on differing bits, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from qualify.facts import codec
from qualify.facts.devices import HOST, DeviceKind
from qualify.facts.fleet import CARD_STATES, Coverage, FleetCard, FleetShare, NodeVerdict
from qualify.facts.typed import PLAIN, Typed
from qualify.facts.vote import Vote
from qualify.report.figures import counted
from qualify.report.verdict_text import DEMONSTRATION
from qualify.text import one_line

SHOWN = 20
"""most cards that voted for one digest, or nodes of one stack, that the text names"""
NAMED = 3
"""cases that a vote names"""
DIGITS = 12


def node_lines(found: NodeVerdict) -> Iterator[str]:
    """One line for the node, one for each card, then the votes."""
    yield from _demonstration(found.device)
    cards = counted(len(found.cards), "card")
    yield f"{found.verdict}: {found.matrix} on {found.node}, {cards} in {found.wall_s:.1f} s"
    for card in found.cards:
        told = f"run {card.run}: {card.verdict}" if card.state == "COVERED" else card.reason
        yield one_line(f"  {card.state:9}{card.uuid}  {told}")
    yield from vote_lines(codec.from_data(tuple[Vote, ...], found.votes))


def _demonstration(device: DeviceKind) -> Iterator[str]:
    if device == HOST:
        yield f"{DEMONSTRATION}, which proves nothing about a GPU"


def vote_lines(votes: Sequence[Vote]) -> Iterator[str]:
    """What the cards' output bits say against some of them; nothing where all cards agree."""
    for found in votes:
        more = f" and {len(found.cases) - NAMED} more" if len(found.cases) > NAMED else ""
        yield one_line(f"{found.kind}: {found.who}: {found.detail}, in {', '.join(found.cases[:NAMED])}{more}")
        for digest, voters in found.ballots.items():
            yield one_line(f"  {digest[:DIGITS]}  {', '.join(_short(voters))}")


def _short(voters: Sequence[str]) -> list[str]:
    more = [f"and {len(voters) - SHOWN} more"] if len(voters) > SHOWN else []
    return [*voters[:SHOWN], *more]


def coverage_lines(found: Coverage, votes: Sequence[Vote], typed: Typed = PLAIN, matrix: str = "") -> Iterator[str]:
    """Coverage, what is not covered and why, nodes by stack, slow cards, votes.

    Args:
        typed: options that the printed commands repeat.
        matrix: what to type for the matrix; empty = its name.
    """
    fleet, counts = found.fleet, found.counts
    yield from _demonstration(fleet.device)
    asked = f"({percent(found.share, fleet.least_coverage)}%, asked for {100 * fleet.least_coverage:g}%)"
    yield one_line(f"fleet {fleet.id}: {fleet.matrix} by {fleet.engine}, {covered_words(found)} covered {asked}")
    yield "  " + ", ".join(f"{counts[state]} {state}" for state in CARD_STATES if counts[state])
    yield from (f"note: {one_line(note)}" for note in fleet.notes)
    for card in found.cards:
        if card.state != "COVERED" or card.reason:
            yield one_line(f"  {card.state:9}{card.node}  {card.uuid}  {card.reason}")
    yield from _shares(found)
    if found.whole:
        yield f"the shares make up run {found.whole}: {typed.command('gate', '--run', found.whole)}"
    if found.whole_verdict not in {None, "PASS"}:
        yield f"  run {found.whole} is {found.whole_verdict}: the gate names the cases"
    for fingerprint, nodes in found.stacks.items():
        yield one_line(f"stack {fingerprint[:DIGITS]}: {counted(len(nodes), 'node')}: {', '.join(_short(nodes))}")
    told = (str(slow) for slow in found.slow)
    yield from (f"note: {one_line(note)}" for note in told if note not in fleet.notes)
    yield from vote_lines(votes)
    yield from (f"do: {one_line(advice)}" for advice in _advice(found, votes, typed, matrix or found.fleet.matrix))


def _advice(found: Coverage, votes: Sequence[Vote], typed: Typed, matrix: str) -> Iterator[str]:
    """What to do next; nothing where all is well."""
    yield from (one.advice for one in votes if one.advice)
    parts: list[FleetCard | FleetShare] = [*found.cards, *found.shares]
    failed = (part.run_id for part in parts if (part.state, part.verdict) == ("COVERED", "FAIL"))
    if run_id := next(failed, None):
        yield f"see what failed: {typed.command('report', found.whole or run_id)}"
    if found.share < 1 and found.fleet.state == "ended":
        yield f"run what is not covered again: {typed.command('fleet', matrix, '--again', found.fleet.id)}"


def percent(share: float, least: float, digits: int = 1) -> str:
    """A share in percent. It has as many digits as it takes to tell it from all, and from the share that is asked for.

    Args:
        least: the share that is asked for.
        digits: behind the point, where these are enough.
    """
    asked, told = 100 * Decimal(str(least)), ""
    for more in range(digits, DIGITS):
        told = f"{100 * share:.{more}f}"
        if (Decimal(told) >= asked, Decimal(told) >= 100) == (share >= least, share >= 1):
            break
    return told


def covered_words(found: Coverage) -> str:
    """How many cards, or production shapes, are covered, of how many."""
    if found.fleet.cells:
        return f"{found.covered_cells} of {len(found.fleet.cells)} production shapes"
    return f"{found.counts['COVERED']:,} of {len(found.cards):,} cards"


def _shares(found: Coverage) -> Iterator[str]:
    """Where nodes share one matrix: how many cases each card ran, and which shares were lost."""
    for card, cases in found.ran.items():
        yield one_line(f"  {card} ran {counted(len(cases), 'case')}")
    for share in found.shares:
        if share.state != "COVERED":
            what = f"share {share.number}, {len(share.cells)} production shapes on {share.node}"
            yield one_line(f"note: {what}: {share.state}: {share.reason or 'nothing was heard of it'}")


def coverage_data(found: Coverage, votes: Iterable[Vote], exit_code: int) -> dict[str, Any]:
    """The coverage as JSON."""
    stacks: Mapping[str, Sequence[str]] = found.stacks
    return {
        "fleet": codec.to_data(found.fleet),
        "coverage": found.share,
        "enough": found.enough,
        "exit_code": exit_code,
        "counts": found.counts,
        "cards": [codec.to_data(card) for card in found.cards],
        "shares": [codec.to_data(share) for share in found.shares],
        "ran": found.ran,
        "whole": found.whole,
        "whole_verdict": found.whole_verdict,
        "stacks": [{"fingerprint": name, "nodes": list(nodes)} for name, nodes in stacks.items()],
        "slow": [codec.to_data(slow) for slow in found.slow],
        "votes": [codec.to_data(vote) for vote in votes],
    }
