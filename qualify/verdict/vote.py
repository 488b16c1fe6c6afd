"""The vote about bits: a bad card, other software, or a kernel that does not repeat itself?

Cards that made the same call on the same inputs vote with the digest of what they got. Within one stack more than half
of the cards, and two at least, decide what is right:

* A card that others outvote is an outlier card. Where too many cards are outvoted on a kernel, the kernel is the
  likelier cause.
* Where no majority is found among three cards or more, the kernel does not repeat itself.
* Two cards that disagree cannot outvote each other. If checks found fault with one of them only, it is that one; if
  not, the vote is undecided. So it is where cards drew different inputs, and most of them not the same.
* Across stacks each stack has one vote: a stack that others outvote is an outlier stack. That is no fault by itself.

Kernels whose card claims no determinism do not vote.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from qualify.facts.run import Run
from qualify.facts.vote import Ballot, Vote, VoteKind

MANY = 3
"""where so many cards are outvoted on a kernel, and more than a third of its voters, the kernel is to blame"""


@dataclass(kw_only=True, slots=True)
class _Tally:
    """What speaks against whom, over all calls."""

    cards: dict[str, list[Sequence[Ballot]]] = field(default_factory=lambda: defaultdict(list))
    """ballots of the stack, by the card that was outvoted"""
    stacks: dict[str, list[Sequence[Ballot]]] = field(default_factory=lambda: defaultdict(list))
    kernels: dict[str, list[Sequence[Ballot]]] = field(default_factory=lambda: defaultdict(list))
    undecided: dict[str, list[Sequence[Ballot]]] = field(default_factory=lambda: defaultdict(list))
    """by the cards in question, joined by commas"""
    voters: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """cards that voted, by kernel"""


def unsteady_kernels(runs: Iterable[Run]) -> set[str]:
    """The kernels whose card in a run claims no determinism."""
    claims = [(name, terms.get("claims.deterministic")) for run in runs for name, terms in (run.terms or {}).items()]
    return {name for name, deterministic in claims if deterministic == "false"}


def vote(ballots: Iterable[Ballot], unsteady: Collection[str] = ()) -> list[Vote]:
    """The votes, the gravest first; empty where all cards agree.

    Args:
        ballots: those of one case stand together.
        unsteady: kernels whose card claims no determinism.
    """
    tally = _Tally()
    for _, some in groupby((it for it in ballots if it.kernel not in unsteady and it.output), key=lambda it: it.case):
        by_inputs: dict[str, list[Ballot]] = defaultdict(list)
        for ballot in some:
            tally.voters[ballot.kernel].add(ballot.card)
            by_inputs[ballot.inputs].append(ballot)
        _count_inputs(tally, by_inputs)
        for equal in by_inputs.values():
            _count_call(tally, equal)
    _blame_kernels(tally)
    return [
        *_votes("outlier card", tally.cards, _of_card),
        *_votes("non-deterministic kernel", tally.kernels, lambda _: "its cards got different bits from equal calls"),
        *_votes("undecided", tally.undecided, _of_undecided),
        *_votes("outlier stack", tally.stacks, lambda _: "its cards agree with each other, and not with other stacks"),
    ]


def _of_card(against: Sequence[Sequence[Ballot]]) -> str:
    cards = {ballot.card for ballot in against[0]}
    if len(cards) == 2:
        return "it disagrees with the other card of its stack, and its own checks find fault with what it got"
    return f"it got other bits than the majority of {len(cards)} cards on its stack"


def _of_undecided(against: Sequence[Sequence[Ballot]]) -> str:
    if len({ballot.inputs for ballot in against[0]}) > 1:
        return "they drew different inputs from the same seed, and no majority says which are right"
    return "two cards disagree, and checks say nothing against either"


def _count_inputs(tally: _Tally, by_inputs: Mapping[str, list[Ballot]]) -> None:
    """A card that drew other inputs from the same seed than most cards of its stack is at fault, too.

    Without a majority nothing is decided: what cards got for different inputs is not compared.
    """
    stacks: dict[str, list[Ballot]] = defaultdict(list)
    for some in by_inputs.values():
        for ballot in some:
            stacks[ballot.stack].append(ballot)
    for own in stacks.values():
        drawn = {ballot.card: ballot.inputs for ballot in own}
        most, count = Counter(drawn.values()).most_common(1)[0]
        if 2 <= count and 2 * count > len(drawn):
            for card in (card for card, inputs in drawn.items() if inputs != most):
                tally.cards[card].append(own)
        elif count < len(drawn):
            tally.undecided[", ".join(sorted(drawn))].append(own)


def _count_call(tally: _Tally, ballots: Sequence[Ballot]) -> None:
    """One call on equal inputs."""
    stacks: dict[str, list[Ballot]] = defaultdict(list)
    for ballot in ballots:
        stacks[ballot.stack].append(ballot)
    settled = {stack: found for stack, own in stacks.items() if (found := _count_stack(tally, own))}
    said = Counter(settled.values())
    if len(said) > 1:
        most, count = said.most_common(1)[0]
        outvoted = [stack for stack, output in settled.items() if output != most] if 2 * count > len(settled) else []
        for stack in outvoted or [_smallest(settled, stacks)]:
            tally.stacks[stack].append(ballots)


def _smallest(settled: Mapping[str, str], stacks: Mapping[str, list[Ballot]]) -> str:
    """Among stacks that cannot outvote each other, the one with the fewest cards."""
    return min(settled, key=lambda stack: (len(stacks[stack]), stack))


def _count_stack(tally: _Tally, own: Sequence[Ballot]) -> str:
    """The output that the cards of a stack agree on. Empty where they disagree, which adds a vote against a card."""
    said: dict[str, set[str]] = defaultdict(set)
    for ballot in own:
        said[ballot.card].add(ballot.output)
    torn = [card for card, outputs in said.items() if len(outputs) > 1]
    votes = Counter(output for outputs in said.values() for output in outputs)
    most, count = votes.most_common(1)[0]
    if len(votes) == 1:
        return most
    if 2 <= count and 2 * count > len(said):
        for card, outputs in said.items():
            if outputs != {most}:
                tally.cards[card].append(own)
        return most
    if torn or len(said) > 2:
        tally.kernels[own[0].kernel].append(own)
        return ""
    failed = {ballot.card for ballot in own if ballot.failed}
    if len(failed) == 1:
        tally.cards[failed.pop()].append(own)
        return next(ballot.output for ballot in own if not ballot.failed)
    tally.undecided[", ".join(sorted(said))].append(own)
    return ""


def _blame_kernels(tally: _Tally) -> None:
    """Where many cards are outvoted on a kernel, it is the kernel's fault and not theirs."""
    outvoted: dict[str, set[str]] = defaultdict(set)
    for card, calls in tally.cards.items():
        for own in calls:
            outvoted[own[0].kernel].add(card)
    for kernel, cards in outvoted.items():
        if len(cards) >= MANY and 3 * len(cards) > len(tally.voters[kernel]):
            for card in cards:
                tally.kernels[kernel] += [own for own in tally.cards[card] if own[0].kernel == kernel]
                tally.cards[card] = [own for own in tally.cards[card] if own[0].kernel != kernel]


def _votes(
    kind: VoteKind, against: Mapping[str, list[Sequence[Ballot]]], detail: Callable[[Sequence[Sequence[Ballot]]], str]
) -> Iterator[Vote]:
    """One vote for each that something speaks against, those with the most cases first."""
    for who, calls in sorted(against.items(), key=lambda item: (-len(item[1]), item[0])):
        if not calls:
            continue
        by_digest: dict[str, list[str]] = defaultdict(list)
        for ballot in calls[0]:
            by_digest[ballot.output].append(ballot.stack if kind == "outlier stack" else ballot.card)
        yield Vote(
            kind=kind,
            who=who,
            detail=detail(calls),
            cases=tuple(dict.fromkeys(own[0].case for own in calls)),
            ballots={digest: tuple(dict.fromkeys(voters)) for digest, voters in by_digest.items()},
        )
