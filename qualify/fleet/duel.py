"""A duel on this machine: rounds of fresh process pairs until every cell is decided, or the time is over."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain

from qualify.errors import DeviceError
from qualify.facts.code import Code
from qualify.facts.duel import BROKEN, Duel, DuelTask
from qualify.facts.stack import Stack
from qualify.fleet.local import undisturbed
from qualify.run.process.child import JUDGE_S, Child, Gone
from qualify.run.process.messages import (
    CardUnfit,
    CellFailed,
    CellTimed,
    ChunkDone,
    DuelRound,
    DuelSetup,
    SidesDescribed,
    StageBegun,
    Unusable,
)
from qualify.run.process.setup import make_ready
from qualify.verdict.duelled import DuelFamily, is_complete, unasked
from qualify.verdict.open_cell import LEAST_PAIRS, OpenCell

MOST_PAIRS = 12
"""most pairs of processes of one cell; a slowdown that shows late gets LEAST_PAIRS more, which may confirm it"""
JUDGES = 3
"""the duel is given up when so many judges have ended by themselves"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelRequest:
    """What is to be compared."""

    matrix: str
    matrix_hash: str
    select: str
    a: str
    b: str
    null: bool
    tasks: tuple[DuelTask, ...]
    alike: Mapping[str, tuple[DuelTask, ...]]
    """by the name of a task, the cells that make the same calls; they share its times"""
    setup: DuelSetup
    only_a: tuple[str, ...] = ()
    """cells that A alone can run, so that nothing is compared"""
    only_b: tuple[str, ...] = ()
    """cells that B alone can run"""
    code: Mapping[str, Code] = field(default_factory=dict)
    """by kernel of side B, its code"""
    least_pairs: int = LEAST_PAIRS
    most_pairs: int = MOST_PAIRS
    margin: float | None = None
    """share below which no change counts; None = by the kernel's time"""
    deadline_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DuelProgress:
    """Where a duel stands."""

    decided: int
    total: int
    pair: int
    """number of the pair of processes, from 1 on"""
    timed: int
    """cells of this round that are done"""
    round_total: int
    cell: str
    elapsed_s: float
    """since the duel began"""


