"""A fleet: the cards that must be covered, what became of each, and the messages between a node and its leader."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from qualify.facts.case import Level
from qualify.facts.devices import DeviceKind
from qualify.facts.placement import Spread
from qualify.facts.run import Verdict
from qualify.facts.vote import VoteKind
from qualify.facts.xid import Xid

_SLOW = re.compile(
    r"(?P<uuid>\S+) on (?P<node>.+) takes (?P<factor>[0-9]+\.[0-9]+) times the median of its equals over "
    r"(?P<cases>[0-9]+) cases"
)
CardState = Literal["PLANNED", "COVERED", "BUSY", "LOST", "REFUSED", "MISSING", "BAD"]
"""::

    PLANNED   expected, and nothing is known yet
    COVERED   its run is complete and stored
    BUSY      it was in use, or its node began nothing before the deadline
    LOST      its node died, or it began and did not end: a process died, or it was late
    REFUSED   it must not run: its health, another matrix on the node, or a node that was drained
    MISSING   its node answered, and does not have it
    BAD       its hardware reported a fault while it ran: what it measured says nothing of a kernel
"""
ShareState = Literal["PLANNED", "COVERED", "BUSY", "LOST", "REFUSED", "MISSING"]
"""state of a share: of the production shapes that one node took; a bad card loses its share"""
CARD_STATES: tuple[CardState, ...] = ("PLANNED", "COVERED", "BUSY", "LOST", "REFUSED", "MISSING", "BAD")
FleetState = Literal["running", "ended"]
INTERIM = ".interim.jsonl.gz"
"""end of the name of a file that holds what was measured so far"""
FINAL = ".jsonl.gz"
"""end of the name of a file that holds a run that ended"""
BAD = ".bad"
"""end of the name of a file that holds what a BAD card measured: no store takes it in by itself"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedCard:
    """One GPU, or one logical CPU device, as its node lists it before anything runs."""

    uuid: str
    name: str
    """the device model"""
    compute_capability: str = ""
    refusals: tuple[str, ...] = ()
    """why nothing may run on it"""
    busy: tuple[str, ...] = ()
    """why it is not free"""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan:
    """What a node shall run: the order of ``qualify node``."""

    matrix: str
    """a shipped name, or a path on the node"""
    matrix_hash: str = ""
    """sha256 of the matrix; a node that has another matrix refuses. Empty = whichever matrix is there"""
    select: str | None = None
    kernel: str | None = None
    level: Level | None = None
    device: str = "cuda:all"
    """``cuda:all``, or ``cpu:N`` for N logical CPU devices, which prove nothing about a GPU"""
    spread: Spread = "repeat"
    cards: tuple[str, ...] = ()
    """folders of third parties' kernel cards, on the node"""
    node: str = ""
    """what the engine calls the node; empty = its host name"""
    fleet: str = ""
    """what all nodes that belong together are called; `qualify collect` joins their shards"""
    attempt: int = 1
    shards: int = 0
    """where nothing leads the nodes: into how many shards the production shapes are cut. 0 = the node runs all"""
    shard: int = 0
    """the shard that this node runs, from 1"""
    expected: tuple[str, ...] | None = None
    """UUIDs of the cards to cover; None = all that the node has"""
    deadline_s: float | None = None
    """seconds after which the node ends whatever still runs; None = never"""
    interim_s: float = 10.0
    """seconds between two interim exports of what has been measured so far"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardResult:
    """What became of one card on its node."""

    uuid: str
    name: str
    state: CardState
    reason: str = ""
    run: str = ""
    """id of its run; empty where none began"""
    verdict: Verdict | None = None
    """verdict on that run, by the policy of the matrix and by the Xids of the card"""
    xids: tuple[Xid, ...] = ()
    """errors that the driver reported of the card while the plan ran"""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeVerdict:
    """What ``qualify node`` answers: one object for the whole node."""

    node: str
    fleet: str
    attempt: int
    matrix: str
    device: DeviceKind
    """cpu: logical devices, which prove nothing about a GPU"""
    verdict: Verdict
    exit_code: int
    cards: tuple[CardResult, ...]
    files: tuple[str, ...]
    """exported runs, one for each that began"""
    wall_s: float
    votes: tuple[Mapping[str, object], ...] = ()
    """where cards disagreed about bits (qualify.facts.vote)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """One matrix on the cards of many nodes."""

    id: str
    matrix: str
    matrix_hash: str
    engine: str
    device: DeviceKind
    spread: Spread
    least_coverage: float
    """share of the expected cards that must be covered"""
    state: FleetState
    epoch: int
    """epoch of the lease under which the fleet was last written"""
    created_at: datetime
    finished_at: datetime | None
    notes: tuple[str, ...] = ()
    """what a reader should know, for example UUIDs that two nodes claimed"""
    cells: tuple[str, ...] = ()
    """where nodes share the matrix: the value of ``--select`` for each of its production shapes"""


def unknown_cards(node: str) -> str:
    """What stands for the cards of a node that did not list them, in place of their UUIDs."""
    return f"unknown cards of {node}"


