"""Votes about bits: what the cards of a fleet returned for equal calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

VoteKind = Literal["outlier card", "outlier stack", "non-deterministic kernel", "undecided"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ballot:
    """What one card returned for one call."""

    case: str
    """case id"""
    kernel: str
    card: str
    """UUID"""
    stack: str
    """fingerprint of what it ran on"""
    inputs: str
    """digest of the inputs"""
    output: str
    """digest of the output"""
    failed: bool = False
    """whether a check of the card itself found fault with the case"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vote:
    """What the ballots say, with the ballots as evidence."""

    kind: VoteKind
    who: str
    """what the votes are against: the UUID of a card, the fingerprint of a stack, or the name of a kernel. Where that
    is undecided: all cards in question, joined by commas"""
    detail: str
    """one sentence"""
    cases: tuple[str, ...]
    """ids of the cases that say so"""
    ballots: Mapping[str, tuple[str, ...]]
    """for the first of these cases: the cards (or stacks) by the digest that they voted for"""

    @property
    def cards(self) -> tuple[str, ...]:
        """UUIDs of the cards that it is against or leaves in question; empty where it is against something else."""
        return tuple(self.who.split(", ")) if self.kind in {"outlier card", "undecided"} else ()

    @property
    def advice(self) -> str:
        """What to do next; empty where nothing needs to be done."""
        match self.kind:
            case "outlier card":
                return f"keep work off card {self.who}, and test it: dcgmi diag --run 3 on its node"
            case "non-deterministic kernel":
                return f"remove `deterministic` from the card of {self.who}, or report the kernel to its authors"
            case "undecided":
                return f"run the same matrix on one more card of that stack: these have no majority ({self.who})"
            case "outlier stack":
                return ""
