"""The machines of a service: what each tells of itself, and which of them a canary chooses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase

from qualify.canary.deck import Deck
from qualify.canary.watch import Watcher, stack_key
from qualify.cards.canary import CanaryCard, RolloutPlan
from qualify.facts.canary import Lease, Node, own_lease
from qualify.store.canaries import Canaries
from qualify.store.clock import lasts


class Registry:
    """Tells the store which canaries this machine serves, and on which stack, whenever one of them changed."""

    def __init__(self, canaries: Canaries, deck: Deck, watcher: Watcher) -> None:
        self._canaries = canaries
        self._deck = deck
        self._watcher = watcher
        self._told: tuple[int, Node] | None = None

    def tell(self, own: Lease) -> None:
        """Write it under the machine's own lease, where it is not what was written last."""
        looked = self._watcher.looked
        node = Node(
            lease=own.name,
            service=own.service,
            node=own.node,
            canaries=tuple(sorted(self._deck.cards)),
            stack_key=stack_key(looked) if looked else "",
            device=looked.device.name if looked else "",
            until=own.expires_at,
        )
        if self._told is None or self._told[0] != own.epoch or replace(self._told[1], until=node.until) != node:
            self._canaries.tell(own, node)
            self._told = own.epoch, node


def serving(nodes: Iterable[Node], canary: str, now: datetime) -> list[Node]:
    """The machines that live and serve a canary."""
    return [node for node in nodes if canary in node.canaries and now < node.until]


def leader_lacks(canaries: Canaries, service: str, names: Iterable[str]) -> tuple[str, tuple[str, ...]] | None:
    """The machine that leads, and those of some canaries that it does not serve: it files no time of them.

    None where it serves all of them, nobody leads, or the leader has not told what it serves.
    """
    leader = canaries.lease(service)
    if leader is None or not lasts(leader.expires_at, canaries.now()):
        return None
    name = leader.holder.rsplit("/", 2)[0]
    own = canaries.lease(own_lease(service, name))
    told = next((node for node in canaries.nodes(service) if node.node == name), None)
    if told is None or own is None or own.holder != leader.holder:
        return None
    lacking = tuple(name for name in names if name not in told.canaries)
    return (name, lacking) if lacking else None


def chosen(card: CanaryCard, nodes: Sequence[Node], moment: datetime) -> list[Node]:
    """The machines on which a canary fires at a moment.

    A hash of machine and moment chooses, so that all machines have their turn.
    """
    drawn = sorted(nodes, key=lambda node: _lot(node.node, moment.isoformat()))
    match card.on:
        case "one-per-stack":
            first = {node.stack_key: node for node in reversed(drawn)}
            drawn = list(first.values())
        case "sample":
            drawn = drawn[: card.sample]
    return sorted(drawn, key=lambda node: node.node)


def waves_of(plan: RolloutPlan, names: Iterable[str], key: str) -> tuple[tuple[str, ...], ...]:
    """The machines by wave. The plan names the first ones, or a draw chooses them; a draw orders the rest.

    No wave is empty, except wave 0 where none of the machines is one that the plan names as first. A draw is a hash of
    machine and ``key``.
    """
    drawn = sorted(set(names), key=lambda name: _lot(name, key))
    if isinstance(plan.first, int):
        first = drawn[: plan.first]
    else:
        first = [name for name in drawn if any(fnmatchcase(name, wanted) for wanted in plan.first)]
        if not first:
            return (), tuple(sorted(drawn))
    others = [name for name in drawn if name not in first]
    waves, begun = [first], 0
    for share in plan.waves:
        until = max(0, round(share * len(drawn)) - len(first))
        waves.append(others[begun:until])
        begun = max(begun, until)
    return tuple(tuple(sorted(wave)) for wave in waves if wave)


def _lot(name: str, moment: str) -> bytes:
    return hashlib.sha256(f"{moment} {name}".encode()).digest()
