"""long context: one long sequence, whose sums end neither too early nor in too few bits.

One sequence of more than 2^16 keys (on a GPU, where that costs nothing, 2^17), with one query or a few. Its values have
one sign, so an accumulator in few bits loses what a later tile adds. Its rows differ:

::

    late    the last key takes nearly all the weight: an index of 16 bits does not reach it
    even    all keys weigh nearly the same: a row sum in fp16 overflows
    early   the first key takes nearly all the weight, and each 4,096 later keys add less than half a unit in the
            last place of bf16: an accumulator that is rounded to it stands still

The result is compared with the golden result. Where the card claims determinism, a call whose values cancel is
repeated: splits that are added in another order then show in every bit. On pages the sequence stands between a short
one and one of over 2^11 keys, whose rows of the block table are as long. With one query the rows are query heads of a
group, or further calls where a group is smaller.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from qualify.facts.case import Workload
from qualify.facts.devices import Scale
from qualify.facts.dtypes import FORMATS
from qualify.facts.outcome import Finding
from qualify.run.checks.budget import beyond_budget
from qualify.run.checks.difference import changed, difference
from qualify.run.checks.interface import Shipped, Subject, failing, noted, passed
from qualify.run.checks.needle import capped
from qualify.run.checks.size_limits import FEW, PAST, SEVERAL, few_kv_heads, layout_of
from qualify.run.inputs.formats import fitted
from qualify.run.inputs.tensors import Inputs, replace_keys, with_tensors
from qualify.text import first_line

Role = Literal["late", "early", "even"]
Place = tuple[int, int]
"""(query of the long sequence, query head of each group)"""

KEYS: dict[Scale, int] = {"small": (1 << 16) + PAST, "large": (1 << 17) + PAST}
"""of one sequence: more than 16 bits count; on a GPU as many as models have"""
NEIGHBOUR = (1 << 11) + 65
"""keys of a sequence beside it"""
STEADY_KEYS: dict[Scale, int] = {"small": (1 << 14) + PAST, "large": KEYS["large"]}
"""of the call that is repeated; even numbers"""
AGAIN: dict[Scale, int] = {"small": 2, "large": 8}
"""times that it is repeated"""
TELLING = 40.0
"""by how much the late key's score stands above the others, in natural logarithms, before their number is counted"""
OTHERS = 0.028
"""Weight of all other keys together beside the early one: of 16 times 4,096 keys each part is 0.9 times 2^-9, and half
a unit in the last place of bf16 is 2^-9 of the number at least"""
CLEAR = 7.0
"""By how much the late key's score stands above the logarithm of their number where weights are rounded to fp8: all
others together weigh a 500th of it at most, and a correct kernel that counts them as nothing keeps its limits"""
QUIET = 0.25
"""what the queries of even and early rows are multiplied by: scores with a standard deviation of a quarter"""


