"""What the adapters of libraries share: dense, padded and paged forms of a packed call, and refusals.

Everything here runs in ``prepare``, outside the timed region, and may copy and wait for the device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from qualify.facts.dtypes import DTYPES, FORMATS, HALVES, Dtype
from qualify.masks import UNBOUNDED, Mask, MaskKind
from qualify.run.adapters.interface import AttentionCall, LibraryRefusal
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
"""Texts of errors that are failures of the device or the host, whatever exception class carries them."""
PLAIN: frozenset[MaskKind] = frozenset({"full", "causal"})
"""masks of a library that knows no window"""
WINDOWED: frozenset[MaskKind] = PLAIN | {"window", "band"}
"""masks of a library that takes both sides of a window"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """Places and lengths of the sequences that have both queries and keys, as host integers."""

    q_starts: tuple[int, ...]
    """first query row of each sequence"""
    q_lengths: tuple[int, ...]
    k_starts: tuple[int, ...]
    """first key row of each sequence"""
    k_lengths: tuple[int, ...]

    @property
    def ragged(self) -> bool:
        """Whether queries or keys differ in number from one sequence to another."""
        return len(set(self.q_lengths)) > 1 or len(set(self.k_lengths)) > 1


def live_sequences(call: AttentionCall) -> Sequences:
    """The sequences of a packed call without those that have no query or no key."""
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
    """(sequences, heads, longest, dim) from packed (total, heads, dim).

    A view where the sequences are equally long and stand one after another; otherwise a copy, padded
    with zeros.
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
    """Packed (total, heads, dim) from (sequences, heads, longest, dim); rows of no sequence become 0."""
    rows = dense.transpose(1, 2)
    if lengths == (rows.shape[1],) * len(lengths) and sum(lengths) == total:
        return rows.reshape(total, *rows.shape[2:])
    packed = rows.new_zeros(total, *rows.shape[2:])
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        packed[start : start + length] = rows[row, :length]
    return packed


def boolean_mask(mask: Mask, sequences: Sequences, device: torch.device) -> Tensor:
    """True where a query sees a key, (sequences or 1, 1, longest q, longest k); padding keys are hidden.

    Rows of padding queries hold anything: whoever pads drops them.
    """
    shapes = list(zip(sequences.q_lengths, sequences.k_lengths, strict=True))
    if not sequences.ragged:
        shapes = shapes[:1]
    i = torch.arange(max(sequences.q_lengths), device=device)[:, None]
    j = torch.arange(max(sequences.k_lengths), device=device)[None, :]
    masks = [mask.visible(i, j, q, k) for q, k in shapes]
    return torch.stack([seen.expand(i.shape[0], j.shape[1]) for seen in masks])[:, None]


def from_batch(native: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Packed ``(out, lse)`` from (batch, queries, heads, dim) and (batch, heads, queries)."""
    out, lse = native
    return out.flatten(0, 1), lse.transpose(0, 1).flatten(1).contiguous()


@dataclass(frozen=True, kw_only=True, slots=True)
class PageList:
    """A block table as FlashInfer wants it: the used pages of all sequences, one after another."""

    indptr: Tensor
    """(batch + 1,) int32, first entry of each sequence in ``indices``"""
    indices: Tensor
    """(used pages,) int32"""
    last_page_len: Tensor
    """(batch,) int32 keys in the last page; 0 for an empty sequence"""


def page_list(call: AttentionCall) -> PageList:
    """The used entries of the block table, row by row."""
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
    """(causal, keys to the left) for a library that knows no right side of a window.

    Raises:
        LibraryRefusal: the right side is open to later keys.
    """
    left, right = call.window
    causal = call.causal or right == 0
    if right != UNBOUNDED and not causal:
        raise LibraryRefusal(f"{library} has no right side of a window: window={call.window}")
    return causal, left


def latent_keys(call: AttentionCall, library: str, head_dims: tuple[int, int]) -> Tensor:
    """The keys of a call whose values are their first elements, for a library that has one cache for both.

    Args:
        head_dims: (head_dim, head_dim_v) that the library serves.

    Raises:
        LibraryRefusal: the values lie elsewhere, there are several KV heads, or the dimensions are others.
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
    """Queries of every sequence, for a library that wants the same number of all.

    Raises:
        LibraryRefusal: some sequence has another number, or none has any.
    """
    counts: list[int] = sorted(set(call.cu_seqlens_q.diff().tolist()))
    if len(counts) != 1 or not counts[0]:
        raise LibraryRefusal(f"{library}: as many queries in every sequence, at least 1, not {counts}")
    return counts[0]


def tensor_scale(call: AttentionCall, name: str, library: str) -> float:
    """The descale factor of a library that has one for a whole tensor; 1 where the call leaves it out.

    Raises:
        LibraryRefusal: the tensor has several factors.
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
    """Refuse what a library cannot honour; each keyword names something that it can.

    Args:
        masks: kinds that the adapter hands on; every other kind is refused.
        dtypes: those that the adapter hands on; every other one is refused, and every mixture that is none.

    Raises:
        LibraryRefusal: with one reason and value for each thing that the library lacks.
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
    """What each tensor of a call is stored in, for one that mixes formats."""
    tensors = {"q": call.q.dtype, "k": call.k.dtype, "v": call.v.dtype, "out": call.out_dtype}
    return ", ".join(f"{name}={dtype}" for name, dtype in tensors.items())


@contextmanager
def refusals(library: str) -> Iterator[None]:
    """Turn a library's own clean "no" into a LibraryRefusal; failures of the device pass through."""
    try:
        yield
    except (RuntimeError, ValueError, AssertionError) as error:
        if is_failure(error):
            raise
        said = str(error).strip().partition("\n")[0]
        raise LibraryRefusal(f"{library}: {said or type(error).__name__}") from error


def is_failure(error: Exception) -> bool:
    """Whether an exception comes from a broken device or host, and not from a call that a library declines."""
    if isinstance(error, torch.AcceleratorError | torch.OutOfMemoryError):
        return True
    return any(text in str(error) for text in NOT_REFUSALS)
