"""What differs between two runs: the stack first, then what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from qualify.facts.baseline import Baseline
from qualify.facts.run import Run
from qualify.facts.stack import ComponentKind
from qualify.facts.weaker import Less

Bucket = Literal["regression", "suspicious", "none", "insufficient data"]
BUCKETS: tuple[Bucket, ...] = ("regression", "suspicious", "insufficient data", "none")
"""what a reader must see first stands first; none: it did not change, or the change is harmless"""
Topic = Literal["verdicts", "kernels", "numbers", "times", "bits"]
TOPICS: tuple[Topic, ...] = ("verdicts", "kernels", "numbers", "times", "bits")

Scalar = str | int | float | None
Seen = Scalar | Mapping[str, Scalar] | tuple[str, ...]
"""what one side has: a word, names, or numbers by name"""


@dataclass(frozen=True, kw_only=True, slots=True)
class StackChange:
    """One component of the stack that differs."""

    component: str
    kind: ComponentKind | Literal["device", "environment"]
    before: str | None
    """version and digest; None = absent"""
    after: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing about one case that differs."""

    id: str
    """case id"""
    bucket: Bucket
    before: Seen
    """None = absent"""
    after: Seen
    detail: str
    """one sentence"""
    impact_us: float
    """µs: the time of the case over all layers of its model, or how much this time changed; 0.0 = unknown"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slowdown:
    """Cases that take longer than in an earlier run on the same card, beyond the noise between two runs."""

    run: str
    """id of the earlier run"""
    accepted_by: str
    """who accepted it as the baseline; empty where it is none"""
    cases: tuple[Change, ...]
    """changes of ``times``, the largest factor first; both sides are µs"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Since:
    """What changed under the kernels since an earlier run, whatever came of it."""

    before: Run
    baseline: Baseline | None
    """who accepted that run; None where a run was named"""
    stack: tuple[StackChange, ...]
    code: Mapping[str, str]
    """by kernel, its own files that differ; installed distributions are in the stack"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs side by side. Every list has the worst bucket first, and in it the largest impact."""

    before: Run
    after: Run
    stack: tuple[StackChange, ...]
    verdicts: tuple[Change, ...]
    kernels: tuple[Change, ...]
    numbers: tuple[Change, ...]
    times: tuple[Change, ...]
    bits: tuple[Change, ...] = ()
    """outputs of equal inputs that are no longer the same bits; both sides are digests"""
    cases: Mapping[Bucket, int]
    """cases by the worst bucket of their changes; unchanged ones count as none"""
    caveats: tuple[str, ...]
    """what limits the comparison"""
    uncompared: Mapping[Topic, tuple[int, int]] = field(default_factory=dict)
    """topics not compared in every case where both runs have a value: in how many cases they were, and of how many"""
    weaker: tuple[Less, ...] = ()
    """requirements that are weaker in the later run, where both runs are of one matrix"""

    def topics(self) -> tuple[tuple[Topic, tuple[Change, ...]], ...]:
        """The five lists with their names."""
        lists: dict[Topic, tuple[Change, ...]] = {
            "verdicts": self.verdicts,
            "kernels": self.kernels,
            "numbers": self.numbers,
            "times": self.times,
            "bits": self.bits,
        }
        return tuple((topic, lists[topic]) for topic in TOPICS)
