"""The time of a case on rotating inputs, with checks whether it is possible and whether the result was computed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from qualify.cards.kernel import CALL
from qualify.facts.devices import HOST, Scale
from qualify.facts.outcome import Finding, Timing
from qualify.facts.stack import Ceilings, Device
from qualify.run.checks.difference import changed, difference
from qualify.run.checks.interface import ContractBreach, Subject
from qualify.run.host.interface import Bound
from qualify.run.inputs.tensors import Inputs, clone
from qualify.run.machine.neighbours import Neighbours
from qualify.run.measure import timing, witness
from qualify.run.measure.ceilings import best_of, measure_ceilings
from qualify.run.running import Running, no_room

COPY_BYTES: dict[Scale, int] = {"small": 256 << 20, "large": 2 << 30}
"""most bytes of all rotating copies of the inputs"""


def time_case(
    running: Running, subject: Subject, device: Device, ceilings: Ceilings, neighbours: Neighbours
) -> Ceilings:
    """Time the call, and note the time and its findings; returns the ceilings.

    Where the time is impossible by the ceilings, both are measured once more, and the new ceilings are returned.

    Args:
        device: device on which the call runs.
        ceilings: measured ceilings of the device.
        neighbours: who else uses the device.
    """
    workload, processor = subject.workload, subject.processor
    budget, effort = COPY_BYTES[processor.scale], timing.EFFORTS[subject.level, processor.scale]
    call_us = running.bound.host_us()
    count = timing.copies_needed(running.inputs.bytes, device.cache_bytes, budget, call_us, processor.scale)
    last = turned(running.inputs, max(1, count - 1))
    copy = running.kernel.prepare(last.call)
    bounds = [running.bound, *running.bound.turned(range(1, count - 1))] if count > 1 else []
    bounds.append(copy)

    def measure() -> tuple[Timing, Any]:
        samples, native = running.host.sample(bounds, effort)
        told = timing.timing_of(
            samples,
            copies=len(bounds),
            workload=workload,
            input_bytes=running.inputs.bytes,
            cache_bytes=device.cache_bytes,
            ceilings=ceilings,
        )
        return told, native

    def impossible(others: Collection[int]) -> list[Finding]:
        assert running.timing is not None, "it is measured first"
        return timing.findings(running.timing, workload, ceilings, device.kind, others)

    others = neighbours.now(processor, device)
    running.timing, native = measure()
    others |= neighbours.now(processor, device)
    found = impossible(sorted(others))
    if found:
        # The ceilings may have been measured while something else used the card: measure them again.
        ceilings = best_of(ceilings, measure_ceilings(processor))
        running.timing, native = measure()
        others |= neighbours.now(processor, device)
        found = impossible(sorted(others))
    if others and not found:
        found = [timing.shared(sorted(others))]
    try:
        found += computed(running, subject, copy, last, native)
    except ContractBreach as breach:
        if not any(item.check == breach.finding.check and item.verdict == "fail" for item in running.findings):
            found.append(replace(breach.finding, detail=f"while it is timed: {breach.finding.detail}"))
    except torch.OutOfMemoryError as error:
        found.append(no_room("timing", error))
    running.findings += found
    if device.kind != HOST and running.witness is not None:
        running.findings += witness.findings(running.witness, running.timing.latency_us, device.units)
    return ceilings


def computed(running: Running, subject: Subject, bound: Bound, inputs: Inputs, native: Any) -> list[Finding]:
    """A finding where a timed launch returns something else than an ordinary call.

    After the timing, the inputs of the last copy change in place, and the call is timed once more. A kernel that
    remembers its earlier result for these tensors then returns the old one. That is allowed where an adapter may have
    copied the inputs before the launch, but not for a function of a third party.

    Args:
        bound: the call prepared on the last copy, ``inputs``.
        native: what its last timed launch returned.
    """
    exact = running.card.claims.deterministic
    before = subject.judged(bound.result(native), inputs.call)
    found = difference(subject, subject.run(inputs.call), before, exact=exact)
    if not found:
        turn(inputs, 1)
        _, native = running.host.sample([bound], timing.ONCE)
        after = subject.judged(bound.result(native), inputs.call)
        found = difference(subject, subject.run(inputs.call), after, exact=exact)
        copied = running.card.adapter != CALL and not difference(subject, before, after, exact=exact)
        found = None if copied else found
    if not found:
        return []
    detail = f"while it is timed, the call gives something else: {changed(found)}"
    return [Finding(check="timing", verdict="fail", detail=detail, values=dict(found))]


def turned(inputs: Inputs, rows: int) -> Inputs:
    """A deep copy whose queries are rotated by so many rows, so that its result differs."""
    copy = clone(inputs)
    turn(copy, rows)
    return copy


def turn(inputs: Inputs, rows: int) -> None:
    """Rotate the queries, with their guard bands, by so many rows, in place."""
    flat = inputs.q_whole.view(torch.uint8)
    flat.copy_(flat.roll(rows, 0))
