"""FlashMLA's dense decode for latent attention, as vLLM ships it.

Keys and values are one cache of 576 elements, read as it is in pages of 64; a sequence has as many queries as every
other. The schedule of the splits is made by the first call, outside the timed region, for the lengths that the call has
then: they are copied, because the library must not meet other ones with it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import latent_keys, queries_of_each, refusals, refuse
from qualify.run.adapters.source import source_of
from qualify.run.adapters.vllm_import import import_vllm

LIBRARY = "FlashMLA"
HEAD_DIMS = (576, 512)
"""(head_dim, head_dim_v), and so a rotated part of 64"""

SOURCE = """\
from vllm.third_party.flashmla.flash_mla_interface import flash_mla_with_kvcache, get_mla_metadata


def attend(call):
    batch = len(call.seqused_k)
    q = call.q.view(batch, -1, *call.q.shape[1:])
    schedule = get_mla_metadata()[0]
    native = flash_mla_with_kvcache(
        q,
        call.k,
        call.block_table,
        call.seqused_k,
        call.v.shape[-1],
        schedule,
        softmax_scale=call.scale,
        causal=call.causal,
    )
    return to_contract(native)
"""
"""``FlashMla.prepare`` and its launch, for a script."""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card.

    Args:
        options: none.

    Raises:
        ImportError: vLLM's build of FlashMLA cannot be imported; names the cause.
        ValueError: unknown option.
    """
    if options:
        raise ValueError(f"flashmla: options {options}; it has none")
    return FlashMla(library=import_vllm("vllm.third_party.flashmla.flash_mla_interface"))


class FlashMla:
    """``flash_mla_with_kvcache`` of a cache that is not quantised."""

    def __init__(self, *, library: Any) -> None:
        self._library = library

    def prepare(self, call: AttentionCall) -> Prepared:
        """Make one call: it makes the schedule, and tells whether the library takes the call.

        Raises:
            LibraryRefusal: a parameter that the library has no word for, or what its own checks say.
        """
        refuse(call, LIBRARY, paged=True, head_dim_v=True)
        cache = latent_keys(call, LIBRARY, HEAD_DIMS)
        if call.block_table is None or call.seqused_k is None:
            raise LibraryRefusal(f"{LIBRARY}: pages only")
        batch, queries = len(call.seqused_k), queries_of_each(call, LIBRARY)
        q = call.q.view(batch, queries, *call.q.shape[1:])
        launch = partial(
            self._library.flash_mla_with_kvcache,
            q,
            cache,
            call.block_table,
            call.seqused_k.clone(),
            call.v.shape[-1],
            self._library.get_mla_metadata()[0],
            softmax_scale=call.scale,
            causal=call.causal,
        )
        with refusals(LIBRARY):
            launch()
        return Prepared(launch=launch, result=to_contract)

    def source(self) -> str:
        """The call and the conversion of its result."""
        return f"{source_of(to_contract)}\n\n{SOURCE}"


def to_contract(native: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """``out`` from (batch, queries, heads, dim) and ``lse`` from (batch, heads, queries) to the packed forms."""
    out, lse = native
    return out.flatten(0, 1), lse.transpose(0, 1).flatten(1).contiguous()
