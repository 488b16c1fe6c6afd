"""Input tensors: seeded, surrounded by guard bands, and laid out as the workload asks.

Every tensor is a view into a larger allocation. What lies around it (the guard bands), and in a paged
cache also the free pages, the null page 0 and the tail of each last page, is outside the valid region: a
correct kernel's result does not depend on it. :func:`poison_outside` rewrites exactly those bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from qualify.facts.case import Workload
from qualify.run.adapters.interface import AttentionCall

InputKind = Literal["normal", "peaked", "outliers", "offset", "negative", "rising"]
INPUT_KINDS: tuple[InputKind, ...] = get_args(InputKind)

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

GUARD_ROWS = 64
"""rows of guard band before and after each packed tensor"""
LOWERED = 120.0
"""by how much every logit is lowered in inputs of kind negative"""
RISE = 24.0
"""of the logits of a sequence, first key to last, in inputs of kind rising"""
FREE_PAGES = 3
"""pages of the pool that no sequence uses; page 0 is the null page"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """A call, and the allocations behind it."""

    call: AttentionCall
    q_whole: Tensor
    """``q`` with its guard bands: (GUARD_ROWS + total_q + GUARD_ROWS, heads_q, head_dim)"""
    k_whole: Tensor
    v_whole: Tensor

    @property
    def bytes(self) -> int:
        """Bytes of the three tensors that a kernel may read."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.call.q, self.call.k, self.call.v))


def device_of(kind: str) -> torch.device:
    """The torch device of a worker: one device per process, so always the first."""
    return torch.device(kind, 0) if kind == "cuda" else torch.device("cpu")


def _draw(shape: tuple[int, ...], kind: InputKind, role: str, generator: torch.Generator) -> Tensor:
    """Float32 values of an input kind for ``q``, ``k`` or ``v``.

    normal    N(0, 1)
    peaked    q times 4: a few keys take nearly all the weight
    outliers  N(0, 1) + N(0, 100) · Bernoulli(0.001), the distribution of the FlashAttention-3 paper
    offset    v = |N(0, 1)| + 0.5: nothing cancels, so a biased accumulator shows
    negative  normal, and every logit is lowered by 120 (see _shift_logits)
    rising    normal, and logits rise by 24 from the first key to the last: every tile brings a new maximum
    """
    values = torch.randn(shape, generator=generator, device=generator.device)
    if kind == "peaked" and role == "q":
        return values * 4
    if kind == "outliers":
        spikes = torch.rand(shape, generator=generator, device=generator.device) < 0.001
        return values + 10 * torch.randn(shape, generator=generator, device=generator.device) * spikes
    if kind == "offset" and role == "v":
        return values.abs() + 0.5
    return values


def _spans(workload: Workload, device: torch.device) -> Tensor | None:
    return torch.tensor(workload.spans, dtype=torch.int32, device=device) if workload.spans else None


