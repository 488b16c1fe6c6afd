"""Contract 1: the call that every adapter and every third-party kernel receives.

The canonical layout is the packed one of serving engines. The sequences of a batch follow one another without padding,
and ``cu_seqlens`` gives the start of each. Keys and values may lie in a paged cache instead.
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

    A kernel returns ``out`` or ``(out, lse)``. ``out`` has shape (total_q, heads_q, head_dim_v) and dtype
    ``out_dtype``. ``lse`` has shape (heads_q, total_q) and dtype float32. It is the natural logarithm of the sum of
    exponentials of the scores, after scale and softcap. The sum includes the sink if there is one. A row that sees no
    key gives out 0 and lse -inf, unless the ``empty_row`` of the card says otherwise.

    A kernel must not write to its inputs, and must not change a result that it has returned. Tensors and their rows
    start at multiples of 16 bytes. The last dimension of each tensor is contiguous.
    """

    q: Tensor
    """(total_q, heads_q, head_dim)"""
    k: Tensor
    """(total_k, heads_kv, head_dim), or paged (pages, page_size, heads_kv, head_dim)"""
    v: Tensor
    """(total_k, heads_kv, head_dim_v), or paged (pages, page_size, heads_kv, head_dim_v). In latent attention it is a
    view of the first ``head_dim_v`` elements of ``k``: the same memory, with the strides of ``k``."""
    cu_seqlens_q: Tensor
    """(batch + 1,) int32: first query of each sequence, then total_q; a value repeats where a sequence is empty"""
    cu_seqlens_k: Tensor | None
    """(batch + 1,) int32: first key of each sequence, then total_k; None in a paged call"""
    seqused_k: Tensor | None
    """(batch,) int32: keys of each sequence; None in a packed call"""
    block_table: Tensor | None
    """(batch, max_pages ≥ 1) int32: page numbers of each sequence; None in a packed call. Entries past the used pages
    may hold any value."""
    max_seqlen_q: int
    """largest number of queries in a sequence"""
    max_seqlen_k: int
    """upper bound on the keys of a sequence. In a paged call it may exceed the longest sequence, up to the number of
    keys that the block table has room for."""
    scale: float
    """factor of each score q·k"""
    mask: Mask
    """which keys each query sees; the properties ``causal``, ``window`` and ``chunk`` read it"""
    softcap: float = 0.0
    """c in c·tanh(score / c), applied to the scaled score; 0.0 = no softcap"""
    sinks: Tensor | None = None
    """(heads_q,) float32: one logit for each head; its exponential joins the softmax denominator; None = no sinks"""
    bidirectional_spans: Tensor | None = None
    """(n, 3) int32 rows (sequence, start, end): positions in [start, end) see each other, even where the mask hides
    them; None = no spans"""
    q_descale: Tensor | None = None
    """(batch, heads_kv) float32: factors of q if q is fp8; one for all query heads of a KV head"""
    k_descale: Tensor | None = None
    """(batch, heads_kv) float32: factors of k if k and v are fp8, whether or not q is fp8"""
    v_descale: Tensor | None = None
    """(batch, heads_kv) float32: factors of v if k and v are fp8"""
    out_dtype: torch.dtype
    """dtype of ``out``"""

    @property
    def causal(self) -> bool:
        """Whether the mask hides keys after the query's position; aligned to the bottom right corner."""
        return self.mask.causal

    @property
    def window(self) -> tuple[int, int]:
        """(left, right) inclusive distances in keys from the query's position; -1 = unbounded."""
        return self.mask.window

    @property
    def chunk(self) -> int:
        """Positions per chunk, counted from the first key; a query sees only its own chunk; 0 = no chunks."""
        return self.mask.chunk

    @property
    def latent(self) -> bool:
        """Whether v is a view of the first elements of k in the same memory, as in latent attention."""
        k, v = self.k, self.v
        return (
            k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
            and k.storage_offset() == v.storage_offset()
            and k.stride() == v.stride()
            and v.shape[-1] < k.shape[-1]
        )


class LibraryRefusal(Exception):
    """A library, or its adapter, refused a call; the message gives the reasons."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A call in the layout of its library, ready for any number of launches."""

    launch: Callable[[], Any]
    """the timed region: launches the kernel on the current stream and returns the library's own result"""
    result: Callable[[Any], tuple[Tensor, Tensor | None]]
    """turns that result into (out, lse) of the contract, outside the timed region; lse is None where there is none"""
    tried: tuple[Any, ...] = ()
    """where ``prepare`` has made a launch already: what it returned, alone; a single call then needs no other launch"""


class Adapter(Protocol):
    """Makes a kernel of a library. One instance serves one card as long as the process lives."""

    def prepare(self, call: AttentionCall) -> Prepared:
        """Convert layouts and plan, outside the timed region.

        Raises:
            LibraryRefusal: the library does not support the call; the message gives reasons and values.
        """
        ...


@runtime_checkable
class Scripted(Protocol):
    """An adapter whose calls ``qualify repro`` can write into a script that runs without qualify."""

    bind: partial[Prepared]
    """``prepare`` calls it to get a ``Prepared``. It binds a module-level function of the call to keyword arguments.
    These are modules, plain values, or objects whose ``repr`` is a Python expression that creates them."""


@runtime_checkable
class SlowAtFirst(Protocol):
    """An adapter whose library takes seconds to get ready for its first launch."""

    def warm_up(self, device: torch.device) -> None:
        """Get it ready, while the judge runs cases of other libraries."""
        ...


class AdapterFactory(Protocol):
    """A class or a function, as ``create`` of an adapter module: imports the library and binds the card's options.

    If the factory has an attribute ``declared_options``, a tuple of :class:`~qualify.facts.adapters.Option`, qualify
    checks a card's options when it loads the card. Without the attribute it does not check them.
    """

    def __call__(self, options: dict[str, Any]) -> Adapter:
        """The adapter of a card.

        Args:
            options: ``options`` of the card.

        Raises:
            ImportError: the library cannot be imported.
            ValueError: the adapter does not have an option, or does not allow its value.
        """
        ...
