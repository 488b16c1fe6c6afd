"""Input tensors: seeded, surrounded by guard bands, and laid out as the workload asks.

Every tensor is a view into a larger allocation. The guard bands around it are outside the valid region. In a paged
cache the free pages, the null page 0 and the tail of each last page are outside of it, too. The result of a correct
kernel does not depend on the bytes outside. :func:`poison_outside` rewrites exactly those bytes.

Where a workload is latent, the values are a view of the keys, and remain one whichever tensors are replaced. A probe
writes its values into the first elements of the keys (:func:`latent_keys`). If it must know the scores, it sets these
elements of its queries to 0 and sets the scores with the others (``Workload.rope``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, get_args

import torch
from torch import Tensor

from qualify.facts.case import Workload
from qualify.facts.dtypes import FORMATS
from qualify.run.adapters.interface import AttentionCall
from qualify.run.inputs.formats import TORCH_DTYPES, fitted, fitted_number
from qualify.run.inputs.kept import Kept, keep, lengths_on, owners_and_positions
from qualify.run.inputs.kinds import InputKind as InputKind  # noqa: PLC0414 - part of this module's interface
from qualify.run.inputs.kinds import draw, shape_logits, sink_level

INPUT_KINDS: tuple[InputKind, ...] = get_args(InputKind)

GUARD_ROWS = 64
"""rows of guard band before and after each packed tensor"""
ENTRIES = 3
"""most workloads whose places in the block table are kept"""
FREE_PAGES = 3
"""pages of the pool that no sequence uses; page 0 is the null page"""
KEEPABLE = 1 << 24
"""most elements of inputs that are kept and copied, because checks need the same inputs many times"""
KEPT_BYTES = 256 << 20
"""most bytes of such inputs that a process keeps"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """A call, and the allocations behind it."""

    call: AttentionCall
    q_whole: Tensor
    """``q`` with its guard bands: (GUARD_ROWS + total_q + GUARD_ROWS, heads_q, head_dim)"""
    k_whole: Tensor
    v_whole: Tensor
    """an allocation of its own, or a view of ``k_whole`` where the workload is latent"""
    slots: Tensor
    """(total_k,) int64 row of the flattened key allocation that holds each key, in packed order; no kernel gets it"""

    @property
    def bytes(self) -> int:
        """Bytes of the tensors that a kernel may read."""
        read = (self.call.q, self.call.k) if self.call.latent else (self.call.q, self.call.k, self.call.v)
        return sum(tensor.numel() * tensor.element_size() for tensor in read)


def _spans(workload: Workload, device: torch.device) -> Tensor | None:
    return torch.tensor(workload.spans, dtype=torch.int32, device=device) if workload.spans else None


def _cumulative(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    return lengths_on((0, *accumulate(lengths)), device).to(torch.int32)


def _block_table(workload: Workload, generator: torch.Generator) -> tuple[Tensor, int]:
    """Block table with shuffled pages, (batch, max_pages) with at least one column, and the pool's number of pages.

    Page 0 is the null page: unused entries point to it, as in serving engines.
    """
    needed = tuple(-(-length // workload.page_size) for length in workload.seqlens_k)
    pool = 1 + sum(needed) + FREE_PAGES
    order = torch.randperm(pool - 1, generator=generator, device=generator.device).add(1).to(torch.int32)
    column = torch.arange(max(1, *needed), device=order.device)
    used = column < lengths_on(needed, order.device)[:, None]
    return torch.zeros_like(used, dtype=torch.int32).masked_scatter(used, order), pool


def make_inputs(
    workload: Workload,
    *,
    kind: InputKind,
    seed: int,
    device: torch.device,
    descaled: bool = False,
    shared: bool = False,
) -> Inputs:
    """Random inputs for a workload; the same seed gives the same values on the same kind of device.

    Args:
        shared: True for who replaces queries, keys and values: those that are returned may be kept ones, to which
            nobody may write.
        descaled: for fp8 only. True: descale factors differ between sequences, KV heads or tensors, as the workload's
            ``descale`` says, and the dequantised values follow the kind. False: all factors are 1, for probes that set
            values themselves.
    """
    make = partial(_made, workload, kind, seed, device, descaled)
    if _elements(workload) <= KEEPABLE:
        kept = kept_inputs().get((workload, kind, seed, device, descaled), make)
        return _with_own_metadata(kept) if shared else clone(kept)
    return make()


def _elements(workload: Workload) -> int:
    """Elements that are allocated for q, k and v, including guard bands, free pages and tails of last pages."""
    size = workload.page_size
    rows_q, rows_k = (sum(lengths) + 2 * GUARD_ROWS for lengths in (workload.seqlens_q, workload.seqlens_k))
    if size:
        rows_k = (1 + FREE_PAGES + sum(-(-length // size) for length in workload.seqlens_k)) * size
    per_key = workload.heads_kv * (workload.head_dim + workload.head_dim_v)
    return rows_q * workload.heads_q * workload.head_dim + rows_k * per_key


def _allocated_bytes(inputs: Inputs) -> int:
    wholes = [inputs.q_whole, inputs.k_whole, inputs.slots, *([] if inputs.call.latent else [inputs.v_whole])]
    wholes += [] if inputs.call.block_table is None else [inputs.call.block_table]
    return sum(whole.numel() * whole.element_size() for whole in wholes)


@keep(1)
def kept_inputs() -> Kept[Inputs]:
    """The cache of this process's inputs."""
    return Kept(KEPT_BYTES, _allocated_bytes)


