"""FlashMLA's dense decode for latent attention, as vLLM ships it.

Keys and values are one cache of 576 elements, read as it is in pages of 64. Every sequence has as many queries as the
others. The first call makes the schedule of the splits, outside the timed region, for the lengths of that moment. The
adapter copies these lengths, because the library must not combine the schedule with other ones.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from qualify.facts.adapters import settle
from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import PLAIN, from_batch, latent_keys, queries_of_each, refusals, refuse
from qualify.run.adapters.vllm_import import import_vllm

LIBRARY = "FlashMLA"
HEAD_DIMS = (576, 512)
"""(head_dim, head_dim_v), and so a rotated part of 64"""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card; there are no options.

    Raises:
        ImportError: vLLM's build of FlashMLA cannot be imported; names the cause.
        ValueError: unknown option.
    """
    settle("flashmla", options)
    return FlashMla(library=import_vllm("vllm.third_party.flashmla.flash_mla_interface"))


class FlashMla:
    """``flash_mla_with_kvcache`` of a cache that is not quantised."""

    def __init__(self, *, library: Any) -> None:
        self.bind = partial(bind, library=library)

    def prepare(self, call: AttentionCall) -> Prepared:
        """Make one call: it makes the schedule, and tells whether the library takes the call.

        Raises:
            LibraryRefusal: a parameter that the library has no word for, or what its own checks say.
        """
        refuse(call, LIBRARY, masks=PLAIN, paged=True, head_dim_v=True)
        latent_keys(call, LIBRARY, HEAD_DIMS)
        if call.block_table is None or call.seqused_k is None:
            raise LibraryRefusal(f"{LIBRARY}: pages only")
        queries_of_each(call, LIBRARY)
        prepared = self.bind(call)
        with refusals(LIBRARY):
            prepared.launch()
        return prepared


def bind(call: AttentionCall, *, library: Any) -> Prepared:
    """The call with a schedule of its own, which its first launch fills.

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
