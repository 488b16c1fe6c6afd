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
"""correct runs by default: with no false alarm among them, the rate is below 0.3 % at 95 % confidence"""
AT_FULL = 12
"""at level full a correct kernel runs every twelfth case of the matrix"""

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(512 << 20)}
"""settings of glibc: memory of a freed tensor is reused for the next one, instead of going back to the system"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SelftestOptions:
    """What the command line asks for."""

    levels: tuple[Level, ...] = ("smoke", "full")
    runs: int = RUNS
    """least number of runs of correct kernels"""
    select: str = ""
    """glob over names of faults; empty = all"""


def run_battery(asked: SelftestOptions, progress: Callable[[int, int, str], None]) -> SelfTest:
    """Send every fault and every correct kernel through the pipeline.

    Args:
        progress: called when a task ends, with the number of tasks done, of all tasks, and the task's kernel.

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
    """A task for each fault at all levels. It begins with the case that found the fault for the released result.

    A fault of kept state (class J) may depend on the order of the cases, so it runs them in the order of the matrix.
    Where both levels run, a fault that smoke missed for the release runs only some cases at smoke: a case that finds
    nothing costs most, because all its checks run.
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
    return sorted(tasks, key=lambda task: task.shapes)  # tasks with the same first case share its golden results


def telling_cases() -> dict[str, tuple[int, ...]]:
    """By fault, the number of the case that found it for the released result; empty where the package has no result."""
    examples = {kill["fault"]: kill["example"] for kill in released_kills()}
    numbers = {case(number, "", SEED).cell.partition("/")[2]: number for number in range(len(SHAPES))}
    found = {fault: numbers.get(example.partition(": ")[0]) for fault, example in examples.items()}
    return {fault: (number,) for fault, number in found.items() if number is not None}


def missed_at_smoke() -> frozenset[str]:
    """The faults that smoke missed when the release was measured."""
    return frozenset(kill["fault"] for kill in released_kills() if not kill["caught_by"].get("smoke", True))


def released_kills() -> list[dict[str, Any]]:
    """The entry of each fault in the released result; empty where the package has no result."""
    path = released_selftest()
    kills: list[dict[str, Any]] = json.loads(path.read_text())["kills"] if path.exists() else []
    return kills


def correct_tasks(levels: Sequence[Level], runs: int) -> list[SpecimenTask]:
    """Rounds of all correct kernels over the matrix, each round with other inputs, until there are ``runs`` runs.

    Where both levels run, the first round is at full and the others at smoke. A case at full costs fifteen times as
    much as one at smoke, so each kernel runs only every twelfth case there. Each kernel begins with another case, so
    twelve kernels together run every case.
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
    """Each task with its result, in the order in which tasks end."""
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
    """Environment variables for processes that are started within. A variable that is already set keeps its value."""
    added = changes.keys() - os.environ.keys()
    os.environ.update({name: changes[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


class Left:
    """The tasks that are left, grouped by shared inputs, so that a process can reuse the inputs that it has drawn."""

    def __init__(self, tasks: Iterable[SpecimenTask]) -> None:
        self.groups: dict[Hashable, deque[SpecimenTask]] = defaultdict(deque)
        for task in tasks:
            self.groups[shared_inputs(task)].append(task)
        self.begun: set[Hashable] = set()

    def take(self, before: SpecimenTask | None) -> SpecimenTask | None:
        """The next task of a process: one with the inputs of its last task, else one of the largest group.

        Among the groups, those that no process has begun come first.

        Args:
            before: the last task of the process; None = it has had none.
        """
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
    """A key that tasks with the same inputs share: seed and first case; for correct kernels at smoke, the seed."""
    if task.fault or "full" in task.levels:
        return task.seed, task.shapes[0] % AT_FULL if task.shapes else None
    return task.seed, "smoke"


def _process(context: SpawnContext) -> ProcessPoolExecutor:
    """A pool of one process, which ends when this process ends."""
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(os.getpid(),))


def _begin(parent: int) -> None:
    """Prepare a process: one thread, and no messages of the profiler on stderr, because futures return the errors.

    Garbage collection skips what torch and the checks have built so far, because these objects stay for ever.
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
