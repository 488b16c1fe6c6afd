"""What a fire's parent and child tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qualify.facts.case import Level
from qualify.facts.comparison import StackChange, Topic
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
    demonstration: bool = False
    """a CPU stood in for the GPU that kernels of the matrix need: the verdict says nothing of a GPU"""
