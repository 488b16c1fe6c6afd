"""Which attention kernels served a case in two runs: others, or the same ones launched or compiled differently.

Another kernel, or the same one in another grid, is suspicious; one of an older generation is a regression. The same one
with other registers or shared memory is a note: another compiler, or another build, made it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qualify.facts.comparison import Bucket, Change
from qualify.facts.outcome import Evidence, Launch, evidence_of, is_time
from qualify.facts.run import Record

GENERATIONS = ("ampere", "hopper", "blackwell")
"""older first"""
RESOURCES: tuple[tuple[str, str, Callable[[Launch], int | None]], ...] = (
    ("registers", "a thread", lambda launch: launch.registers),
    ("shared memory", "bytes a block", lambda launch: launch.shared_bytes),
)
"""resources of a multiprocessor that a launch takes: name, unit, and how to read them"""


def weight_us(record: Record) -> float:
    """µs of the case over all layers; 0.0 where it was not timed."""
    evidence = evidence_of(record.outcome)
    timing = evidence.timing if evidence else None
    return timing.latency_us * record.case.layers if timing and is_time(timing.latency_us) else 0.0


def kernel_change(record: Record, before: Evidence, after: Evidence) -> Change | None:
    """Dispatch drift: other attention kernels, or the same ones launched or compiled differently."""
    one, other = _attention(before), _attention(after)
    names = [tuple(launch.name for launch in side) for side in (one, other)]
    if names[0] != names[1]:
        bucket, detail = _drift(one, other, before, after)
        return _change(record, bucket, names, detail)
    resources = _resources(one, other)
    shapes = [tuple(_launched(launch) for launch in side) for side in (one, other)]
    if shapes[0] == shapes[1] and not resources:
        return None
    if shapes[0] != shapes[1]:
        detail = "; ".join(["the same kernel is launched in another grid", *resources])
        return _change(record, "suspicious", shapes, detail)
    compiled = [tuple(_compiled(launch) for launch in side) for side in (one, other)]
    return _change(record, "none", compiled, f"same name, {'; '.join(resources)}")


def _change(record: Record, bucket: Bucket, sides: Sequence[tuple[str, ...]], detail: str) -> Change:
    before, after = sides
    return Change(
        id=record.case.id, bucket=bucket, before=before, after=after, detail=detail, impact_us=weight_us(record)
    )


def _launched(launch: Launch) -> str:
    def text(size: tuple[int, int, int] | None) -> str:
        return "unknown" if size is None else "x".join(map(str, size))

    return f"{launch.count} x grid {text(launch.grid)} block {text(launch.block)}"


def _resources(one: Sequence[Launch], other: Sequence[Launch]) -> list[str]:
    """In words, which resources the same launches take more of, or less of.

    A launch whose trace names no resources is left out.
    """
    found = []
    for what, unit, value in RESOURCES:
        pairs = [(before, value(before), value(after)) for before, after in zip(one, other, strict=True)]
        told = [
            f"{f'{launch.name} ' if len(one) > 1 else ''}{old} → {new} {unit}"
            for launch, old, new in pairs
            if None not in (old, new) and old != new
        ]
        found += [f"other {what}: {', '.join(told)}"] if told else []
    return found


def _compiled(launch: Launch) -> str:
    known = ["unknown" if value is None else str(value) for value in (launch.registers, launch.shared_bytes)]
    return f"{known[0]} registers, {known[1]} bytes shared"


def _drift(one: Sequence[Launch], other: Sequence[Launch], before: Evidence, after: Evidence) -> tuple[Bucket, str]:
    if "unproven" in (before.witness.state, after.witness.state):
        return "insufficient data", "other kernels were seen, and one of the traces proves nothing"
    ages = [
        max((GENERATIONS.index(launch.generation) for launch in side if launch.generation in GENERATIONS), default=-1)
        for side in (one, other)
    ]
    if 0 <= ages[1] < ages[0]:
        return "regression", f"fell back from {GENERATIONS[ages[0]]} to {GENERATIONS[ages[1]]}"
    families = [sorted({launch.family or launch.name for launch in side}) for side in (one, other)]
    if families[0] != families[1]:
        return "suspicious", "another kernel serves the shape"
    return "suspicious", "another instance of the same kernel family serves the shape"


def _attention(evidence: Evidence) -> list[Launch]:
    return [launch for launch in evidence.witness.launches if launch.role == "attention"]
