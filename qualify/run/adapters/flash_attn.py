"""FlashAttention-2 from the ``flash-attn`` distribution.

Packed calls go through ``flash_attn_varlen_func`` as they are. Paged ones go through
``flash_attn_with_kvcache``, which wants equally many queries in each sequence, as a dense view.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any

from qualify.facts.adapters import settle
from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import from_batch, refusals, refuse

LIBRARY = "flash-attn 2"
PAGE_MULTIPLE = 256


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card; there are no options.

    Raises:
        ImportError: flash_attn is not installed, or does not fit the installed torch.
        ValueError: unknown option.
    """
    settle("flash_attn", options)
    return FlashAttn2(library=import_module("flash_attn.flash_attn_interface"))


class FlashAttn2:
    """The two public functions of the library."""

    def __init__(self, *, library: Any) -> None:
        self.bind = partial(bind, library=library)

    def prepare(self, call: AttentionCall) -> Prepared:
        """Bind the arguments and make one call to hear whether the library takes it.

        Raises:
            LibraryRefusal: a parameter that the library has no word for, or what its own checks say.
        """
        refuse(call, LIBRARY, paged=True, window=True, softcap=True)
        if call.block_table is not None:
            _refuse_pages(call)
        prepared = self.bind(call)
        with refusals(LIBRARY):
            prepared.launch()
        return prepared


def _refuse_pages(call: AttentionCall) -> None:
    """Refuse what the paged function cannot honour."""
    page_size = call.k.shape[1]
    if page_size % PAGE_MULTIPLE:
        raise LibraryRefusal(f"{LIBRARY}: page_size={page_size} is not a multiple of {PAGE_MULTIPLE}")
    lengths = call.cu_seqlens_q.diff().tolist()
    if len(set(lengths)) != 1:
        raise LibraryRefusal(f"{LIBRARY}: a paged call needs equally many queries everywhere, not {lengths}")


def bind(call: AttentionCall, *, library: Any) -> Prepared:
    """The function that serves the layout, with its arguments.

    Args:
        library: ``flash_attn.flash_attn_interface``.
    """
    shared = {
        "softmax_scale": call.scale,
        "causal": call.causal,
        "window_size": call.window,
        "softcap": call.softcap,
    }
    if call.block_table is None:
        launch = partial(
            library.flash_attn_varlen_func,
            call.q,
            call.k,
            call.v,
            cu_seqlens_q=call.cu_seqlens_q,
            cu_seqlens_k=call.cu_seqlens_k,
            max_seqlen_q=call.max_seqlen_q,
            max_seqlen_k=call.max_seqlen_k,
            return_attn_probs=True,  # adds the LSE; the probabilities exist only under dropout
            **shared,
        )
        return Prepared(launch=launch, result=itemgetter(0, 1))
    batch = len(call.cu_seqlens_q) - 1
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
