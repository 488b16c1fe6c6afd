"""What is asked of stored evidence, what counts of it, and why the rest does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from qualify.facts.case import Level
from qualify.facts.outcome import Outcome
from qualify.facts.run import Run
from qualify.facts.stack import Stack
from qualify.facts.typed import PLAIN, Typed
from qualify.plan.code import CodeHere
from qualify.seal.keys import PublicKey
from qualify.verdict.origin import oldest

STALE = "stale: "
"""beginning of the reason why an old run does not count"""
EDITED = "it contradicts itself: "
"""beginning of the reason why an edited run does not count"""
Outdated = Callable[[Run], Mapping[str, str]]
"""why a run's evidence of kernels does not count, by kernel"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fresh:
    """Which evidence counts."""

    now: datetime
    max_age: timedelta
    level: Level
    """the lowest level whose evidence counts"""
    code: CodeHere | None = None
    """the machine whose code must have made the evidence; None = any code"""
    stack: str | Stack = ""
    """a stack, or the beginning of a fingerprint; empty = the stack of the newest run"""
    keys: tuple[PublicKey, ...] = ()
    """one of these must have sealed a run; empty = it needs no seal"""
    typed: Typed = PLAIN
    """what printed commands repeat"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """A run whose evidence cannot be used, at least that of some kernels."""

    run: Run
    reason: str = ""
    """why none of its evidence counts; empty = only that of some kernels or cases does not"""
    kernels: Mapping[str, str] = field(default_factory=dict)
    """reasons by kernel"""
    cases: Mapping[str, str] = field(default_factory=dict)
    """reasons by case id"""
    unsealed: bool = False
    """whether it would count if one of the required keys had sealed it as it is"""
    behind: bool = False
    """whether it is stale only by its machine's clock, which was behind the store's"""
    told: bool = False
    """whether a note tells it even where no case lacks evidence: the run was edited, one of its cards failed, or it is
    dated in the future and the newest such run. So does one that is newer than all that counts, and lacks only its
    seal, is stale by a clock that was behind, or has a matrix that this qualify cannot read"""

    def why(self, case_id: str) -> str:
        """Why the run's evidence of the case does not count; empty where that is not known."""
        reason = self.reason or self.cases.get(case_id) or self.kernels.get(case_id.rpartition("/")[2], "")
        return f"{reason} (run {self.run.id})" if reason else ""

    def __str__(self) -> str:
        parts = self.kernels or dict([*self.cases.items()][:1])
        reasons = self.reason or "; ".join(f"{name}: {why}" for name, why in parts.items())
        return f"{reasons} (run {self.run.id})"


@dataclass(frozen=True, kw_only=True, slots=True)
class FreshEvidence:
    """What counts of the stored evidence."""

    outcomes: Mapping[str, Outcome]
    """by case id; a case without evidence that counts is not among them"""
    sources: Mapping[str, str]
    """by case id, the run that the outcome is from"""
    runs: Sequence[Run]
    """those runs, newest first"""
    latest: Run
    """the newest of them; where there is none, the newest run on the stack"""
    rejects: Sequence[Reject]
    """runs whose evidence does not count, at least in part: from the future, then those that lack cases or whose cards
    failed, then the others, newest first"""
    notes: Sequence[str]
    """failures that count although their run began earlier, and other stacks that have fresh evidence too"""


def stale_words(run: Run, made: datetime) -> str:
    """Why an outcome of a run that was made at that moment is too old."""
    if made == run.received_at:
        return f"{STALE}in this store since {made:%Y-%m-%d %H:%M} UTC, and dated later"
    if made == oldest(run):
        return f"{STALE}begun {run.started_at:%Y-%m-%d %H:%M} UTC"
    return f"{STALE}measured {made:%Y-%m-%d %H:%M} UTC"
