"""Defines checks, and the subject that a check gets.

A check answers one question about one kernel on one workload with findings. Its module says when it applies, at which
levels it runs, and how it can be deceived. For each check, a test plants a fault that it must catch, and a legitimate
difference on which it must stay silent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from qualify.cards.kernel import KernelCard
from qualify.facts.case import Level, Workload
from qualify.facts.checks import known_check
from qualify.facts.dtypes import FORMATS
from qualify.facts.outcome import Finding, Statistics, Value
from qualify.run.adapters.interface import AttentionCall
from qualify.run.golden.reference import GoldenOf, golden
from qualify.run.golden.result import Golden
from qualify.run.golden.rows import ROW_LIMIT
from qualify.run.host.interface import Kernel
from qualify.run.inputs.tensors import InputKind, Inputs, make_inputs
from qualify.run.machine.device import Processor, processor_of

LSE_ALONE: Mapping[str, Value] = {
    "wrong": "The LSE is wrong beside results that are right",
    "likely": "a sum over other keys, another base, or too few bits",
}
"""what is wrong where only the LSE is, and what is then most often behind it, instead of what the check says"""

INSTEAD: Mapping[str, str] = {
    "coroutine": "; write `def` in place of `async def`",
    "generator": "; write `return` in place of `yield`",
}
"""by the class of what came back: what to write in the function, at the end of the message"""


class ContractBreach(Exception):
    """The kernel returned something that the call contract does not allow."""

    def __init__(self, detail: str, values: dict[str, Value]) -> None:
        self.finding = Finding(check="contract", verdict="fail", detail=detail, values=values)
        super().__init__(detail)


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What the kernel returned, checked for shape and dtype."""

    out: Tensor
    """(total_q, heads_q, head_dim_v)"""
    lse: Tensor | None
    """(heads_q, total_q) float32; None where the kernel returned none, or where the card claims none"""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One kernel on one workload, as the checks see it."""

    workload: Workload
    card: KernelCard
    kernel: Kernel
    """the kernel, in this process or in another"""
    device: torch.device
    level: Level
    reference: torch.dtype
    """precision of the golden result: float64 or float32"""
    seed: int
    first: Callable[[], tuple[Tensor, Tensor | None]] | None = None
    """returns (out, lse) of the process's first call of ``inputs()``; None where there was none"""
    asked: dict[str, str] = field(default_factory=dict)
    """results of checks that run only once in a process, by :meth:`question`"""
    golden_of: GoldenOf = golden
    """computes golden results"""
    statistics: list[Statistics] = field(default_factory=list)
    """measurements of the checks beside their findings; the checks add them"""
    row_limit: int = ROW_LIMIT
    """most queries of a sequence whose rows all get golden results; a longer one gets a sample"""

    @property
    def processor(self) -> Processor:
        """The processor of the device."""
        return processor_of(self.device.type)

    def question(self, check: str) -> str:
        """The key of a check on this workload in ``asked``; cases with the same workload and kernel share it."""
        return f"{check}/{self.card.kernel}/{self.workload}"

    def inputs(self, kind: InputKind = "normal", seed: int = 0) -> Inputs:
        """Inputs of a kind; the same arguments give the same values. In fp8 they have unequal descale factors."""
        return make_inputs(self.workload, kind=kind, seed=self.seed + seed, device=self.device, descaled=True)

    def golden(self, call: AttentionCall) -> Golden:
        """The golden result of a call, with the underflow term where the dtype needs it."""
        underflow = FORMATS[self.workload.q_format].underflows
        return self.golden_of(call, dtype=self.reference, underflow=underflow, row_limit=self.row_limit)

    def run(self, call: AttentionCall) -> Result:
        """Run the kernel once and check its result against the call contract.

        Raises:
            ContractBreach: wrong type, shape, dtype or device.
        """
        return self.judged(self.kernel.run(call), call)

    def judged(self, returned: Any, call: AttentionCall | None = None) -> Result:
        """The result that checks judge, from what the kernel returned; without the LSE where the card claims none.

        Args:
            call: that the kernel got; None = the one of the case.

        Raises:
            ContractBreach: the kernel returned neither a tensor nor a pair, or of a wrong shape, dtype or device.
        """
        out, lse = _pair(returned)
        call = call or self.inputs().call
        _expect("out", out, (*call.q.shape[:2], call.v.shape[-1]), call.out_dtype, self.device)
        if lse is None or "lse" not in self.card.claims.features:
            return Result(out=out, lse=None)
        _expect("lse", lse, (call.q.shape[1], call.q.shape[0]), torch.float32, self.device)
        return Result(out=out, lse=lse)

    def locate(self, row: int) -> tuple[int, int]:
        """(sequence, query) of a packed query row."""
        for index, length in enumerate(self.workload.seqlens_q):
            if row < length:
                return index, row
            row -= length
        raise IndexError(row)


def copied(result: Result) -> Result:
    """A copy of the result in new memory."""
    return Result(out=result.out.clone(), lse=None if result.lse is None else result.lse.clone())


