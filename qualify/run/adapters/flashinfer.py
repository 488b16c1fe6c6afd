"""FlashInfer's batch wrappers, planned outside the timed region.

Packed calls go through the ragged prefill wrapper, whatever their phase. Paged ones go through the decode
wrapper where each sequence has one query (FlashInfer has no decode kernel for fa3), else through the paged
prefill wrapper; their block table becomes a list of pages. Kernels are compiled at the first plan of a
specialisation, which takes from ten seconds to more than a minute. LSE comes in base 2 and is converted.

fp8 has kernels of its own in fa3. They take a descale factor for each head (for q: each query head), and none for each
sequence. They ignore a softcap, and do not mask the left side of a window in all tiles, so the adapter refuses both.

fa2 serves an fp8 cache with 16-bit queries. One number for all keys goes into the softmax scale, and one number for
all values multiplies the rounded output. The ragged wrapper would ignore both.
"""

from __future__ import annotations

import math
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from qualify.facts.adapters import settle
from qualify.facts.dtypes import HALVES, Dtype
from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import PLAIN, WINDOWED, left_window, page_list, refusals, refuse, tensor_scale

WORKSPACE_BYTES = 1 << 30
"""scratch of all wrappers: Falcon 7B's splits fill 614 MB of it (8 sequences, 5 queries of 71 heads, 8196 keys), and
the 128 MiB of FlashInfer's examples are an error there"""
HEAD_DIMS = {
    "fa2": ((64, 64), (128, 128), (256, 256)),
    "fa3": ((64, 64), (128, 128), (192, 128), (256, 256)),
}
"""(head_dim, head_dim_v) that FlashInfer builds ahead of time: others may not compile"""
BESIDE: frozenset[Dtype] = frozenset({"bf16_kv_fp8_e4m3", "fp16_kv_fp8_e4m3"})
"""what fa2 reads on pages besides 16 bits"""
DECODE_GROUPS = (1, 2, 3, 4, 8)
"""query heads on a KV head for which decode is written without tensor cores; others need the kernel with them"""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card.

    Raises:
        ImportError: flashinfer is not installed.
        ValueError: unknown option or backend.
    """
    settings = settle("flashinfer", options)
    return FlashInfer(library=import_module("flashinfer"), **settings)


class FlashInfer:
    """Three wrappers over one scratch buffer."""

    def __init__(self, *, library: Any, backend: str, use_tensor_cores: bool) -> None:
        self._backend = backend
        self._name = f"FlashInfer {backend}"
        self.bind = partial(
            bind, library=library, backend=backend, use_tensor_cores=use_tensor_cores, scratch=Scratch()
        )

    def prepare(self, call: AttentionCall) -> Prepared:
        """Plan the call and run it once.

        Raises:
            LibraryRefusal: a parameter that the library has no word for, or what its own checks say.
        """
        paged = call.block_table is not None
        fp8 = call.q.dtype.itemsize == 1
        refuse(
            call,
            self._name,
            paged=True,
            masks=PLAIN if fp8 else WINDOWED,
            softcap=not fp8,
            head_dim_v=not paged and not fp8,
            dtypes=HALVES | ({"fp8_e4m3"} if self._backend == "fa3" else BESIDE if paged else frozenset()),
        )
        dims = (call.q.shape[-1], call.v.shape[-1])
        if dims not in HEAD_DIMS[self._backend]:
            raise LibraryRefusal(f"{self._name}: (head_dim, head_dim_v)={dims} not in {HEAD_DIMS[self._backend]}")
        left_window(call, self._name)
        with refusals(self._name):
            prepared = self.bind(call)
            prepared.launch()
        return prepared


class Scratch:
    """One buffer for all calls of an adapter; FlashInfer wants it zeroed once."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None

    def __repr__(self) -> str:
        return "Scratch()"

    def on(self, device: torch.device) -> Tensor:
        """(WORKSPACE_BYTES,) uint8; the first call says where."""
        if self._buffer is None:
            self._buffer = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self._buffer


def bind(call: AttentionCall, *, library: Any, backend: str, use_tensor_cores: bool, scratch: Scratch) -> Prepared:
    """The wrapper that serves the layout, when it has planned the call.

    Args:
        library: ``flashinfer``.
        backend: fa2 or fa3.
        use_tensor_cores: paged decode takes the kernel with tensor cores for every head group.
        scratch: buffer of all wrappers.

    Raises:
        LibraryRefusal: descale factors or a window that FlashInfer has no word for.
    """
    name = f"FlashInfer {backend}"
    scales = head_scales(call, name) if call.q.dtype.itemsize == 1 else ()
    if call.block_table is None:
        wrapper = library.BatchPrefillWithRaggedKVCacheWrapper(scratch.on(call.q.device), "NHD", backend=backend)
        lengths = (call.cu_seqlens_q, call.cu_seqlens_k)
        wrapper.plan(*lengths, **_prefill_words(call, name), head_dim_vo=call.v.shape[-1], **_plan_words(call, name))
        launch = partial(wrapper.run, call.q, call.k, call.v, *scales, return_lse=True)
        return Prepared(launch=launch, result=natural_lse)
    factors = {}
    if call.q.dtype.itemsize > 1 and call.k.dtype.itemsize == 1:
        factors = {f"{which}_scale": tensor_scale(call, f"{which}_descale", name) for which in "kv"}
    pages = page_list(call)
    lists = (pages.indptr, pages.indices, pages.last_page_len)
    words = {"page_size": call.k.shape[1], **_plan_words(call, name)}
    one_query = call.max_seqlen_q == 1 and call.q.shape[0] == len(call.cu_seqlens_q) - 1
    if one_query and backend == "fa2":
        tensor_cores = use_tensor_cores or call.q.shape[1] // call.k.shape[2] not in DECODE_GROUPS
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
            scratch.on(call.q.device), "NHD", use_tensor_cores=tensor_cores
        )
        wrapper.plan(*lists, head_dim=call.q.shape[-1], **words)
    else:
        wrapper = library.BatchPrefillWithPagedKVCacheWrapper(scratch.on(call.q.device), "NHD", backend=backend)
        wrapper.plan(call.cu_seqlens_q, *lists, **_prefill_words(call, name), **words)
    launch = partial(wrapper.run, call.q, (call.k, call.v), *scales, **factors, return_lse=True)
    return Prepared(launch=launch, result=natural_lse)


def _plan_words(call: AttentionCall, library: str) -> dict[str, Any]:
    """The keywords that the three ``plan`` methods share."""
    _, left = left_window(call, library)
    return {
        "num_qo_heads": call.q.shape[1],
        "num_kv_heads": call.k.shape[-2],
        "window_left": left,
        "logits_soft_cap": call.softcap,
        "sm_scale": call.scale,
        "q_data_type": call.q.dtype,
        "kv_data_type": call.k.dtype,
        "o_data_type": call.out_dtype,
    }


def _prefill_words(call: AttentionCall, library: str) -> dict[str, Any]:
    """The keywords that only the ``plan`` methods of prefill have."""
    causal, _ = left_window(call, library)
    return {"head_dim_qk": call.q.shape[-1], "causal": causal}


def head_scales(call: AttentionCall, library: str) -> tuple[Tensor, Tensor, Tensor]:
    """(q, k, v) descale factors as FlashInfer takes them: one for each head and none for each sequence.

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


def natural_lse(native: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """``lse`` from (total_q, heads_q) in base 2 to (heads_q, total_q) in base e."""
    out, lse = native
    return out, (lse * math.log(2)).transpose(0, 1).contiguous()
