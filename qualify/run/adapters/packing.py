"""Shared by the adapters of libraries: conversion of packed calls to dense, padded and paged ones, and refusals.

``prepare`` and ``Prepared.result`` call these functions outside the timed region. The functions may copy tensors and
wait for the device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qualify.facts.dtypes import DTYPES, FORMATS, HALVES, Dtype
from qualify.masks import UNBOUNDED, Mask, MaskKind
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal, Prepared
from qualify.run.inputs.formats import call_dtype

NOT_REFUSALS = (
    "CUDA error",
    "failed with error",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
    "out of memory",
    "Ninja build failed",
    "No space left on device",
)
"""An error whose message contains one of these is a failure of the device or host, whatever its exception class."""
PLAIN: frozenset[MaskKind] = frozenset({"full", "causal"})
"""masks of a library that does not support windows"""
WINDOWED: frozenset[MaskKind] = PLAIN | {"window", "band"}
"""masks of a library that supports both sides of a window"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """Starts and lengths of the sequences that have both queries and keys, as integers on the host."""

    q_starts: tuple[int, ...]
    """first query row of each sequence"""
    q_lengths: tuple[int, ...]
    """queries of each sequence, 1 or more"""
    k_starts: tuple[int, ...]
    """first key row of each sequence"""
    k_lengths: tuple[int, ...]
    """keys of each sequence, 1 or more"""

    @property
    def ragged(self) -> bool:
        """Whether two sequences differ in their number of queries or keys."""
        return len(set(self.q_lengths)) > 1 or len(set(self.k_lengths)) > 1


def live_sequences(call: AttentionCall) -> Sequences:
    """The sequences of a packed call that have at least one query and one key."""
    assert call.cu_seqlens_k is not None, "a packed call has cu_seqlens_k"
    q_bounds, k_bounds = call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist()
    spans = zip(q_bounds, q_bounds[1:], k_bounds, k_bounds[1:], strict=False)
    live = [(q, q_end - q, k, k_end - k) for q, q_end, k, k_end in spans if q_end > q and k_end > k]
    return Sequences(
        q_starts=tuple(span[0] for span in live),
        q_lengths=tuple(span[1] for span in live),
        k_starts=tuple(span[2] for span in live),
        k_lengths=tuple(span[3] for span in live),
    )


def to_dense(packed: Tensor, starts: tuple[int, ...], lengths: tuple[int, ...]) -> Tensor:
    """Convert packed (total, heads, dim) to (sequences, heads, longest, dim).

    The result is a view if the sequences have equal lengths and follow one another. Otherwise it is a copy, padded with
    zeros.

    Args:
        starts: first row of each sequence in ``packed``.
        lengths: rows of each sequence.
    """
    count, longest = len(lengths), max(lengths)
    first, last = starts[0], starts[0] + count * longest
    if set(lengths) == {longest} and starts == tuple(range(first, last, longest)):
        return packed[first:last].view(count, longest, *packed.shape[1:]).transpose(1, 2)
    padded = packed.new_zeros(count, longest, *packed.shape[1:])
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        padded[row, :length] = packed[start : start + length]
    return padded.transpose(1, 2)


def to_packed(dense: Tensor, starts: tuple[int, ...], lengths: tuple[int, ...], total: int) -> Tensor:
    """Convert (sequences, heads, longest, dim) to packed (total, heads, dim).

    Args:
        starts: first row of each sequence in the packed result.
        lengths: rows of each sequence.
        total: rows of the packed result; rows that belong to no sequence become 0.
    """
    rows = dense.transpose(1, 2)
    if lengths == (rows.shape[1],) * len(lengths) and sum(lengths) == total:
        return rows.reshape(total, *rows.shape[2:])
    packed = rows.new_zeros(total, *rows.shape[2:])
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        packed[start : start + length] = rows[row, :length]
    return packed


def boolean_mask(mask: Mask, sequences: Sequences, device: torch.device) -> Tensor:
    """(sequences, 1, longest q, longest k) bool: True where a query sees a key; False for every key of the padding.

    The first dimension is 1 if all sequences have the same lengths. Rows of the padding queries hold any value, because
    :func:`to_packed` drops these rows.
    """
    shapes = list(zip(sequences.q_lengths, sequences.k_lengths, strict=True))
    if not sequences.ragged:
        shapes = shapes[:1]
    i = torch.arange(max(sequences.q_lengths), device=device)[:, None]
    j = torch.arange(max(sequences.k_lengths), device=device)[None, :]
    masks = [mask.visible(i, j, q, k) for q, k in shapes]
    return torch.stack([seen.expand(i.shape[0], j.shape[1]) for seen in masks])[:, None]


def from_batch(native: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Convert (out, lse) from (batch, queries, heads, dim) and (batch, heads, queries) to the packed contract."""
    out, lse = native
    return out.flatten(0, 1), lse.transpose(0, 1).flatten(1).contiguous()


