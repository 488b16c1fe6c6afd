"""FlashAttention-3 and FlashAttention-2 as vLLM ships them; FlashAttention-3 also from upstream.

Packed and paged calls go to ``flash_attn_varlen_func`` without conversion of q, k and v. With the upstream library,
paged calls go to ``flash_attn_with_kvcache``. The adapter passes the descale factors of fp8 unchanged, as
(batch, heads_kv).

vLLM's FlashAttention-3 takes attention sinks in bf16. The adapter casts them outside the timed region, and refuses
sinks that the cast would change. The other builds do not support sinks.
"""

from __future__ import annotations

import inspect
from functools import partial
from importlib import import_module
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from qualify.facts.adapters import settle
from qualify.facts.dtypes import HALVES, Dtype
from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import WINDOWED, refuse, tried
from qualify.run.adapters.vllm_import import import_vllm


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card. For FlashAttention-3 it uses the upstream library if vLLM's build cannot be imported.

    Raises:
        ImportError: no build of that version can be imported; the message names the cause.
        ValueError: unknown option or version.
    """
    version = settle("vllm_flash_attn", options)["fa_version"]
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
    """Calls ``flash_attn_varlen_func`` of vLLM for both layouts."""

    def __init__(self, *, library: Any, version: int) -> None:
        self._version = version
        self._name = f"vLLM FlashAttention-{version}"
        self.bind = partial(bind, library=library, version=version)

    def prepare(self, call: AttentionCall) -> Prepared:
        """Bind the arguments and make one call, to find out whether the library accepts it.

        Raises:
            LibraryRefusal: the build does not support a parameter, or its own checks reject the call.
        """
        hopper = self._version == 3
        dtypes: frozenset[Dtype] = HALVES | {"fp8_e4m3"} if hopper else HALVES
        refuse(
            call, self._name, masks=WINDOWED, paged=True, softcap=True, sinks=hopper, head_dim_v=hopper, dtypes=dtypes
        )
        return tried(self.bind(call), self._name)


def bind(call: AttentionCall, *, library: Any, version: int) -> Prepared:
    """Bind the one function that serves both layouts to the arguments of the call.

    Args:
        library: ``vllm.vllm_flash_attn.flash_attn_interface``.
        version: 3 or 2.

    Raises:
        LibraryRefusal: bf16 cannot represent a sink exactly.
    """
    sinks = None if call.sinks is None else exact_bf16(call.sinks, f"vLLM FlashAttention-{version}")
    launch = partial(
        library.flash_attn_varlen_func,
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
        fa_version=version,
        s_aux=sinks,
        q_descale=call.q_descale,
        k_descale=call.k_descale,
        v_descale=call.v_descale,
    )
    return Prepared(launch=launch, result=itemgetter(0, 1))


class UpstreamFlashAttn3:
    """Calls ``flash_attn_interface`` of the ``flash-attn-3`` distribution."""

    _name = "flash-attn 3"

    def __init__(self, *, library: Any) -> None:
        parameters = inspect.signature(library.flash_attn_varlen_func).parameters
        # Early builds do not have this keyword and always return the LSE.
        with_lse = {"return_attn_probs": True} if "return_attn_probs" in parameters else {}
        self.bind = partial(bind_upstream, library=library, with_lse=with_lse)

    def prepare(self, call: AttentionCall) -> Prepared:
        """Bind the arguments and make one call, to find out whether the library accepts it.

        Raises:
            LibraryRefusal: the build does not support a parameter, or its own checks reject the call.
        """
        refuse(
            call, self._name, masks=WINDOWED, paged=True, softcap=True, head_dim_v=True, dtypes=HALVES | {"fp8_e4m3"}
        )
        return tried(self.bind(call), self._name)


def bind_upstream(call: AttentionCall, *, library: Any, with_lse: dict[str, bool]) -> Prepared:
    """Bind the function that serves the layout to the arguments of the call.

    Args:
        library: ``flash_attn_interface``.
        with_lse: keyword arguments that make the packed function return the LSE; empty for early builds.
    """
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
    own: dict[str, Any]
    if call.block_table is None:
        function = library.flash_attn_varlen_func
        own = {"cu_seqlens_k": call.cu_seqlens_k, "max_seqlen_k": call.max_seqlen_k, **with_lse}
    else:
        function = library.flash_attn_with_kvcache
        own = {"cache_seqlens": call.seqused_k, "page_table": call.block_table, "return_softmax_lse": True}
    return Prepared(launch=partial(function, call.q, call.k, call.v, **shared, **own), result=itemgetter(0, 1))


def exact_bf16(sinks: Tensor, library: str) -> Tensor:
    """The sinks cast to bf16, with the same values.

    Args:
        sinks: (heads_q,) float32.
        library: name of the library, for the message.

    Raises:
        LibraryRefusal: bf16 cannot represent a sink exactly; the message names the first such sink.
    """
    cast = sinks.to(torch.bfloat16)
    changed = (cast.float() != sinks).nonzero().flatten().tolist()
    if changed:
        first = changed[0]
        raise LibraryRefusal(f"{library} takes sinks in bf16 only: sink {first} is {sinks[first].item()!r}")
    return cast
