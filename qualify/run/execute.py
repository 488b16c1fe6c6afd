"""Runs cases in a judge: prepare, witness, check, time. The kernels live in hosts.

A chunk of cases shares one profiler session. The session announces every step before it begins, so that the watching
process can blame a crash or a hang on the case and the stage that caused it.
"""

from __future__ import annotations

import math
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from qualify.cards.kernel import KernelCard
from qualify.errors import DeviceError
from qualify.facts.case import Case, Level
from qualify.facts.devices import HOST, Scale
from qualify.facts.outcome import (
    Crashed,
    Evidence,
    Measured,
    Outcome,
    Refused,
    Substituted,
    TimedOut,
)
from qualify.facts.stack import Ceilings, Device
from qualify.run.adapters.interface import LibraryRefusal
from qualify.run.checked import check_case
from qualify.run.checks.interface import Subject
from qualify.run.golden.reference import GoldenOf, golden
from qualify.run.host.hosts import Hosts
from qualify.run.host.interface import HostLost, Kernel, KernelRaised, out_bytes
from qualify.run.inputs.kept import forget
from qualify.run.inputs.tensors import make_inputs
from qualify.run.machine.device import processor_of
from qualify.run.machine.neighbours import Neighbours
from qualify.run.measure import witness
from qualify.run.measure.capacity import need_of
from qualify.run.measure.recording import CALLS
from qualify.run.measure.tracing import read_trace
from qualify.run.process.messages import CaseRequest
from qualify.run.process.repeats import failed_to_load
from qualify.run.running import Running, Settled, asked_words, blame, join
from qualify.run.timed import time_case
from qualify.text import first_line, one_line

CHUNK_BYTES: dict[Scale, int] = {"small": 256 << 20, "large": 4 << 30}
"""bytes of inputs that cases of one profiler session may hold together; the last case may exceed them"""


class SickContext(Exception):
    """This process's CUDA context no longer computes; the process must be replaced."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Seconds that a stage may take; after that, the process of its kernel is killed."""

    stage_s: float = math.inf
    compile_s: float = math.inf
    """limit of stages in which a library may compile"""


