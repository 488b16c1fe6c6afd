"""FlashAttention-3 and FlashAttention-2 as vLLM ships them; FlashAttention-3 also from upstream.

Packed and paged calls go to ``flash_attn_varlen_func`` as they are: nothing is converted. Upstream serves
pages through ``flash_attn_with_kvcache``. Descale factors of fp8 are passed as the call has them, (batch, KV heads).
The binary wants attention sinks in bf16, so they are cast
outside the timed region, and refused where the cast would change them.
"""

from __future__ import annotations

import inspect
from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import refusals, refuse
from qualify.run.adapters.source import constants
from qualify.run.adapters.vllm_import import import_vllm

VERSIONS = (2, 3)

VLLM_SOURCE = """\
from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func


def attend(call):
    returned = flash_attn_varlen_func(
        call.q,
        call.k,
        call.v,
        max_seqlen_q=call.max_seqlen_q,
        cu_seqlens_q=call.cu_seqlens_q,
        max_seqlen_k=call.max_seqlen_k,
        cu_seqlens_k=call.cu_seqlens_k,
        seqused_k=call.seqused_k,
        block_table=call.block_table,
        softmax_scale=call.scale,
        causal=call.causal,
        window_size=list(call.window),
        softcap=call.softcap,
        return_softmax_lse=True,
        fa_version=FA_VERSION,
        s_aux=None if call.sinks is None else call.sinks.to(torch.bfloat16),
        q_descale=call.q_descale,
        k_descale=call.k_descale,
        v_descale=call.v_descale,
    )
    return returned[0], returned[1]
"""
"""``VllmFlashAttn.prepare`` and its launch, for a script."""
UPSTREAM_SOURCE = """\
from flash_attn_interface import flash_attn_varlen_func, flash_attn_with_kvcache


def attend(call):
    shared = dict(
        cu_seqlens_q=call.cu_seqlens_q,
        max_seqlen_q=call.max_seqlen_q,
        softmax_scale=call.scale,
        causal=call.causal,
        window_size=tuple(call.window),
        softcap=call.softcap,
        q_descale=call.q_descale,
        k_descale=call.k_descale,
        v_descale=call.v_descale,
    )
    if call.block_table is None:
        lengths = dict(cu_seqlens_k=call.cu_seqlens_k, max_seqlen_k=call.max_seqlen_k)
        returned = flash_attn_varlen_func(call.q, call.k, call.v, **shared, **lengths, **WITH_LSE)
    else:
        pages = dict(cache_seqlens=call.seqused_k, page_table=call.block_table, return_softmax_lse=True)
        returned = flash_attn_with_kvcache(call.q, call.k, call.v, **shared, **pages)
    return returned[0], returned[1]
"""
"""``UpstreamFlashAttn3.prepare`` and its launch, for a script."""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card.

    Args:
        options: ``fa_version``: 3 (default) or 2.

    Raises:
        ImportError: no build of that version can be imported; names the cause.
        ValueError: unknown option or version.
    """
    version = options.get("fa_version", 3)
    if options.keys() - {"fa_version"} or version not in VERSIONS:
        raise ValueError(f"vllm_flash_attn: options {options}; fa_version is one of {VERSIONS}")
    try:
        vllm_build = import_vllm("vllm.vllm_flash_attn.flash_attn_interface")
    except ImportError as error:
        if version == 2:
            raise
        return _upstream(error)
    if not getattr(vllm_build, f"FA{version}_AVAILABLE"):
        raise ImportError(f"vLLM's FlashAttention-{version}: {getattr(vllm_build, f'FA{version}_UNAVAILABLE_REASON')}")
    return VllmFlashAttn(library=vllm_build, version=version)


def _upstream(absent: ImportError) -> Adapter:
    try:
        library = import_module("flash_attn_interface")
    except ImportError as error:
        raise ImportError(f"neither vLLM's build ({absent}) nor flash_attn_interface ({error})") from error
    return UpstreamFlashAttn3(library=library)


class VllmFlashAttn:
    """``vllm.vllm_flash_attn``: one function for packed and paged."""

    def __init__(self, *, library: Any, version: int) -> None:
        self._library = library
        self._version = version
        self._name = f"vLLM FlashAttention-{version}"

    def prepare(self, call: AttentionCall) -> Prepared:
        """Bind the arguments and make one call to hear whether the library takes it.

        Raises:
            LibraryRefusal: a parameter that the build has no word for, or what its own checks say.
        """
        hopper = self._version == 3
        refuse(call, self._name, paged=True, window=True, softcap=True, sinks=hopper, head_dim_v=hopper, fp8=hopper)
        sinks = None if call.sinks is None else exact_bf16(call.sinks, self._name)
        launch = partial(
            self._library.flash_attn_varlen_func,
            call.q,
            call.k,
            call.v,
            max_seqlen_q=call.max_seqlen_q,
            cu_seqlens_q=call.cu_seqlens_q,
            max_seqlen_k=call.max_seqlen_k,
            cu_seqlens_k=call.cu_seqlens_k,
            seqused_k=call.seqused_k,
            block_table=call.block_table,
            softmax_scale=call.scale,
            causal=call.causal,
            window_size=list(call.window),
            softcap=call.softcap,
            return_softmax_lse=True,
            fa_version=self._version,
            s_aux=sinks,
            q_descale=call.q_descale,
            k_descale=call.k_descale,
            v_descale=call.v_descale,
        )
        with refusals(self._name):
            launch()
        return Prepared(launch=launch, result=itemgetter(0, 1))

    def source(self) -> str:
        """The call, in the version of the card."""
        return constants(FA_VERSION=self._version) + VLLM_SOURCE


class UpstreamFlashAttn3:
    """``flash_attn_interface`` of the ``flash-attn-3`` distribution."""

    _name = "flash-attn 3"

    def __init__(self, *, library: Any) -> None:
        self._library = library
        parameters = inspect.signature(library.flash_attn_varlen_func).parameters
        # Early builds return the LSE always and have no such keyword.
        self._with_lse = {"return_attn_probs": True} if "return_attn_probs" in parameters else {}

    def prepare(self, call: AttentionCall) -> Prepared:
        """Bind the arguments and make one call to hear whether the library takes it.

        Raises:
            LibraryRefusal: a parameter that the build has no word for, or what its own checks say.
        """
        refuse(call, self._name, paged=True, window=True, softcap=True, head_dim_v=True, fp8=True)
        shared = {
            "cu_seqlens_q": call.cu_seqlens_q,
            "max_seqlen_q": call.max_seqlen_q,
            "softmax_scale": call.scale,
            "causal": call.causal,
            "window_size": call.window,
            "softcap": call.softcap,
            "q_descale": call.q_descale,
            "k_descale": call.k_descale,
            "v_descale": call.v_descale,
        }
        if call.block_table is None:
            lengths = {"cu_seqlens_k": call.cu_seqlens_k, "max_seqlen_k": call.max_seqlen_k}
            function, own = self._library.flash_attn_varlen_func, {**lengths, **self._with_lse}
        else:
            pages = {"cache_seqlens": call.seqused_k, "page_table": call.block_table}
            function, own = self._library.flash_attn_with_kvcache, {**pages, "return_softmax_lse": True}
        launch = partial(function, call.q, call.k, call.v, **shared, **own)
        with refusals(self._name):
            launch()
        return Prepared(launch=launch, result=itemgetter(0, 1))

    def source(self) -> str:
        """The call of the function that serves the layout."""
        return constants(WITH_LSE=self._with_lse) + UPSTREAM_SOURCE


def exact_bf16(sinks: Tensor, library: str) -> Tensor:
    """The sinks in bf16.

    Raises:
        LibraryRefusal: a sink is not representable; the message names the first.
    """
    cast = sinks.to(torch.bfloat16)
    changed = (cast.float() != sinks).nonzero().flatten().tolist()
    if changed:
        first = changed[0]
        raise LibraryRefusal(f"{library} takes sinks in bf16 only: sink {first} is {sinks[first].item()!r}")
    return cast
