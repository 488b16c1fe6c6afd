"""The messages between a run and its judges, the worker processes: what each holds, and how it becomes a line of JSON.

A worker starts with one setup, which says what it is for::

    RunSetup      Chunk, Chunk ...         runs cases        Described, then for each chunk StageBegun and CaseEnded
                                                             until ChunkDone, or ContextLost, after which it ends
    CompileSetup  Chunk, Chunk ...         compiles calls    Ready, then for each case StageBegun and CallCompiled
    TrialSetup    TrialRequest, ...        qualify repro     Ready, then for each trial StageBegun and TrialEnded
    DuelSetup     DuelRound, ...           qualify duel      Ready, then for each round CardUnfit, or StageBegun and
                                                             CellTimed or CellFailed of each cell, until ChunkDone;
                                                             SidesDescribed once

A worker that cannot use its device or load its kernel says Unusable once instead, and ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

from pydantic import PlainSerializer

from qualify.cards.kernel import KernelCard
from qualify.facts import codec
from qualify.facts.case import Case, Level
from qualify.facts.devices import DeviceKind
from qualify.facts.duel import DuelPair, DuelTask
from qualify.facts.lines import decode_line
from qualify.facts.outcome import Outcome
from qualify.facts.stack import Ceilings, Stack

LINE_BYTES = 8 << 20
"""a longer line is no message; JSON of so many bytes takes up to thirty times the memory once it is decoded"""
LAUNCHES_OF = "launches"
"""the name that takes the place of a check's, in a trial that only tells what a call launches"""

