"""FlashInfer's batch wrappers, planned outside the timed region.

Packed calls go through the ragged prefill wrapper, whatever their phase. Paged ones go through the decode
wrapper where each sequence has one query (FlashInfer has no decode kernel for fa3), else through the paged
prefill wrapper; their block table becomes a list of pages. Kernels are compiled at the first plan of a
specialisation, which takes from ten seconds to more than a minute. LSE comes in base 2 and is converted.

fp8 has kernels of its own in fa3. They take a descale factor for each head, of q for each query head, and none for
each sequence; they have no softcap (it would be ignored) and mask no left side of a window in all tiles.

Beside an fp8 cache with 16-bit queries, in fa2, there is one number for all keys, which goes into the softmax scale,
and one for all values, by which the rounded output is multiplied. The ragged wrapper would ignore both.
"""

from __future__ import annotations

import math
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import PageList, left_window, page_list, refusals, refuse, tensor_scale
from qualify.run.adapters.source import constants, source_of

WORKSPACE_BYTES = 1 << 30
"""scratch of all wrappers: Falcon 7B's splits fill 614 MB of it (8 sequences, 5 queries of 71 heads, 8196 keys), and
the 128 MiB of FlashInfer's examples are an error there"""
HEAD_DIMS = {
    "fa2": ((64, 64), (128, 128), (256, 256)),
    "fa3": ((64, 64), (128, 128), (192, 128), (256, 256)),
}
"""(head_dim, head_dim_v) that FlashInfer builds ahead of time: others may not compile"""
DECODE_GROUPS = (1, 2, 3, 4, 8)
"""query heads on a KV head for which decode is written without tensor cores; others need the kernel with them"""

