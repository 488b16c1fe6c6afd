"""Who decides right: a correct kernel and two wrong ones, under two tolerances, the budget and the census."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from drawing.svg import GREEN, RED, box, sheet, words
from qualify.cards.load import load_kernels
from qualify.facts.accuracy import class_named
from qualify.facts.case import Workload
from qualify.masks import Mask
from qualify.run.adapters.interface import AttentionCall, Prepared
from qualify.run.adapters.tiled_torch import create
from qualify.run.checks.census import Census
from qualify.run.checks.interface import Subject
from qualify.run.golden.accuracy import judge
from qualify.run.golden.reference import golden
from qualify.run.host.local import local
from qualify.run.inputs.tensors import make_inputs

JUDGES = ("assert_close", "allclose 1e-2", "budget", "census")
CPU = torch.device("cpu")
LAUNCHED = tuple[Tensor, Tensor | None]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A kernel, and what each of JUDGES says of it."""

    name: str
    right: bool
    """whether the kernel is correct"""
    accepted: tuple[bool, ...]
    """in the order of JUDGES"""


@dataclass(frozen=True, kw_only=True)
class Altered:
    """An adapter: the portable kernel with a change of its call or of its output."""

    change_call: Callable[[AttentionCall], AttentionCall] = lambda call: call
    factor: float = 1.0
    """of every output"""

    def prepare(self, call: AttentionCall) -> Prepared:
        """The portable kernel on the changed call."""
        return Prepared(launch=partial(self.launch, self.change_call(call)), result=lambda out: out)

    def launch(self, call: AttentionCall) -> LAUNCHED:
        """Output and LSE of one call."""
        out, lse = create({}).prepare(call).launch()
        return (out.double() * self.factor).to(out.dtype), lse


def without_the_newest_key(call: AttentionCall) -> AttentionCall:
    """The same decode, one key shorter."""
    assert call.cu_seqlens_k is not None
    bounds = call.cu_seqlens_k.clone()
    bounds[-1] -= 1
    return replace(call, k=call.k[:-1], v=call.v[:-1], cu_seqlens_k=bounds, max_seqlen_k=call.max_seqlen_k - 1)


@cache
def judged() -> tuple[Judged, ...]:
    """The three kernels: bf16, two heads of 64, inputs of a fixed seed, on the CPU."""
    prompt, decode = (2048, 2048), (1, 8192)
    return (
        _judge("a correct kernel", Altered(), *prompt, right=True),
        _judge("every output 0.4 % too small", Altered(factor=0.996), *prompt),
        _judge("decode: 1 of 8,192 keys lost", Altered(change_call=without_the_newest_key), *decode),
    )


def _judge(name: str, kernel: Altered, queries: int, keys: int, *, right: bool = False) -> Judged:
    """What the four judges say of a kernel on a causal call."""
    workload = _workload(queries, keys)
    call = make_inputs(workload, kind="normal", seed=1, device=CPU).call
    found = golden(call)
    out = kernel.launch(kernel.change_call(call))[0][found.rows]
    exact = found.out
    close = partial(torch.allclose, out.double(), exact)
    subject = Subject(
        workload=workload,
        card=load_kernels()["tiled-torch"].card,
        kernel=local(kernel),
        device=CPU,
        level="smoke",
        reference=torch.float64,
        seed=1,
    )
    counted = all(finding.verdict == "pass" for finding in Census().run(subject))
    budget = judge(found, out, class_named("bf16")).within
    accepted = (close(rtol=1.6e-2, atol=1e-5), close(rtol=1e-2, atol=1e-2), budget, counted)
    return Judged(name=name, right=right, accepted=accepted)


def _workload(queries: int, keys: int) -> Workload:
    """One sequence under a causal mask."""
    return Workload(
        heads_q=2,
        heads_kv=2,
        head_dim=64,
        head_dim_v=64,
        dtype="bf16",
        mask=Mask(causal=True),
        softcap=0.0,
        sinks=False,
        scale=64**-0.5,
        seqlens_q=(queries,),
        seqlens_k=(keys,),
        page_size=0,
    )


def picture() -> str:
    """A table: red is a wrong answer, white is a judge that leaves the fault to the other one."""
    rows = judged()
    title = "A tolerance rejects a correct kernel and accepts wrong ones; budget and census together decide right"
    return sheet(860, 64 + 40 * len(rows), title, _cells(rows))


def _cells(rows: Sequence[Judged]) -> Iterator[str]:
    for column, name in enumerate(JUDGES):
        yield words(330 + 145 * column, 34, name, size=13, weight="bold")
    for number, row in enumerate(rows):
        y = 50 + 40 * number
        yield words(250, y + 20, row.name, anchor="end", weight="bold" if row.right else "normal")
        for column, accepts in enumerate(row.accepted):
            helped = column >= 2 and accepts and not all(row.accepted[2:])
            fill = GREEN if accepts == row.right else "white" if helped else RED
            yield box(264 + 145 * column, y, 132, 30, fill)
            yield words(330 + 145 * column, y + 20, "accepts" if accepts else "rejects", size=13)
