"""layout: the strides and offsets of tensors must not change the result.

The call contract fixes shapes, not strides: only the last dimension is contiguous. The check passes the same numbers in
other layouts: slices of a packed QKV buffer, interleaved keys and values, heads before rows, padded rows, and keys in
another layout than values. A dimension of one element gets an arbitrary stride. One KV head is expanded to all KV heads
by stride 0.

Small tensors change too. The rows of the block table are further apart, as in a slice that an engine passes. One
sequence's fp8 factors serve all sequences. All small tensors begin at an offset in memory that holds other numbers.

The result must be that of contiguous tensors. A difference of rounding only is noted, because strides and alignment may
select another kernel. Between padded rows there is NaN, where no kernel may read. Latent values keep the strides of the
keys that hold them, so layouts that would separate the two are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qualify.facts.outcome import Finding, Value
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
from qualify.run.checks.budget import beyond_budget
from qualify.run.checks.difference import blame_change, difference
from qualify.run.checks.interface import Shipped, Subject, failing, noted, passed

PADDING = 16
"""elements of padding between rows; rows stay aligned to 16 bytes in every dtype"""
OWN_STRIDE = 48
"""stride in elements of a dimension of one element, which no kernel needs; TMA requires a multiple of 16 bytes"""
FACTORS = ("q_descale", "k_descale", "v_descale")
SMALL = ("cu_seqlens_q", "cu_seqlens_k", "seqused_k", "block_table", "bidirectional_spans", "sinks", *FACTORS)
OTHER_NUMBERS = ("expanded", "factors of one sequence")
"""layouts that change the numbers of the call: each is compared with a contiguous call of the same numbers"""


class Layout(Shipped):
    """Passes views instead of contiguous tensors."""

    def skips(self, subject: Subject) -> str:
        """Applies to every kernel."""
        return ""

    def run(self, subject: Subject) -> list[Finding]:
        """Try all layouts until one gives another result."""
        call = subject.inputs().call
        before = subject.run(call)
        same: list[str] = []
        rounded: list[str] = []
        refused: list[str] = []
        for name, arrange in LAYOUTS.items():
            arranged = arrange(call)
            if arranged is None:
                continue
            reference = subject.run(_contiguous(arranged)) if name in OTHER_NUMBERS else before
            try:
                after = subject.run(arranged)
            except LibraryRefusal as refusal:
                refused.append(f"{name} ({refusal})")
                continue
            found = difference(subject, reference, after, exact=False)
            if found:
                plain = _contiguous(arranged) if name in OTHER_NUMBERS else call
                values: dict[str, Value] = {"layout": name}
                return [blame_change(subject, self.name, f"{name}: ", found, values, call=plain, before=reference)]
            if not difference(subject, reference, after):
                same.append(name)
                continue
            wrong = beyond_budget(subject, arranged, after)
            if wrong:
                return [failing(self.name, f"{name}: {wrong.detail}", dict(wrong.values) | {"layout": name})]
            rounded.append(name)
        findings = [passed(self.name, f"the same result for tensors that are {', '.join(same)}")] if same else []
        findings += [noted(self.name, f"{name}: only rounding differs") for name in rounded]
        return findings + [noted(self.name, f"not run: the library refuses {text}") for text in refused]


def _padded(tensor: Tensor) -> Tensor:
    """A tensor whose rows are PADDING elements further apart than necessary, with NaN between them."""
    whole = tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] + PADDING), math.nan)
    view = whole[..., : tensor.shape[-1]]
    view.copy_(tensor)
    return view


def _heads_first(tensor: Tensor) -> Tensor:
    """A tensor in which heads are the slowest dimension; in a paged cache, the slowest of each page."""
    return tensor.transpose(-3, -2).contiguous().transpose(-3, -2)


def _each(arrange: Callable[[Tensor], Tensor]) -> Callable[[AttentionCall], AttentionCall]:
    def arranged(call: AttentionCall) -> AttentionCall:
        k = arrange(call.k)
        v = k[..., : call.v.shape[-1]] if call.latent else arrange(call.v)
        return replace(call, q=arrange(call.q), k=k, v=v)

    return arranged


def _packed_qkv(call: AttentionCall) -> AttentionCall | None:
    """q, k and v as slices of one (total, heads_q + 2 heads_kv, dim) buffer, as a fused projection writes them."""
    if call.block_table is not None or call.q.shape[0] != call.k.shape[0] or call.q.shape[-1] != call.v.shape[-1]:
        return None
    if call.q.dtype != call.k.dtype:
        return None
    whole = torch.cat([call.q, call.k, call.v], dim=1)
    q, k, v = torch.split(whole, [call.q.shape[1], call.k.shape[1], call.v.shape[1]], dim=1)
    return replace(call, q=q, k=k, v=v)


def _interleaved(call: AttentionCall) -> AttentionCall | None:
    """Keys and values in one buffer, (total, 2, heads, dim) or (pages, 2, page_size, heads, dim)."""
    if call.k.shape != call.v.shape:
        return None
    k, v = torch.stack([call.k, call.v], dim=1).unbind(1)
    return replace(call, k=k, v=v)


def _offset(tensor: Tensor, by: int = PADDING) -> Tensor:
    """A tensor that begins some elements after the start of its allocation."""
    whole = tensor.new_empty(tensor.numel() + by)
    view = whole[by:].view(tensor.shape)
    view.copy_(tensor)
    return view


def _barely_aligned(tensor: Tensor) -> Tensor:
    """A tensor that is aligned to 16 bytes, as the call contract promises, but not to 32."""
    return _offset(tensor, 16 // tensor.element_size())


def _unlike(call: AttentionCall) -> AttentionCall | None:
    """Keys and values that have no stride in common."""
    if call.latent:
        return None
    return replace(call, k=_padded(call.k), v=_heads_first(call.v))


def _padded_values(call: AttentionCall) -> AttentionCall | None:
    """Only the values are not contiguous."""
    if call.latent:
        return None
    return replace(call, v=_padded(call.v))


def _padded_queries(call: AttentionCall) -> AttentionCall:
    """Only the queries are not contiguous."""
    return replace(call, q=_padded(call.q))


def _own_strides(call: AttentionCall) -> AttentionCall | None:
    """Dimensions of one element get the stride OWN_STRIDE, which is only ever multiplied by 0."""
    if all(1 not in tensor.shape[:-1] for tensor in (call.q, call.k, call.v)):
        return None
    return _each(_own)(call)


def _own(tensor: Tensor) -> Tensor:
    steps = [
        OWN_STRIDE if size == 1 else step for size, step in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)
    ]
    return tensor.as_strided(tensor.shape, (*steps, 1), tensor.storage_offset())


def _expanded(call: AttentionCall) -> AttentionCall | None:
    """One KV head serves as all KV heads, by stride 0."""
    if call.k.shape[-2] == 1:
        return None
    k, v = (tensor[..., :1, :].contiguous().expand(tensor.shape) for tensor in (call.k, call.v))
    return replace(call, k=k, v=k[..., : v.shape[-1]] if call.latent else v)


def _table_with_longer_rows(call: AttentionCall) -> AttentionCall | None:
    """The block table is a slice of a wider one, whose other entries are the null page; rows begin at 16 bytes."""
    table = call.block_table
    if table is None or len(table) == 1:
        return None
    whole = table.new_zeros(len(table), table.shape[1] // 4 * 4 + 2 * 4)
    view = whole[:, : table.shape[1]]
    view.copy_(table)
    return replace(call, block_table=view)


def _factors_of_one_sequence(call: AttentionCall) -> AttentionCall | None:
    """One sequence's fp8 factors serve all sequences, by stride 0."""
    given = {name: getattr(call, name) for name in FACTORS}
    if call.k_descale is None or len(call.k_descale) == 1:
        return None
    return replace(call, **{name: each[:1].expand(each.shape) for name, each in given.items() if each is not None})


