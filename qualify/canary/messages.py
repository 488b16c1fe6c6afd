"""What a fire's parent and child tell each other: what each message holds, and how it becomes a line of JSON.

The parent writes one Order to stdin, as one JSON object. The child answers with lines::

    RunBegun      before the first case
    Seen       it judged its run, and ends
    Failed     it ends with that code, and says why
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from qualify.facts import codec
from qualify.facts.case import Level
from qualify.facts.comparison import StackChange, Topic
from qualify.facts.lines import decode_line
from qualify.facts.run import Verdict


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
    """under which it runs: the child ends when that epoch of it does"""
    epoch: int
    lease_s: float
    """for which the holder may be silent"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunBegun:
    """The child has a run: a new one, or that of an earlier attempt."""

    run: str


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
    """cases whose time grew by more than the card allows"""
    examples: tuple[str, ...]
    """the first changes, in words"""
    expired: tuple[str, ...] = ()
    """waivers that have expired, where nothing else makes the verdict FAIL: that says nothing of the stack"""
    weaker: tuple[str, ...] = ()
    """what the matrix asks less than the baseline, and its policy forbids, in words; the level is the canary's own"""
    waived: str = ""
    """owner, case and last day of each waiver that the run needed to pass; empty where it needed none"""
    demonstration: bool = False
    """a CPU stood in for the GPU that kernels of the matrix need: the verdict says nothing of a GPU"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The child ends without a verdict."""

    message: str
    exit_code: int


FromChild = RunBegun | Seen | Failed
TO_PARENT: Mapping[str, type[FromChild]] = {"begun": RunBegun, "seen": Seen, "failed": Failed}
EVENTS: Mapping[type[FromChild], str] = {kind: event for event, kind in TO_PARENT.items()}


def encode(message: FromChild) -> bytes:
    """The message as a line."""
    data = {"event": EVENTS[type(message)], **codec.to_data(message)}
    return json.dumps(data).encode() + b"\n"


def decode(line: bytes) -> FromChild:
    """What a child sent, with or without its newline; raises WrongMessage."""
    return decode_line(line, TO_PARENT)
