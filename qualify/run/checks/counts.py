"""Calls with many numbers of sequences, or of heads, up to a limit: a part of ``size_limits``.

A scheduler deals out blocks of work. At some number of them it may lose the last one: one more than the device runs at
a time, or an odd one where two share something. A call with all sequences is judged by its golden result. Then the
first of them, the first two, and so on, must give what they gave there. Another rounding is right if its result is,
because kernels choose their splits by the number of blocks. Where the card claims batch invariance, sequences must give
the same bits.

On a GPU not every number is asked, because some libraries plan anew for each shape: every one up to a limit, and then
those beside multiples of the device's multiprocessors and beside powers of two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from qualify.facts.case import Workload
from qualify.facts.outcome import Finding, Value
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.checks.budget import beyond_budget
from qualify.run.checks.difference import blame_change, difference
from qualify.run.checks.interface import Result, Subject, copied, of_call
from qualify.run.host.interface import KernelRaised
from qualify.run.inputs.parts import only
from qualify.text import first_line

Counted = Literal["sequences", "heads"]
WRONG = "The result is wrong at one number of sequences or heads"
"""what is wrong, instead of what ``size_limits`` says in general"""
LIKELY = "a scheduler that loses its last block of work, or that plans for another number"
"""what is then most often behind it"""
SEED = 18
FACTORS = ("q_descale", "k_descale", "v_descale")


def numbers(most: int, every: int, units: int) -> list[int]:
    """Those that are asked beside ``most``, the largest.

    Args:
        every: each number up to this one is asked.
        units: multiprocessors of the device.
    """
    steps = [*range(units, most + 2, units), *(1 << power for power in range(most.bit_length() + 1))]
    return sorted({*range(1, every + 1), *(step + side for step in steps for side in (-1, 0, 1))} & {*range(1, most)})


def wrong_at_a_number(subject: Subject, counted: Counted, every: int) -> Finding | None:
    """A finding where the call is wrong with all of its sequences or heads, or with the first of them alone.

    A number that the library refuses is left out.

    Args:
        subject: a kernel, and a workload with as many of them as are asked.
        counted: what is counted; a head is a query head with a KV head of its own.
        every: up to this number, each is asked.

    Raises:
        LibraryRefusal: the library refuses the whole call.
    """
    call = subject.inputs(seed=SEED).call
    whole = copied(_result(subject, call, counted))
    wrong = of_call(subject, beyond_budget(subject, call, whole))
    workload = subject.workload
    most = workload.batch if counted == "sequences" else workload.heads_q
    first_of = first_sequences if counted == "sequences" else first_heads
    for number in numbers(most, every, subject.processor.describe().units):
        if wrong:
            return wrong
        some, first = first_of(workload, call, number)
        alone = replace(subject, workload=some)
        try:
            wrong = of_call(alone, _differs(subject, call, whole, alone, first, counted))
        except LibraryRefusal:
            continue
    return wrong


def _differs(
    subject: Subject, call: AttentionCall, whole: Result, some: Subject, first: AttentionCall, counted: Counted
) -> Finding | None:
    """A finding where some of the sequences or heads alone give something wrong.

    Args:
        some: the kernel and the workload of those.
        first: their call.
    """
    rows, heads = first.q.shape[:2]
    lse = None if whole.lse is None else whole.lse[:heads, :rows].contiguous()
    after = _result(some, first, counted)
    found = difference(some, Result(out=whole.out[:rows, :heads].contiguous(), lse=lse), after)
    if not found:
        return None
    number = some.workload.batch if counted == "sequences" else heads
    wrong = beyond_budget(some, first, after)
    if wrong:
        told: dict[str, Value] = {"number": number, "wrong": WRONG, "likely": LIKELY}
        return replace(wrong, detail=f"with {number} {counted}: {wrong.detail}", values={**wrong.values, **told})
    if counted == "heads" or not subject.card.claims.batch_invariant:
        return None
    said = f"a batch of {number} differs from itself in a larger batch: "
    return blame_change(subject, "size_limits", said, found, {"number": number}, call=call, before=whole)


def _result(subject: Subject, call: AttentionCall, counted: Counted) -> Result:
    """What the kernel gives. No claim says which numbers of heads it takes: where it raises, it refuses the number."""
    try:
        return subject.run(call)
    except KernelRaised as raised:
        if counted == "sequences":
            raise
        raise LibraryRefusal(first_line(raised)) from raised


def first_sequences(workload: Workload, call: AttentionCall, number: int) -> tuple[Workload, AttentionCall]:
    """So many sequences as a call of their own."""
    some = workload.with_lengths(workload.seqlens_q[:number], workload.seqlens_k[:number])
    return some, only(call, some, 0, workload)


def first_heads(workload: Workload, call: AttentionCall, number: int) -> tuple[Workload, AttentionCall]:
    """So many heads as a call of their own; each has its own KV head."""
    q, k, v = (tensor[..., :number, :].contiguous() for tensor in (call.q, call.k, call.v))
    small: dict[str, Any] = {
        name: factor[:, :number].contiguous() for name in FACTORS if (factor := getattr(call, name)) is not None
    }
    sinks = None if call.sinks is None else call.sinks[:number].clone()
    return replace(workload, heads_q=number, heads_kv=number), replace(call, q=q, k=k, v=v, sinks=sinks, **small)
