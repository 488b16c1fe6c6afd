"""What a fire's parent and child tell each other: what each message holds, and how it becomes a line of JSON.

The parent writes one Order to stdin, as one JSON object. The child answers with lines::

    RunBegun    before the first case
    Seen        it judged its run, and ends
    FleetSeen   it judged the runs of its fleet, and ends
    Failed      it ends with that code, and says why
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from qualify.facts import codec
from qualify.facts.canary import Advice, NodeOutcome
from qualify.facts.case import Level
from qualify.facts.comparison import StackChange, Topic
from qualify.facts.lines import decode_line
from qualify.facts.placement import Spread
from qualify.facts.run import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelOrder:
    """When the child shall fight a duel, against what, and for how long: ``duel`` of the card."""

    when: Literal["slower", "always"]
    against: str
    deadline_s: int
    pairs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterOrder:
    """The cluster on which the child shall cover every card: ``fleet`` of the card."""

    engine: Literal["ray"]
    address: str
    device: str
    spread: Spread
    coverage: float
    start_s: float
    deadline_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What the child shall do."""

    matrix: str
    cards: tuple[str, ...]
    select: str | None
    kernel: str | None
    level: Level
    device: str
    resume: str | None
    """a run of an earlier attempt to go on with, where it can be"""
    out: str
    """folder of reports"""
    slower: float
    """share by which a time must have grown to count"""
    lease: str
    """the lease under which it runs: the child ends when the lease or its epoch ends"""
    epoch: int
    lease_s: float
    """how long the holder may be silent"""
    node: str
    """where it runs"""
    fire: int
    """its id, after which its fleet is called"""
    duel: DuelOrder | None = None
    fleet: ClusterOrder | None = None
    """None = the child runs on this machine"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunBegun:
    """The child has a run: a new one, or that of an earlier attempt."""

    run: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelSeen:
    """What a duel of the older environment with this interpreter found."""

    suspects: tuple[str, ...]
    """ids of the cases that looked slower in stored runs"""
    id: str = ""
    """empty = none could be fought"""
    why_not: str = ""
    """why none could; empty where one was"""
    against: str = ""
    cells: int = 0
    slower: tuple[str, ...] = ()
    """the first cells that are slower, in words with their intervals"""
    undecided: tuple[str, ...] = ()
    """the first cells that the duel left open, in words"""
    acquitted: tuple[str, ...] = ()
    """ids of the cases that the duel calls the same or faster"""
    within: bool = False
    """whether it keeps every budget of the matrix"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a fire's child found: the verdict on its run, and the comparison with the accepted baseline."""

    run_id: str
    matrix: str
    variant: str
    verdict: Verdict
    failing: tuple[str, ...]
    """the first failures, in words"""
    baseline: str | None
    """the accepted run; None where nobody accepted one for the matrix on that device model"""
    stack: tuple[StackChange, ...]
    """what changed in the stack since the baseline"""
    regressions: Mapping[Topic, int]
    suspicious: Mapping[Topic, int]
    """kernels and numbers only; times are in slower"""
    slower: int
    """cases whose time grew by more than the card allows, without those that a duel calls the same or faster"""
    examples: tuple[str, ...]
    """the first changes, in words"""
    expired: tuple[str, ...] = ()
    """waivers that have expired, where nothing else makes the verdict FAIL: that says nothing of the stack"""
    weaker: tuple[str, ...] = ()
    """in words, requirements that became weaker since the baseline although the policy forbids it, without the level"""
    waived: str = ""
    """owner, case and last day of each waiver that the run needed to pass; empty where it needed none"""
    doubt: str = ""
    """why the run gave no verdict, where it is dated in the future"""
    demonstration: bool = False
    """a CPU stood in for the GPU that kernels of the matrix need: the verdict says nothing of a GPU"""
    duel: DuelSeen | None = None
    """None = none was needed"""
    code: tuple[str, ...] = ()
    """kernels whose own files changed since the baseline, which the stack does not show"""
    whole: tuple[str, ...] = ()
    """where `select` or `kernel` narrowed the run: the arguments of the `qualify run` that runs the whole matrix"""


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetSeen:
    """What a fire on a fleet found: the verdict on all cards, and what follows for each node."""

    fleet: str
    """its id"""
    matrix: str
    verdict: Verdict
    advice: Advice
    reasons: tuple[str, ...]
    nodes: tuple[NodeOutcome, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The child ends without a verdict."""

    message: str
    exit_code: int


FromChild = RunBegun | Seen | FleetSeen | Failed
TO_PARENT: Mapping[str, type[FromChild]] = {
    "begun": RunBegun,
    "seen": Seen,
    "fleet": FleetSeen,
    "failed": Failed,
}
EVENTS: Mapping[type[FromChild], str] = {kind: event for event, kind in TO_PARENT.items()}


def encode(message: FromChild) -> bytes:
    """The message as a line."""
    data = {"event": EVENTS[type(message)], **codec.to_data(message)}
    return json.dumps(data).encode() + b"\n"


def decode(line: bytes) -> FromChild:
    """What a child sent, with or without its newline; raises WrongMessage."""
    return decode_line(line, TO_PARENT)