ATTEND = """\
def attend(call):
    causal = call.causal or call.window[1] == 0
    heads = dict(num_qo_heads=call.q.shape[1], num_kv_heads=call.k.shape[-2])
    shared = dict(
        window_left=call.window[0],
        logits_soft_cap=call.softcap,
        sm_scale=call.scale,
        q_data_type=call.q.dtype,
        kv_data_type=call.k.dtype,
        o_data_type=call.out_dtype,
    )
    scales, factors = (), {}
    if call.q_descale is None and call.k_descale is not None:  # one for all keys, one for all values
        factors = dict(k_scale=float(call.k_descale[0, 0]), v_scale=float(call.v_descale[0, 0]))
    elif call.q_descale is not None:  # one for each head; the same for every sequence
        group = call.q.shape[1] // call.k.shape[-2]
        scales = (call.q_descale[0].repeat_interleave(group), call.k_descale[0], call.v_descale[0])
    if WORKSPACE.get("scratch") is None:
        WORKSPACE["scratch"] = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=call.q.device)
    scratch = WORKSPACE["scratch"]
    if call.block_table is None:
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(scratch, "NHD", backend=BACKEND)
        dims = dict(head_dim_qk=call.q.shape[-1], head_dim_vo=call.v.shape[-1], causal=causal)
        wrapper.plan(call.cu_seqlens_q, call.cu_seqlens_k, **heads, **dims, **shared)
        out, lse = wrapper.run(call.q, call.k, call.v, *scales, return_lse=True)
    else:
        pages, heads["page_size"] = page_list(call), call.k.shape[1]
        lists = (pages.indptr, pages.indices, pages.last_page_len)
        if BACKEND == "fa2" and call.max_seqlen_q == 1 and call.q.shape[0] == len(call.cu_seqlens_q) - 1:
            tensor_cores = TENSOR_CORES or call.q.shape[1] // call.k.shape[-2] not in DECODE_GROUPS
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(scratch, "NHD", use_tensor_cores=tensor_cores)
            wrapper.plan(*lists, head_dim=call.q.shape[-1], **heads, **shared)
        else:
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(scratch, "NHD", backend=BACKEND)
            wrapper.plan(call.cu_seqlens_q, *lists, head_dim_qk=call.q.shape[-1], causal=causal, **heads, **shared)
        out, lse = wrapper.run(call.q, (call.k, call.v), *scales, **factors, return_lse=True)
    return out, (lse * math.log(2)).transpose(0, 1).contiguous()
"""
"""``FlashInfer.prepare`` and its launch, for a script."""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card.

    Args:
        options: ``backend``: fa2 (default) or fa3. ``use_tensor_cores``: false (default: only where
            there is no other decode kernel for the group) or true, for paged decode with fa2.

    Raises:
        ImportError: flashinfer is not installed.
        ValueError: unknown option or backend.
    """
    backend = options.get("backend", "fa2")
    if options.keys() - {"backend", "use_tensor_cores"} or backend not in HEAD_DIMS:
        raise ValueError(f"flashinfer: options {options}; backend is one of {list(HEAD_DIMS)}")
    return FlashInfer(
        library=import_module("flashinfer"), backend=backend, use_tensor_cores=options.get("use_tensor_cores", False)
    )


class FlashInfer:
    """Three wrappers over one scratch buffer."""

    def __init__(self, *, library: Any, backend: str, use_tensor_cores: bool) -> None:
        self._library = library
        self._backend = backend
        self._use_tensor_cores = use_tensor_cores
        self._name = f"FlashInfer {backend}"
        self._scratch = Scratch()

    def prepare(self, call: AttentionCall) -> Prepared:
        """Plan the call and run it once.

        Raises:
            LibraryRefusal: a parameter that the library has no word for, or what its own checks say.
        """
        paged = call.block_table is not None
        fp8 = call.q.dtype.itemsize == 1
        fp8_cache = not fp8 and call.k.dtype.itemsize == 1
        refuse(
            call,
            self._name,
            paged=True,
            window=not fp8,
            softcap=not fp8,
            head_dim_v=not paged and not fp8,
            fp8=self._backend == "fa3",
            fp8_cache=self._backend == "fa2" and paged,
        )
        scales = head_scales(call, self._name) if fp8 else ()
        factors = {}
        if fp8_cache:
            factors = {f"{which}_scale": tensor_scale(call, f"{which}_descale", self._name) for which in "kv"}
        dims = (call.q.shape[-1], call.v.shape[-1])
        if dims not in HEAD_DIMS[self._backend]:
            raise LibraryRefusal(f"{self._name}: (head_dim, head_dim_v)={dims} not in {HEAD_DIMS[self._backend]}")
        left_window(call, self._name)
        with refusals(self._name):
            launch = self._paged(call, scales, factors) if paged else self._ragged(call, scales)
            launch()
        return Prepared(launch=launch, result=_natural_lse)

    def source(self) -> str:
        """The list of pages, and ``attend(call)`` on the wrapper that serves the layout."""
        imports = "from dataclasses import dataclass\n\nimport flashinfer\n\n"
        chosen = constants(
            BACKEND=self._backend,
            TENSOR_CORES=self._use_tensor_cores,
            DECODE_GROUPS=DECODE_GROUPS,
            WORKSPACE_BYTES=WORKSPACE_BYTES,
            WORKSPACE={},
        )
        return f"{imports}{chosen}\n\n{source_of(PageList, page_list)}\n\n{ATTEND}"

    def _ragged(self, call: AttentionCall, scales: tuple[Tensor, ...]) -> partial[Any]:
        wrapper = self._library.BatchPrefillWithRaggedKVCacheWrapper(
            self._scratch.on(call.q.device), "NHD", backend=self._backend
        )
        causal, _ = left_window(call, self._name)
        wrapper.plan(
            call.cu_seqlens_q,
            call.cu_seqlens_k,
            num_qo_heads=call.q.shape[1],
            num_kv_heads=call.k.shape[1],
            head_dim_qk=call.q.shape[-1],
            head_dim_vo=call.v.shape[-1],
            causal=causal,
            **self._parameters(call),
        )
        return partial(wrapper.run, call.q, call.k, call.v, *scales, return_lse=True)

    def _paged(self, call: AttentionCall, scales: tuple[Tensor, ...], factors: dict[str, float]) -> partial[Any]:
        pages = page_list(call)
        one_query = call.max_seqlen_q == 1 and call.q.shape[0] == len(call.cu_seqlens_q) - 1
        _, page_size, heads_kv, _ = call.k.shape
        heads = {"num_qo_heads": call.q.shape[1], "num_kv_heads": heads_kv, "page_size": page_size}
        wrapper: Any
        if one_query and self._backend == "fa2":
            tensor_cores = self._use_tensor_cores or call.q.shape[1] // heads_kv not in DECODE_GROUPS
            wrapper = self._library.BatchDecodeWithPagedKVCacheWrapper(
                self._scratch.on(call.q.device), "NHD", use_tensor_cores=tensor_cores
            )
            wrapper.plan(
                pages.indptr,
                pages.indices,
                pages.last_page_len,
                head_dim=call.q.shape[-1],
                **heads,
                **self._parameters(call),
            )
        else:
            wrapper = self._library.BatchPrefillWithPagedKVCacheWrapper(
                self._scratch.on(call.q.device), "NHD", backend=self._backend
            )
            causal, _ = left_window(call, self._name)
            wrapper.plan(
                call.cu_seqlens_q,
                pages.indptr,
                pages.indices,
                pages.last_page_len,
                head_dim_qk=call.q.shape[-1],
                causal=causal,
                **heads,
                **self._parameters(call),
            )
        return partial(wrapper.run, call.q, (call.k, call.v), *scales, **factors, return_lse=True)

    def _parameters(self, call: AttentionCall) -> dict[str, Any]:
        """The keywords that the three ``plan`` methods share."""
        _, left = left_window(call, self._name)
        return {
            "window_left": left,
            "logits_soft_cap": call.softcap,
            "sm_scale": call.scale,
            "q_data_type": call.q.dtype,
            "kv_data_type": call.k.dtype,
            "o_data_type": call.out_dtype,
        }


class Scratch:
    """One buffer for all calls of an adapter; FlashInfer wants it zeroed once."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None

    def on(self, device: torch.device) -> Tensor:
        """(WORKSPACE_BYTES,) uint8; the first call says where."""
        if self._buffer is None:
            self._buffer = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self._buffer


def head_scales(call: AttentionCall, library: str) -> tuple[Tensor, Tensor, Tensor]:
    """(q, k, v) descale factors for a library that has one for each head and none for each sequence.

    Returns:
        q's (heads_q,), k's and v's (heads_kv,), float32; factors that the call leaves out are 1.

    Raises:
        LibraryRefusal: the factors of a head differ from one sequence to another.
    """
    heads_q, heads_kv = call.q.shape[1], call.k.shape[-2]
    found = []
    for name in ("q_descale", "k_descale", "v_descale"):
        factors: Tensor | None = getattr(call, name)
        if factors is None:
            factors = torch.ones(1, heads_kv, device=call.q.device)
        differs = (factors != factors[:1]).any(0).nonzero().flatten().tolist()
        if differs:
            raise LibraryRefusal(f"{library}: one {name} for each head, and head {differs[0]} has one per sequence")
        found.append(factors[0].contiguous())
    return found[0].repeat_interleave(heads_q // heads_kv), found[1], found[2]


def _natural_lse(native: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """``lse`` from (total_q, heads_q) in base 2 to (heads_q, total_q) in base e."""
    out, lse = native
    return out, (lse * math.log(2)).transpose(0, 1).contiguous()
