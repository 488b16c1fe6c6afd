"""Which cards a fleet expects, from what its nodes list: before its first attempt, and before another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qualify.facts.fleet import CardState, FleetCard, ListedCard, unknown_cards

Listed = Mapping[str, tuple[ListedCard, ...] | str]
"""by node, its cards, or the reason why it did not list them"""


def expected_cards(listed: Listed) -> tuple[list[FleetCard], list[str]]:
    """The cards that a fleet expects, and notes: a UUID that two nodes claim is one card, which is refused.

    Nobody knows the cards of a node that did not answer: it counts as one, which is lost.
    """
    owners: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    cards: list[FleetCard] = []
    notes = [f"{name}: nothing is expected of it, it has no driver and no GPU" for name in listed if not listed[name]]
    for node, found in listed.items():
        if isinstance(found, str):
            cards.append(FleetCard(node=node, uuid=unknown_cards(node), name="", attempt=1, state="LOST", reason=found))
            continue
        for card in found:
            owners.setdefault(card.uuid, []).append(node)
            names[card.uuid] = card.name
    for uuid, nodes in owners.items():
        state: CardState = "PLANNED" if len(nodes) == 1 else "REFUSED"
        why = "" if len(nodes) == 1 else _claimed(nodes)
        notes += [f"{uuid}: {why}"] if why else []
        cards.append(FleetCard(node=nodes[0], uuid=uuid, name=names[uuid], attempt=1, state=state, reason=why))
    return cards, notes


def _claimed(nodes: Sequence[str]) -> str:
    return f"{' and '.join(nodes)} claim this UUID: which of them has the card?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Again:
    """Another attempt of a fleet."""

    cards: list[FleetCard]
    """all cards that it tries again, and the cards of nodes that could not name them before"""
    named: list[str]
    """placeholders of cards without a known UUID that are obsolete, because their nodes have named the cards now"""
    notes: list[str]


def expected_again(known: Sequence[FleetCard], open_: Sequence[FleetCard], listed: Listed) -> Again:
    """What another attempt expects.

    Args:
        known: the newest attempt on all cards of the fleet.
        open_: those to try again.
        listed: what nodes list now whose cards nobody could name before.
    """
    unnamed = [card for card in known if card.unnamed and card.node in listed]
    attempts = {card.node: card.attempt + 1 for card in unnamed}
    found, notes = expected_cards(listed)
    left = {card.uuid for card in found}
    again = {card.uuid: _next(card) for card in open_ if card not in unnamed}
    own = {card.uuid: card for card in known if card not in unnamed}
    for card in found:
        before = own.get(card.uuid)
        if before is None:
            again[card.uuid] = replace(card, attempt=attempts[card.node])
        elif before.node != card.node:
            why = _claimed([before.node, card.node])
            again[card.uuid] = replace(_next(before), state="REFUSED", reason=why)
            notes.append(f"{card.uuid}: {why}")
    named = [card.uuid for card in unnamed if card.uuid not in left]
    return Again(cards=list(again.values()), named=named, notes=notes)


def _next(card: FleetCard) -> FleetCard:
    return FleetCard(node=card.node, uuid=card.uuid, name=card.name, attempt=card.attempt + 1, state="PLANNED")
