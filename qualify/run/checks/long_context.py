"""long context: one very long sequence, which shows an index or an accumulator with too few bits.

The sequence has more than 2^16 keys (on a GPU, where that costs little, more than 2^17), and one query or a few. Its
values have one sign, so an accumulator in few bits loses what later tiles add. Its rows have different roles:

::

    late    the last key has nearly all the weight: an index of 16 bits does not reach it
    even    all keys have nearly the same weight: a row sum in fp16 overflows
    early   the first key has nearly all the weight, and each 4,096 later keys add less than half a unit in the last
            place of bf16: an accumulator that is rounded to bf16 no longer changes

The result is compared with the golden result. Where the card claims determinism, calls whose values cancel are
repeated, over many keys and over some thousand: if splits are added in another order, that changes bits. On pages, the
sequence is between a short one and one of over 2^11 keys, and all rows of the block table have the length of the
longest. With one query, the roles belong to query heads of a group; where a group has too few heads, further calls are
made.
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
"""keys of the long sequence: more than 16 bits can count; on a GPU, as long as the contexts of models"""
NEIGHBOUR = (1 << 11) + 65
"""keys of the sequence after it, on pages"""
STEADY_KEYS: dict[Scale, tuple[int, int]] = {
    "small": ((1 << 11) + 2 * PAST, (1 << 14) + PAST),
    "large": ((1 << 11) + 2 * PAST, KEYS["large"]),
}
"""Keys of the calls that are repeated; even numbers. Kernels split some thousand keys in another way than many."""
AGAIN: dict[Scale, int] = {"small": 2, "large": 8}
"""how often that call is repeated"""
TELLING = 40.0
"""the late key's score (natural logarithm) minus the logarithm of the number of keys; other scores are near 0"""
OTHERS = 0.028
"""Weight of all other keys together, relative to the early key. Of 65,536 keys, each 4,096 then weigh 0.9 · 2^-9, which
is less than half a unit in the last place of bf16 (at least 2^-9 of the number)."""
CLEAR = 7.0
"""Least value of the same difference where weights are rounded to fp8. All other keys then weigh at most a 500th of the
late one, so a correct kernel that rounds them to 0 keeps its limits."""
QUIET = 0.25
"""factor on the queries of even and early rows, so that their scores have a standard deviation of 1/4"""


class LongContext(Shipped):
    """One sequence with very many keys."""

    def skips(self, subject: Subject) -> str:
        """Skips kernels that compile for every shape, and masks under which no query sees the late keys."""
        if subject.card.jit == "shapes":
            return "each shape would be compiled"
        if subject.card.claims.alignment == "top_left" and subject.workload.mask.causal:
            return "under a mask aligned to the top left, a few queries see no late key"
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """Judge calls with every role, then repeat a call. Where the machine has no room for them, that is noted.

        A kernel that passes with one shape passes with others. So the check runs once for each kernel, dtype and layout
        in a process, and once more under a mask that hides the early keys.
        """
        workload = _long(subject, KEYS[subject.processor.scale])
        near = "/near" if workload.mask.pattern or workload.mask.windowed else ""
        question = f"{self.name}/{subject.card.kernel}/{workload.dtype}/{layout_of(workload)}{near}"
        question += f"/{max(workload.seqlens_q)}"
        if question in subject.asked:
            return [noted(self.name, "passed before, on another shape")]
        try:
            wrong = self._wrong(replace(subject, workload=workload))
            for keys in STEADY_KEYS[subject.processor.scale] if subject.card.claims.deterministic else ():
                wrong = wrong or self._varies(replace(subject, workload=_long(subject, keys)))
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
        """The finding of the first call that exceeds the error budget; None where none does."""
        base = telling(long, long.inputs("offset", seed=11))
        for roles in rounds(long.workload, roles_of(long, base)):
            call = steered(long, base, roles).call
            wrong = beyond_budget(long, call, long.run(call), "offset")
            if wrong:
                return failing(self.name, f"{_named(long.workload)}: {wrong.detail}", dict(wrong.values))
        return None

    def _varies(self, long: Subject) -> Finding | None:
        """The finding of the first repetition whose bits differ from the first call; None where none does."""
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


