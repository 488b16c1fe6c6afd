"""The battery: all planted faults and correct kernels through the pipeline, in a few processes."""

from __future__ import annotations

import fnmatch
import gc
import json
import multiprocessing
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.context import SpawnContext
from typing import Any

import torch

import qualify
from qualify.assets import released_selftest
from qualify.errors import NothingSelected
from qualify.facts import codec
from qualify.facts.case import Level
from qualify.facts.checks import CHECK_VERSION
from qualify.facts.selftest import Alarm, CorrectKernel, Detection, PlantedFault, SelfTest
from qualify.run.process.parent import die_with
from qualify.selftest.correct import VARIANTS
from qualify.selftest.examine import SEED, SpecimenTask, examine
from qualify.selftest.faults.registry import FAULTS
from qualify.selftest.specimen import Fault
from qualify.selftest.workloads import SHAPES, case

PROCESSES = 2
RUNS = 1000
"""correct runs by default: with none accused, the false-alarm rate is below 0.3 % at 95 % confidence"""
AT_FULL = 12
"""a correct kernel meets every twelfth case of the matrix at full"""

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(512 << 20)}
"""for glibc: the memory of a tensor serves the next one, and is not given back and cleared in between"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelftestOptions:
    """What the command line asks for."""

    levels: tuple[Level, ...] = ("smoke", "full")
    runs: int = RUNS
    """correct runs at least"""
    select: str = ""
    """glob over faults; empty = all"""


def run_battery(asked: SelftestOptions, progress: Callable[[int, int, str], None]) -> SelfTest:
    """Send everything through the pipeline.

    Args:
        progress: called with tasks done, tasks in all, and which fault or correct kernel ended.

    Raises:
        NothingSelected: no fault matches the glob.
    """
    faults = chosen(asked.select)
    tasks = [*fault_tasks(faults, asked.levels), *correct_tasks(asked.levels, asked.runs)]
    started, begin = datetime.now(UTC), time.monotonic()
    detections: dict[str, tuple[Detection, ...]] = {}
    runs: dict[str, int] = defaultdict(int)
    alarms: dict[str, list[Alarm]] = defaultdict(list)
    for done, (task, answer) in enumerate(answers(tasks), 1):
        if task.fault:
            detections[task.specimen] = codec.from_data(tuple[Detection, ...], answer["detections"])
        else:
            runs[task.specimen] += answer["runs"]
            alarms[task.specimen] += codec.from_data(tuple[Alarm, ...], answer["alarms"])
        progress(done, len(tasks), task.specimen)
    return SelfTest(
        check_version=CHECK_VERSION,
        qualify_version=qualify.__version__,
        levels=asked.levels,
        select=asked.select,
        started_at=started,
        wall_s=time.monotonic() - begin,
        faults=tuple(_planted(fault, detections[fault.name]) for fault in faults),
        correct=tuple(
            CorrectKernel(
                name=variant.name,
                does=variant.does,
                runs=runs[variant.name],
                alarms=tuple(sorted(alarms[variant.name], key=lambda alarm: (alarm.seed, alarm.case_id, alarm.check))),
            )
            for variant in VARIANTS
            if runs[variant.name]
        ),
    )


def chosen(select: str) -> list[Fault]:
    """The faults whose name matches the glob, in the order of the registry."""
    found = [fault for fault in FAULTS if not select or fnmatch.fnmatchcase(fault.name, select)]
    if not found:
        raise NothingSelected(
            f"no planted fault matches --fault {select!r}. Names look like {FAULTS[0].name} or {FAULTS[-1].name}; "
            "docs/selftest.md lists them."
        )
    return found


def fault_tasks(faults: Sequence[Fault], levels: Sequence[Level]) -> list[SpecimenTask]:
    """Every fault, at every level, beginning with the case that told of it when the release was measured.

    Kept state shows in the order of the cases, so faults of kept state meet them in the order of the matrix. Where
    both levels run, a fault that smoke missed before meets only some cases at smoke, because cases that find nothing
    cost most.
    """
    tell, missed = telling_cases(), missed_at_smoke() if len(levels) > 1 else frozenset()
    tasks = []
    for fault in faults:
        first = () if fault.kind == "J" else tell.get(fault.name, ())
        tasks.append(
            SpecimenTask(
                specimen=fault.name,
                levels=tuple(levels),
                seed=SEED,
                fault=True,
                shapes=first,
                missed=fault.name in missed,
            )
        )
    return sorted(tasks, key=lambda task: task.shapes)  # who begin with the same case find its golden results again


def telling_cases() -> dict[str, tuple[int, ...]]:
    """The number of the case that found each fault of the released result; empty in a package without such a result."""
    examples = {kill["fault"]: kill["example"] for kill in released_kills()}
    numbers = {case(number, "", SEED).cell.partition("/")[2]: number for number in range(len(SHAPES))}
    found = {fault: numbers.get(example.partition(": ")[0]) for fault, example in examples.items()}
    return {fault: (number,) for fault, number in found.items() if number is not None}


def missed_at_smoke() -> frozenset[str]:
    """The faults that smoke missed when the release was measured."""
    return frozenset(kill["fault"] for kill in released_kills() if not kill["caught_by"].get("smoke", True))


def released_kills() -> list[dict[str, Any]]:
    """What the released result says of each fault; nothing in a package without one."""
    path = released_selftest()
    kills: list[dict[str, Any]] = json.loads(path.read_text())["kills"] if path.exists() else []
    return kills


def correct_tasks(levels: Sequence[Level], runs: int) -> list[SpecimenTask]:
    """Rounds of all correct kernels over the matrix, with other inputs each, until there are ``runs``.

    Where both levels run, the first round is at full and the others at smoke. A case at full costs fifteen times as
    much, so each kernel meets every twelfth case there. Each kernel begins with another case, so twelve kernels meet
    every case.
    """
    tasks: list[SpecimenTask] = []
    seed, left = SEED, runs
    everything = tuple(range(len(SHAPES)))
    while left > 0:
        level: Level = "full" if "full" in levels and (seed == SEED or "smoke" not in levels) else "smoke"
        for number, variant in enumerate(VARIANTS):
            shapes = everything[number % AT_FULL :: AT_FULL] if level == "full" else everything
            if left > 0:
                tasks.append(
                    SpecimenTask(specimen=variant.name, levels=(level,), seed=seed, fault=False, shapes=shapes)
                )
                left -= len(shapes)
        seed += 1
    return sorted(tasks, key=lambda task: (task.seed, task.shapes))


def answers(tasks: Sequence[SpecimenTask]) -> Iterator[tuple[SpecimenTask, dict[str, Any]]]:
    """What each task found, as they end."""
    context = multiprocessing.get_context("spawn")
    left = Left(tasks)
    with ExitStack() as stack:
        waiting: dict[Future[dict[str, Any]], tuple[ProcessPoolExecutor, SpecimenTask]] = {}

        def submit(process: ProcessPoolExecutor, before: SpecimenTask | None) -> None:
            task = left.take(before)
            if task is not None:
                waiting[process.submit(examine, codec.to_data(task))] = (process, task)

        with environment(ALLOCATOR):
            for _ in range(PROCESSES):
                submit(stack.enter_context(_process(context)), None)
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                process, task = waiting.pop(future)
                answer = future.result()
                submit(process, task)
                yield task, answer


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Variables for the processes that are started in here; those that are set already stay."""
    added = changes.keys() - os.environ.keys()
    os.environ.update({name: changes[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


class Left:
    """The tasks that are left, by the inputs that they share: a process that has drawn those goes on with them."""

    def __init__(self, tasks: Iterable[SpecimenTask]) -> None:
        self.groups: dict[Hashable, deque[SpecimenTask]] = defaultdict(deque)
        for task in tasks:
            self.groups[shared_inputs(task)].append(task)
        self.begun: set[Hashable] = set()

    def take(self, before: SpecimenTask | None) -> SpecimenTask | None:
        """A task that shares the inputs of the one before; or of the largest group, if possible one not begun."""
        group = None if before is None else shared_inputs(before)
        if group not in self.groups:
            free = [name for name in self.groups if name not in self.begun] or list(self.groups)
            group = max(free, key=lambda name: len(self.groups[name]), default=None)
        if group is None:
            return None
        self.begun.add(group)
        task = self.groups[group].popleft()
        if not self.groups[group]:
            del self.groups[group]
        return task


def shared_inputs(task: SpecimenTask) -> Hashable:
    """What tasks have in common that draw the same inputs: their first case and seed, or at smoke all of a seed."""
    if task.fault or "full" in task.levels:
        return task.seed, task.shapes[0] % AT_FULL if task.shapes else None
    return task.seed, "smoke"


def _process(context: SpawnContext) -> ProcessPoolExecutor:
    """One process, that ends with this one."""
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(os.getpid(),))


def _begin(parent: int) -> None:
    """One thread per process, and no chatter of the profiler on stderr; errors come back with the future.

    What torch and the checks have built so far stays for ever, so garbage collection leaves it out.
    """
    die_with(parent)
    torch.set_num_threads(1)
    gc.freeze()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    os.close(silent)


def _planted(fault: Fault, detections: tuple[Detection, ...]) -> PlantedFault:
    return PlantedFault(
        name=fault.name,
        kind=fault.kind,
        mirrors=fault.mirrors,
        does=fault.does,
        equivalent=fault.equivalent,
        detections=detections,
    )
