"""repeat: the same call returns the same bits, if the card claims determinism; else the same up to rounding.

The first call of the case in its process is compared too, because an engine also uses the result that a library returns
while it builds, tunes or fills its caches. At level full, the later half of the calls shares the GPU with matrix
products on another stream. Where a card claims batch invariance, a sequence alone must also return the bits that it
returns in its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from qualify.facts.case import Level
from qualify.facts.outcome import Finding, FindingVerdict
from qualify.run.adapters.interface import AttentionCall
from qualify.run.checks.difference import blame_change, changed, difference, unequal
from qualify.run.checks.interface import Result, Shipped, Subject
from qualify.run.host.interface import CallPlace
from qualify.run.inputs.parts import one_sequence, only

SEQUENCES = 4
"""most sequences of a batch that also run alone"""
TIMES: dict[Level, int] = {"smoke": 3, "full": 20}


class Repeat(Shipped):
    """Repeats a call, with allocations in between that leave other bytes in the allocator's cache."""

    def skips(self, subject: Subject) -> str:
        """Applies to every kernel. Without a claim of determinism, a difference within rounding is only noted."""
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """Repeat the call until a result differs by more than the card allows."""
        call = subject.inputs().call
        first = subject.run(call)
        cold = _cold(subject, call, first)
        if cold:
            return [cold]
        times = TIMES[subject.level]
        load = CallPlace(loaded=True) if subject.level == "full" and subject.processor.streams else None
        noted: Finding | None = None
        for number in range(1, times):
            with subject.kernel.at(load if load and number >= times // 2 else CallPlace()):
                later = subject.run(call)
            beside = " beside other work" if load and number >= times // 2 else ""
            found = self._differs(subject, first, later, number + 1, beside)
            if found and found.verdict == "fail":
                return [found]
            noted = noted or found
        if subject.level == "full" and subject.card.claims.batch_invariant:
            several = [index for index, queries in enumerate(subject.workload.seqlens_q) if queries]
            alone = differs_alone(subject, call, first, several[:SEQUENCES])
            if alone:
                return [alone]
        detail = f"{times} calls{', half of them beside other work' if load else ''}, the same bits"
        return [noted or Finding(check=self.name, verdict="pass", detail=detail, values={"calls": times})]

    def _differs(self, subject: Subject, first: Result, later: Result, number: int, beside: str) -> Finding | None:
        """A finding where a later call differs from the first: a failure, or a note on rounding where that is allowed.

        Args:
            number: of the call, from 1 on.
            beside: words about what else ran on the device.
        """
        bits = difference(subject, first, later)
        if not bits:
            return None
        beyond = bits if subject.card.claims.deterministic else difference(subject, first, later, exact=False)
        found = beyond or bits
        verdict: FindingVerdict = "fail" if beyond else "note"
        detail = f"call {number}{beside} differs from call 1: {changed(found)}"
        values = {"call": number, **unequal(found, subject, first, later)}
        return Finding(check=self.name, verdict=verdict, detail=detail, values=values)


def _cold(subject: Subject, call: AttentionCall, later: Result) -> Finding | None:
    """A finding where the process's first call of the case returned another result than a later one."""
    if subject.first is None:
        return None
    before = subject.judged(subject.first(), call)
    found = difference(subject, before, later, exact=subject.card.claims.deterministic)
    if not found:
        return None
    said = "the first call of the process gave something else than a later one: "
    return blame_change(subject, "repeat", said, found, {"call": 0}, call=call, before=later)


def differs_alone(subject: Subject, call: AttentionCall, whole: Result, sequences: Sequence[int]) -> Finding | None:
    """A finding where a sequence alone returns other bits than in its batch.

    Args:
        call: the call of the batch.
        whole: result of the batch.
        sequences: numbers of the sequences that run alone.
    """
    workload = subject.workload
    bounds_q = [0, *accumulate(workload.seqlens_q)]
    for index in sequences if workload.batch > 1 else ():
        rows = slice(bounds_q[index], bounds_q[index + 1])
        single = one_sequence(workload, index)
        own = only(call, single, index, workload)
        lse = None if whole.lse is None else whole.lse[:, rows].contiguous()
        alone = replace(subject, workload=single)
        found = difference(alone, Result(out=whole.out[rows], lse=lse), alone.run(own))
        if found:
            said = f"sequence {index} alone differs from itself in the batch: "
            return blame_change(subject, "repeat", said, found, {"alone": index}, call=call, before=whole)
    return None
