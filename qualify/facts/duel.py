"""A duel: two sides take turns on one card, cell by cell, and what their times say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from qualify.facts.case import Case, Phase
from qualify.facts.clock import before_it_came
from qualify.facts.code import Code
from qualify.facts.stack import Stack
from qualify.statistics.quads import LARGEST

DuelVerdict = Literal["SLOWER", "SAME", "FASTER", "AMBIGUOUS", "INCONCLUSIVE"]
DUEL_VERDICTS: tuple[DuelVerdict, ...] = ("SLOWER", "INCONCLUSIVE", "AMBIGUOUS", "FASTER", "SAME")
"""in this order: what a reader must see first stands first"""
Way = Literal["graph", "graph_warm", "eager", "host"]
"""How a cell is timed::

    graph       replays of a CUDA graph of launches that rotate over cold inputs: the way that decides
    graph_warm  the same on one set of inputs, which stay in the L2 cache: decode only
    eager       launches by the host, on cold inputs, timed on the device; decides where there is no graph
    host        time of the host to issue one launch
"""
WAYS: tuple[Way, ...] = ("graph", "graph_warm", "eager", "host")
DECIDING: tuple[Way, ...] = ("graph", "eager")
"""ways whose verdict may be the cell's, the better one first"""
NO_SAMPLE = "no valid sample"
"""how the reason of a cell begins that nobody timed, or not validly, although no side failed: more time may help"""
BROKEN = "the duel could not go on"
"""what the reason of a cell says that was open when a duel broke off: more time helps only once that is repaired"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelTask:
    """One cell of a duel: a production shape, and the case of each side."""

    name: str
    """the shape, and the kernel where the sides are environments"""
    a: Case
    b: Case
    plant: float = 0.0
    """share of its time that B is made to spin, to test that the duel finds a slowdown; 0.0 = none"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelQuad:
    """Four blocks, in the order A B B A or B A A B; times are µs of one launch."""

    a_us: tuple[float, float]
    b_us: tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelPair:
    """What one fresh pair of processes gave for one cell in one way."""

    way: Way
    pair: int
    """number of the pair of processes, from 0 on"""
    quads: tuple[DuelQuad, ...]
    thrown_away: int
    """quads that count as nothing, because the card was throttled or somebody else used it"""
    confirming: bool = False
    """whether it was made because the pairs before said SLOWER"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """B's time over A's in one way; changes are shares: 0.02 = B takes 2 % longer."""

    verdict: DuelVerdict
    change: float
    low: float
    """lower end of the 95 % interval"""
    high: float
    a_us: float
    """median of all blocks"""
    b_us: float
    pairs: int
    """fresh pairs of processes behind it"""
    quads: int
    detectable: float
    """smallest slowdown that would have been found with a chance of 95 %"""
    margin: float
    """share below which a change does not count"""

    @property
    def finds_nothing(self) -> bool:
        """Whether not even the largest slowdown that is computed would have been found."""
        return self.detectable >= LARGEST or math.isclose(self.detectable, LARGEST)


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelCell:
    """What a duel says about one cell."""

    name: str
    a: str
    """case id"""
    b: str
    phase: Phase
    verdict: DuelVerdict
    reason: str
    """why it is AMBIGUOUS or INCONCLUSIVE; else empty"""
    way: Way | None
    """the way that decided; None where nothing was measured"""
    ratios: Mapping[Way, Ratio]
    thrown_away: int
    planted: float = 0.0
    """share of its time that B was made to spin; 0.0 = none"""
    notes: tuple[str, ...] = ()
    """what a reader should know: what cannot be captured, what stayed warm, a power cap"""

    @property
    def ratio(self) -> Ratio | None:
        """The ratio of the way that decided."""
        return self.ratios.get(self.way) if self.way else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Duel:
    """Two sides on one card."""

    id: str
    """``duel-``, followed by a part that sorts by time, as in the id of a run"""
    matrix: str
    matrix_hash: str
    select: str
    a: str
    """as the command line names it: a kernel, an environment or a stack"""
    b: str
    null: bool
    """whether both sides are the same: what it finds is a false alarm"""
    device: str
    device_uuid: str
    stack_a: Stack
    stack_b: Stack
    started_at: datetime
    finished_at: datetime
    complete: bool
    """whether every cell was decided before the deadline and the last pair"""
    least_pairs: int
    cells: tuple[DuelCell, ...]
    samples: Mapping[str, tuple[DuelPair, ...]] = field(default_factory=dict)
    """pairs of processes, by name of the cell"""
    only_a: tuple[str, ...] = ()
    """cells that A alone can run, so that nobody compared them; empty also in duels of before that was stored"""
    only_b: tuple[str, ...] = ()
    """cells that B alone can run"""
    code: Mapping[str, Code] = field(default_factory=dict)
    """by kernel of side B, the code that was timed; empty in duels of before that was stored"""
    content: Mapping[str, str] = field(default_factory=dict)
    """by case id of side B, the sha256 of its call and its kernel's card (``Case.content_hash``)"""
    received_at: datetime | None = None
    """when it came from another store, by the clock of the store that has it; None = it was fought here. No seal is
    over it, and no exported file holds it"""

    @property
    def ended_by(self) -> datetime:
        """The moment at which it had ended, by the clock that makes it older: a duel ends before others receive it."""
        return before_it_came(self.finished_at, self.received_at)

    @property
    def wall_s(self) -> float:
        """How many seconds the duel took."""
        return (self.finished_at - self.started_at).total_seconds()

    def counts(self) -> dict[DuelVerdict, int]:
        """Cells by verdict."""
        return {verdict: sum(cell.verdict == verdict for cell in self.cells) for verdict in DUEL_VERDICTS}

    @property
    def planted(self) -> tuple[DuelCell, ...]:
        """The cells that were made slower, to test that the duel finds it."""
        return tuple(cell for cell in self.cells if cell.planted)

    @property
    def alarms(self) -> float:
        """Share of the cells, without planted ones, that were called slower or faster: false alarms in a null duel."""
        honest = [cell for cell in self.cells if not cell.planted]
        called = sum(cell.verdict in {"SLOWER", "FASTER"} for cell in honest)
        return called / len(honest) if honest else 0.0
