"""FlashInfer's batch wrappers, planned outside the timed region.

The adapter chooses the wrapper by the layout:

* A packed call, prefill or decode, goes to the ragged prefill wrapper.
* A paged call with one query in each sequence goes to the decode wrapper. FlashInfer has no decode kernel for fa3, so
  with fa3 the call goes to the paged prefill wrapper.
* Any other paged call goes to the paged prefill wrapper.

The adapter turns the block table of a paged call into a list of pages. FlashInfer compiles a kernel at the first plan
of a specialisation, which takes from ten seconds to more than a minute. It returns the LSE in base 2, and the adapter
converts it to base e.

fa3 has separate kernels for fp8. They take a descale factor for each head (for q: each query head), but not for each
sequence. They ignore a softcap, and do not mask the left side of a window in all tiles. The adapter refuses both.

fa2 supports an fp8 cache with 16-bit queries. It multiplies the softmax scale by one factor for all keys, and the
rounded output by one factor for all values. The ragged wrapper ignores both factors, so the adapter refuses these
dtypes in packed calls.
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
from qualify.run.adapters.packing import PLAIN, WINDOWED, left_window, page_list, refusals, refuse, tensor_scale, tried

WORKSPACE_BYTES = 1 << 30
"""bytes of the scratch buffer that all wrappers share. The splits of Falcon 7B need 614 MB (8 sequences, 5 queries
of 71 heads, 8196 keys). With the 128 MiB of FlashInfer's examples such a call raises an error."""
HEAD_DIMS = {
    "fa2": ((64, 64), (128, 128), (256, 256)),
    "fa3": ((64, 64), (128, 128), (192, 128), (256, 256)),
}
"""(head_dim, head_dim_v) that FlashInfer builds ahead of time; kernels for other dimensions may not compile"""
BESIDE: frozenset[Dtype] = frozenset({"bf16_kv_fp8_e4m3", "fp16_kv_fp8_e4m3"})
"""dtypes that fa2 supports in paged calls, in addition to the 16-bit ones"""
DECODE_GROUPS = (1, 2, 3, 4, 8)
"""query heads per KV head that the decode kernel without tensor cores supports; others need tensor cores"""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card.

    Raises:
        ImportError: flashinfer is not installed.
        ValueError: unknown option or backend.
    """
    settings = settle("flashinfer", options)
    return FlashInfer(library=import_module("flashinfer"), **settings)


class FlashInfer:
    """Calls three wrappers of FlashInfer, which share one scratch buffer."""

    def __init__(self, *, library: Any, backend: str, use_tensor_cores: bool) -> None:
        self._backend = backend
        self._name = f"FlashInfer {backend}"
        self.bind = partial(
            bind, library=library, backend=backend, use_tensor_cores=use_tensor_cores, scratch=Scratch()
        )

    def prepare(self, call: AttentionCall) -> Prepared:
        """Plan the call and run it once.

        Raises:
            LibraryRefusal: the library does not support a parameter, or its own checks reject the call.
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
        return tried(prepared, self._name)


class Scratch:
    """One buffer for all calls of an adapter. FlashInfer needs it to be zero before the first use only."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None

    def __repr__(self) -> str:
        return "Scratch()"

    def on(self, device: torch.device) -> Tensor:
        """(WORKSPACE_BYTES,) uint8: the buffer, which the first call allocates on its device."""
        if self._buffer is None:
            self._buffer = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self._buffer


def bind(call: AttentionCall, *, library: Any, backend: str, use_tensor_cores: bool, scratch: Scratch) -> Prepared:
    """Plan the call with the wrapper that serves its layout.

    Args:
        library: ``flashinfer``.
        backend: fa2 or fa3.
        use_tensor_cores: whether paged decode uses the kernel with tensor cores for every number of query heads per KV
            head. Only fa2 has a decode kernel.
        scratch: buffer that all wrappers share.

    Raises:
        LibraryRefusal: FlashInfer does not support the descale factors or the window.
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
    """Keyword arguments that all three ``plan`` methods take."""
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
    """Keyword arguments that only the ``plan`` methods of the two prefill wrappers take."""
    causal, _ = left_window(call, library)
    return {"head_dim_qk": call.q.shape[-1], "causal": causal}


def head_scales(call: AttentionCall, library: str) -> tuple[Tensor, Tensor, Tensor]:
    """Descale factors of q, k and v in the form of FlashInfer: one for each head, the same for all sequences.

    Args:
        library: name of the library, for the message.

    Returns:
        (heads_q,) for q, (heads_kv,) for k and (heads_kv,) for v, float32; 1 where the call gives no factors.

    Raises:
        LibraryRefusal: the factors of a head differ between sequences.
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
    """Convert the LSE of (out, lse) from (total_q, heads_q) in base 2 to (heads_q, total_q) in base e."""
    out, lse = native
    return out, (lse * math.log(2)).transpose(0, 1).contiguous()
