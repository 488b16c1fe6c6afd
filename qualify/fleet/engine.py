"""What an engine does: it says which nodes there are, places one task on each, and hands back what they say.

Everything else is the same whichever engine places it: the plan, the deadlines, the states of the cards, the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from qualify.facts.fleet import CardState, ListedCard, NodePlan, NodeVerdict


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeBegun:
    """The node's task runs."""

    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFile:
    """An exported run of the node: whole, or what was measured so far."""

    node: str
    name: str
    content: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDone:
    """The node has answered."""

    node: str
    verdict: NodeVerdict


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeGone:
    """The node's task did not end by itself."""

    node: str
    state: CardState
    reason: str


Heard = NodeBegun | NodeFile | NodeDone | NodeGone


class FleetEngine(Protocol):
    """Places node runners."""

    name: str

    def nodes(self) -> list[str]:
        """The nodes that are there now, by name."""
        ...

    def inventory(self, device: str, wait_s: float) -> Mapping[str, tuple[ListedCard, ...] | str]:
        """By node, its cards, or the reason why it did not list them within ``wait_s``."""
        ...

    def left(self, node: str) -> tuple[CardState, str]:
        """Why a node is there no longer: LOST where it died, REFUSED where it was drained; and the reason in words."""
        ...

    def place(self, plan: NodePlan) -> None:
        """Start one task on the plan's node and on no other, once."""
        ...

    def hear(self, wait_s: float) -> list[Heard]:
        """What the tasks said since the last call; empty where they said nothing within ``wait_s``."""
        ...

    def cancel(self, node: str) -> None:
        """End a node's task, and whatever it started; nothing more is heard of it."""
        ...