def _made(workload: Workload, kind: InputKind, seed: int, device: torch.device, descaled: bool) -> Inputs:
    generator = torch.Generator(device).manual_seed(seed)
    drawn = _draw(workload, kind, generator)
    descales = _descales(drawn, workload, descaled=descaled)
    # Models store sinks in bf16, and FlashAttention-3 reads them in bf16: values that bf16 holds need no rounding.
    sinks = torch.randn(workload.heads_q, generator=generator, device=device) + sink_level(kind, workload)
    q_dtype, kv_dtype = TORCH_DTYPES[workload.q_format], TORCH_DTYPES[workload.kv_format]
    q_whole, k_whole = fitted(drawn.q, q_dtype), fitted(drawn.k, kv_dtype)
    v_whole = k_whole[..., : workload.head_dim_v] if workload.latent else fitted(drawn.v, kv_dtype)
    table = drawn.table
    call = AttentionCall(
        q=_inner(q_whole),
        k=k_whole if table is not None else _inner(k_whole),
        v=v_whole if table is not None else _inner(v_whole),
        cu_seqlens_q=_cumulative(workload.seqlens_q, device),
        cu_seqlens_k=None if table is not None else _cumulative(workload.seqlens_k, device),
        seqused_k=None if table is None else lengths_on(workload.seqlens_k, device).to(torch.int32),
        block_table=table,
        max_seqlen_q=max(workload.seqlens_q),
        max_seqlen_k=max(workload.seqlens_k),
        scale=workload.scale,
        mask=workload.mask,
        bidirectional_spans=_spans(workload, device),
        softcap=workload.softcap,
        sinks=sinks.bfloat16().float() if workload.sinks else None,
        **descales,
        out_dtype=TORCH_DTYPES[workload.out_format],
    )
    return Inputs(call=call, q_whole=q_whole, k_whole=k_whole, v_whole=v_whole, slots=drawn.slots)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Drawn:
    """The allocations in float32, before they are rounded, with the block table and the row of each key."""

    q: Tensor
    k: Tensor
    v: Tensor
    table: Tensor | None
    slots: Tensor


def _draw(workload: Workload, kind: InputKind, generator: torch.Generator) -> _Drawn:
    total_q, total_k = sum(workload.seqlens_q), sum(workload.seqlens_k)
    q = draw((total_q + 2 * GUARD_ROWS, workload.heads_q, workload.head_dim), kind, "q", generator)
    table = None
    rows: tuple[int, ...] = (total_k + 2 * GUARD_ROWS,)
    if workload.page_size:
        table, pool = _block_table(workload, generator)
        rows = (pool, workload.page_size)
    slots = _key_slots(table, workload, generator.device)
    k = draw((*rows, workload.heads_kv, workload.head_dim), kind, "k", generator)
    v = draw((*rows, workload.heads_kv, workload.head_dim_v), kind, "v", generator)
    shape_logits(q, k.view(-1, *k.shape[-2:]), v.view(-1, *v.shape[-2:]), slots, kind, workload)
    if workload.latent:
        k = latent_keys(k, v)
    return _Drawn(q=q, k=k, v=v, table=table, slots=slots)