class Duelling:
    """A duel that is being fought."""

    def __init__(self, request: DuelRequest, show: Callable[[DuelProgress], None]) -> None:
        self.request, self.show = request, show
        self.tasks = {task.name: task for task in request.tasks}
        opened = (OpenCell(asked=unasked(task), margin=request.margin) for task in request.tasks)
        self.family = DuelFamily(opened, request.least_pairs)
        self.cells = self.family.cells
        self.stacks: tuple[Stack, Stack] | None = None
        self.began = time.monotonic()
        self.child: Child | None = None
        self.lost = 0
        self.unfit: tuple[str, ...] = ()
        self.interrupted = False
        """whether Ctrl-C ended the duel; it reports what was decided by then"""
        self.broken: DeviceError | None = None
        """why it could not go on after something was timed; it reports what was decided by then"""

    def fight(self) -> Duel:
        """Fight all rounds; whatever ends them early, the samples so far count.

        Raises:
            DeviceError: nothing was timed: no judge can be started, or the card is not fit to be timed.
            KeyboardInterrupt: Ctrl-C came before anything was timed.
        """
        try:
            # A round whose judge ended may time nothing.
            for number in range(self.request.most_pairs + self.request.least_pairs + JUDGES):
                waiting = self._waiting(number)
                if not waiting or self._is_late():
                    break
                self._round(number, waiting)
                if number + 1 >= self.request.least_pairs:
                    self.family.decide()
        except KeyboardInterrupt:
            self.interrupted = True
        except DeviceError as error:
            if not any(pair.quads for cell in self.cells.values() for pair in cell.pairs):
                raise
            self.broken = error
        finally:
            with undisturbed():
                if self.child is not None:
                    self.child.stop()
        with undisturbed():
            self.family.decide()
            for cell in self.cells.values():
                cell.cut = self._why_cut(cell)
            return self._duel()

    def _why_cut(self, cell: OpenCell) -> str:
        """What ended the duel before a cell had all its pairs; empty where nothing did."""
        had, confirmed = len({pair.pair for pair in cell.pairs}), cell.confirming_rounds
        if had >= self.request.most_pairs and not (cell.confirming and confirmed < self.request.least_pairs):
            return ""
        if self.interrupted:
            return "the duel was interrupted"
        if self.broken:
            return f"{BROKEN}: {str(self.broken).removesuffix('.')}"
        return f"the deadline of {self.request.deadline_s:g} s was over" if self._is_late() else ""

    def _waiting(self, number: int) -> list[OpenCell]:
        """The cells that get another pair of processes, after so many: they are not decided, and pairs are left."""
        least, more = self.request.least_pairs, number < self.request.most_pairs
        return [
            cell
            for cell in self.cells.values()
            if not (cell.error or cell.decided) and (more or (cell.confirming and cell.confirming_rounds < least))
        ]

    def _too_short(self) -> str:
        """What is said where the deadline left no time at all."""
        return (
            f"the deadline of {self.request.deadline_s or 0:g} s was over before the first pair of processes began. "
            "Their start alone takes many seconds: give more time (--deadline 8m)"
        )

    def _is_late(self) -> bool:
        """Whether the deadline is over."""
        limit = self.request.deadline_s
        return limit is not None and time.monotonic() - self.began >= limit

    def _round(self, number: int, waiting: Sequence[OpenCell]) -> None:
        """One fresh pair of processes for the cells that wait."""
        asked = DuelRound(number=number, tasks=tuple(self.tasks[cell.asked.name] for cell in waiting))
        done = 0
        for answer in self._answers(asked):
            match answer:
                case SidesDescribed():
                    self._describe(answer)
                case CardUnfit(reasons=reasons):
                    self.unfit = reasons
                    for cell in waiting:
                        cell.error = f"the card is not fit to be timed: {'; '.join(reasons)}"
                case CellTimed() | CellFailed():
                    done += 1
                    self._file(answer)
                    decided = sum(cell.decided or bool(cell.error) for cell in self.cells.values())
                    self.show(
                        DuelProgress(
                            decided=decided,
                            total=len(self.cells),
                            pair=number + 1,
                            timed=done,
                            round_total=len(waiting),
                            cell=answer.cell,
                            elapsed_s=time.monotonic() - self.began,
                        )
                    )

    def _describe(self, told: SidesDescribed) -> None:
        self.stacks = self.stacks or (told.a, told.b)
        if told.note:
            for cell in self.cells.values():
                cell.notes[told.note] = None

    def _file(self, answer: CellTimed | CellFailed) -> None:
        cell = self.cells[answer.cell]
        if isinstance(answer, CellFailed):
            cell.error = answer.error
            return
        cell.confirming_rounds += cell.confirming
        cell.notes |= dict.fromkeys(answer.notes)
        for pair in answer.pairs:
            cell.pairs.append(replace(pair, confirming=cell.confirming))

    def _answers(self, asked: DuelRound) -> Iterator[SidesDescribed | CellTimed | CellFailed | CardUnfit]:
        """What the judge says of a round. Where it ends or the deadline comes, the rest of the round is left out."""
        limit_s = self.request.setup.effort.compile_s + JUDGE_S
        try:
            child = self.child or self._start()
            child.send(asked, limit_s)
            while not self._is_late():
                match message := child.receive(limit_s):
                    case None | StageBegun():
                        pass
                    case ChunkDone():
                        return
                    case Unusable():
                        raise DeviceError(message.message)
                    case SidesDescribed() | CellTimed() | CellFailed() | CardUnfit():
                        yield message
                    case _:
                        raise child.unexpected(message)
        except Gone as gone:
            self.lost += 1
            place = self.child.case if self.child is not None else ""
            if place in self.cells:
                self.cells[place].error = f"the judge ended while it was timed: {gone.error}"
            if self.lost >= JUDGES:
                raise DeviceError(f"the judge of the duel ended {self.lost} times: {gone.error}") from None
        if self.child is not None:
            self.child.stop()
            self.child = None

    def _start(self) -> Child:
        self.child = child = Child(self.request.setup.hosts.memory_bytes)
        make_ready(child, self.request.setup)
        return child

    def _duel(self) -> Duel:
        request = self.request
        if self.stacks is None and self.interrupted:
            raise KeyboardInterrupt
        if self.stacks is None:
            reasons = "; ".join(self.unfit) or next((cell.error for cell in self.cells.values() if cell.error), "")
            raise DeviceError(f"nothing was timed: {reasons or self._too_short()}")
        timed = self.family.reports()
        alike = [
            replace(cell, name=task.name, a=task.a.id, b=task.b.id, phase=task.a.phase)
            for cell in timed
            for task in request.alike.get(cell.name, ())
        ]
        cells = (*timed, *alike)
        # By one clock reading: where the clock was set meanwhile, the one at the end is more probably right.
        finished_at = datetime.now(UTC)
        started_at = finished_at - timedelta(seconds=time.monotonic() - self.began)
        return Duel(
            id=f"duel-{started_at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
            matrix=request.matrix,
            matrix_hash=request.matrix_hash,
            select=request.select,
            a=request.a,
            b=request.b,
            null=request.null,
            device=self.stacks[0].device.variant,
            device_uuid=self.stacks[0].device.uuid,
            stack_a=self.stacks[0],
            stack_b=self.stacks[1],
            started_at=started_at,
            finished_at=finished_at,
            complete=is_complete(cells),
            least_pairs=request.least_pairs,
            cells=cells,
            samples={name: tuple(cell.pairs) for name, cell in self.cells.items()},
            only_a=request.only_a,
            only_b=request.only_b,
            code=request.code,
            content={task.b.id: task.b.content_hash for task in chain(request.tasks, *request.alike.values())},
        )
