"""What a duel's judge does: it holds the device and the inputs, and makes a fresh pair of hosts for every round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from qualify.cards.kernel import KernelCard
from qualify.facts.duel import DuelTask
from qualify.facts.stack import Stack
from qualify.run.duel.bout import Bout, BoutSide
from qualify.run.host.launch import HostSetup
from qualify.run.host.pool import Pool, side_by_side
from qualify.run.host.remote import Watch
from qualify.run.machine import stack
from qualify.run.machine.device import processor_of
from qualify.run.machine.fitness import fitness_of, patient
from qualify.run.process.messages import (
    CardUnfit,
    CellFailed,
    CellTimed,
    ChunkDone,
    DuelRound,
    DuelSetup,
    SidesDescribed,
)

Answer = SidesDescribed | CellTimed | CellFailed | CardUnfit | ChunkDone


class DuelService:
    """Rounds of a duel."""

    def __init__(self, setup: DuelSetup) -> None:
        """Take the device.

        Raises:
            DeviceError: it cannot be used.
        """
        self.setup = setup
        # Looked at before this process uses the card: every process on it now is somebody else's.
        self.fitness, self.note = fitness_of(setup.device)
        self.processor = processor_of(setup.device)
        self.device = self.processor.describe()
        self.processor.take(self.device)
        self.described = False

    def run(self, asked: DuelRound, announce: Callable[[str, str], None]) -> Iterator[Answer]:
        """Time the cells in one fresh pair of processes. Yields its answers; ChunkDone is the last one."""
        reasons = patient(self.fitness, own=1)
        if reasons:
            yield CardUnfit(reasons=reasons)
            yield ChunkDone()
            return
        sides = (self._side("A"), self._side("B"))
        cards = {name: self.setup.cards[name] for task in asked.tasks for name in (task.a.kernel, task.b.kernel)}
        try:
            order = sides if asked.number % 2 == 0 else sides[::-1]
            for side in order:
                side.pool.begin_start(_cards_of(side.name, asked.tasks, cards))
            announce("", f"load:{asked.tasks[0].a.kernel}")
            with ThreadPoolExecutor(side_by_side(len(order))) as threads:
                list(threads.map(lambda side: side.pool.finish_start(lambda _: None), order))
            if not self.described:
                self.described = True
                yield SidesDescribed(a=self._stack(sides[0], asked), b=self._stack(sides[1], asked), note=self.note)
            yield from self._bout(sides, cards, asked.number).run(asked.tasks, announce)
        finally:
            for side in sides:
                side.pool.close()
            self.processor.give_back()
        yield ChunkDone()

    def close(self) -> None:
        """Leave the device alone."""
        self.fitness.close()

    def _bout(self, sides: tuple[BoutSide, BoutSide], cards: dict[str, KernelCard], number: int) -> Bout:
        return Bout(
            sides=sides,
            cards=cards,
            processor=self.processor,
            cache_bytes=self.device.cache_bytes,
            fitness=self.fitness,
            effort=self.setup.effort,
            number=number,
        )

    def _side(self, name: str) -> BoutSide:
        hosts = self.setup.hosts
        setup = HostSetup(
            device=self.setup.device, import_paths=self.setup.import_paths, memory_bytes=hosts.memory_bytes
        )
        return BoutSide(name=name, pool=Pool(setup, Watch(), dict(hosts.environments)))

    def _stack(self, side: BoutSide, asked: DuelRound) -> Stack:
        """What the side's kernels run on."""
        known = Path(self.setup.hash_cache) if self.setup.hash_cache else None
        task = asked.tasks[0]
        environment = (task.a if side.name == "A" else task.b).environment
        if environment:
            return stack.stack_of(self.device, side.pool.described().get(environment, []), known)
        return stack.describe_stack(self.device, known, side.pool.binaries())


def _cards_of(side: str, tasks: Iterable[DuelTask], cards: dict[str, KernelCard]) -> list[KernelCard]:
    """The cards of one side, each once."""
    names = dict.fromkeys((task.a if side == "A" else task.b).kernel for task in tasks)
    return [cards[name] for name in names]
