"""Which of several changed components is to blame: the fewest stacks to test, and what stored runs tell already.

Components that cannot be changed apart are one: torch brings its CUDA libraries and Triton. The plan assumes that one
component is to blame. Each tested stack has some components of the later stack and the rest of the earlier one.
Component number i is in test j where bit j of i is set. So the outcomes of ceil(log2(n)) tests spell the number of the
one to blame, and no smaller set of tests can tell n components apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from qualify.facts.comparison import Change, Comparison, StackChange, Topic
from qualify.facts.differing import stack_changes
from qualify.facts.run import Run
from qualify.facts.stack import Stack

FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("torch", r"torch", r"torch|triton|cuda|cudnn|nvidia-(?!cutlass).*"),
    ("cudnn", r"nvidia-cudnn-cu.*", r"cudnn|nvidia-cudnn-cu.*"),
    ("cuda", r"nvidia-cuda-runtime.*", r"cuda|nvidia-cuda-.*"),
    ("flashinfer", r"flashinfer-.*", r"flashinfer-.*"),
)
"""components that are installed together: name, a pattern of the distributions whose change moves all of them, and a
pattern of all members"""
Result = Literal["good", "bad", "mixed"]
SYMPTOMS: tuple[tuple[Topic, tuple[str, ...]], ...] = (
    ("verdicts", ("regression",)),
    ("kernels", ("regression", "suspicious")),
    ("numbers", ("regression", "suspicious")),
    ("times", ("suspicious",)),
)
"""what can be blamed on a component, the worst first"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Components of the stack that change together."""

    name: str
    changes: tuple[StackChange, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """What got worse."""

    topic: Topic
    changes: tuple[Change, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTest:
    """A stored run on a stack between the two."""

    run: Run
    upgraded: tuple[str, ...]
    """names of the parts that it has from the later stack"""
    result: Result
    """whether the symptom shows: in none, all, or some of its cases"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bisection:
    """What is known, and what is left to test."""

    comparison: Comparison
    symptom: Symptom | None
    """None where nothing got worse"""
    parts: tuple[Part, ...]
    tested: tuple[StoredTest, ...]
    candidates: tuple[str, ...]
    """parts that may still be to blame; none where no single one explains what is stored"""
    tests: tuple[tuple[str, ...], ...]
    """for each stack to test: the parts to take from the later stack, all others from the earlier one"""


def parts_of(changes: Sequence[StackChange]) -> tuple[Part, ...]:
    """The changed components; those that cannot be changed separately are one part.

    Files that a process maps belong to what installed them: they count only where nothing else changed.
    """
    installed = [change for change in changes if change.kind != "binary"] or list(changes)
    names = {change.component for change in installed if change.kind == "distribution"}
    heads = [name for name, moved_by, _ in FAMILIES if any(re.fullmatch(moved_by, it) for it in names)]
    groups: dict[str, list[StackChange]] = {}
    for change in installed:
        groups.setdefault(_part_name(change, heads), []).append(change)
    return tuple(Part(name=name, changes=tuple(members)) for name, members in groups.items())


def _part_name(change: StackChange, heads: Sequence[str]) -> str:
    if change.kind == "device":
        return "device"
    for name, _, members in FAMILIES:
        if name in heads and change.kind in ("distribution", "runtime") and re.fullmatch(members, change.component):
            return name
    return change.component


def symptom_of(comparison: Comparison, matches: Iterable[str]) -> Symptom | None:
    """The worst kind of change among the given cases; None where nothing got worse."""
    wanted = set(matches)
    topics = dict(comparison.topics())
    for topic, buckets in SYMPTOMS:
        found = tuple(change for change in topics[topic] if change.bucket in buckets and change.id in wanted)
        if found:
            return Symptom(topic=topic, changes=found)
    return None


def upgraded_parts(parts: Sequence[Part], before: Stack, middle: Stack) -> tuple[str, ...] | None:
    """Which parts a stack has from the later one; None where it is not a mixture of the two stacks."""
    changed = {(change.kind, change.component): change for change in stack_changes(before, middle)}
    upgraded = []
    for part in parts:
        states = set()
        for change in part.changes:
            seen = changed.pop((change.kind, change.component), None)
            states.add("before" if seen is None else "after" if seen.after == change.after else "other")
        if len(states) != 1 or "other" in states:
            return None
        if "after" in states:
            upgraded.append(part.name)
    rest = [change for change in changed.values() if change.kind != "binary"]
    return None if rest else tuple(upgraded)


def result_of(symptom: Symptom, comparison: Comparison, measured: Iterable[str]) -> Result | None:
    """Whether the symptom shows in a run, from its comparison with the earlier run; None where no case can tell.

    Args:
        measured: ids of the cases that both runs measured, so that the symptom would show in them.
    """
    buckets, changes = dict(SYMPTOMS)[symptom.topic], dict(comparison.topics())[symptom.topic]
    known = set(measured) - {change.id for change in changes if change.bucket == "insufficient data"}
    worse = {change.id for change in changes if change.bucket in buckets}
    shown = [change.id in worse for change in symptom.changes if change.id in known]
    if not shown:
        return None
    return "bad" if all(shown) else "mixed" if any(shown) else "good"


def bisect(
    comparison: Comparison, symptom: Symptom | None, parts: tuple[Part, ...], tested: tuple[StoredTest, ...]
) -> Bisection:
    """Who may still be to blame after the stored runs, and the fewest stacks that tell the rest apart."""
    candidates = [part.name for part in parts] if symptom else []
    for run in tested:
        if run.result == "bad":
            candidates = [name for name in candidates if name in run.upgraded]
        elif run.result == "good":
            candidates = [name for name in candidates if name not in run.upgraded]
    return Bisection(
        comparison=comparison,
        symptom=symptom,
        parts=parts,
        tested=tested,
        candidates=tuple(candidates),
        tests=_tests(candidates),
    )


def _tests(candidates: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    bits = max(0, len(candidates) - 1).bit_length()
    return tuple(tuple(name for index, name in enumerate(candidates) if index >> bit & 1) for bit in range(bits))
