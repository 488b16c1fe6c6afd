"""Where a run of a fleet was placed: which fleet asked for it, on which node, and in which attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Spread = Literal["shard", "repeat"]
"""``shard``: the cases of a matrix are shared among equal cards; ``repeat``: every card runs all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """What a run says of its place; a seal covers it."""

    node: str
    """the machine, as its engine calls it; empty = all machines of the fleet, whose shares make up the run"""
    spread: Spread
    cards: tuple[str, ...]
    """UUIDs of the cards that were to share the run; one where every card runs all"""
    fleet: str = ""
    """id of the fleet that asked for it; empty = somebody asked for this machine alone"""
    attempt: int = 1
    """number of the attempt of this fleet on these cards, from 1"""

    @property
    def is_whole(self) -> bool:
        """Whether the run is made of all shares of a fleet."""
        return bool(self.fleet) and not self.node
