"""FlashMLA's dense decode for latent attention, as vLLM ships it.

One cache holds keys and values. A key has 576 elements, and a page has 64 keys. The adapter passes the pages without
conversion. All sequences have the same number of queries.

The first launch computes the schedule of the splits from the current key lengths, outside the timed region. The adapter
copies these lengths, because the library must not use the schedule with other lengths.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from qualify.facts.adapters import settle
from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import PLAIN, from_batch, latent_keys, queries_of_each, refuse, tried
from qualify.run.adapters.vllm_import import import_vllm

LIBRARY = "FlashMLA"
HEAD_DIMS = (576, 512)
"""(head_dim, head_dim_v); the rotated part has the other 64 elements"""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card; there are no options.

    Raises:
        ImportError: vLLM's build of FlashMLA cannot be imported; the message names the cause.
        ValueError: unknown option.
    """
    settle("flashmla", options)
    return FlashMla(library=import_vllm("vllm.third_party.flashmla.flash_mla_interface"))


class FlashMla:
    """Calls ``flash_mla_with_kvcache`` with a cache that is not quantised."""

    def __init__(self, *, library: Any) -> None:
        self.bind = partial(bind, library=library)

    def prepare(self, call: AttentionCall) -> Prepared:
        """Bind the arguments and make one call, which computes the schedule and shows whether the library accepts it.

        Raises:
            LibraryRefusal: the library does not support a parameter, or its own checks reject the call.
        """
        refuse(call, LIBRARY, masks=PLAIN, paged=True, head_dim_v=True)
        latent_keys(call, LIBRARY, HEAD_DIMS)
        if call.block_table is None or call.seqused_k is None:
            raise LibraryRefusal(f"{LIBRARY}: pages only")
        queries_of_each(call, LIBRARY)
        return tried(self.bind(call), LIBRARY)


def bind(call: AttentionCall, *, library: Any) -> Prepared:
    """Bind the function to the arguments of the call and a new schedule, which the first launch fills.

    Args:
        library: ``vllm.third_party.flashmla.flash_mla_interface``.
    """
    assert call.seqused_k is not None, "a paged call has seqused_k"
    batch = len(call.seqused_k)
    launch = partial(
        library.flash_mla_with_kvcache,
        call.q.view(batch, call.q.shape[0] // batch, *call.q.shape[1:]),
        call.k,
        call.block_table,
        call.seqused_k.clone(),
        call.v.shape[-1],
        library.get_mla_metadata()[0],
        softmax_scale=call.scale,
        causal=call.causal,
    )
    return Prepared(launch=launch, result=from_batch)