class LongContext(Shipped):
    """Very many keys of one sequence."""

    def skips(self, subject: Subject) -> str:
        """Needs late keys that some query sees, and nothing that has to be compiled for them."""
        if subject.card.jit == "shapes":
            return "each shape would be compiled"
        if subject.card.claims.alignment == "top_left" and subject.workload.mask.causal:
            return "a few queries at the top left see no late key"
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """Calls with every role, then one again and again; what the machine has no room for is noted.

        What one shape has passed, another passes too. So the check runs once for each kernel, dtype and layout in a
        process, and once more under a mask that hides the early keys.
        """
        workload = _long(subject, KEYS)
        near = "/near" if workload.mask.pattern or workload.mask.windowed else ""
        question = f"{self.name}/{subject.card.kernel}/{workload.dtype}/{layout_of(workload)}{near}"
        question += f"/{max(workload.seqlens_q)}"
        if question in subject.asked:
            return [noted(self.name, "passed before, on another shape")]
        try:
            wrong = self._wrong(replace(subject, workload=workload))
            if not wrong and subject.card.claims.deterministic:
                wrong = self._varies(replace(subject, workload=_long(subject, STEADY_KEYS)))
        except (torch.OutOfMemoryError, MemoryError) as error:
            return [noted(self.name, f"not run: no room for it ({first_line(error)[:120]})")]
        finally:
            subject.processor.give_back()
        if wrong:
            return [wrong]
        subject.asked[question] = "right"
        again = ", the same bits again" if subject.card.claims.deterministic else ""
        return [passed(self.name, f"right with {_named(workload)}{again}")]

    def _wrong(self, long: Subject) -> Finding | None:
        """The first call that is beyond the budget."""
        base = telling(long, long.inputs("offset", seed=11))
        for roles in rounds(long.workload, roles_of(long, base)):
            call = steered(long, base, roles).call
            wrong = beyond_budget(long, call, long.run(call), "offset")
            if wrong:
                return failing(self.name, f"{_named(long.workload)}: {wrong.detail}", dict(wrong.values))
        return None

    def _varies(self, long: Subject) -> Finding | None:
        """The first call that gives other bits than the one before."""
        call = cancelling(long, long.inputs(seed=12)).call
        first = long.run(call)
        for number in range(AGAIN[long.processor.scale]):
            found = difference(long, first, long.run(call))
            if found:
                detail = f"{_named(long.workload)}: call {number + 2} differs from call 1: {changed(found)}"
                return failing(self.name, detail, {"call": number + 2, **found})
        return None


def _named(workload: Workload) -> str:
    queries = max(workload.seqlens_q)
    return f"{max(workload.seqlens_k)} keys" + (f" of {queries} queries" if queries > 1 else "")


def _long(subject: Subject, lengths: dict[Scale, int]) -> Workload:
    """The workload's heads, as few as suffice, on one long sequence; on pages it has neighbours."""
    queries = 1 if max(subject.workload.seqlens_q) == 1 else SEVERAL
    keys: tuple[int, ...] = (lengths[subject.processor.scale],)
    if subject.workload.page_size and "ragged" in subject.card.claims.features:
        keys = (FEW, *keys, NEIGHBOUR)
    group = SEVERAL if queries == 1 else 1
    return few_kv_heads(subject, 1, group).with_lengths((queries,) * len(keys), keys)


def telling(subject: Subject, inputs: Inputs) -> Inputs:
    """The inputs; in latent attention with queries that see nothing of what the values are made of."""
    if not subject.workload.latent:
        return inputs
    q = inputs.q_whole.clone()
    q[..., : subject.workload.rope.start] = 0.0
    return with_tensors(inputs, q=q)


