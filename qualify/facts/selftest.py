"""The tool's own detection power: which planted faults it found, and what it said against correct kernels."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from qualify.facts.case import Level

FaultClass = Literal["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M", "O"]

CLASSES: dict[FaultClass, str] = {
    "A": "mask geometry",
    "B": "reads outside the valid region",
    "C": "degenerate rows and sequences",
    "D": "layout and strides",
    "E": "head mapping",
    "F": "parameters",
    "G": "LSE and merge",
    "H": "paged cache",
    "I": "numerics",
    "J": "kept state",
    "K": "size limits",
    "L": "silent fallback",
    "M": "crash or refusal",
    "O": "nondeterminism, batch variance",
}
"""what a class of incident is about"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Detection:
    """What the pipeline said of one planted fault at one level."""

    level: Level
    cases: int
    """cases that it ran"""
    caught_by: tuple[str, ...]
    """checks with a failure, in the order in which they run; ``witness`` and ``outcome`` stand beside the names of
    checks"""
    example: str
    """case and sentence of the first failure; empty where nothing was found"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlantedFault:
    """A wrong kernel and what became of it."""

    name: str
    kind: FaultClass
    mirrors: str
    """public threads that describe the defect"""
    does: str
    equivalent: str
    """the proof that nobody can tell it from a correct kernel; empty for a fault that has to be caught"""
    detections: tuple[Detection, ...]
    """one for each level that ran"""

    def at(self, level: Level) -> Detection | None:
        """What was found at that level; None where it did not run."""
        return next((detection for detection in self.detections if detection.level == level), None)

    @property
    def caught(self) -> bool:
        """Whether any level caught it."""
        return any(detection.caught_by for detection in self.detections)


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """A failure reported of a correct kernel."""

    case_id: str
    level: Level
    seed: int
    check: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectKernel:
    """A correct kernel, and the failures that were reported of it."""

    name: str
    does: str
    runs: int
    """cases times seeds"""
    alarms: tuple[Alarm, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTest:
    """One run of the selftest."""

    check_version: int
    """version of the checks that it was measured for"""
    qualify_version: str
    levels: tuple[Level, ...]
    select: str
    """glob over the faults' names; empty = all"""
    started_at: datetime
    """aware UTC"""
    wall_s: float
    faults: tuple[PlantedFault, ...]
    correct: tuple[CorrectKernel, ...]

    @property
    def counted(self) -> tuple[PlantedFault, ...]:
        """The faults that have to be caught."""
        return tuple(fault for fault in self.faults if not fault.equivalent)

    def caught(self, level: Level) -> int:
        """How many of them that level caught."""
        return sum(bool(found.caught_by) for fault in self.counted if (found := fault.at(level)))

    @property
    def missed(self) -> tuple[str, ...]:
        """Names of those that no level caught."""
        return tuple(fault.name for fault in self.counted if not fault.caught)

    @property
    def correct_runs(self) -> int:
        """Cases of correct kernels that ran."""
        return sum(kernel.runs for kernel in self.correct)

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Every failure that was reported of a correct kernel."""
        return tuple(alarm for kernel in self.correct for alarm in kernel.alarms)

    @property
    def alarmed(self) -> tuple[str, ...]:
        """Names of the correct kernels that some check accused."""
        return tuple(kernel.name for kernel in self.correct if kernel.alarms)

    @property
    def holds(self) -> bool:
        """Whether everything was caught and no correct kernel was accused."""
        return not self.missed and not self.alarms
