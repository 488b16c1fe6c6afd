"""One execution of a matrix, and what was concluded from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from qualify.facts.case import INCIDENTS, Case, Level
from qualify.facts.code import Code
from qualify.facts.devices import DeviceKind
from qualify.facts.environment import Environment
from qualify.facts.outcome import Outcome
from qualify.facts.placement import Placement
from qualify.facts.stack import Ceilings, Stack
from qualify.facts.terms import Terms
from qualify.facts.waiver import WaiverUse

RunState = Literal["running", "completed", "interrupted"]
Verdict = Literal["PASS", "FAIL", "WAIVED", "INCONCLUSIVE", "NOT_REQUIRED"]
VERDICTS: tuple[Verdict, ...] = ("PASS", "FAIL", "WAIVED", "INCONCLUSIVE", "NOT_REQUIRED")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One execution of a matrix on one stack."""

    id: str
    """sortable by time, for example ``20261120T234500Z-1f3a9c``"""
    matrix: str
    matrix_hash: str
    """sha256 of the matrix file"""
    matrix_source: str
    """the YAML as it was, so that a verdict can be repeated later"""
    matrix_path: str
    level: Level
    device: DeviceKind
    select: str
    """the --select glob; empty = all"""
    kernel: str
    """the --kernel name; empty = all"""
    qualify_version: str
    check_version: int
    """version of the checks that made the evidence (qualify.facts.checks)"""
    started_at: datetime
    """aware UTC"""
    finished_at: datetime | None
    state: RunState
    stack: Stack | None
    """None until the first worker has reported"""
    ceilings: Ceilings | None
    traffic_source: str = ""
    """the YAML of the matrix's traffic file as it was; empty where it names none"""
    code: Mapping[str, Code] | None = None
    """by kernel, the code that ran its cases; None in runs of an older qualify, which did not note it"""
    terms: Mapping[str, Terms] | None = None
    """by kernel, what its card promised; None in runs of an older qualify, which did not note it"""
    environments: Mapping[str, Environment] = field(default_factory=dict)
    """the other interpreters that kernels ran in, by name; the default one's stack is the run's"""
    clock_skew_s: float | None = None
    """by how much the runner's clock was ahead of the store's, or was set while it ran; None in runs of an older
    qualify"""
    placement: Placement | None = None
    """where it was placed, if cards were named; None = it took the first card of its machine"""
    planned: int | None = None
    """how many cases its plan has; None until it is stored, and in runs of an older qualify"""
    received_at: datetime | None = None
    """when it came from another store, by the clock of the store that has it; None = it ran here. No seal is over it,
    and no exported file holds it"""

    def lost_cases(self, there: int, places: int) -> str:
        """Says how many cases of its plan are missing or too many, in words; empty where nothing shows this.

        Args:
            there: how many cases are stored.
            places: how many places they take; the places of a plan count from 0.
        """
        missing = max(self.planned or 0, places) - there
        if missing > 0:
            return f"{missing} case{'s' if missing > 1 else ''} of its plan {'are' if missing > 1 else 'is'} missing"
        if self.planned is not None and there > self.planned:
            return f"its plan has {self.planned} cases, and {there} are there"
        return ""

    def edited_stacks(self, fingerprints: Collection[str]) -> str:
        """Says in words that somebody changed its stack, or that of an environment; empty where nothing shows this.

        Args:
            fingerprints: those of its stacks, computed when the stacks were recorded.
        """
        if {stack.fingerprint for stack in self.stacks} == set(fingerprints):
            return ""
        return "the fingerprint of one of its stacks does not match the components of that stack"

    @property
    def environment_words(self) -> tuple[str, ...]:
        """The value of each ``--environment`` with which a command line has the same environments."""
        return tuple(f"{name}={one.python}" for name, one in self.environments.items())

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Its stack and those of its environments, as far as they were reported."""
        found = (self.stack, *(one.stack for one in self.environments.values()))
        return tuple(stack for stack in found if stack)

    def stack_of(self, environment: str) -> Stack | None:
        """What the kernels of an environment ran on; empty = this interpreter. None where nobody reported it."""
        if not environment:
            return self.stack
        found = self.environments.get(environment)
        return found.stack if found else None

    @property
    def narrowed(self) -> bool:
        """Whether it is about a part of the matrix only."""
        return bool(self.select or self.kernel)


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """The process that writes a run: one at a time."""

    host: str
    pid: int
    since: datetime
    """aware UTC"""
    machine: str
    """the boot of the machine and the PID namespace, in which ``pid`` means this process; empty = unknown"""
    born: int
    """clock ticks from the boot to its start, because the system uses process ids again"""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A case and its outcome, as committed."""

    case: Case
    outcome: Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The verdict on one case, with its reasons."""

    case_id: str
    verdict: Verdict
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CellJudgement:
    """The verdict on one production shape: does it have a proven path?"""

    cell: str
    verdict: Verdict
    proven_by: tuple[str, ...]
    """kernels that were measured, witnessed and passed; a kernel of another environment counts only where the matrix
    expects it, or where no kernel of this interpreter has the shape"""
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Conclusion:
    """What the gate says."""

    verdict: Verdict
    exit_code: int
    judgements: tuple[Judgement, ...]
    cells: tuple[CellJudgement, ...]
    counts: Mapping[str, Mapping[str, int]]
    """``{"verdicts": {...}, "outcomes": {...}}``"""
    waivers: tuple[WaiverUse, ...] = ()
    """what each waiver of the matrix did, in the file's order"""
    demonstration: bool = False
    """a CPU stood in for the GPU that kernels of the matrix need: nothing is proven about a GPU"""

    @property
    def required(self) -> tuple[CellJudgement, ...]:
        """The production shapes that need a path; incidents need none, because nobody serves them."""
        return tuple(
            cell for cell in self.cells if cell.verdict != "NOT_REQUIRED" and not cell.cell.startswith(f"{INCIDENTS}/")
        )

    @property
    def proven(self) -> int:
        """How many production shapes have a proven path: that of the expected kernel, where the matrix names one."""
        return sum(cell.verdict == "PASS" for cell in self.required)

    @property
    def shown(self) -> Verdict:
        """The verdict whose colour and glyph a reader sees: a demonstration that passed does not look like a PASS."""
        return "NOT_REQUIRED" if self.demonstration and self.verdict == "PASS" else self.verdict

    @property
    def expired(self) -> tuple[WaiverUse, ...]:
        """Waivers that make the verdict FAIL, whatever they cover: their last day is over."""
        return tuple(use for use in self.waivers if use.state == "expired")
