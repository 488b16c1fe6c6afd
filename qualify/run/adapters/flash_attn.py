"""FlashAttention-2 from the ``flash-attn`` distribution.

Packed calls go through ``flash_attn_varlen_func`` as they are. Paged ones go through
``flash_attn_with_kvcache``, which wants equally many queries in each sequence, as a dense view.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any

from torch import Tensor

from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import refusals, refuse

LIBRARY = "flash-attn 2"
PAGE_MULTIPLE = 256

SOURCE = """\
from flash_attn.flash_attn_interface import flash_attn_varlen_func, flash_attn_with_kvcache


def attend(call):
    shared = dict(softmax_scale=call.scale, causal=call.causal, window_size=tuple(call.window), softcap=call.softcap)
    if call.block_table is None:
        returned = flash_attn_varlen_func(
            call.q,
            call.k,
            call.v,
            cu_seqlens_q=call.cu_seqlens_q,
            cu_seqlens_k=call.cu_seqlens_k,
            max_seqlen_q=call.max_seqlen_q,
            max_seqlen_k=call.max_seqlen_k,
            return_attn_probs=True,
            **shared,
        )
        return returned[0], returned[1]
    lengths = call.cu_seqlens_q.diff().tolist()
    out, lse = flash_attn_with_kvcache(
        call.q.view(len(lengths), lengths[0], *call.q.shape[1:]),
        call.k,
        call.v,
        cache_seqlens=call.seqused_k,
        block_table=call.block_table,
        return_softmax_lse=True,
        **shared,
    )
    return out.flatten(0, 1), lse.transpose(0, 1).flatten(1)
"""
"""``FlashAttn2.prepare`` and its launch, for a script."""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card; there are no options.

    Raises:
        ImportError: flash_attn is not installed, or does not fit the installed torch.
        ValueError: unknown option.
    """
    if options:
        raise ValueError(f"flash_attn: unknown options {options}")
    return FlashAttn2(library=import_module("flash_attn.flash_attn_interface"))


class FlashAttn2:
    """The two public functions of the library."""

    def __init__(self, *, library: Any) -> None:
        self._library = library

    def prepare(self, call: AttentionCall) -> Prepared:
        """Bind the arguments and make one call to hear whether the library takes it.

        Raises:
            LibraryRefusal: a parameter that the library has no word for, or what its own checks say.
        """
        refuse(call, LIBRARY, paged=True, window=True, softcap=True)
        prepared = self._packed(call) if call.block_table is None else self._paged(call)
        with refusals(LIBRARY):
            prepared.launch()
        return prepared

    def source(self) -> str:
        """The call of the function that serves the layout."""
        return SOURCE

    def _packed(self, call: AttentionCall) -> Prepared:
        launch = partial(
            self._library.flash_attn_varlen_func,
            call.q,
            call.k,
            call.v,
            cu_seqlens_q=call.cu_seqlens_q,
            cu_seqlens_k=call.cu_seqlens_k,
            max_seqlen_q=call.max_seqlen_q,
            max_seqlen_k=call.max_seqlen_k,
            softmax_scale=call.scale,
            causal=call.causal,
            window_size=call.window,
            softcap=call.softcap,
            return_attn_probs=True,  # adds the LSE; the probabilities exist only under dropout
        )
        return Prepared(launch=launch, result=itemgetter(0, 1))

    def _paged(self, call: AttentionCall) -> Prepared:
        page_size = call.k.shape[1]
        if page_size % PAGE_MULTIPLE:
            raise LibraryRefusal(f"{LIBRARY}: page_size={page_size} is not a multiple of {PAGE_MULTIPLE}")
        lengths = call.cu_seqlens_q.diff().tolist()
        if len(set(lengths)) != 1:
            raise LibraryRefusal(f"{LIBRARY}: a paged call needs equally many queries everywhere, not {lengths}")
        launch = partial(
            self._library.flash_attn_with_kvcache,
            call.q.view(len(lengths), lengths[0], *call.q.shape[1:]),
            call.k,
            call.v,
            cache_seqlens=call.seqused_k,
            block_table=call.block_table,
            softmax_scale=call.scale,
            causal=call.causal,
            window_size=call.window,
            softcap=call.softcap,
            return_softmax_lse=True,
        )
        return Prepared(launch=launch, result=_from_batch)


def _from_batch(native: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Packed results from (batch, seqlen, heads, dim) and (batch, heads, seqlen)."""
    out, lse = native
    return out.flatten(0, 1), lse.transpose(0, 1).flatten(1)
