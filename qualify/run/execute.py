"""Run cases on the device of this process: prepare, witness, check, time. What the worker's child does.

A chunk of cases shares one profiler session. Every step is announced before it begins, so that whoever
watches from outside can blame a crash or a hang on the case and the stage that caused it.
"""

from __future__ import annotations

import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from qualify.cards.kernel import KernelCard
from qualify.facts.case import Case, Level
from qualify.facts.devices import HOST, Scale
from qualify.facts.outcome import (
    Crashed,
    Evidence,
    Finding,
    Measured,
    Outcome,
    Refused,
    Statistics,
    Substituted,
    Timing,
    Witness,
)
from qualify.facts.stack import Ceilings, Device
from qualify.run.adapters.interface import Adapter, LibraryRefusal, Prepared
from qualify.run.adapters.registry import create_adapter
from qualify.run.checks.interface import ContractBreach, Subject
from qualify.run.checks.registry import CHECKS
from qualify.run.golden.reference import GoldenOf, golden
from qualify.run.inputs.tensors import Inputs, clone, make_inputs
from qualify.run.machine.device import processor_of
from qualify.run.measure import timing, tracing, witness
from qualify.run.measure.ceilings import best_of, measure_ceilings
from qualify.run.process.messages import CaseRequest

CHUNK_BYTES: dict[Scale, int] = {"small": 256 << 20, "large": 8 << 30}
"""inputs that may be held while a profiler session is filled"""
COPY_BYTES: dict[Scale, int] = {"small": 256 << 20, "large": 4 << 30}
"""footprint of the rotating copies of a timing, at most"""


class SickContext(Exception):
    """The CUDA context no longer computes; the process must be replaced."""


@dataclass(kw_only=True, slots=True)
class Running:
    """A case on its way through the stages."""

    request: CaseRequest
    card: KernelCard
    adapter: Adapter
    inputs: Inputs
    prepared: Prepared
    native: Any
    """what the first call returned"""
    first_call_us: float
    peak_bytes: int | None
    witness: Witness | None = None
    findings: list[Finding] = field(default_factory=list)
    statistics: list[Statistics] = field(default_factory=list)
    timing: Timing | None = None