def _cumulative(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def _block_table(workload: Workload, generator: torch.Generator) -> tuple[Tensor, int]:
    """Shuffled pages for every sequence, (batch, max_pages), and the size of the pool.

    Page 0 is the null page: unused entries point there, as serving engines do it.
    """
    needed = [-(-length // workload.page_size) for length in workload.seqlens_k]
    pool = 1 + sum(needed) + FREE_PAGES
    order = torch.randperm(pool - 1, generator=generator, device=generator.device).add(1).tolist()
    table, taken = [], 0
    for pages in needed:
        table.append(order[taken : taken + pages] + [0] * (max(needed, default=0) - pages))
        taken += pages
    return torch.tensor(table, dtype=torch.int32, device=generator.device), pool


def make_inputs(workload: Workload, *, kind: InputKind, seed: int, device: torch.device) -> Inputs:
    """Random inputs for a workload; the same seed gives the same values on the same kind of device."""
    generator = torch.Generator(device).manual_seed(seed)
    dtype = TORCH_DTYPES[workload.dtype]
    total_q, total_k = sum(workload.seqlens_q), sum(workload.seqlens_k)
    q_whole = _draw((total_q + 2 * GUARD_ROWS, workload.heads_q, workload.head_dim), kind, "q", generator).to(dtype)
    table = None
    rows: tuple[int, ...] = (total_k + 2 * GUARD_ROWS,)
    if workload.page_size:
        table, pool = _block_table(workload, generator)
        rows = (pool, workload.page_size)
    k_whole = _draw((*rows, workload.heads_kv, workload.head_dim), kind, "k", generator).to(dtype)
    v_whole = _draw((*rows, workload.heads_kv, workload.head_dim_v), kind, "v", generator).to(dtype)
    k, v = (k_whole, v_whole) if table is not None else (_inner(k_whole), _inner(v_whole))
    # Models store sinks in bf16, and FlashAttention-3 reads them so: representable values cost nobody a rounding.
    drawn = torch.randn(workload.heads_q, generator=generator, device=device).bfloat16().float()
    sinks = drawn if workload.sinks else None
    call = AttentionCall(
        q=_inner(q_whole),
        k=k,
        v=v,
        cu_seqlens_q=_cumulative(workload.seqlens_q, device),
        cu_seqlens_k=None if table is not None else _cumulative(workload.seqlens_k, device),
        seqused_k=None if table is None else torch.tensor(workload.seqlens_k, dtype=torch.int32, device=device),
        block_table=table,
        max_seqlen_q=max(workload.seqlens_q),
        max_seqlen_k=max(workload.seqlens_k),
        scale=workload.scale,
        causal=workload.causal,
        window=workload.window,
        chunk=workload.chunk,
        bidirectional_spans=_spans(workload, device),
        softcap=workload.softcap,
        sinks=sinks,
        out_dtype=dtype,
    )
    inputs = Inputs(call=call, q_whole=q_whole, k_whole=k_whole, v_whole=v_whole)
    return _shift_logits(inputs, workload, kind) if kind in {"negative", "rising"} else inputs


def _shift_logits(inputs: Inputs, workload: Workload, kind: InputKind) -> Inputs:
    """The same inputs with a constant or a slope in every logit, through the first element of q and k."""
    lift = 2.0 ** round(math.log2(LOWERED / workload.scale) / 2)
    q_whole, k_whole = inputs.q_whole.clone(), inputs.k_whole.clone()
    q_whole[..., 0] = lift
    slots = key_slots(inputs, workload)
    lengths = torch.tensor(workload.seqlens_k, device=slots.device)
    position = torch.arange(len(slots), device=slots.device) - (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
    share = position / lengths.clamp(min=2).sub(1).repeat_interleave(lengths)
    logits = torch.full_like(share, -LOWERED) if kind == "negative" else RISE * share
    k_whole.view(-1, *k_whole.shape[-2:])[slots, :, 0] = (logits / workload.scale / lift).to(k_whole.dtype)[:, None]
    return with_tensors(inputs, q=q_whole, k=k_whole)


def _inner(whole: Tensor) -> Tensor:
    """The valid rows of a packed tensor, between its guard bands."""
    return whole[GUARD_ROWS : whole.shape[0] - GUARD_ROWS]


def with_tensors(
    inputs: Inputs, *, q: Tensor | None = None, k: Tensor | None = None, v: Tensor | None = None
) -> Inputs:
    """A copy of the inputs in which whole allocations are replaced; the others are shared."""
    paged = inputs.call.block_table is not None
    q_whole = inputs.q_whole if q is None else q
    k_whole = inputs.k_whole if k is None else k
    v_whole = inputs.v_whole if v is None else v
    call = replace(
        inputs.call,
        q=_inner(q_whole),
        k=k_whole if paged else _inner(k_whole),
        v=v_whole if paged else _inner(v_whole),
    )
    return Inputs(call=call, q_whole=q_whole, k_whole=k_whole, v_whole=v_whole)


def clone(inputs: Inputs) -> Inputs:
    """A deep copy: new allocations, equal bytes."""
    copy = with_tensors(inputs, q=inputs.q_whole.clone(), k=inputs.k_whole.clone(), v=inputs.v_whole.clone())
    small = ("cu_seqlens_q", "cu_seqlens_k", "seqused_k", "block_table", "sinks", "bidirectional_spans")
    present = {name: getattr(copy.call, name) for name in small if getattr(copy.call, name) is not None}
    fresh: dict[str, Any] = {name: tensor.clone() for name, tensor in present.items()}
    return replace(copy, call=replace(copy.call, **fresh))


def key_slots(inputs: Inputs, workload: Workload) -> Tensor:
    """Row of the flattened key allocation that holds each key, (total_k,) int64, in packed order."""
    table = inputs.call.block_table
    device = inputs.k_whole.device
    if table is None:
        return torch.arange(sum(workload.seqlens_k), device=device) + GUARD_ROWS
    lengths = torch.tensor(workload.seqlens_k, device=device)
    total = sum(workload.seqlens_k)
    sequence = torch.arange(len(lengths), device=device).repeat_interleave(lengths, output_size=total)
    position = torch.arange(total, device=device) - (torch.cumsum(lengths, 0) - lengths)[sequence]
    page = table[sequence, position // workload.page_size].long()
    return page * workload.page_size + position % workload.page_size


def poison_outside(inputs: Inputs, workload: Workload, value: float) -> Inputs:
    """A copy in which every byte outside the valid region holds ``value``."""
    slots = key_slots(inputs, workload)

    def poisoned(whole: Tensor) -> Tensor:
        flat = whole.flatten(0, 1) if workload.page_size else whole
        fresh = torch.full_like(flat, value)
        fresh[slots] = flat[slots]
        return fresh.view_as(whole)

    q_whole = torch.full_like(inputs.q_whole, value)
    _inner(q_whole).copy_(inputs.call.q)
    return with_tensors(inputs, q=q_whole, k=poisoned(inputs.k_whole), v=poisoned(inputs.v_whole))


def replace_keys(inputs: Inputs, workload: Workload, which: Tensor, k_value: Tensor, v_value: Tensor) -> Inputs:
    """A copy in which the keys marked in ``which`` (total_k,) bool get new values.

    Args:
        k_value: broadcastable to (marked, heads_kv, head_dim).
        v_value: broadcastable to (marked, heads_kv, head_dim_v).
    """
    slots = key_slots(inputs, workload)[which]
    k_whole, v_whole = inputs.k_whole.clone(), inputs.v_whole.clone()
    for whole, value in ((k_whole, k_value), (v_whole, v_value)):
        flat = whole.view(-1, *whole.shape[-2:])
        flat[slots] = value.to(whole.dtype).expand(len(slots), *whole.shape[-2:])
    return with_tensors(inputs, k=k_whole, v=v_whole)
