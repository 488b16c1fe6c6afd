"""FlashAttention-2 from the ``flash-attn`` distribution.

The adapter chooses the function by the layout:

* A packed call goes to ``flash_attn_varlen_func`` without conversion.
* A paged call whose sequences all have the same number of queries goes to ``flash_attn_with_kvcache``, as a dense view.
* A paged call with different numbers of queries, such as a step of chunked prefill, goes to ``flash_attn_varlen_func``
  with a block table. That function reads the number of keys from ``cu_seqlens_k``.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from qualify.facts.adapters import settle
from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import WINDOWED, from_batch, refuse, tried

LIBRARY = "flash-attn 2"
PAGE_MULTIPLE = 256
"""the page size must be a multiple of this number of keys"""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card; there are no options.

    Raises:
        ImportError: flash_attn is not installed, or does not work with the installed torch.
        ValueError: unknown option.
    """
    settle("flash_attn", options)
    return FlashAttn2(library=import_module("flash_attn.flash_attn_interface"))


class FlashAttn2:
    """Calls ``flash_attn_varlen_func`` or ``flash_attn_with_kvcache``."""

    def __init__(self, *, library: Any) -> None:
        self.bind = partial(bind, library=library)
        self.library = library

    def warm_up(self, device: torch.device) -> None:
        """Make a tiny call: before the first one, the CUDA runtime takes four seconds to read the library's kernels."""
        tensor = torch.zeros(1, 1, 1, 64, device=device, dtype=torch.float16)
        self.library.flash_attn_func(tensor, tensor, tensor)

    def prepare(self, call: AttentionCall) -> Prepared:
        """Bind the arguments and make one call, to find out whether the library accepts it.

        Raises:
            LibraryRefusal: the library does not support a parameter, or its own checks reject the call.
        """
        refuse(call, LIBRARY, masks=WINDOWED, paged=True, softcap=True)
        if call.block_table is not None:
            _refuse_pages(call)
        return tried(self.bind(call), LIBRARY)


def _refuse_pages(call: AttentionCall) -> None:
    """Refuse paged calls that the library does not support, or serves with a write out of bounds.

    In a paged batch with different query counts, a block of queries may see no key. The kernel then writes the LSE of
    that block at its place in a padded result, which lies beyond the packed result. Such writes changed other tensors
    of the process, so the adapter never makes such a call (docs/findings/fa2-lse-out-of-bounds.md).

    Raises:
        LibraryRefusal: the page size is not a multiple of PAGE_MULTIPLE, or the query counts differ and a sequence has
            more queries than keys.
    """
    page_size = call.k.shape[1]
    if page_size % PAGE_MULTIPLE:
        raise LibraryRefusal(f"{LIBRARY}: page_size={page_size} is not a multiple of {PAGE_MULTIPLE}")
    assert call.seqused_k is not None, "a paged call has seqused_k"
    queries = call.cu_seqlens_q.diff()
    longer = int((queries > call.seqused_k).sum())
    if longer and len(set(queries.tolist())) > 1:
        raise LibraryRefusal(
            f"{LIBRARY}: {longer} sequences on pages have more queries than keys, in a batch of unequal ones: its LSE "
            "would be written out of bounds"
        )


def bind(call: AttentionCall, *, library: Any) -> Prepared:
    """Bind the function that serves the layout to the arguments of the call.

    Args:
        library: ``flash_attn.flash_attn_interface``.
    """
    shared = {
        "softmax_scale": call.scale,
        "causal": call.causal,
        "window_size": call.window,
        "softcap": call.softcap,
    }
    batch = len(call.cu_seqlens_q) - 1
    if call.block_table is None or len(set(call.cu_seqlens_q.diff().tolist())) > 1:
        launch = partial(
            library.flash_attn_varlen_func,
            call.q,
            call.k,
            call.v,
            cu_seqlens_q=call.cu_seqlens_q,
            cu_seqlens_k=cumulative_keys(call),
            max_seqlen_q=call.max_seqlen_q,
            max_seqlen_k=call.max_seqlen_k,
            return_attn_probs=True,  # adds the LSE; without dropout there are no probabilities
            block_table=call.block_table,
            **shared,
        )
        return Prepared(launch=launch, result=itemgetter(0, 1))
    launch = partial(
        library.flash_attn_with_kvcache,
        call.q.view(batch, call.q.shape[0] // batch, *call.q.shape[1:]),
        call.k,
        call.v,
        cache_seqlens=call.seqused_k,
        block_table=call.block_table,
        return_softmax_lse=True,
        **shared,
    )
    return Prepared(launch=launch, result=from_batch)


def cumulative_keys(call: AttentionCall) -> Tensor:
    """(batch + 1,) int32 cumulative numbers of keys, starting at 0; for a paged call computed from ``seqused_k``."""
    if call.cu_seqlens_k is not None:
        return call.cu_seqlens_k
    assert call.seqused_k is not None, "a paged call has seqused_k"
    return torch.nn.functional.pad(call.seqused_k.cumsum(0), (1, 0)).int()