class Session:
    """One device, its kernels, and what was measured of it; lives as long as the process."""

    def __init__(
        self,
        *,
        device: Device,
        ceilings: Ceilings,
        cards: dict[str, KernelCard],
        level: Level,
        reference: str,
        control: str,
        announce: Callable[[str, str], None],
        timed: bool = True,
        golden_of: GoldenOf = golden,
    ) -> None:
        """Take what every case of the process shares.

        Args:
            timed: False leaves out the timing and the peak of memory: those of a simulated kernel say nothing.
            golden_of: gives golden results; the selftest's finds them again, because its kernels share inputs.
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
        self.control = control
        """why the witness's negative control failed; empty where it did not"""
        self.announce = announce
        self.adapters: dict[str, Adapter] = {}
        self.asked: dict[str, str] = {}
        """for checks that ask a kernel only once"""
        self.spent: defaultdict[str, float] = defaultdict(float)
        """seconds that each unfinished case has cost"""

    def run(self, requests: Iterable[CaseRequest]) -> Iterator[tuple[str, Outcome]]:
        """Outcomes of a chunk, one after another; raises SickContext after the outcome that caused it."""
        waiting = list(requests)
        while waiting:
            batch: list[Running] = []
            held = 0
            while waiting and held < CHUNK_BYTES[self.processor.scale]:
                request = waiting.pop(0)
                prepared = self._load(request) or self._guarded(request, "prepare", partial(self._prepare, request))
                if isinstance(prepared, Running):
                    batch.append(prepared)
                    held += prepared.inputs.bytes
                else:
                    yield request.case.id, prepared
                self._ask_health(request)
            yield from self._finish(batch)

    def _guarded(self, request: CaseRequest, stage: str, step: Callable[[], Any]) -> Any:
        """Run one step; an exception becomes the outcome of the case."""
        self.announce(request.case.id, stage)
        began = time.monotonic()
        try:
            return step()
        except LibraryRefusal as refusal:
            return Refused(by="library", reasons=(str(refusal),))
        except ImportError as error:
            return self._crash(request, "load", error)
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises is the outcome of its case
            return self._crash(request, stage, error)
        finally:
            self.spent[request.case.id] += time.monotonic() - began

    def _crash(self, request: CaseRequest, stage: str, error: BaseException) -> Crashed:
        first = str(error).strip().splitlines()
        text = f"{type(error).__name__}: {first[0] if first else ''}"[:500]
        log = "".join(traceback.format_exception(error))[-4000:]
        return Crashed(stage=stage, error=text, log=log, attempt=request.attempt)

    def _load(self, request: CaseRequest) -> Outcome | None:
        """Load the library or entry of the case's kernel; an outcome where that fails, whatever it raised."""
        card = self.cards[request.case.kernel]
        if card.kernel in self.adapters:
            return None
        loaded = self._guarded(request, "load", partial(create_adapter, card))
        if isinstance(loaded, Crashed | Refused):
            return loaded
        self.adapters[card.kernel] = loaded
        return None

    def _prepare(self, request: CaseRequest) -> Running:
        case = request.case
        card = self.cards[case.kernel]
        adapter = self.adapters[card.kernel]
        inputs = make_inputs(case.workload, kind="normal", seed=seed_of(case), device=self.device, descaled=True)
        begin = time.perf_counter_ns()
        prepared = adapter.prepare(inputs.call)
        native = prepared.launch()
        self.processor.synchronize()
        first_call_us = (time.perf_counter_ns() - begin) / 1e3
        return Running(
            request=request,
            card=card,
            adapter=adapter,
            inputs=inputs,
            prepared=prepared,
            native=native,
            first_call_us=first_call_us,
            # The CPU's comes from the trace, which is made anyway.
            peak_bytes=self.processor.peak_bytes(prepared.launch),
        )

    def _finish(self, batch: list[Running]) -> Iterator[tuple[str, Outcome]]:
        """Witness, checks and timing of prepared cases, which leave the batch and the device's memory one by one."""
        failed = self._witness(batch)
        while batch:
            running = batch.pop(0)
            request = running.request
            outcome = failed.get(request.case.id)
            if outcome is None:
                outcome = self._guarded(request, "checks", partial(self._check, running))
            if outcome is None and self.timed:
                outcome = self._guarded(request, "timing", partial(self._time, running))
            yield request.case.id, self._outcome(running) if outcome is None else outcome
            self._ask_health(request)

    def _witness(self, batch: list[Running]) -> dict[str, Outcome]:
        """Trace the batch in one session; then in a session of its own whatever that session did not prove.

        That is every case if the session raised, to find the culprit, or if the profiler lost the session's records.
        """
        failed: dict[str, Outcome] = {}

        def look(some: list[Running]) -> None:
            traces = tracing.trace(
                [running.prepared.launch for running in some],
                self.device,
                lambda index: self.announce(some[index].request.case.id, "witness"),
                memory=self.timed,
            )
            for running, trace in zip(some, traces, strict=True):
                rules = running.card.witness
                running.witness = witness.decide(trace, rules.must_match, rules.may_match)
                if running.peak_bytes is None and trace.peak_bytes is not None:
                    running.peak_bytes = max(0, trace.peak_bytes - self._output_bytes(running))

        if not batch:
            return failed
        outcome = self._guarded(batch[0].request, "witness", partial(look, batch))
        if len(batch) == 1:
            return {} if outcome is None else {batch[0].request.case.id: outcome}
        for running in batch:
            if running.witness is not None and running.witness.state != "unproven":
                continue
            outcome = self._guarded(running.request, "witness", partial(look, [running]))
            if outcome is not None:
                failed[running.request.case.id] = outcome
        return failed

    @staticmethod
    def _output_bytes(running: Running) -> int:
        call = running.inputs.call
        return call.q.shape[0] * call.q.shape[1] * (call.v.shape[-1] * call.out_dtype.itemsize)

    def _check(self, running: Running) -> None:
        """Ask every check of the level; a breach of the call contract ends the case's checks."""
        case = running.request.case
        subject = Subject(
            workload=case.workload,
            card=running.card,
            adapter=running.adapter,
            device=self.device,
            level=self.level,
            reference=self.reference,
            seed=seed_of(case),
            first=partial(running.prepared.result, running.native),
            asked=self.asked,
            golden_of=self.golden_of,
            statistics=running.statistics,
        )
        for check in CHECKS:
            if self.level not in check.levels:
                continue
            why = check.skips(subject)
            if why:
                running.findings.append(Finding(check=check.name, verdict="note", detail=f"not asked: {why}"))
                continue
            self.announce(case.id, f"checks:{check.name}")
            try:
                findings = check.run(subject)
            except LibraryRefusal as refusal:
                detail = f"not asked: {refusal}"
                findings = [Finding(check=check.name, verdict="note", detail=detail)]
            except torch.OutOfMemoryError as error:
                # What the checks hold beside the call is theirs, and no fault of the kernel.
                detail = f"not asked: no room for it on the device ({str(error).splitlines()[0][:200]})"
                findings = [Finding(check=check.name, verdict="inconclusive", detail=detail)]
            except ContractBreach as breach:
                running.findings.append(breach.finding)
                return
            running.findings += findings

    def _time(self, running: Running) -> None:
        """Time the call on rotating copies of its inputs, and ask whether the result is possible."""
        workload = running.request.case.workload
        kind = self.described.kind
        cache = self.described.cache_bytes
        call_us = timing.host_us(self.processor, running.prepared.launch)
        scale = self.processor.scale
        count = timing.copies_needed(running.inputs.bytes, cache, COPY_BYTES[scale], call_us, scale)
        copies = [running.inputs] + [clone(running.inputs) for _ in range(count - 1)]
        launches = [running.prepared.launch]
        launches += [running.adapter.prepare(copy.call).launch for copy in copies[1:]]
        measure = partial(
            timing.measure,
            launches,
            workload=workload,
            input_bytes=running.inputs.bytes,
            cache_bytes=cache,
            level=self.level,
            processor=self.processor,
        )
        running.timing = measure(ceilings=self.ceilings)
        found = timing.findings(running.timing, workload, self.ceilings, kind)
        if found:
            # Impossible by ceilings that may have been taken while something else used the card: ask the card again.
            self.ceilings = best_of(self.ceilings, measure_ceilings(self.processor))
            running.timing = measure(ceilings=self.ceilings)
            found = timing.findings(running.timing, workload, self.ceilings, kind)
        running.findings += found
        if kind != HOST and running.witness is not None:
            running.findings += witness.findings(running.witness, running.timing.latency_us, self.described.units)

    def _outcome(self, running: Running) -> Outcome:
        seen = running.witness
        assert seen is not None, "every case that reaches its end was traced"
        if self.control and seen.state == "proven":
            seen = replace(seen, state="unproven", reason=f"negative control failed: {self.control}")
        evidence = Evidence(
            findings=tuple(running.findings),
            statistics=tuple(running.statistics),
            witness=seen,
            timing=running.timing,
            first_call_us=running.first_call_us,
            peak_temporary_bytes=running.peak_bytes,
            wall_s=self.spent.pop(running.request.case.id),
            attempt=running.request.attempt,
        )
        return Substituted(evidence=evidence) if seen.state == "substituted" else Measured(evidence=evidence)

    def _ask_health(self, request: CaseRequest) -> None:
        """Does the context still compute? A CPU has none."""
        if self.processor.kind == HOST:
            return
        self.announce(request.case.id, "health")
        try:
            healthy = self.processor.healthy()
        except Exception as error:
            raise SickContext(str(error).splitlines()[0]) from error
        if not healthy:
            raise SickContext("a tiny computation gives a wrong result")


