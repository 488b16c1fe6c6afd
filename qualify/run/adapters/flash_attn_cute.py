"""FlashAttention-4 (CuTe DSL) from the ``flash-attn-4`` distribution.

Packed and paged calls go to ``flash_attn_varlen_func`` as they are. It compiles one kernel for each
specialisation, seconds each: that happens in ``prepare``.
"""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any

from qualify.masks import UNBOUNDED
from qualify.run.adapters.interface import Adapter, AttentionCall, Prepared
from qualify.run.adapters.packing import refusals, refuse

LIBRARY = "flash-attn 4"

SOURCE = """\
import os

os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
from flash_attn.cute import flash_attn_varlen_func


def attend(call):
    left, right = (None if side == -1 else side for side in call.window)
    returned = flash_attn_varlen_func(
        call.q,
        call.k,
        call.v,
        cu_seqlens_q=call.cu_seqlens_q,
        cu_seqlens_k=call.cu_seqlens_k,
        max_seqlen_q=call.max_seqlen_q,
        max_seqlen_k=call.max_seqlen_k,
        seqused_k=call.seqused_k,
        page_table=call.block_table,
        softmax_scale=call.scale,
        causal=call.causal,
        window_size=(left, right),
        learnable_sink=call.sinks,
        softcap=call.softcap,
        return_lse=True,
    )
    return returned[0], returned[1]
"""
"""``FlashAttn4.prepare`` and its launch, for a script."""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card; there are no options.

    Raises:
        ImportError: flash_attn.cute or the CuTe DSL is not installed.
        ValueError: unknown option.
    """
    if options:
        raise ValueError(f"flash_attn_cute: unknown options {options}")
    # The library's own cache on disk: a specialisation is compiled once per machine and not once per process.
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    return FlashAttn4(function=import_module("flash_attn.cute").flash_attn_varlen_func)


class FlashAttn4:
    """``flash_attn.cute.flash_attn_varlen_func``."""

    def __init__(self, *, function: Any) -> None:
        self._function = function

    def prepare(self, call: AttentionCall) -> Prepared:
        """Bind the arguments and make one call, which compiles the kernel.

        Raises:
            LibraryRefusal: a parameter that the library has no word for, or what its own checks say.
        """
        refuse(call, LIBRARY, paged=True, window=True, softcap=True, sinks=True, head_dim_v=True)
        left, right = (None if side == UNBOUNDED else side for side in call.window)
        launch = partial(
            self._function,
            call.q,
            call.k,
            call.v,
            cu_seqlens_q=call.cu_seqlens_q,
            cu_seqlens_k=call.cu_seqlens_k,
            max_seqlen_q=call.max_seqlen_q,
            max_seqlen_k=call.max_seqlen_k,
            seqused_k=call.seqused_k,
            page_table=call.block_table,
            softmax_scale=call.scale,
            causal=call.causal,
            window_size=(left, right),
            learnable_sink=call.sinks,
            softcap=call.softcap,
            return_lse=True,
        )
        with refusals(LIBRARY):
            launch()
        return Prepared(launch=launch, result=itemgetter(0, 1))

    def source(self) -> str:
        """The one call that serves both layouts."""
        return SOURCE
