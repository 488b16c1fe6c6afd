"""Contract 1: the call that every adapter and every third-party kernel receives.

The canonical layout is the packed one that serving engines use: the sequences of a batch stand one
after another, without padding, and ``cu_seqlens`` says where each begins. A decode cache may be paged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from qualify.masks import Mask


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCall:
    """One attention call: tensors and parameters.

    A kernel returns ``out`` or ``(out, lse)``: ``out`` has shape (total_q, heads_q, head_dim_v) and dtype
    ``out_dtype``; ``lse`` has shape (heads_q, total_q), float32, natural logarithm of the sum of
    exponentials of the scaled (and softcapped) scores, the sink included where there is one. A row that
    sees no key gives out 0 and lse -inf. A kernel must not write to its inputs, or to a result after it was returned.
    Tensors begin at multiples of 16 bytes, and so do their rows; their last dimension is contiguous.
    """

    q: Tensor
    """(total_q, heads_q, head_dim)"""
    k: Tensor
    """(total_k, heads_kv, head_dim), or paged (pages, page_size, heads_kv, head_dim)"""
    v: Tensor
    """(total_k, heads_kv, head_dim_v), or paged (pages, page_size, heads_kv, head_dim_v); in latent attention the first
    ``head_dim_v`` elements of ``k``: a view of the same memory, with the strides of ``k``"""
    cu_seqlens_q: Tensor
    """(batch + 1,) int32, first query of each sequence; may repeat (empty sequences)"""
    cu_seqlens_k: Tensor | None
    """(batch + 1,) int32; None when paged"""
    seqused_k: Tensor | None
    """(batch,) int32 keys in use; paged only"""
    block_table: Tensor | None
    """(batch, max_pages ≥ 1) int32 page numbers; paged only; entries past the used pages hold any value"""
    max_seqlen_q: int
    """the most queries of a sequence"""
    max_seqlen_k: int
    """no sequence has more keys; a paged call may say more than the longest has, up to what its table has room for"""
    scale: float
    """multiplies q·k"""
    mask: Mask
    """which keys each query sees; ``causal``, ``window`` and ``chunk`` read it"""
    softcap: float = 0.0
    """0.0 = off"""
    sinks: Tensor | None = None
    """(heads_q,) float32 logits"""
    bidirectional_spans: Tensor | None = None
    """(n, 3) int32 [sequence, start, end): keys that see each other whatever the mask says"""
    q_descale: Tensor | None = None
    """(batch, heads_kv) float32 where q is fp8"""
    k_descale: Tensor | None = None
    """(batch, heads_kv) float32 where k and v are fp8, whatever q is"""
    v_descale: Tensor | None = None
    """(batch, heads_kv) float32 where k and v are fp8"""
    out_dtype: torch.dtype

    @property
    def causal(self) -> bool:
        """Whether keys after the query's position are hidden; aligned to the bottom right corner."""
        return self.mask.causal

    @property
    def window(self) -> tuple[int, int]:
        """(left, right) inclusive distances in keys from the query's position, -1 = unbounded."""
        return self.mask.window

    @property
    def chunk(self) -> int:
        """Positions per chunk, counted from the sequence's first key; a query sees only its own; 0 = no chunks."""
        return self.mask.chunk

    @property
    def latent(self) -> bool:
        """Whether the values are the first elements of the keys, in the same memory, as in latent attention."""
        k, v = self.k, self.v
        return (
            k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
            and k.storage_offset() == v.storage_offset()
            and k.stride() == v.stride()
            and v.shape[-1] < k.shape[-1]
        )


class LibraryRefusal(Exception):
    """A library refused this call with an error of its own; the message is its reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A call in its library's own layout, ready to be launched again and again."""

    launch: Callable[[], Any]
    """the timed region: launches the kernel on the current stream, returns the library's own result"""
    result: Callable[[Any], tuple[Tensor, Tensor | None]]
    """turns that result into (out, lse) of the contract; outside the timed region"""


class Adapter(Protocol):
    """What a library needs to become a kernel. One instance serves one card for a process's life."""

    def prepare(self, call: AttentionCall) -> Prepared:
        """Convert layouts and plan, outside the timed region.

        Raises:
            LibraryRefusal: the library will not take this call; the message says why, with values.
        """
        ...


@runtime_checkable
class Scripted(Protocol):
    """An adapter whose calls ``qualify repro`` can write into a script that does without qualify."""

    bind: partial[Prepared]
    """what ``prepare`` gets its ``Prepared`` from: a module-level function of the call, with keywords that are modules,
    plain values, or objects whose ``repr`` is the Python that makes them"""


class AdapterFactory(Protocol):
    """Module-level ``create`` of an adapter module: imports the library and binds the card's options.

    An attribute ``declared_options``, a tuple of :class:`~qualify.facts.adapters.Option`, has the options of every card
    checked when the card is loaded; without it they are not checked.
    """

    def __call__(self, options: dict[str, Any]) -> Adapter:
        """Raises ImportError where the library cannot be imported, ValueError on an unknown option."""
        ...
