"""FlashInfer's kernels for latent attention (MLA): one cache holds keys and values.

``BatchMLAPagedAttentionWrapper`` takes the queries and the cache each as two views. The first view is the latent
part: the first ``head_dim_v`` elements, which in the cache are also the values. The second view is the rotated part:
the other elements.

The adapter copies nothing. It passes a packed call as a paged one with one key on each page. It makes the plan and the
list of pages outside the timed region. It requests the LSE in base e.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from qualify.facts.adapters import settle
from qualify.run.adapters.flashinfer import Scratch
from qualify.run.adapters.interface import Adapter, AttentionCall, Prepared
from qualify.run.adapters.packing import PLAIN, latent_keys, page_list, refusals, refuse, tried

HEAD_DIMS = (576, 512)
"""(head_dim, head_dim_v); the rotated part has the other 64 elements"""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card.

    Raises:
        ImportError: flashinfer is not installed.
        ValueError: unknown option or backend.
    """
    settings = settle("flashinfer_mla", options)
    return FlashInferMla(library=import_module("flashinfer.mla"), **settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """The paged cache of a call: the keys, and the pages of each sequence."""

    keys: Tensor
    """(pages, page_size, head_dim)"""
    indptr: Tensor
    """(batch + 1,) int32: first entry of each sequence in ``indices``, then the number of used pages"""
    indices: Tensor
    """(used pages,) int32: page numbers"""
    lengths: Tensor
    """(batch,) int32: keys of each sequence"""


def cache_of(call: AttentionCall) -> Cache:
    """The cache of a call with one KV head. In a packed call each key becomes a page."""
    if call.block_table is None:
        assert call.cu_seqlens_k is not None, "a packed call has cu_seqlens_k"
        indices = torch.arange(len(call.k), dtype=torch.int32, device=call.k.device)
        return Cache(keys=call.k, indptr=call.cu_seqlens_k, indices=indices, lengths=call.cu_seqlens_k.diff())
    assert call.seqused_k is not None, "a paged call has seqused_k"
    pages = page_list(call)
    return Cache(keys=call.k[:, :, 0], indptr=pages.indptr, indices=pages.indices, lengths=call.seqused_k)


def planned(call: AttentionCall, cache: Cache) -> tuple[Any, ...]:
    """The positional arguments of ``plan``."""
    latent = call.v.shape[-1]
    lengths = (call.cu_seqlens_q, cache.indptr, cache.indices, cache.lengths)
    sizes = (call.q.shape[1], latent, call.q.shape[-1] - latent, cache.keys.shape[1])
    return (*lengths, *sizes, call.causal, call.scale, call.q.dtype, call.k.dtype)


def parts_of(call: AttentionCall, cache: Cache) -> tuple[Tensor, ...]:
    """(latent q, rotated q, latent k, rotated k): views of the queries and of the cache.

    The queries are (total_q, heads_q, part) and the keys (pages, page_size, part).
    """
    latent = call.v.shape[-1]
    return tuple(part for whole in (call.q, cache.keys) for part in (whole[..., :latent], whole[..., latent:]))


class FlashInferMla:
    """Calls one wrapper of FlashInfer for each call; all wrappers share one scratch buffer."""

    def __init__(self, *, library: Any, backend: str) -> None:
        self._name = f"FlashInfer MLA {backend}"
        self.bind = partial(bind, library=library, backend=backend, scratch=Scratch())

    def prepare(self, call: AttentionCall) -> Prepared:
        """Plan the call and run it once.

        Raises:
            LibraryRefusal: the library does not support a parameter, or its own checks reject the call.
        """
        refuse(call, self._name, masks=PLAIN, paged=True, head_dim_v=True)
        latent_keys(call, self._name, HEAD_DIMS)
        with refusals(self._name):
            prepared = self.bind(call)
        return tried(prepared, self._name)


def bind(call: AttentionCall, *, library: Any, backend: str, scratch: Scratch) -> Prepared:
    """Plan the call with a new wrapper.

    Args:
        library: ``flashinfer.mla``.
        backend: fa2 or fa3.
        scratch: buffer that all wrappers share.
    """
    cache = cache_of(call)
    wrapper = library.BatchMLAPagedAttentionWrapper(scratch.on(call.q.device), backend=backend)
    wrapper.plan(*planned(call, cache))
    launch = partial(wrapper.run, *parts_of(call, cache), return_lse=True, return_lse_base_on_e=True)
    return Prepared(launch=launch, result=to_contract)


def to_contract(native: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Convert the LSE of (out, lse) from (total_q, heads_q) to (heads_q, total_q)."""
    out, lse = native
    return out, lse.transpose(0, 1).contiguous()
