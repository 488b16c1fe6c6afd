"""What lists of a store show: runs without their evidence, stacks, and the history of one case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from qualify.facts.case import Level
from qualify.facts.duel import DuelVerdict
from qualify.facts.run import Record, RunState


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHead:
    """A run in a list: what is read of it without its matrix, its code and its evidence."""

    id: str
    matrix: str
    level: Level
    state: RunState
    started_at: datetime
    """aware UTC"""
    finished_at: datetime | None
    variant: str
    """the device model (``Device.variant``); empty = no worker reported"""
    stack: str
    """fingerprint; empty = no worker reported"""
    narrowed: bool
    cases: int
    """of its plan"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunQuery:
    """Which runs a list shows."""

    text: str = ""
    """in the id, the matrix, the device or the fingerprint, in any case; empty = any"""
    matrix: str = ""
    """of that matrix; empty = any"""
    stack: str = ""
    """on the stack of that fingerprint; empty = any"""
    limit: int = 50
    offset: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunList:
    """Some of the runs that were asked for, newest first, and how many there are."""

    heads: tuple[RunHead, ...]
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StackHead:
    """A stack in a list."""

    fingerprint: str
    variant: str
    """the device model"""
    versions: tuple[tuple[str, str], ...]
    """name and version of driver, cuda and torch, where they are known"""
    runs: int
    newest: datetime
    """when the newest run on it began, aware UTC"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelHead:
    """A duel in a list: what is read of it without its times."""

    id: str
    matrix: str
    a: str
    """as the command line names it: a kernel, an environment or a stack"""
    b: str
    null: bool
    """whether both sides are the same"""
    device: str
    started_at: datetime
    """aware UTC"""
    complete: bool
    """whether every cell was decided"""
    counts: Mapping[DuelVerdict, int]
    """cells by verdict; zeros left out"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseInRun:
    """A case in one run, with the outcome that counts there."""

    head: RunHead
    record: Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Around:
    """What else of a matrix a verdict on one of its runs may come from: each number changes with what is stored."""

    baselines: Mapping[str, int]
    """by matrix: the newest acceptance"""
    duels: Mapping[str, tuple[int, str]]
    """by matrix: how many duels there are, and the last id"""
    runs: Mapping[str, tuple[int, str]]
    """by matrix: the same of runs"""
    running: Mapping[str, int]
    """by matrix that is being run: the newest outcome of the store"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunVersion:
    """What changes whenever the page of a run would: equal where nothing did."""

    state: RunState
    finished_at: datetime | None
    said: tuple[int, ...]
    """of sign-offs, revocations and comments on the run"""
    around: tuple[int, ...]
    """of baselines, selftests and duels of the whole store"""