def _small_at_an_offset(call: AttentionCall) -> AttentionCall:
    """Small tensors begin 16 bytes after other numbers in memory, and rows of fp8 factors are not contiguous."""

    def behind(tensor: Tensor, step: int) -> Tensor:
        lead = 16 // tensor.element_size()
        whole = tensor.new_ones(lead + len(tensor) * step)
        view = whole.as_strided(tensor.shape, (step, 1)[-tensor.dim() :], lead)
        view.copy_(tensor)
        return view

    moved: dict[str, Any] = {}
    for name in SMALL:
        tensor = getattr(call, name)
        if tensor is not None:
            row = tensor.shape[-1] if tensor.dim() == 2 else 1
            moved[name] = behind(tensor, row // 4 * 4 + 2 * 4 if name in FACTORS else row)
    return replace(call, **moved)


def _contiguous(call: AttentionCall) -> AttentionCall:
    given = {name: getattr(call, name) for name in FACTORS}
    factors: dict[str, Any] = {name: each.contiguous() for name, each in given.items() if each is not None}
    return replace(_each(torch.Tensor.contiguous)(call), **factors)


LAYOUTS: dict[str, Callable[[AttentionCall], AttentionCall | None]] = {
    "slices of packed QKV": _packed_qkv,
    "interleaved": _interleaved,
    "padded": _each(_padded),
    "padded queries": _padded_queries,
    "padded values": _padded_values,
    "heads first": _each(_heads_first),
    "unlike keys and values": _unlike,
    "offset": _each(_offset),
    "offset by 16 bytes": _each(_barely_aligned),
    "of any stride where one element stands": _own_strides,
    "expanded": _expanded,
    "a block table with longer rows": _table_with_longer_rows,
    "factors of one sequence": _factors_of_one_sequence,
    "small tensors at an offset": _small_at_an_offset,
}