M = TypeVar("M")
Reference = Literal["fp64", "fp32"]
Card = Annotated[KernelCard, PlainSerializer(lambda card: card.model_dump(mode="json", exclude_unset=True))]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLimits:
    """What the hosts of a worker run in, and what they may take."""

    timeout_s: float
    """seconds of a stage"""
    compile_timeout_s: float
    """seconds of a stage in which a library may be compiling"""
    memory_bytes: int
    """host memory that each of them may take"""
    environments: Mapping[str, str] = field(default_factory=dict)
    """interpreters by the name of their environment"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSetup:
    """The worker runs cases."""

    device: DeviceKind
    level: Level
    reference: Reference
    hash_cache: str
    """file that remembers the digests of libraries; empty = every file is read anew"""
    import_paths: tuple[str, ...]
    """folders in which the entries of third parties stand"""
    cards: Mapping[str, Card]
    """every kernel of the run by name"""
    preload: tuple[str, ...]
    """kernels whose libraries are loaded before it takes its fingerprint"""
    hosts: HostLimits
    ceilings: Ceilings | None
    """what an earlier worker of the run measured; None to measure"""
    card: str = ""
    """UUID of the card that the worker must be on; empty = the first that it sees"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompileSetup:
    """The worker makes every call once, so that its library's cache on disk holds what the call needs."""

    device: DeviceKind
    import_paths: tuple[str, ...]
    cards: Mapping[str, Card]
    hosts: HostLimits


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSetup:
    """The worker tries altered versions of cases of one kernel."""

    device: DeviceKind
    level: Level
    reference: Reference
    import_paths: tuple[str, ...]
    card: Card
    hosts: HostLimits


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelEffort:
    """How long a duel times."""

    quads: int
    """quads of the way that decides, for each pair of processes"""
    block_us: float
    """device time of a block"""
    aside: float
    """share of that time which a block of the other ways takes"""
    stage_s: float
    """how long a step may take"""
    compile_s: float
    """the same where a library may be compiling"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelSetup:
    """The worker has two sides take turns."""

    device: DeviceKind
    import_paths: tuple[str, ...]
    cards: Mapping[str, Card]
    """of both sides, by name"""
    hash_cache: str
    """file that remembers the digests of libraries"""
    hosts: HostLimits
    effort: DuelEffort


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelRound:
    """One fresh pair of processes."""

    number: int
    tasks: tuple[DuelTask, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseRequest:
    """One case to run or to compile."""

    case: Case
    attempt: int
    """number of this attempt, from 1 on"""
    alone: bool = False
    """whether it needs a host in which nothing ran before"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Cases that the worker does together."""

    requests: tuple[CaseRequest, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRequest:
    """One check of one case, recorded."""

    case: Case
    seed: int
    """of the inputs; it stays while the case shrinks"""
    check: str
    """check to run; empty = only launch"""
    finding: str
    """name of the finding that must come again"""
    script: bool
    """whether the script is wanted, and not only how it ends"""
    text: str
    """explanation that goes into the script"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The worker waits for work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """The worker waits for cases; what it says of its machine."""

    stack: Stack
    environments: Mapping[str, Stack]
    """stacks of the hosts in other environments, by name"""
    ceilings: Ceilings


@dataclass(frozen=True, kw_only=True, slots=True)
class Unusable:
    """The device or the kernel cannot be used at all."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StageBegun:
    """The worker begins a step; sent before it, so that a crash or a hang has its place."""

    case: str
    """id of the case; empty while the worker starts"""
    stage: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseEnded:
    """A case has an outcome."""

    case: str
    outcome: Outcome
    fresh: bool
    """whether no case ran before in its host"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkDone:
    """Every case of the chunk has an outcome."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextLost:
    """The device's context computes no more."""

    case: str
    """the case after which it showed"""
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCompiled:
    """A call was made once."""

    case: str
    first_call_us: float | None
    """None where the call failed"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialEnded:
    """How one trial ended."""

    ended: str
    """``finding:NAME``, ``crashed:HOW``, ``timed_out``, ``refused``, ``passed``, ``launched`` or ``unproven``"""
    detail: str
    script: str
    """empty where nobody wants one, or none can show it"""

    @property
    def failed(self) -> bool:
        """Whether anything went wrong."""
        return self.ended != "passed"


@dataclass(frozen=True, kw_only=True, slots=True)
class SidesDescribed:
    """What the two sides of a duel run on; sent once, after the first cell."""

    a: Stack
    b: Stack
    note: str
    """what a reader should know of the device; empty = nothing"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellTimed:
    """What one pair of processes gave for a cell."""

    cell: str
    pairs: tuple[DuelPair, ...]
    """one for each way"""
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CellFailed:
    """A cell cannot be timed."""

    cell: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CardUnfit:
    """Nothing may be timed on the device now."""

    reasons: tuple[str, ...]


Setup = RunSetup | CompileSetup | TrialSetup | DuelSetup
FromParent = Setup | Chunk | TrialRequest | DuelRound
FromChild = (
    Ready
    | Described
    | Unusable
    | StageBegun
    | CaseEnded
    | ChunkDone
    | ContextLost
    | CallCompiled
    | TrialEnded
    | SidesDescribed
    | CellTimed
    | CellFailed
    | CardUnfit
)

TO_CHILD: Mapping[str, type[FromParent]] = {
    "run": RunSetup,
    "compile": CompileSetup,
    "trials": TrialSetup,
    "duel": DuelSetup,
    "round": DuelRound,
    "chunk": Chunk,
    "trial": TrialRequest,
}
TO_PARENT: Mapping[str, type[FromChild]] = {
    "ready": Ready,
    "described": Described,
    "unusable": Unusable,
    "at": StageBegun,
    "outcome": CaseEnded,
    "idle": ChunkDone,
    "sick": ContextLost,
    "compiled": CallCompiled,
    "ended": TrialEnded,
    "sides": SidesDescribed,
    "timed": CellTimed,
    "untimed": CellFailed,
    "unfit": CardUnfit,
}
EVENTS: Mapping[type[FromParent | FromChild], str] = {
    kind: event for table in (TO_CHILD, TO_PARENT) for event, kind in table.items()
}


def event_of(message: FromParent | FromChild) -> str:
    """The name that a message has in its line."""
    return EVENTS[type(message)]


def encode(message: FromParent | FromChild) -> bytes:
    """The message as a line.

    Half characters, which undecodable bytes in a path become, reach the child as they are. In what a child says (the
    text of an exception) each becomes ``?``, because it is stored and printed.
    """
    data = {"event": event_of(message), **codec.to_data(message)}
    verbatim = isinstance(message, FromParent)
    return json.dumps(data, separators=(",", ":"), ensure_ascii=verbatim).encode("utf-8", "replace") + b"\n"


def decode_request(line: bytes) -> FromParent:
    """What the parent sent, with or without its newline; raises WrongMessage."""
    return decode_line(line, TO_CHILD)


def decode_answer(line: bytes) -> FromChild:
    """What a child sent, with or without its newline; raises WrongMessage."""
    return decode_line(line, TO_PARENT)