class Session:
    """One device, its kernels and its measured ceilings. It lives as long as the process."""

    def __init__(
        self,
        *,
        device: Device,
        ceilings: Ceilings,
        cards: dict[str, KernelCard],
        level: Level,
        reference: str,
        hosts: Hosts,
        announce: Callable[[str, str], None],
        limits: Limits = Limits(),
        timed: bool = True,
        golden_of: GoldenOf = golden,
    ) -> None:
        """Keep what all cases of the process share.

        Args:
            cards: kernel cards by name.
            reference: precision of the golden result, ``fp64`` or ``fp32``.
            hosts: processes in which the kernels live.
            announce: called with case id and stage before each step.
            timed: False leaves out timing and peak memory, which mean nothing for a simulated kernel.
            golden_of: computes golden results; the selftest's reuses them, because its kernels share inputs.
        """
        self.timed = timed
        self.golden_of = golden_of
        self.described = device
        self.processor = processor_of(device.kind)
        self.device = self.processor.device
        self.ceilings = ceilings
        self.cards = cards
        self.level: Level = level
        self.reference = {"fp64": torch.float64, "fp32": torch.float32}[reference]
        self.hosts = hosts
        self.announced = announce
        self.limits = limits
        self.stage = ""
        """stage that was announced last"""
        self.began = False
        """whether a batch of cases was prepared"""
        self.asked: dict[str, str] = {}
        """results of checks that run only once in a process, by :meth:`Subject.question`"""
        self.dead: dict[str, Outcome] = {}
        """outcome by kernel, for kernels that could not be loaded in a fresh host"""
        self.spent: defaultdict[str, float] = defaultdict(float)
        """seconds that each unfinished case has cost"""
        self.waiting: deque[CaseRequest] = deque()
        self.looking_at = 0
        """index, within the profiler session, of the case that was launched last"""
        self.neighbours = Neighbours()
        self.spared: set[str] = set()
        """ids of cases that were started again because somebody killed their host"""

    def run(self, requests: Iterable[CaseRequest]) -> Iterator[Settled]:
        """Run cases; yields their outcomes one after another.

        Where a host is lost, that is the outcome of the case that ran in it. Other cases that were prepared there start
        again.

        Raises:
            SickContext: this process's CUDA context no longer computes. The case after which it was found has its
                outcome already.
            DeviceError: no process can be started on the device.
        """
        self.waiting = deque(requests)
        while self.waiting:
            batch: list[Running] = []
            held = 0
            # The first batch of a session has one case, so that a user sees the first verdict early.
            room = CHUNK_BYTES[self.processor.scale] if self.began else 1
            while self.waiting and held < room and len(batch) < self.processor.session_cases:
                request = self._next()
                running, outcome, fresh = self._begin(request)
                if running is not None:
                    join(batch, running)
                    held += running.inputs.bytes
                else:
                    yield Settled(case=request.case.id, outcome=outcome, fresh=fresh)
                self._ask_health(request)
                if request.alone:
                    break
            self.began = True
            yield from self._finish(batch)

    def _next(self) -> CaseRequest:
        """Take the first case that need not wait for its host; or that of the host which is ready first."""
        while (number := self._ready()) is None and self.hosts.wait():
            pass
        number = number or 0
        request = self.waiting[number]
        del self.waiting[number]
        return request

    def _ready(self) -> int | None:
        """The number of the first waiting case that need not wait for its host."""
        cases = enumerate(self.waiting)
        return next((number for number, it in cases if not self.hosts.busy(self.cards[it.case.kernel])), None)

    def _begin(self, request: CaseRequest) -> tuple[Running | None, Any, bool]:
        """Load the kernel and prepare the case: (running case or None, outcome or None, whether its host is fresh).

        A host is fresh where no case ran in it before.
        """
        card = self.cards[request.case.kernel]
        if card.kernel in self.dead:
            return None, self.dead[card.kernel], True
        kernel = self._guarded(request, "load", partial(self.hosts.kernel, card, alone=request.alone))
        fresh = self.hosts.fresh(card)
        if isinstance(kernel, Crashed | TimedOut | Refused):
            if fresh and failed_to_load(kernel):
                self.dead[card.kernel] = kernel
            return None, kernel, fresh
        running = self._guarded(request, "prepare", partial(self._prepare, request, kernel, fresh=fresh))
        return (running, None, fresh) if isinstance(running, Running) else (None, running, fresh)

    def _announce(self, request: CaseRequest, stage: str) -> None:
        """Announce the step that begins, and set its time limit.

        Whatever differs from the case's own call, as in a check, may have to be compiled. That is kept only where it
        ends: a limit that is too short would end it in each run anew.
        """
        self.stage = stage
        compiles = self.cards[request.case.kernel].jit != "never" and stage.startswith(("prepare", "checks"))
        slow = stage == "load" or compiles
        self.hosts.begin(self.limits.compile_s if slow else self.limits.stage_s)
        self.announced(request.case.id, stage)

    def _guarded(self, request: CaseRequest, stage: str, step: Callable[[], Any]) -> Any:
        """Run one step; an exception becomes the outcome of the case."""
        self._announce(request, stage)
        began = time.monotonic()
        try:
            return self._with_room(step)
        except DeviceError:
            raise  # no process can be started: the machine is at fault, and no case
        except LibraryRefusal as refusal:
            return Refused(by="library", reasons=(str(refusal),))
        except HostLost as lost:
            return blame(lost, request, self.stage)
        except ImportError as error:
            # A library may be imported by its first call; once that has returned, it was loaded.
            return self._crash(request, "load" if stage == "prepare" else self.stage, error)
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises is the outcome of its case
            return self._crash(request, self.stage, error)
        finally:
            self.spent[request.case.id] += time.monotonic() - began

    def _with_room(self, step: Callable[[], Any]) -> Any:
        """Run a step. Where the device has no room, all processes free unused memory, and the step runs once more."""
        if self.processor.short_of_memory():
            self._make_room()
        try:
            return step()
        except torch.OutOfMemoryError:
            if not self.processor.short_of_memory():
                raise
            self._make_room()
        return step()

    def _make_room(self) -> None:
        """Let this process and those of the kernels give back memory that they do not use."""
        forget()
        self.hosts.make_room()

    def _crash(self, request: CaseRequest, stage: str, error: BaseException) -> Crashed:
        first = str(error).strip().splitlines()
        name = error.raised if isinstance(error, KernelRaised) else type(error).__name__
        place = f" ({one_line(error.place)})" if isinstance(error, KernelRaised) and error.place else ""
        asked = asked_words(error.lengths, request.case.workload) if isinstance(error, KernelRaised) else ""
        text = f"{name}: {first[0] if first else ''}"[: 500 - len(place + asked)] + place + asked
        log = error.log if isinstance(error, KernelRaised) else "".join(traceback.format_exception(error))
        return Crashed(stage=stage, error=text, log=log[-4000:], attempt=request.attempt)

    def _prepare(self, request: CaseRequest, kernel: Kernel, *, fresh: bool) -> Running:
        case = request.case
        card = self.cards[case.kernel]
        inputs = make_inputs(case.workload, kind="normal", seed=seed_of(case), device=self.device, descaled=True)
        begin = time.perf_counter_ns()
        bound = kernel.prepare(inputs.call)
        native = bound.launch()
        host = self.hosts.host(card)
        host.settle()
        first_call_us = (time.perf_counter_ns() - begin) / 1e3
        return Running(
            request=request,
            card=card,
            kernel=kernel,
            host=host,
            inputs=inputs,
            bound=bound,
            native=native,
            first_call_us=first_call_us,
            # On a CPU this is None, and the peak comes from the trace of the witness.
            peak_bytes=bound.peak_bytes(),
            fresh=fresh,
        )

    def _finish(self, batch: list[Running]) -> Iterator[Settled]:
        """Witness, checks and timing of prepared cases. Each finished case is dropped, so its memory becomes free."""
        failed = self._witness(batch)
        while batch:
            running = batch.pop(0)
            request = running.request
            outcome = failed.get(request.case.id)
            if outcome is None and self._spares(running):
                self.spared.add(request.case.id)
                self.waiting.appendleft(request)
                continue
            if outcome is None and not running.host.alive:
                self.waiting.appendleft(request)  # another case ended the process in which this one was prepared
                continue
            if outcome is None:
                outcome = self._guarded(request, "checks", partial(self._check, running))
            if outcome is None and self.timed:
                outcome = self._guarded(request, "timing", partial(self._time, running))
            outcome = self._lost_context(running, outcome)
            outcome = self._outcome(running) if outcome is None else outcome
            yield Settled(case=request.case.id, outcome=outcome, fresh=running.fresh)
            self._ask_health(request)

    def _spares(self, running: Running) -> bool:
        """Whether the case starts again because somebody killed its host. Only a second kill counts against it."""
        return running.host.killed and running.request.case.id not in self.spared

    def _witness(self, batch: list[Running]) -> dict[str, Outcome]:
        """Trace the batch, each host's cases in one session; returns the outcomes of cases that failed here.

        Cases that the shared session did not prove are traced alone afterwards. These are all its cases if the
        session raised an error, to find the case to blame, or if the profiler lost the records.
        """
        failed: dict[str, Outcome] = {}
        for host in {id(running.host): running.host for running in batch}.values():
            own = [running for running in batch if running.host is host]
            if not host.alive or any(map(self._spares, own)):
                continue  # it ended while a later case was prepared: those from before start again
            outcome = self._guarded(own[0].request, "witness", partial(self._look, own))
            if outcome is not None and (len(own) == 1 or not host.alive):
                failed[own[self.looking_at].request.case.id] = outcome
                continue
            for running in own if len(own) > 1 else ():
                if not host.alive or (running.witness is not None and running.witness.state != "unproven"):
                    continue
                outcome = self._guarded(running.request, "witness", partial(self._look, [running]))
                if outcome is not None:
                    failed[running.request.case.id] = outcome
        return failed

    def _look(self, some: list[Running]) -> None:
        """Trace some cases of one host in one profiler session, and note what the witness saw."""
        self.looking_at = 0

        def announce(index: int) -> None:
            self.looking_at = index
            self._announce(some[index].request, "witness")

        bounds = [running.bound for running in some]
        events = some[0].host.trace(bounds, announce, times=CALLS, memory=self.timed)
        for running, trace in zip(some, read_trace(events, count=len(some), cuda=self._on_cuda), strict=True):
            rules = running.card.witness
            need = need_of(running.request.case.workload, self.ceilings, self.described.units)
            seen = witness.decide(trace, rules.must_match, rules.may_match, need=need)
            control = self.hosts.control(running.card) if seen.state == "proven" else ""
            if control:
                seen = replace(seen, state="unproven", reason=f"negative control failed: {control}")
            running.witness = seen
            if running.peak_bytes is None and trace.peak_bytes is not None:
                running.peak_bytes = max(0, trace.peak_bytes - out_bytes(running.inputs.call))

    @property
    def _on_cuda(self) -> bool:
        return self.processor.records_launches

    def _subject(self, running: Running) -> Subject:
        """What the checks get of a case."""
        case = running.request.case
        return Subject(
            workload=case.workload,
            card=running.card,
            kernel=running.kernel,
            device=self.device,
            level=self.level,
            reference=self.reference,
            seed=seed_of(case),
            first=partial(running.bound.result, running.native),
            asked=self.asked,
            golden_of=self.golden_of,
            statistics=running.statistics,
        )

    def _check(self, running: Running) -> None:
        check_case(running, self._subject(running), partial(self._announce, running.request))

    def _time(self, running: Running) -> None:
        self.ceilings = time_case(running, self._subject(running), self.described, self.ceilings, self.neighbours)

    def _outcome(self, running: Running) -> Outcome:
        seen = running.witness
        assert seen is not None, "every case that reaches its end was traced"
        evidence = Evidence(
            findings=tuple(running.findings),
            statistics=tuple(running.statistics),
            witness=seen,
            timing=running.timing,
            first_call_us=running.first_call_us,
            peak_temporary_bytes=running.peak_bytes,
            wall_s=self.spent.pop(running.request.case.id),
            attempt=running.request.attempt,
            output_digest=running.output_digest,
            inputs_digest=running.inputs_digest,
        )
        return Substituted(evidence=evidence) if seen.state == "substituted" else Measured(evidence=evidence)

    def _lost_context(self, running: Running, outcome: Outcome | None) -> Outcome | None:
        """The outcome so far; a crash where there is none yet and the CUDA context of the host is lost."""
        if self.processor.kind == HOST or not running.host.alive:
            return outcome
        told = self._guarded(running.request, "health", running.host.healthy)
        if told is True:
            return outcome
        self.hosts.lost(running.card)
        error = told.error if isinstance(told, Crashed) else "a tiny computation gives no result, or a wrong one"
        lost = Crashed(
            stage="health", error=f"the CUDA context is lost: {error}", log="", attempt=running.request.attempt
        )
        return lost if outcome is None else outcome

    def _ask_health(self, request: CaseRequest) -> None:
        """Raise SickContext where this process's own CUDA context no longer computes. A CPU has no context."""
        if self.processor.kind == HOST:
            return
        try:
            healthy = self.processor.healthy()
        except Exception as error:
            raise SickContext(first_line(error)) from error
        if not healthy:
            raise SickContext("a tiny computation gives a wrong result")


def seed_of(case: Case) -> int:
    """The seed of a case's inputs, a part of its content hash: the same in every run, and different between cases."""
    return int(case.content_hash[:7], 16)


def first_call(case: Case, card: KernelCard, hosts: Hosts, kind: str) -> float:
    """Prepare a case's call and launch it once, without keeping the result; returns how long that took, in µs."""
    kernel = hosts.kernel(card)
    inputs = make_inputs(case.workload, kind="normal", seed=seed_of(case), device=processor_of(kind).device)
    begin = time.perf_counter_ns()
    kernel.prepare(inputs.call).launch()
    hosts.host(card).settle()
    return (time.perf_counter_ns() - begin) / 1e3


def give_back_memory(kind: str) -> None:
    """Return the allocator's unused memory to the device, because other processes compile on the same card."""
    processor_of(kind).give_back()
