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
    """how many cases its plan has"""
    clock_skew_s: float | None = None
    """as of ``Run``"""
    received_at: datetime | None = None
    """as of ``Run``"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunQuery:
    """Which runs a list shows."""

    text: str = ""
    """words that the id, the matrix, the device or the fingerprint holds, in any case of letters; empty = any run"""
    matrix: str = ""
    """name of the matrix; empty = any"""
    stack: str = ""
    """fingerprint of the stack; empty = any"""
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
    """What a verdict may depend on besides its own run. Each number changes when the store gets something new."""

    baselines: Mapping[str, int]
    """by matrix: the newest acceptance"""
    duels: Mapping[str, tuple[int, str]]
    """by matrix: how many duels there are, and the last id"""
    runs: Mapping[str, tuple[int, str]]
    """by matrix: how many runs there are, and the last id"""
    running: Mapping[str, int]
    """by matrix that is being run: the newest outcome of the store"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunVersion:
    """A value that changes whenever the page of a run would change; equal values mean that nothing changed."""

    state: RunState
    finished_at: datetime | None
    said: tuple[int, ...]
    """on the run: its newest sign-off, how many revocations, its newest comment"""
    around: tuple[int, ...]
    """in the whole store: the newest baseline, the newest selftest, how many duels"""
