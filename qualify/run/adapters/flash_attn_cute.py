"""FlashAttention-4 (CuTe DSL) from the ``flash-attn-4`` distribution.

Packed and paged calls go to ``flash_attn_varlen_func`` without conversion. The library compiles a kernel for each
specialisation, which takes seconds. The adapter makes it compile in ``prepare``, outside the timed region.
"""

from __future__ import annotations

import os
from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any

from qualify.facts.adapters import settle
from qualify.masks import UNBOUNDED
from qualify.run.adapters.interface import Adapter, AttentionCall, Prepared
from qualify.run.adapters.packing import WINDOWED, refuse, tried

LIBRARY = "flash-attn 4"


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card; there are no options.

    Raises:
        ImportError: flash_attn.cute or the CuTe DSL is not installed.
        ValueError: unknown option.
    """
    settle("flash_attn_cute", options)
    # Turn on the library's cache on disk, so that it compiles a specialisation once per machine, not once per process.
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    return FlashAttn4(library=import_module("flash_attn.cute"))


class FlashAttn4:
    """Calls ``flash_attn.cute.flash_attn_varlen_func``."""

    def __init__(self, *, library: Any) -> None:
        self.bind = partial(bind, library=library)

    def prepare(self, call: AttentionCall) -> Prepared:
        """Bind the arguments and make one call, which compiles the kernel.

        Raises:
            LibraryRefusal: the library does not support a parameter, or its own checks reject the call.
        """
        refuse(call, LIBRARY, masks=WINDOWED, paged=True, softcap=True, sinks=True, head_dim_v=True)
        return tried(self.bind(call), LIBRARY)


def bind(call: AttentionCall, *, library: Any) -> Prepared:
    """Bind the one function that serves both layouts to the arguments of the call.

    Args:
        library: ``flash_attn.cute``.
    """
    left, right = (None if side == UNBOUNDED else side for side in call.window)
    launch = partial(
        library.flash_attn_varlen_func,
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
    return Prepared(launch=launch, result=itemgetter(0, 1))
