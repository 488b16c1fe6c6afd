"""A case on its way through the stages of a session, and outcomes with which it may end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from qualify.cards.kernel import KernelCard
from qualify.facts.case import Workload
from qualify.facts.outcome import Crashed, Finding, Outcome, Statistics, TimedOut, Timing, Witness
from qualify.run.host.interface import Bound, HostLost, Kernel, KernelHost, Lengths
from qualify.run.inputs.tensors import Inputs
from qualify.run.process.messages import CaseRequest
from qualify.text import first_line

SHOWN = 12
"""messages show the lengths of at most so many sequences"""


@dataclass(kw_only=True, slots=True)
class Running:
    """A case on its way through the stages."""

    request: CaseRequest
    card: KernelCard
    kernel: Kernel
    host: KernelHost
    inputs: Inputs
    bound: Bound
    native: Any
    """what the first call returned"""
    first_call_us: float
    peak_bytes: int | None
    fresh: bool
    """whether no case ran before in the host of its kernel"""
    output_digest: str = ""
    inputs_digest: str = ""
    witness: Witness | None = None
    findings: list[Finding] = field(default_factory=list)
    statistics: list[Statistics] = field(default_factory=list)
    timing: Timing | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """The outcome of a case."""

    case: str
    outcome: Outcome
    fresh: bool
    """whether no case ran before in the host of its kernel"""


def blame(lost: HostLost, request: CaseRequest, stage: str) -> Outcome:
    """The outcome of the case that was running when its host ended: a crash, or a time-out where a limit ended it."""
    error = f"{lost.error}{asked_words(lost.lengths, request.case.workload)}"
    if lost.limit_s is None:
        return Crashed(stage=stage or "start", error=error, log=lost.log, attempt=request.attempt)
    note = Finding(check="watchdog", verdict="note", detail=f"killed after {error}")
    return TimedOut(stage=stage or "start", limit_s=lost.limit_s, attempt=request.attempt, findings=(note,))


def asked_words(lengths: Lengths | None, workload: Workload) -> str:
    """The lengths of a call as the end of a sentence, where a check asked other ones than its case has."""
    if lengths is None or lengths == (workload.seqlens_q, workload.seqlens_k):
        return ""
    queries, keys = map(_beginning, lengths)
    return f", with seqlens_q {queries}, seqlens_k {keys}"


def _beginning(lengths: Sequence[int]) -> str:
    shown = ", ".join(map(str, lengths[:SHOWN]))
    return f"[{shown}]" if len(lengths) <= SHOWN else f"[{shown}, ...] of {len(lengths)} sequences"


def no_room(check: str, error: torch.OutOfMemoryError) -> Finding:
    """The finding of a check that ran out of memory. It is inconclusive: the check used the memory, not the kernel."""
    detail = f"not run: no room for it on the device ({first_line(error)[:200]})"
    return Finding(check=check, verdict="inconclusive", detail=detail)


def join(batch: list[Running], running: Running) -> None:
    """Add a case to the batch. Cases of the same host lose ``fresh``, because another case now ran there."""
    for other in batch:
        other.fresh = other.fresh and other.host is not running.host
    batch.append(running)