@dataclass(frozen=True, kw_only=True, slots=True)
class PageList:
    """A block table in the form of FlashInfer: the used pages of all sequences, one after another."""

    indptr: Tensor
    """(batch + 1,) int32: first entry of each sequence in ``indices``, then the number of used pages"""
    indices: Tensor
    """(used pages,) int32: page numbers"""
    last_page_len: Tensor
    """(batch,) int32: keys in the last page of each sequence; 0 for an empty sequence"""


def page_list(call: AttentionCall) -> PageList:
    """The used entries of the block table of a paged call, row by row."""
    assert call.seqused_k is not None, "a paged call has seqused_k"
    assert call.block_table is not None, "a paged call has a block table"
    page_size = call.k.shape[1]
    pages = (call.seqused_k + page_size - 1) // page_size
    indptr = torch.zeros(len(pages) + 1, dtype=torch.int32, device=pages.device)
    indptr[1:] = pages.cumsum(0)
    columns = torch.arange(call.block_table.shape[1], device=pages.device)
    return PageList(
        indptr=indptr,
        indices=call.block_table[columns < pages[:, None]].int(),
        last_page_len=(call.seqused_k - (pages - 1).clamp(min=0) * page_size).int(),
    )


def left_window(call: AttentionCall, library: str) -> tuple[bool, int]:
    """(causal, left side of the window in keys) for a library that does not support a right side; left -1 = unbounded.

    A right side of 0 hides the same keys as a causal mask, so it counts as causal.

    Args:
        library: name of the library, for the message.

    Raises:
        LibraryRefusal: the mask is not causal, and the right side of its window is bounded at 1 key or more.
    """
    left, right = call.window
    causal = call.causal or right == 0
    if right != UNBOUNDED and not causal:
        raise LibraryRefusal(f"{library} has no right side of a window: window={call.window}")
    return causal, left


def latent_keys(call: AttentionCall, library: str, head_dims: tuple[int, int]) -> Tensor:
    """The keys of a call of latent attention, for a library that keeps keys and values in one cache.

    Args:
        library: name of the library, for the message.
        head_dims: (head_dim, head_dim_v) that the library supports.

    Raises:
        LibraryRefusal: the values are not the first elements of the keys in the same memory, the call has several KV
            heads, or it has other dimensions.
    """
    if not call.latent:
        raise LibraryRefusal(f"{library}: values must be the first elements of the keys, in the same memory")
    if call.k.shape[-2] != 1:
        raise LibraryRefusal(f"{library}: one KV head, not {call.k.shape[-2]}")
    dims = (call.k.shape[-1], call.v.shape[-1])
    if dims != head_dims:
        raise LibraryRefusal(f"{library}: (head_dim, head_dim_v)={dims} is not {head_dims}")
    return call.k


def queries_of_each(call: AttentionCall, library: str) -> int:
    """Queries of each sequence, for a library that needs the same number in all sequences.

    Args:
        library: name of the library, for the message.

    Raises:
        LibraryRefusal: the sequences have different numbers of queries, or no queries.
    """
    counts: list[int] = sorted(set(call.cu_seqlens_q.diff().tolist()))
    if len(counts) != 1 or not counts[0]:
        raise LibraryRefusal(f"{library}: as many queries in every sequence, at least 1, not {counts}")
    return counts[0]


def tensor_scale(call: AttentionCall, name: str, library: str) -> float:
    """The descale factor of a tensor, for a library that takes one factor for a whole tensor; 1 if the call gives none.

    Args:
        name: q_descale, k_descale or v_descale.
        library: name of the library, for the message.

    Raises:
        LibraryRefusal: the call gives the tensor several different factors.
    """
    factors: Tensor | None = getattr(call, name)
    different = {1.0} if factors is None else set(factors.flatten().tolist())
    if len(different) > 1:
        raise LibraryRefusal(f"{library}: one {name} for the whole tensor, not {len(different)} different ones")
    return float(different.pop())