def _descales(drawn: _Drawn, workload: Workload, *, descaled: bool) -> dict[str, Tensor]:
    """Descale factors, (batch, heads_kv) each, of those of q, k and v that are fp8; divides the values in place."""
    queries = torch.arange(sum(workload.seqlens_q), device=drawn.q.device) + GUARD_ROWS
    parts = (
        ("q_descale", workload.q_format, drawn.q, queries, workload.seqlens_q),
        ("k_descale", workload.kv_format, drawn.k, drawn.slots, workload.seqlens_k),
        ("v_descale", workload.kv_format, drawn.v, drawn.slots, workload.seqlens_k),
    )
    shape = (workload.batch, workload.heads_kv)
    factors = {
        name: _quantise(tensor.view(-1, *tensor.shape[-2:]), slots, lengths, workload, place, FORMATS[format_].largest)
        if descaled
        else torch.ones(shape, device=tensor.device)
        for place, (name, format_, tensor, slots, lengths) in enumerate(parts)
        if FORMATS[format_].descaled and not (workload.latent and name == "v_descale")
    }
    if workload.latent and "k_descale" in factors:
        factors["v_descale"] = factors["k_descale"].clone()
    return factors


def _quantise(
    rows: Tensor, slots: Tensor, lengths: tuple[int, ...], workload: Workload, place: int, range_: float
) -> Tensor:
    """Divide the rows of each sequence and KV head by a factor, in place; returns the factors, (batch, heads_kv).

    There is one factor for each sequence and head, for each head, or for the tensor, as ``workload.descale`` says.
    After the division, the largest value lies between half of ``range_`` and all of it, at another point for each
    factor. So no two factors are equal, and a kernel that uses a wrong factor fails.

    Args:
        slots: (total,) row of each valid query or key, in packed order.
        lengths: valid rows of each sequence.
        place: number of the tensor among q, k and v, which makes factors of whole tensors unequal.
        range_: largest number of the format.
    """
    batch, heads_kv = len(lengths), workload.heads_kv
    grouped = rows[slots].view(len(slots), heads_kv, rows.shape[1] // heads_kv * rows.shape[2])
    counts = lengths_on(lengths, rows.device)
    owner = torch.repeat_interleave(torch.arange(batch, device=rows.device), counts, output_size=len(slots))
    largest = torch.zeros(batch, heads_kv, device=rows.device)
    largest = largest.scatter_reduce(0, owner[:, None].expand(-1, heads_kv), grouped.abs().amax(-1), "amax")
    turn = torch.arange(batch * heads_kv, device=rows.device).view(batch, heads_kv)
    if workload.descale == "head":
        largest, turn = largest.amax(0).expand(batch, -1), turn[:1].expand(batch, -1)
    if workload.descale == "tensor":
        largest, turn = largest.amax().expand(batch, heads_kv), torch.full_like(turn, place)
    spread = 1 + (turn * 0.618034) % 1
    factors = torch.where(largest > 0, largest * spread / range_, 1.0)
    rows[slots] = (grouped / factors[owner].unsqueeze(-1)).view(len(slots), *rows.shape[1:])
    return factors


def _inner(whole: Tensor) -> Tensor:
    """The valid rows of a packed tensor, between its guard bands."""
    return whole[GUARD_ROWS : whole.shape[0] - GUARD_ROWS]


def with_tensors(
    inputs: Inputs, *, q: Tensor | None = None, k: Tensor | None = None, v: Tensor | None = None
) -> Inputs:
    """A copy of the inputs in which some whole allocations are replaced; the others are shared.

    Latent values remain a view of the keys: ``v`` is written into the first elements of a copy of ``k``, or of the old
    keys.
    """
    paged = inputs.call.block_table is not None
    q_whole = inputs.q_whole if q is None else q
    k_whole = inputs.k_whole if k is None else k
    v_whole = inputs.v_whole if v is None else v
    if inputs.call.latent:
        k_whole = k_whole if v is None else latent_keys(k_whole, v)
        v_whole = k_whole[..., : v_whole.shape[-1]]
    call = replace(
        inputs.call,
        q=_inner(q_whole),
        k=k_whole if paged else _inner(k_whole),
        v=v_whole if paged else _inner(v_whole),
    )
    return replace(inputs, call=call, q_whole=q_whole, k_whole=k_whole, v_whole=v_whole)


def latent_keys(k: Tensor, v: Tensor) -> Tensor:
    """A copy of the keys whose first elements are the values."""
    return torch.cat([v, k[..., v.shape[-1] :]], dim=-1)


def clone(inputs: Inputs) -> Inputs:
    """A deep copy: new allocations, equal bytes."""
    v_whole = None if inputs.call.latent else inputs.v_whole.clone()
    return _with_own_metadata(with_tensors(inputs, q=inputs.q_whole.clone(), k=inputs.k_whole.clone(), v=v_whole))


def _with_own_metadata(inputs: Inputs) -> Inputs:
    """The inputs with copies of all tensors but queries, keys and values."""
    call = inputs.call
    small = (
        *("cu_seqlens_q", "cu_seqlens_k", "seqused_k", "block_table", "sinks", "bidirectional_spans"),
        *("q_descale", "k_descale", "v_descale"),
    )
    present = {name: getattr(call, name) for name in small if getattr(call, name) is not None}
    fresh: dict[str, Any] = {name: tensor.clone() for name, tensor in present.items()}
    return replace(inputs, call=replace(call, **fresh))


def _key_slots(table: Tensor | None, workload: Workload, device: torch.device) -> Tensor:
    if table is None:
        return torch.arange(sum(workload.seqlens_k), device=device) + GUARD_ROWS
    sequence, entry, offset = _page_entries(workload.seqlens_k, workload.page_size, device)
    return table[sequence, entry].long() * workload.page_size + offset


@keep(ENTRIES)
def _page_entries(lengths: tuple[int, ...], page_size: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For each key in packed order its sequence, its page's place in the block table, and its row in the page; int64.

    They are kept, because most checks of a case on pages need the same ones.
    """
    sequence, position = owners_and_positions(lengths, device)
    return sequence, position // page_size, position % page_size


def poison_outside(inputs: Inputs, workload: Workload, value: float) -> Inputs:
    """A copy in which every element outside the valid region holds ``value``, limited to the range of the dtype."""

    def filled(whole: Tensor) -> Tensor:
        return torch.full_like(whole, fitted_number(value, whole.dtype))

    def around(whole: Tensor) -> Tensor:
        fresh = filled(whole)
        _inner(fresh).copy_(_inner(whole))
        return fresh

    def around_slots(whole: Tensor) -> Tensor:
        flat = whole.flatten(0, 1)
        fresh = filled(flat)
        fresh[inputs.slots] = flat[inputs.slots]
        return fresh.view_as(whole)

    poisoned = around_slots if workload.page_size else around
    v_whole = None if inputs.call.latent else poisoned(inputs.v_whole)
    return with_tensors(inputs, q=around(inputs.q_whole), k=poisoned(inputs.k_whole), v=v_whole)


def replace_keys(inputs: Inputs, which: Tensor | None, k_value: Tensor, v_value: Tensor) -> Inputs:
    """A copy in which some keys get new values.

    Args:
        which: (total_k,) bool, marks the keys; or their numbers; None = all.
        k_value: broadcastable to (marked, heads_kv, head_dim); of latent keys, only elements behind the values count.
        v_value: broadcastable to (marked, heads_kv, head_dim_v).
    """
    slots = inputs.slots if which is None else inputs.slots[which]
    k_whole, v_whole = inputs.k_whole.clone(), inputs.v_whole.clone()
    for whole, value in ((k_whole, k_value), (v_whole, v_value)):
        flat = whole.view(-1, *whole.shape[-2:])
        flat[slots] = fitted(value, whole.dtype).expand(len(slots), *whole.shape[-2:])
    return with_tensors(inputs, k=k_whole, v=v_whole)