def roles_of(subject: Subject, inputs: Inputs) -> list[Role]:
    """The roles that rows can have.

    Weights in fp8 have no room for the early key: the weights of all others would be 0. A late key takes theirs away,
    too, and this shows where its score does not stand far above: under a low softcap, or where fp8 has no larger keys.
    """
    workload = subject.workload
    if not FORMATS[workload.q_format].descaled:
        return ["late", "early", "even"]
    at, rows = _longest(workload)
    q = inputs.call.q[rows.stop - 1, :: workload.heads_q // workload.heads_kv].float()
    others = math.log(workload.seqlens_k[at])
    key = fitted(pointing(subject, inputs, q, at, others + TELLING), inputs.k_whole.dtype).float()
    score = capped(float(scores(subject, inputs, q, key, at).min()), workload.softcap)
    return ["late", "even"] if score - others >= CLEAR else ["even"]


def rounds(workload: Workload, roles: list[Role]) -> list[dict[Place, Role]]:
    """The roles of the rows, call by call: all in one where there are as many rows; with fewer, in several calls."""
    queries, group = max(workload.seqlens_q), workload.heads_q // workload.heads_kv
    places = [(row, head) for row in reversed(range(queries)) for head in range(group)]
    if len(places) >= len(roles):
        return [{place: roles[min(number, len(roles) - 1)] for number, place in enumerate(places)}]
    return [
        dict(zip(places, roles[first : first + len(places)], strict=False))
        for first in range(0, len(roles), len(places))
    ]


def steered(subject: Subject, inputs: Inputs, roles: dict[Place, Role]) -> Inputs:
    """The inputs with the first and the last key of the longest sequence, and its queries, as the roles want them."""
    workload = subject.workload
    at, rows = _longest(workload)
    first_key = sum(workload.seqlens_k[:at])
    group = workload.heads_q // workload.heads_kv
    moved = with_tensors(inputs, q=inputs.q_whole.clone())
    q = moved.call.q[rows]
    for (row, head), role in roles.items():
        if role != "late":
            q[row, head::group] = fitted(q[row, head::group].float() * QUIET, q.dtype)
    total = math.log(workload.seqlens_k[at])
    which = torch.zeros(sum(workload.seqlens_k), dtype=torch.bool, device=q.device)
    keys, values = [], []
    for role, key, above in (("early", 0, total - math.log(OTHERS)), ("late", -1, total + TELLING)):
        for row, head in (place for place, own in roles.items() if own == role):
            which[first_key + key % workload.seqlens_k[at]] = True
            keys.append(pointing(subject, inputs, q[row, head::group].float(), at, above))
            values.append(
                torch.linspace(1.0, 2.0, workload.head_dim_v, device=q.device) * (1 if role == "early" else 3)
            )
    if not keys:
        return moved
    v = torch.stack(values)[:, None].expand(-1, workload.heads_kv, -1)
    if inputs.call.v_descale is not None:
        v = v / inputs.call.v_descale[at][:, None]
    return replace_keys(moved, workload, which, torch.stack(keys), v)


def _longest(workload: Workload) -> tuple[int, slice]:
    """The sequence with the most keys, and its packed query rows."""
    at = workload.seqlens_k.index(max(workload.seqlens_k))
    first = sum(workload.seqlens_q[:at])
    return at, slice(first, first + workload.seqlens_q[at])


def pointing(subject: Subject, inputs: Inputs, q: Tensor, at: int, above: float) -> Tensor:
    """(heads_kv, head_dim) keys that give queries of sequence ``at`` the score ``above``, or less under a softcap.

    The keys are multiples of the queries. Where these are too large for the cache's format, all elements are alike.

    Args:
        q: (heads_kv, head_dim) queries as they are stored, in float32.
    """
    workload = subject.workload
    wanted = min(above, 0.75 * workload.softcap) if workload.softcap else above
    keys, alike = (
        direction * (wanted / scores(subject, inputs, q, direction, at))[:, None] for direction in (q, q.sign())
    )
    large = keys.abs().amax(-1, keepdim=True) > FORMATS[workload.kv_format].largest
    return torch.where(large, alike, keys)


def scores(subject: Subject, inputs: Inputs, q: Tensor, keys: Tensor, at: int) -> Tensor:
    """(heads_kv,) scores of queries and keys of sequence ``at`` before a softcap, both as they are stored."""
    for factors in (inputs.call.q_descale, inputs.call.k_descale):
        q = q if factors is None else q * factors[at][:, None]
    return subject.workload.scale * (q * keys).sum(-1)


def cancelling(subject: Subject, inputs: Inputs) -> Inputs:
    """The inputs with even weights, and values of the longest sequence whose later half takes away the earlier one."""
    workload, device = subject.workload, inputs.k_whole.device
    at = workload.seqlens_k.index(max(workload.seqlens_k))
    half = workload.seqlens_k[at] // 2
    first = sum(workload.seqlens_k[:at])
    which = torch.zeros(sum(workload.seqlens_k), dtype=torch.bool, device=device)
    which[first : first + 2 * half] = True
    steps = torch.arange(half, device=device)[:, None] * 37 + torch.arange(workload.head_dim_v, device=device) * 11
    values = torch.ldexp(1 + steps % 64 / 64, 4 - steps % 13)  # of many sizes, so that no sum of them is exact
    v = torch.cat([values, -values])[:, None]
    silent = with_tensors(inputs, q=torch.zeros_like(inputs.q_whole))
    return replace_keys(silent, workload, which, torch.ones(1, device=device), v)