def of_call(subject: Subject, found: Finding | None) -> Finding | None:
    """The finding, with the call that the subject's workload is: a check may ask another one than its case has."""
    if found is None:
        return None
    asked = subject.workload
    queries, keys = map(_range, (asked.seqlens_q, asked.seqlens_k))
    sequences = f"{asked.batch} sequences of " if asked.batch > 1 else ""
    call = f"{sequences}{queries} queries on {keys} keys, heads {asked.heads_q} on {asked.heads_kv}"
    return replace(found, values={**found.values, "call": call})


def _range(lengths: Sequence[int]) -> str:
    """The least and the largest length."""
    return " to ".join(map(str, sorted({min(lengths), max(lengths)})))


def passed(check: str, detail: str, **values: Value) -> Finding:
    """The finding of a check that passed."""
    return Finding(check=check, verdict="pass", detail=detail, values=values)


def noted(check: str, detail: str, **values: Value) -> Finding:
    """A note: a finding that neither passes nor fails."""
    return Finding(check=check, verdict="note", detail=detail, values=values)


def failing(check: str, detail: str, values: dict[str, Value]) -> Finding:
    """The finding of a check that failed."""
    return Finding(check=check, verdict="fail", detail=detail, values=values)


class Check(Protocol):
    """One question about a kernel."""

    name: str
    levels: tuple[Level, ...]
    """levels at which it runs"""
    cost: str
    """what it costs, in calls of the kernel"""

    def skips(self, subject: Subject) -> str:
        """Why the check does not apply to the subject; empty where it applies."""
        ...

    def run(self, subject: Subject) -> list[Finding]:
        """Run the check.

        Raises:
            ContractBreach: the kernel breaks the call contract.
            LibraryRefusal: the library refuses a call that the check altered, so the check did not run.
        """
        ...


class Shipped(Check):
    """A check of the table (qualify.facts.checks). Its name is that of its module."""

    def __init__(self) -> None:
        known = known_check(type(self).__module__.rpartition(".")[2])
        self.name, self.levels, self.cost = known.name, known.levels, known.cost


def _pair(returned: object) -> tuple[Tensor, Tensor | None]:
    """(out, lse) from the allowed return values ``out`` and ``(out, lse)``.

    Raises:
        ContractBreach: the kernel returned something else.
    """
    parts: Sequence[object] = returned if isinstance(returned, tuple | list) else (returned, None)
    if len(parts) != 2 or not isinstance(parts[0], Tensor) or not isinstance(parts[1], Tensor | None):
        alone = len(parts) == 2 and parts[1] is None  # a host tells a single value as a pair, too
        kinds = _kind(parts[0]) if alone else f"({', '.join(map(_kind, parts))})"
        detail = f"returned {kinds}; the contract is a tensor `out` or a pair `(out, lse)`{INSTEAD.get(kinds, '')}"
        raise ContractBreach(detail, {"returned": kinds})
    return parts[0], parts[1]


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__


def _expect(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    for what, actual, expected in (
        ("shape", tuple(tensor.shape), tuple(shape)),
        ("dtype", tensor.dtype, dtype),
        ("device", tensor.device.type, device.type),
    ):
        if actual != expected:
            values: dict[str, Value] = {"tensor": name, "actual": str(actual), "expected": str(expected)}
            raise ContractBreach(f"{name} has {what} {actual}, the contract says {expected}", values)


def claimed(subject: Subject, seqlens_q: tuple[int, ...], seqlens_k: tuple[int, ...]) -> bool:
    """Whether the card claims these lengths, and the workload's mask at these lengths."""
    claims, workload = subject.card.claims, subject.workload
    if claims.alignment == "top_left" and seqlens_q != seqlens_k:
        return False  # a mask with another alignment than the card's
    if claims.queries == "equal" and len(set(seqlens_q)) > 1:
        return False
    if claims.longer_queries is None or all(q <= k for q, k in zip(seqlens_q, seqlens_k, strict=True)):
        return True
    return workload.mask.kind in claims.longer_queries


def paged_or_ragged(subject: Subject) -> Workload:
    """The workload with unequal key lengths where its layout allows them, else the workload itself.

    Where all lengths of a paged cache fill their last page, no page has a tail to poison, unlike in real caches. So
    lengths shrink by different amounts, at most by little more than a page. No length becomes less than one key, or
    less than the queries where the card does not claim more queries than keys.
    """
    workload = subject.workload
    shrink = (0, 1, workload.page_size - 1, workload.page_size // 2, workload.page_size + 1)
    if workload.page_size:
        for least in (1, math.inf):
            lengths = tuple(
                int(
                    max(
                        min(length, query, least), length - shrink[index % len(shrink)] - (len(workload.seqlens_k) == 1)
                    )
                )
                for index, (length, query) in enumerate(zip(workload.seqlens_k, workload.seqlens_q, strict=True))
            )
            if claimed(subject, workload.seqlens_q, lengths):
                return workload.with_lengths(workload.seqlens_q, lengths)
    return workload