def seed_of(case: Case) -> int:
    """The seed of a case's inputs: a part of its content hash, so it repeats and differs between cases."""
    return int(case.content_hash[:7], 16)


def first_call(case: Case, card: KernelCard, adapters: dict[str, Adapter], kind: str) -> float:
    """Prepare a case's call and launch it once; what that took, in µs, and nothing is kept of it.

    Args:
        adapters: by kernel; a missing one is created and added.
    """
    if card.kernel not in adapters:
        adapters[card.kernel] = create_adapter(card)
    processor = processor_of(kind)
    inputs = make_inputs(case.workload, kind="normal", seed=seed_of(case), device=processor.device)
    begin = time.perf_counter_ns()
    adapters[card.kernel].prepare(inputs.call).launch()
    processor.synchronize()
    return (time.perf_counter_ns() - begin) / 1e3


def give_back_memory(kind: str) -> None:
    """Free what the allocator keeps: other processes compile on the same card."""
    processor_of(kind).give_back()


def run_control(device: torch.device) -> str:
    """The witness's negative control on the math path: why it failed, or empty."""
    q = torch.randn(1, 4, 128, 64, device=device, dtype=torch.bfloat16)

    def call() -> None:
        with sdpa_kernel([SDPBackend.MATH]):
            torch.nn.functional.scaled_dot_product_attention(q, q, q)

    call()
    return witness.negative_control(tracing.trace([call], device)[0])
