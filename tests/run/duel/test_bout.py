"""Quads of one pair of processes: their order, what is thrown away, and what is planted."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest
import torch
from builders import make_case

from qualify.facts.duel import DuelTask
from qualify.run.duel import bout as duel_bout
from qualify.run.duel.bout import Bout, BoutSide
from qualify.run.host.blocks import Blocks, unit_of
from qualify.run.host.interface import HostLost, KernelRaised
from qualify.run.machine import fitness
from qualify.run.machine.device import processor_of
from qualify.run.machine.fitness import CardState, Unwatched, WatchedCard
from qualify.run.process.messages import CellFailed, DuelEffort

EFFORT = DuelEffort(quads=2, block_us=1000, aside=0.25, stage_s=5, compile_s=5)
TASK = DuelTask(name="cell", a=make_case("one"), b=make_case("two"))


class Throttled(Unwatched):
    """A device whose state is given, block by block; afterwards nothing is wrong."""

    def __init__(self, *states: CardState) -> None:
        self.states = list(states)

    def end(self) -> CardState:
        """The next one."""
        return self.states.pop(0) if self.states else CardState()


@dataclass
class Side:
    """Blocks of one side, and who was timed in which order."""

    name: str
    us: float
    order: list[str]
    hosts: list[bool] = field(default_factory=list)

    def time(self, *, host: bool = False) -> float:
        """One block."""
        self.order.append(self.name)
        self.hosts.append(host)
        return self.us


class NoPool:
    """A pool whose kernels are lost."""

    def __init__(self) -> None:
        self.lost_cards: list[Any] = []
        self.places: dict[str, Any] = {}

    def lost(self, card: Any) -> None:
        """Note it."""
        self.lost_cards.append(card)

    def make_room(self) -> None:
        """There is room."""


def bout(fitness: Any, number: int = 0) -> Bout:
    """A pair of processes on the CPU."""
    sides = tuple(BoutSide(name=name, pool=cast("Any", NoPool())) for name in "AB")
    return Bout(
        sides=cast("Any", sides),
        cards={"one": cast("Any", "card one"), "two": cast("Any", "card two")},
        processor=processor_of("cpu"),
        cache_bytes=0,
        fitness=fitness,
        effort=EFFORT,
        number=number,
    )


def timed(fitness: Any, number: int = 0, way: Any = "graph") -> tuple[Any, list[str], list[str]]:
    """(pair, notes, order of the blocks)."""
    order: list[str] = []
    notes: list[str] = []
    blocks = {"A": Side("A", 100.0, order), "B": Side("B", 102.0, order)}
    pair = bout(fitness, number)._timed(TASK, way, cast("Any", blocks), 2, notes)
    assert all(host == (way == "host") for side in blocks.values() for host in side.hosts)
    return pair, notes, order


def test_the_sides_take_turns() -> None:
    """A B B A, then the other way round; the next pair of processes begins with the other side."""
    pair, notes, order = timed(Unwatched())
    assert "ABBABAAB" == "".join(order)
    assert ([], 0) == (notes, pair.thrown_away)
    assert {((100.0, 100.0), (102.0, 102.0))} == {(quad.a_us, quad.b_us) for quad in pair.quads}
    assert "BAABABBA" == "".join(timed(Unwatched(), number=1)[2])
    timed(Unwatched(), way="host")


def test_a_throttled_quad_is_thrown_away_and_counted() -> None:
    """And timed again; a power cap is only noted."""
    pair, notes, order = timed(Throttled(CardState(reasons=0x4), CardState(reasons=0x48)))
    assert (2, 1, 12) == (len(pair.quads), pair.thrown_away, len(order))
    assert [
        "while it was timed: software power cap (clock-event bit 0x4)",
        "thrown away: hardware slowdown (clock-event bit 0x8)",
        "thrown away: hardware thermal slowdown (clock-event bit 0x40)",
    ] == notes


def test_a_card_that_stays_throttled_gives_no_sample() -> None:
    """It is tried twice as often as quads are wanted, and not for ever."""
    pair, _, order = timed(Throttled(*[CardState(reasons=0x80)] * 100))
    assert ((), 4, 16) == (pair.quads, pair.thrown_away, len(order))


def test_a_lost_host_is_said_of_its_side() -> None:
    """The side and the kernel are named, and its pool lets the host go."""

    class Dying(Side):
        def time(self, *, host: bool = False) -> float:
            raise HostLost("killed by signal 11 (SIGSEGV)", log="", limit_s=None)

    fought = bout(Unwatched())
    blocks = {"A": Side("A", 1.0, []), "B": Dying("B", 1.0, [])}

    def cell(task: DuelTask) -> Any:
        return fought._timed(task, "graph", cast("Any", blocks), 1, [])

    fought._cell = cell  # type: ignore[method-assign]
    (answer,) = fought.run([TASK], lambda case, stage: None)
    assert CellFailed(cell="cell", error="B (two): killed by signal 11 (SIGSEGV)") == answer
    assert ["card two"] == cast("Any", fought.sides[1].pool).lost_cards


def test_what_cannot_be_captured_is_noted_and_a_lack_of_memory_is_no_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first falls back to eager launches on both sides, the second ends the cell."""

    def refuses(*_: Any, **__: Any) -> Any:
        raise KernelRaised("RuntimeError", "operation not permitted when stream is capturing", "")

    def fills(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    calls: Any = {"A": [], "B": []}
    notes: list[str] = []
    monkeypatch.setattr(duel_bout, "RemoteBlocks", refuses)
    assert bout(Unwatched())._blocks(TASK, calls, graph=True, notes=notes) is None
    assert ["A (one) cannot be captured into a CUDA graph: operation not permitted when stream is capturing"] == notes
    monkeypatch.setattr(duel_bout, "RemoteBlocks", fills)
    fought = bout(Unwatched())
    with pytest.raises(Exception, match="CUDA out of memory"):
        fought._blocks(TASK, calls, graph=True, notes=notes)
    assert ["card one"] == cast("Any", fought.sides[0].pool).lost_cards


def test_an_unfit_card_is_not_timed() -> None:
    """Somebody else came meanwhile: the cell has no samples, and says why."""

    class Busy(Unwatched):
        def refusals(self, own: int) -> tuple[str, ...]:
            assert own == 1
            return ("1 other process on the card (pids seen: 7)",)

    (answer,) = bout(Busy()).run([TASK], lambda case, stage: None)
    assert ((), ("not timed: 1 other process on the card (pids seen: 7)",)) == (answer.pairs, answer.notes)


class Nvml:
    """What the driver's library says of a card: real calls, given answers."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        """Of the library."""

    def __init__(self, *, mig: int = 0, pids: tuple[int, ...] = ()) -> None:
        self.mig, self.pids, self.reasons = mig, pids, 0

    def nvmlDeviceGetMigMode(self, handle: Any) -> tuple[int, int]:  # noqa: N802
        return self.mig, self.mig

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:  # noqa: N802
        return [type("Process", (), {"pid": pid})() for pid in self.pids]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetClockInfo(self, handle: Any, clock: int) -> int:  # noqa: N802
        return 1755

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Leave."""


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who has ended is waited for."""
    monkeypatch.setattr(fitness, "PATIENCE_S", 0.001)


def test_who_has_just_ended_is_waited_for() -> None:
    """The driver lists a process for a moment after its end."""
    nvml = Nvml(pids=(7,))
    card = WatchedCard(nvml, None)
    card._before = 0
    seen = []

    def listed(handle: Any) -> list[Any]:
        seen.append(handle)
        return [] if len(seen) > 3 else [type("Process", (), {"pid": 7})()]

    nvml.nvmlDeviceGetComputeRunningProcesses = listed  # type: ignore[method-assign]
    assert () == fitness.patient(card, own=0)
    assert 4 == len(seen)
    card.close()


def test_who_was_on_the_card_before_is_somebody_else() -> None:
    """And so is who comes later, beyond our own processes."""
    nvml = Nvml()
    card = WatchedCard(nvml, None)
    assert () == card.refusals(own=0)
    nvml.pids = (10, 11)
    assert () == card.refusals(own=2)
    assert "1 other process on the card (pids seen: 10, 11)" in card.refusals(own=1)
    card.close()
    before = WatchedCard(Nvml(pids=(7,)), None)
    assert "1 other process on the card (pids seen: 7)" in before.refusals(own=3)
    before.close()
    slice_ = WatchedCard(Nvml(mig=1), None)
    assert slice_.refusals(own=0)[0].startswith("MIG is on: times are those of a slice")
    slice_.close()


def test_reasons_of_all_looks_count() -> None:
    """What was there in between is seen although it is gone at the end."""
    nvml = Nvml()
    card = WatchedCard(nvml, None)
    card.begin()
    nvml.reasons = 0x40
    card._look()
    nvml.reasons = 0
    state = card.end()
    assert (0x40, 1755.0) == (state.reasons, state.clock_mhz)
    card.begin()
    assert 0 == card.end().reasons
    card.close()


def test_a_plant_takes_its_share_on_the_cpu() -> None:
    """Twice as long at least, nearly; on a machine that is busy it may be more."""
    import time

    def launch() -> None:
        until = time.perf_counter_ns() + 200_000
        while time.perf_counter_ns() < until:
            pass

    processor = processor_of("cpu")
    plain = Blocks([launch], processor, graph=False, block_us=2_000, plant=0.0)
    slowed = Blocks([launch], processor, graph=False, block_us=2_000, plant=1.0)
    best = min(slowed.time() for _ in range(9)) / min(plain.time() for _ in range(9))
    assert 1.5 < best


@pytest.mark.parametrize(
    ("launch_us", "copies", "expected"), [(10, 1, 64), (10, 5, 65), (300, 4, 12), (20_000, 1, 1), (20_000, 3, 3)]
)
def test_a_unit_has_every_copy_equally_often(launch_us: float, copies: int, expected: int) -> None:
    """Many short launches, few long ones."""
    assert expected == unit_of(launch_us, copies)


def test_a_block_of_long_launches_is_no_longer_than_asked() -> None:
    """Of 2 ms on 20 copies of the inputs: 3 copies, and one launch before the block; a block took 80 ms."""
    import time

    launched: list[int] = []

    def launch(copy: int) -> None:
        launched.append(copy)
        until = time.perf_counter_ns() + 2_000_000
        while time.perf_counter_ns() < until:
            pass

    blocks = Blocks(
        [partial(launch, copy) for copy in range(20)], processor_of("cpu"), graph=False, block_us=4_000, plant=0.0
    )
    launched.clear()
    blocks.time()
    assert {0, 1, 2} == set(launched)
    assert len(launched) <= 4