def refuse(
    call: AttentionCall,
    library: str,
    *,
    paged: bool = False,
    masks: Collection[MaskKind],
    softcap: bool = False,
    sinks: bool = False,
    spans: bool = False,
    head_dim_v: bool = False,
    dtypes: Collection[Dtype] = HALVES,
) -> None:
    """Refuse a call that needs something that the library does not support. Each keyword states what it supports.

    Descale factors are allowed if the dtype of the call is allowed and its k and v are fp8.

    Args:
        library: name of the library, for the message.
        paged: whether it supports a paged cache.
        masks: kinds of masks that it supports.
        softcap: whether it supports a softcap.
        sinks: whether it supports attention sinks.
        spans: whether it supports bidirectional spans.
        head_dim_v: whether head_dim_v may differ from head_dim.
        dtypes: dtypes of a call that it supports. A call whose tensors mix formats as no dtype does is always refused.

    Raises:
        LibraryRefusal: the message gives a reason and a value for each thing that the library does not support.
    """
    descales = [name for name in ("q_descale", "k_descale", "v_descale") if getattr(call, name) is not None]
    dtype = call_dtype(call)
    taken = dtype in dtypes
    factors = taken and dtype is not None and FORMATS[DTYPES[dtype].kv].descaled
    images = call.bidirectional_spans
    head_dim, value_dim = call.q.shape[-1], call.v.shape[-1]
    reasons = [
        text
        for wrong, text in (
            (call.block_table is not None and not paged, f"no paged cache: page_size={call.k.shape[1]}"),
            (call.mask.kind not in masks, f"no {call.mask.kind} mask: {call.mask.words or 'every key is seen'}"),
            (bool(call.softcap) and not softcap, f"no softcap: softcap={call.softcap}"),
            (call.sinks is not None and not sinks, f"no sinks: {call.q.shape[1]} given"),
            (images is not None and not spans, f"no bidirectional spans: {0 if images is None else len(images)} given"),
            (bool(descales) and not factors, f"no descale factors: {', '.join(descales)} given"),
            (value_dim != head_dim and not head_dim_v, f"head_dim_v={value_dim} must equal head_dim={head_dim}"),
            (
                not taken,
                f"dtype {dtype or stored(call)} is none of {', '.join(name for name in DTYPES if name in dtypes)}",
            ),
        )
        if wrong
    ]
    if reasons:
        raise LibraryRefusal(f"{library}: {'; '.join(reasons)}")


def stored(call: AttentionCall) -> str:
    """The dtype of each tensor of a call, as text, for a call whose tensors mix formats as no dtype does."""
    tensors = {"q": call.q.dtype, "k": call.k.dtype, "v": call.v.dtype, "out": call.out_dtype}
    return ", ".join(f"{name}={dtype}" for name, dtype in tensors.items())


@contextmanager
def refusals(library: str) -> Iterator[None]:
    """Turn an error by which a library declines a call into a LibraryRefusal.

    An error that reports a failure of the device or host (:func:`is_failure`) passes through unchanged.

    Args:
        library: name of the library, for the message.

    Raises:
        LibraryRefusal: the library raised RuntimeError, ValueError or AssertionError. The message holds the first line
            of that error.
    """
    try:
        yield
    except (RuntimeError, ValueError, AssertionError) as error:
        if is_failure(error):
            raise
        said = str(error).strip().partition("\n")[0]
        raise LibraryRefusal(f"{library}: {said or type(error).__name__}") from error


def tried(prepared: Prepared, library: str) -> Prepared:
    """The prepared call, launched once to find out whether the library accepts it.

    Args:
        library: name of the library, for the message.

    Raises:
        LibraryRefusal: it declines the call (:func:`refusals`).
    """
    with refusals(library):
        return replace(prepared, tried=(prepared.launch(),))


def is_failure(error: Exception) -> bool:
    """Whether an exception reports a failure of the device or host, and not a call that the library declines."""
    if isinstance(error, torch.AcceleratorError | torch.OutOfMemoryError):
        return True
    return any(text in str(error) for text in NOT_REFUSALS)