def _long(subject: Subject, many: int) -> Workload:
    """One long sequence with as few of the workload's heads as suffice; on pages it has neighbours."""
    queries = 1 if max(subject.workload.seqlens_q) == 1 else SEVERAL
    keys: tuple[int, ...] = (many,)
    if subject.workload.page_size and "ragged" in subject.card.claims.features:
        keys = (FEW, *keys, NEIGHBOUR)
    group = SEVERAL if queries == 1 else 1
    return few_kv_heads(subject, 1, group).with_lengths((queries,) * len(keys), keys)


def telling(subject: Subject, inputs: Inputs) -> Inputs:
    """The inputs; in latent attention, with queries that are 0 where keys hold the values, so values make no scores."""
    if not subject.workload.latent:
        return inputs
    q = inputs.q_whole.clone()
    q[..., : subject.workload.rope.start] = 0.0
    return with_tensors(inputs, q=q)


def roles_of(subject: Subject, inputs: Inputs) -> list[Role]:
    """The roles that rows can have.

    In fp8, rows cannot have the early role, because the weights of all other keys would be rounded to 0. Rows have the
    late role only if the late key's score can be high enough (CLEAR). A low softcap, or the largest number of fp8, may
    prevent that.
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
    """The roles of the rows, for each call: one call where there are enough rows for all roles, else several."""
    queries, group = max(workload.seqlens_q), workload.heads_q // workload.heads_kv
    places = [(row, head) for row in reversed(range(queries)) for head in range(group)]
    if len(places) >= len(roles):
        return [{place: roles[min(number, len(roles) - 1)] for number, place in enumerate(places)}]
    return [
        dict(zip(places, roles[first : first + len(places)], strict=False))
        for first in range(0, len(roles), len(places))
    ]


def steered(subject: Subject, inputs: Inputs, roles: dict[Place, Role]) -> Inputs:
    """The inputs, with queries of the longest sequence and its first and last key changed to fit the roles."""
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
    return replace_keys(moved, which, torch.stack(keys), v)


def _longest(workload: Workload) -> tuple[int, slice]:
    """(number of the sequence with the most keys, its packed query rows)."""
    at = workload.seqlens_k.index(max(workload.seqlens_k))
    first = sum(workload.seqlens_q[:at])
    return at, slice(first, first + workload.seqlens_q[at])


def pointing(subject: Subject, inputs: Inputs, q: Tensor, at: int, above: float) -> Tensor:
    """(heads_kv, head_dim) keys that give queries the score ``above``, or less under a softcap.

    The keys are multiples of the queries. Where these would be too large for the cache's format, all their elements
    have the same size.

    Args:
        q: (heads_kv, head_dim) queries as they are stored, in float32.
        at: number of the sequence.
        above: score in natural logarithms.
    """
    workload = subject.workload
    wanted = min(above, 0.75 * workload.softcap) if workload.softcap else above
    keys, alike = (
        direction * (wanted / scores(subject, inputs, q, direction, at))[:, None] for direction in (q, q.sign())
    )
    large = keys.abs().amax(-1, keepdim=True) > FORMATS[workload.kv_format].largest
    return torch.where(large, alike, keys)


def scores(subject: Subject, inputs: Inputs, q: Tensor, keys: Tensor, at: int) -> Tensor:
    """(heads_kv,) scores before a softcap, from queries and keys of sequence ``at`` as they are stored."""
    for factors in (inputs.call.q_descale, inputs.call.k_descale):
        q = q if factors is None else q * factors[at][:, None]
    return subject.workload.scale * (q * keys).sum(-1)


def cancelling(subject: Subject, inputs: Inputs) -> Inputs:
    """The inputs with equal weights, where values of the longest sequence's second half cancel those of the first."""
    workload, device = subject.workload, inputs.k_whole.device
    at = workload.seqlens_k.index(max(workload.seqlens_k))
    half = workload.seqlens_k[at] // 2
    first = sum(workload.seqlens_k[:at])
    which = torch.zeros(sum(workload.seqlens_k), dtype=torch.bool, device=device)
    which[first : first + 2 * half] = True
    steps = torch.arange(half, device=device)[:, None] * 37 + torch.arange(workload.head_dim_v, device=device) * 11
    values = torch.ldexp(1 + steps % 64 / 64, 4 - steps % 13)  # values of many sizes, so that sums are not exact
    v = torch.cat([values, -values])[:, None]
    silent = with_tensors(inputs, q=torch.zeros_like(inputs.q_whole))
    return replace_keys(silent, which, torch.ones(1, device=device), v)
