"""One pair of processes of a duel: each side's kernels in hosts of their own, cell after cell, blocks in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from qualify.cards.kernel import KernelCard
from qualify.errors import DeviceError
from qualify.facts.case import Case, Workload
from qualify.facts.devices import Scale
from qualify.facts.duel import DuelPair, DuelQuad, DuelTask, Way
from qualify.run.adapters.interface import LibraryRefusal
from qualify.run.execute import seed_of
from qualify.run.host.interface import HostLost, KernelRaised
from qualify.run.host.pool import Pool
from qualify.run.host.remote_kernel import RemoteBlocks, RemoteBound, RemoteKernel, RemoteTurned
from qualify.run.inputs.tensors import Inputs, make_inputs
from qualify.run.machine.device import Processor
from qualify.run.machine.fitness import Fitness, patient
from qualify.run.measure.timing import COLD_FACTOR
from qualify.run.process.messages import CellFailed, CellTimed, DuelEffort

MAX_COPIES: dict[Scale, int] = {"small": 4, "large": 64}
"""rotating copies of the inputs"""
COPIES_US = 40_000.0
"""host time that one launch of each copy may take together"""
COPY_BYTES: dict[Scale, int] = {"small": 64 << 20, "large": 2 << 30}
"""footprint of the copies of one side at most"""
TRIES = 2
"""most quads that are tried for each one that is wanted: on a throttled card some are thrown away"""
SETTLING: dict[Scale, int] = {"small": 0, "large": 1}
"""quads that are timed and forgotten: a card that was idle runs faster than its power allows for long"""
ASIDE_PAIRS = 2
"""first pairs of processes, in which ways other than a CUDA graph are timed, too"""
WARM_PHASES = frozenset({"decode", "verify"})
"""phases in which the L2 cache may hold what is read"""
Call = RemoteBound | RemoteTurned


class _Lost(Exception):
    """A side cannot be timed."""

    def __init__(self, side: str, error: str) -> None:
        self.side, self.error = side, error
        super().__init__(error)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoutSide:
    """One side of a pair of processes."""

    name: str
    """A or B"""
    pool: Pool


class Bout:
    """One pair of processes."""

    def __init__(
        self,
        *,
        sides: tuple[BoutSide, BoutSide],
        cards: dict[str, KernelCard],
        processor: Processor,
        cache_bytes: int,
        fitness: Fitness,
        effort: DuelEffort,
        number: int,
    ) -> None:
        """Hosts start with the first cell that needs them.

        Args:
            cache_bytes: last-level cache of the device; 0 = unknown.
            number: of the pair, from 0 on; an odd one turns the order of sides and blocks round.
        """
        self.sides, self.cards, self.processor = sides, cards, processor
        self.cache_bytes, self.fitness, self.effort, self.number = cache_bytes, fitness, effort, number

    def run(self, tasks: Sequence[DuelTask], announce: Callable[[str, str], None]) -> Iterator[CellTimed | CellFailed]:
        """Time the cells one after another; every second pair of processes begins with the last cell."""
        for task in tasks if self.number % 2 == 0 else reversed(tasks):
            announce(task.name, "duel")
            unfit = patient(self.fitness, own=1 + sum(len(side.pool.places) for side in self.sides))
            if unfit:
                yield CellTimed(cell=task.name, pairs=(), notes=tuple(f"not timed: {reason}" for reason in unfit))
                continue
            try:
                yield self._cell(task)
            except torch.OutOfMemoryError as error:
                self._make_room()
                first = str(error).partition("\n")[0][:200]
                yield CellFailed(cell=task.name, error=f"the device has no room for its inputs: {first}")
            except _Lost as lost:
                self._make_room()
                yield CellFailed(
                    cell=task.name, error=f"{lost.side} ({self._case(task, lost.side).kernel}): {lost.error}"
                )

    def _case(self, task: DuelTask, side: str) -> Case:
        return task.a if side == "A" else task.b

    def _cell(self, task: DuelTask) -> CellTimed:
        """All ways of one cell."""
        if self.processor.short_of_memory():
            self._make_room()
        inputs: dict[Workload, Inputs] = {}
        for case in (task.a, task.b):
            if case.workload not in inputs:
                inputs[case.workload] = make_inputs(
                    case.workload, kind="normal", seed=seed_of(task.a), device=self.processor.device, descaled=True
                )
        self.processor.synchronize()
        kernels = {
            side.name: self._guarded(side, case, partial(self._kernel, side, case))
            for side in self._turned(self.sides)
            for case in (self._case(task, side.name),)
        }
        bounds = self._both(task, lambda side, case: self._prepared(kernels[side.name], inputs[case.workload]))
        for side in self.sides:
            side.pool.begin(self.effort.stage_s)
        smallest = min(made.bytes for made in inputs.values())
        issued = [self._guarded(side, self._case(task, side.name), bounds[side.name].host_us) for side in self.sides]
        count, notes = self._copies(smallest, max(issued)), list[str]()
        if count * smallest < COLD_FACTOR * self.cache_bytes:
            notes.append("the inputs are small: a part of them stays in the cache, on both sides alike")
        calls: dict[str, list[Call]] = self._both(
            task, lambda side, _: [bounds[side.name], *bounds[side.name].turned(range(1, count))]
        )
        pairs = tuple(self._ways(task, calls, notes))
        return CellTimed(cell=task.name, pairs=pairs, notes=tuple(dict.fromkeys(notes)))

    def _both(self, task: DuelTask, step: Callable[[BoutSide, Case], Any]) -> dict[str, Any]:
        """A step of both sides at once, by name: nothing is timed meanwhile, and a library may plan or compile."""
        with ThreadPoolExecutor(len(self.sides)) as pool:
            begun = {
                side.name: pool.submit(self._guarded, side, case, partial(step, side, case))
                for side in self._turned(self.sides)
                for case in (self._case(task, side.name),)
            }
        return {name: done.result() for name, done in begun.items()}

    def _turned(self, sides: tuple[BoutSide, BoutSide]) -> tuple[BoutSide, BoutSide]:
        """Who comes first alternates: whatever comes first may get better memory."""
        return sides if self.number % 2 == 0 else (sides[1], sides[0])

    def _guarded(self, side: BoutSide, case: Case, step: Callable[[], Any]) -> Any:
        """A step of one side; whatever goes wrong there is reported as that side's."""
        try:
            return step()
        except DeviceError:
            raise
        except HostLost as lost:
            side.pool.lost(self.cards[case.kernel])
            raise _Lost(side.name, lost.error) from lost
        except LibraryRefusal as refusal:
            raise _Lost(side.name, f"the library refuses it: {refusal}") from refusal
        except (KernelRaised, ImportError, torch.OutOfMemoryError) as error:
            side.pool.lost(self.cards[case.kernel])  # its context may be lost, and would fail every cell after
            first = str(error).strip().partition("\n")[0]
            name = error.raised if isinstance(error, KernelRaised) else type(error).__name__
            raise _Lost(side.name, f"{name}: {first}"[:300]) from error

    def _make_room(self) -> None:
        """Both sides give back what they do not use: they share the device's memory."""
        for side in self.sides:
            with suppress(HostLost):
                side.pool.make_room()

    def _kernel(self, side: BoutSide, case: Case) -> RemoteKernel:
        """The side's kernel. A host dies with the thread that started it, so no thread of :meth:`_both` starts one."""
        side.pool.begin(self.effort.compile_s)
        kernel = side.pool.kernel(self.cards[case.kernel])
        assert isinstance(kernel, RemoteKernel), "a pool's kernels live in hosts"
        return kernel

    def _prepared(self, kernel: RemoteKernel, inputs: Inputs) -> RemoteBound:
        """The call, launched once: a library may compile for it."""
        bound = kernel.prepare(inputs.call)
        bound.launch()
        kernel.host.settle()
        return bound

    def _copies(self, input_bytes: int, host_us: float) -> int:
        """How many copies of the inputs keep each one cold until its next launch, as far as memory and time allow."""
        scale = self.processor.scale
        wanted = -(-COLD_FACTOR * self.cache_bytes // max(1, input_bytes)) + 1
        affordable = int(COPIES_US / max(host_us, 1.0))
        return max(1, min(wanted, MAX_COPIES[scale], COPY_BYTES[scale] // max(1, input_bytes), affordable))

    def _ways(self, task: DuelTask, calls: dict[str, list[Call]], notes: list[str]) -> Iterator[DuelPair]:
        """Graph and eager, cold and warm, and what a launch costs the host: whatever this device and phase has."""
        deciding: Way = "eager"
        if self.processor.streams is not None:
            blocks = self._blocks(task, calls, graph=True, notes=notes)
            if blocks is not None:
                deciding = "graph"
                yield self._timed(task, "graph", blocks, self.effort.quads, notes)
                del blocks
            if deciding == "graph" and self.number >= ASIDE_PAIRS:
                return
            if deciding == "graph" and task.a.phase in WARM_PHASES:
                first = {name: made[:1] for name, made in calls.items()}
                blocks = self._blocks(task, first, graph=True, notes=notes, share=self.effort.aside)
                if blocks is not None:
                    yield self._timed(task, "graph_warm", blocks, 1, notes)
                    del blocks
        share = self.effort.aside if deciding == "graph" else 1.0
        blocks = self._blocks(task, calls, graph=False, notes=notes, share=share)
        assert blocks is not None, "nothing is captured"
        yield self._timed(task, "eager", blocks, 1 if deciding == "graph" else self.effort.quads, notes)
        if self.processor.streams is not None:
            yield self._timed(task, "host", blocks, 1, notes)

    def _blocks(
        self, task: DuelTask, calls: dict[str, list[Call]], *, graph: bool, notes: list[str], share: float = 1.0
    ) -> dict[str, RemoteBlocks] | None:
        """Both sides' blocks; None where a side cannot be captured, which is noted."""
        made: dict[str, RemoteBlocks] = {}
        for side in self._turned(self.sides):
            case = self._case(task, side.name)
            plant = task.plant if side.name == "B" else 0.0
            block_us = self.effort.block_us * share
            like_us = next((blocks.launch_us for blocks in made.values()), 0.0)
            prepare = partial(
                RemoteBlocks, calls[side.name], graph=graph, block_us=block_us, plant=plant, like_us=like_us
            )
            try:
                made[side.name] = prepare() if graph else self._guarded(side, case, prepare)
            except KernelRaised as error:
                first = str(error).strip().partition("\n")[0][:200]
                notes.append(f"{side.name} ({case.kernel}) cannot be captured into a CUDA graph: {first}")
                return None
            except (HostLost, LibraryRefusal, torch.OutOfMemoryError) as error:
                self._guarded(side, case, partial(_raise, error))
        return made

    def _timed(
        self, task: DuelTask, way: Way, blocks: dict[str, RemoteBlocks], wanted: int, notes: list[str]
    ) -> DuelPair:
        """Quads of blocks in turns, without those under which the card was not itself."""
        quads: list[DuelQuad] = []
        thrown_away = 0
        for _ in range(SETTLING[self.processor.scale] if wanted > 1 else 0):
            self._quad(task, way, blocks, turn=self.number)
        while len(quads) < wanted and len(quads) + thrown_away < TRIES * wanted:
            quad, rejected, noted = self._quad(task, way, blocks, turn=self.number + len(quads))
            notes += [f"while it was timed: {word}" for word in noted]
            if rejected:
                thrown_away += 1
                notes += [f"thrown away: {word}" for word in rejected]
            else:
                quads.append(quad)
        return DuelPair(way=way, pair=self.number, quads=tuple(quads), thrown_away=thrown_away)

    def _quad(
        self, task: DuelTask, way: Way, blocks: dict[str, RemoteBlocks], turn: int
    ) -> tuple[DuelQuad, tuple[str, ...], tuple[str, ...]]:
        """A B B A, or the other way round: (times, why they count as nothing, what else was seen)."""
        times: dict[str, list[float]] = {"A": [], "B": []}
        reasons: dict[str, None] = {}
        noted: dict[str, None] = {}
        sides = {side.name: side for side in self.sides}
        self.fitness.begin()
        for name in "ABBA" if turn % 2 == 0 else "BAAB":
            block = partial(blocks[name].time, host=way == "host")
            times[name].append(self._guarded(sides[name], self._case(task, name), block))
        seen = self.fitness.end()
        reasons |= dict.fromkeys(seen.rejected)
        noted |= dict.fromkeys(seen.noted)
        if min(*times["A"], *times["B"]) <= 0.0:
            reasons["a clock said 0"] = None
        quad = DuelQuad(a_us=(times["A"][0], times["A"][1]), b_us=(times["B"][0], times["B"][1]))
        return quad, tuple(reasons), tuple(noted)


def _raise(error: Exception) -> None:
    raise error