def unlisted_card(node: str, number: int) -> str:
    """What stands for a GPU that the engine counts on a node, and that NVML does not list there."""
    return f"GPU {number} of {node}"


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetCard:
    """One expected card in one attempt."""

    node: str
    uuid: str
    name: str
    attempt: int
    state: CardState
    reason: str = ""
    run_id: str | None = None
    verdict: Verdict | None = None
    """verdict on that run, as the node judged it"""
    epoch: int = 0

    @property
    def unnamed(self) -> bool:
        """Whether it stands for cards whose UUIDs nobody could tell."""
        number = self.uuid.removeprefix("GPU ").partition(" ")[0]
        counted = number.isdecimal() and self.uuid == unlisted_card(self.node, int(number))
        return counted or self.uuid == unknown_cards(self.node)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetShare:
    """Some production shapes of a matrix that nodes share, and the node that took them."""

    number: int
    """number of the share, from 1, in the order in which the leader gave the shares out"""
    node: str
    cells: tuple[str, ...]
    """some of the fleet's ``cells``"""
    state: ShareState
    """only a share that is COVERED counts; the shapes of any other one were given out again"""
    reason: str = ""
    run_id: str | None = None
    verdict: Verdict | None = None
    """verdict on that run, as the node judged it"""
    epoch: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """A card that is slower than its equals: a note, never a verdict across cards."""

    uuid: str
    node: str
    factor: float
    """median over cases of its time over the median of all equal cards"""
    cases: int

    def __str__(self) -> str:
        return (
            f"{self.uuid} on {self.node} takes {self.factor:.2f} times the median of its equals over {self.cases} cases"
        )

    @classmethod
    def read(cls, note: str) -> Slow | None:
        """Reads such a sentence from the notes of a fleet; None where it is another sentence."""
        found = _SLOW.fullmatch(note)
        if found is None:
            return None
        return cls(uuid=found["uuid"], node=found["node"], factor=float(found["factor"]), cases=int(found["cases"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What `qualify coverage` says of a fleet, whose cards' results it compares with one another."""

    verdict: Verdict
    whole_verdict: Verdict | None
    """as of Coverage"""
    waivers_path: str = ""
    """the file whose waivers counted for the whole run; empty where there is none"""
    kinds: tuple[VoteKind, ...] = ()
    """of its votes, the gravest first"""
    told: tuple[str, ...] = ()
    """a sentence for each of the first votes"""
    odd: Mapping[str, VoteKind] = field(default_factory=dict)
    """the cards that votes are against, by UUID, each with the gravest of its votes"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """What is known of a fleet."""

    fleet: Fleet
    cards: tuple[FleetCard, ...]
    """every expected card, in its newest attempt"""
    stacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """nodes by the fingerprint of the stack that their runs ran on"""
    slow: tuple[Slow, ...] = ()
    shares: tuple[FleetShare, ...] = ()
    """the shares, where nodes share the matrix"""
    ran: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """where nodes share the matrix: cases that count, by the UUID of the card that ran them"""
    whole: str | None = None
    """where nodes share the matrix: the run that its shares make up"""
    whole_verdict: Verdict | None = None
    """verdict on that run; None where there is no run, or nobody judged it"""
    compared: Compared | None = None
    """what the site shows of its votes; None where nobody has compared the results yet"""

    @property
    def odd(self) -> Mapping[str, VoteKind]:
        """The cards whose results differ, by UUID; empty also where nobody has compared them yet."""
        return self.compared.odd if self.compared else {}

    @property
    def counts(self) -> dict[CardState, int]:
        """Cards by state."""
        return {state: sum(card.state == state for card in self.cards) for state in CARD_STATES}

    @property
    def failed(self) -> int:
        """Cards whose run failed."""
        return sum(card.verdict == "FAIL" for card in self.cards)

    @property
    def share(self) -> float:
        """Covered cards over expected ones; where nodes share the matrix, its covered shapes over all."""
        if self.fleet.cells:
            return self.covered_cells / len(self.fleet.cells)
        return self.counts["COVERED"] / len(self.cards) if self.cards else 0.0

    @property
    def covered_cells(self) -> int:
        """Production shapes that some node ran, where nodes share the matrix."""
        covered = (share.cells for share in self.shares if share.state == "COVERED")
        return len({cell for cells in covered for cell in cells} & set(self.fleet.cells))

    @property
    def verdicts(self) -> set[Verdict | None]:
        """The verdicts on the runs that count."""
        parts = self.shares if self.fleet.cells else self.cards
        return {part.verdict for part in parts if part.state == "COVERED"}

    @property
    def verdict(self) -> Verdict:
        """What the runs that count prove together, before their results are compared with one another.

        Where nodes share a matrix, the run of the whole matrix must pass as well: shares may pass without some cases.
        """
        verdicts = self.verdicts | ({self.whole_verdict} if self.fleet.cells else set())
        if "FAIL" in verdicts:
            return "FAIL"
        return "PASS" if self.enough and verdicts == {"PASS"} else "INCONCLUSIVE"

    @property
    def shown(self) -> Verdict:
        """What the site shows: nothing passes whose results nobody has compared with one another."""
        if self.failed or self.compared is None:
            return "FAIL" if self.failed or self.verdict == "FAIL" else "INCONCLUSIVE"
        return self.compared.verdict

    @property
    def enough(self) -> bool:
        """Whether the covered share is at least as large as the fleet asked for."""
        return bool(self.cards) and self.share >= self.fleet.least_coverage
