"""FlashAttention-2 from the ``flash-attn`` distribution.

Packed calls go through ``flash_attn_varlen_func`` as they are. Paged ones with equally many queries in each sequence
go through ``flash_attn_with_kvcache``, as a dense view. With different numbers, as a step of chunked prefill has them,
they go through ``flash_attn_varlen_func`` and its block table; it reads the numbers of keys from ``cu_seqlens_k``.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import refusals, refuse
from qualify.run.adapters.source import source_of

LIBRARY = "flash-attn 2"
PAGE_MULTIPLE = 256

SOURCE = """\
from flash_attn.flash_attn_interface import flash_attn_varlen_func, flash_attn_with_kvcache


def attend(call):
    shared = dict(softmax_scale=call.scale, causal=call.causal, window_size=tuple(call.window), softcap=call.softcap)
    lengths = call.cu_seqlens_q.diff().tolist()
    if call.block_table is None or len(set(lengths)) > 1:
        returned = flash_attn_varlen_func(
            call.q,
            call.k,
            call.v,
            cu_seqlens_q=call.cu_seqlens_q,
            cu_seqlens_k=cumulative_keys(call),
            max_seqlen_q=call.max_seqlen_q,
            max_seqlen_k=call.max_seqlen_k,
            return_attn_probs=True,
            block_table=call.block_table,
            **shared,
        )
        return returned[0], returned[1]
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
        if call.block_table is not None and call.k.shape[1] % PAGE_MULTIPLE:
            raise LibraryRefusal(f"{LIBRARY}: page_size={call.k.shape[1]} is not a multiple of {PAGE_MULTIPLE}")
        lengths = call.cu_seqlens_q.diff().tolist()
        dense = call.block_table is not None and len(set(lengths)) == 1
        prepared = self._with_cache(call, lengths) if dense else self._varlen(call)
        with refusals(LIBRARY):
            prepared.launch()
        return prepared

    def source(self) -> str:
        """The call of the function that serves the layout."""
        return f"{source_of(cumulative_keys)}\n\n{SOURCE}"

    def _varlen(self, call: AttentionCall) -> Prepared:
        launch = partial(
            self._library.flash_attn_varlen_func,
            call.q,
            call.k,
            call.v,
            cu_seqlens_q=call.cu_seqlens_q,
            cu_seqlens_k=cumulative_keys(call),
            max_seqlen_q=call.max_seqlen_q,
            max_seqlen_k=call.max_seqlen_k,
            softmax_scale=call.scale,
            causal=call.causal,
            window_size=call.window,
            softcap=call.softcap,
            return_attn_probs=True,  # adds the LSE; the probabilities exist only under dropout
            block_table=call.block_table,
        )
        return Prepared(launch=launch, result=itemgetter(0, 1))

    def _with_cache(self, call: AttentionCall, lengths: list[int]) -> Prepared:
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


def cumulative_keys(call: AttentionCall) -> Tensor:
    """(batch + 1,) int32 first key of each sequence; of a paged call as if its sequences stood one after another."""
    if call.cu_seqlens_k is not None:
        return call.cu_seqlens_k
    assert call.seqused_k is not None, "a paged call has seqused_k"
    return torch.nn.functional.pad(call.seqused_k.cumsum(0), (1, 0)).int()


def _from_batch(native: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Packed results from (batch, seqlen, heads, dim) and (batch, heads, seqlen)."""
    out, lse = native
    return out.flatten(0, 1), lse.transpose(0, 1).flatten(1)
