"""Sends one specimen (a fault or a correct kernel) through the pipeline: the work of a process of the battery.

The pipeline is :class:`qualify.run.execute.Session`: card, adapter, prepare, witness, every check of the level. It
leaves out the timing and the peak of memory of the traced calls, because those of a simulated kernel say nothing about
any kernel. No check looks at that peak. The findings of the timing (a result that is faster than the card allows) have
tests of their own.

The witness stays in although it takes a third of a case at smoke. Faults of class L compute the right result by another
path, and would pass without it. The watchdog and the worker process around the session are left out too; tests/run
tests them with real processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from qualify.facts import codec
from qualify.facts.case import Case, Level
from qualify.facts.checks import CHECKS
from qualify.facts.outcome import Crashed, Measured, Outcome, Refused, Substituted, TimedOut, findings_of
from qualify.facts.selftest import Alarm, Detection
from qualify.facts.stack import Ceilings, Device
from qualify.facts.stages import ending
from qualify.run.execute import Session
from qualify.run.host.hosts import LocalHosts
from qualify.run.machine.device import processor_of
from qualify.run.process.messages import CaseRequest
from qualify.selftest import kernel, workloads
from qualify.selftest.goldens import Goldens
from qualify.selftest.specimen import Variant

SEED = 1
MISSED_STEP = 3
"""a fault that smoke missed for the released result runs only every third case at smoke"""
WITNESS = "witness"
OUTCOME = "outcome"
_DEVICE = Device(kind="cpu", name="simulated", uuid="", compute_capability="", units=1, memory_bytes=0, cache_bytes=0)
_CEILINGS = Ceilings(matmul_flops_per_s={}, copy_bytes_per_s=1.0, exps_per_s=1.0, launch_us=1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecimenTask:
    """Work for one process: a fault at all levels, or a correct kernel at one level with the inputs of one seed."""

    specimen: str
    levels: tuple[Level, ...]
    seed: int
    fault: bool
    shapes: tuple[int, ...] = ()
    """numbers of cases: for a correct kernel, the cases that it runs; for a fault, the case known to find it, if any"""
    missed: bool = False
    """whether smoke missed the fault for the released result: then it runs only every third case at smoke"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """One accusation of a kernel: the check that failed, or ``witness`` or ``outcome``, and its sentence."""

    check: str
    detail: str


@torch.inference_mode()
def examine(task: dict[str, Any]) -> dict[str, Any]:
    """The detections of a fault, or the alarms of a correct kernel. Task and result are plain data."""
    asked: SpecimenTask = codec.from_data(SpecimenTask, task)
    if asked.fault:
        found = detect(asked.specimen, asked.levels, asked.shapes, missed=asked.missed)
        return {"detections": codec.to_data(found, tuple[Detection, ...])}
    runs, alarms = accuse(asked.specimen, asked.levels[0], asked.seed, asked.shapes)
    return {"runs": runs, "alarms": codec.to_data(alarms, tuple[Alarm, ...])}


def detect(
    specimen: str, levels: Sequence[Level], telling_cases: Sequence[int] = (), *, missed: bool = False
) -> tuple[Detection, ...]:
    """The detection of a fault at each level.

    A level begins with the case that found the fault at the level before, so that it rarely needs others.

    Args:
        telling_cases: numbers of the cases to begin with.
        missed: whether only every third case runs at smoke.
    """
    order = sorted(range(len(workloads.SHAPES)), key=lambda number: number not in telling_cases)
    found = []
    for level in levels:
        some = order[::MISSED_STEP] if missed and level == "smoke" else order
        detection, telling = detect_at(specimen, level, some)
        if telling is not None:
            order.remove(telling)
            order.insert(0, telling)
        found.append(detection)
    return tuple(found)


def detect_at(specimen: str, level: Level, order: Sequence[int]) -> tuple[Detection, int | None]:
    """The detection at one level, and the number of the case that caught the fault; None where no case did.

    Cases run in the given order until one of them catches the fault. All checks of that case run, so the result names
    every check that finds the fault there. A fault that nothing catches runs all cases.
    """
    count = 0
    for number, case, outcome in outcomes(specimen, level, SEED, order):
        count += 1
        said = against(outcome)
        if said:
            example = f"{case.cell.partition('/')[2]}: {said[0].check}: {said[0].detail}"
            caught = ranked([item.check for item in said])
            return Detection(level=level, cases=count, caught_by=caught, example=example), number
    return Detection(level=level, cases=count, caught_by=(), example=""), None


def ranked(names: Sequence[str]) -> tuple[str, ...]:
    """Each name once: the witness, the outcome, the checks in the order in which they run, and the rest."""
    rank = {name: at for at, name in enumerate((WITNESS, OUTCOME, *(known.name for known in CHECKS)))}
    return tuple(sorted(set(names), key=lambda name: (rank.get(name, len(rank)), name)))


def accuse(specimen: str, level: Level, seed: int, shapes: Sequence[int]) -> tuple[int, tuple[Alarm, ...]]:
    """(number of cases, alarms) of a correct kernel over cases of the matrix."""
    runs, alarms = 0, []
    for _, case, outcome in outcomes(specimen, level, seed, shapes):
        runs += 1
        said = against(outcome) or unproven(outcome)
        alarms += [Alarm(case_id=case.id, level=level, seed=seed, check=it.check, detail=it.detail) for it in said]
    return runs, tuple(alarms)


def outcomes(specimen: str, level: Level, seed: int, order: Sequence[int]) -> Iterator[tuple[int, Case, Outcome]]:
    """(number, case, outcome) of cases of the matrix, in one session with a fresh kernel.

    All cases use the same kernel object, as they share a process in a run, so that state from one case can spoil the
    next. The first case often finds the fault, so it has a profiler session of its own. The others share one, as in a
    run. Cases that the kernel refuses, or that end it at once, are yielded first.
    """
    kernel.forget()
    known = kernel.specimen_named(specimen)
    card = workloads.card(specimen, known.lse_rel) if isinstance(known, Variant) else workloads.card(specimen)
    session = Session(
        device=_DEVICE,
        ceilings=_CEILINGS,
        cards={specimen: card},
        level=level,
        reference="fp64",
        hosts=LocalHosts(processor_of(_DEVICE.kind)),
        announce=_nobody,
        timed=False,
        golden_of=_goldens(),
    )
    for chunk in (order[:1], order[1:]):
        cases = {case.id: (number, case) for number in chunk for case in [workloads.case(number, specimen, seed)]}
        for ended in session.run([CaseRequest(case=case, attempt=1) for _, case in cases.values()]):
            yield *cases[ended.case], ended.outcome


@lru_cache(maxsize=1)
def _goldens() -> Goldens:
    """The golden results of this process. Kernels never see them, so all specimens may share them."""
    return Goldens()


def _nobody(_case: str, _stage: str) -> None:
    """Ignore the announcement of a stage, because no parent process watches."""


def against(outcome: Outcome) -> list[Said]:
    """Everything in an outcome that makes a gate fail the case under any policy."""
    said = [Said(check=it.check, detail=it.detail) for it in findings_of(outcome) if it.verdict == "fail"]
    match outcome:
        case Substituted():
            return [Said(check=WITNESS, detail=outcome.evidence.witness.reason), *said]
        case Crashed():
            return [Said(check=OUTCOME, detail=ending(outcome)), *said]
        case TimedOut():
            return [Said(check=OUTCOME, detail=ending(outcome)), *said]
        case Refused():
            return [Said(check=OUTCOME, detail=f"refused what the card claims: {outcome.reasons[0]}"), *said]
    return said


def unproven(outcome: Outcome) -> list[Said]:
    """Everything in an outcome that leaves a correct kernel unproven: the witness, or a check that could not decide."""
    if not isinstance(outcome, Measured):
        return []
    witness = outcome.evidence.witness
    said = [Said(check=it.check, detail=it.detail) for it in findings_of(outcome) if it.verdict == "inconclusive"]
    return said if witness.state == "proven" else [Said(check=WITNESS, detail=witness.reason), *said]
