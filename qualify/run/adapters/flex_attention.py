"""FlexAttention: PyTorch's compiled attention with a mask given as a function.

The adapter passes sequences of equal length as a dense view. Otherwise it passes the packed tensors as one long
sequence, and the mask lets a query see only keys of its own sequence. ``Mask.visible`` computes the mask. The adapter
builds the block mask and compiles the kernel outside the timed region.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import config as dynamo
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from qualify.facts.adapters import settle
from qualify.facts.dtypes import HALVES, Dtype
from qualify.masks import Mask
from qualify.run.adapters.interface import Adapter, AttentionCall, Prepared
from qualify.run.adapters.packing import WINDOWED, refusals, refuse

LIBRARY = "FlexAttention"
EAGER_MASK_CELLS = 2**30
"""most queries × keys for which ``create_block_mask`` builds the whole boolean mask. For more, the adapter compiles
``create_block_mask``, which then counts the blocks without that mask."""
PREFILL_KERNEL = {"FORCE_USE_FLEX_ATTENTION": True}
"""kernel options for two or more queries. Without them torch 2.11 uses its decode template for fewer than 128 queries,
which fails on 65 queries with NoValidChoicesError."""
DTYPES: frozenset[Dtype] = HALVES | {"fp32"}
COMPILED: Any = torch.compile(flex_attention, dynamic=False, fullgraph=True)
"""compiles a kernel for each new shape or mask"""
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card; there are no options.

    Raises:
        ValueError: unknown option.
    """
    settle("flex_attention", options)
    return FlexAttention()


class FlexAttention:
    """Calls the compiled ``flex_attention``."""

    def __init__(self) -> None:
        self.bind = partial(bind)

    def prepare(self, call: AttentionCall) -> Prepared:
        """Build the block mask and compile the kernel.

        Raises:
            LibraryRefusal: the adapter does not support a parameter, or PyTorch's checks reject the call.
        """
        refuse(call, LIBRARY, masks=WINDOWED | {"chunked", "dilated"}, softcap=True, head_dim_v=True, dtypes=DTYPES)
        with refusals(LIBRARY):
            return self.bind(call)


def bind(call: AttentionCall) -> Prepared:
    """Make the dense form and its block mask, and launch once, which compiles the kernel for them."""
    if not call.q.shape[0] or not call.k.shape[0]:
        return _nothing_visible(call)
    count, seqlen_q, seqlen_k = _dense_shape(call)
    q = _to_batch(call.q, count, seqlen_q)
    k, v = (_to_batch(tensor, count, seqlen_k) for tensor in (call.k, call.v))
    mask_mod = mask_of(call)
    launch = partial(
        COMPILED,
        q,
        k,
        v,
        score_mod=_softcap(call.softcap) if call.softcap else None,
        block_mask=None if mask_mod is None else _block_mask(mask_mod, seqlen_q, seqlen_k, call.q.device),
        scale=call.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        kernel_options=PREFILL_KERNEL if seqlen_q > 1 else None,
        return_aux=AuxRequest(lse=True),
    )
    # Every new shape compiles a kernel on purpose, so dynamo's limit on recompilations is practically off here.
    with dynamo.patch(recompile_limit=2**20, accumulated_recompile_limit=2**20):
        launch()
    return Prepared(launch=launch, result=_from_dense)


def mask_of(call: AttentionCall) -> MaskMod | None:
    """The mask of a packed call in the form of FlexAttention.

    None if all sequences have equal lengths and every query sees every key of its sequence.
    """
    count, seqlen_q, seqlen_k = _dense_shape(call)
    if count == len(call.cu_seqlens_q) - 1:
        if call.mask.kind == "full":
            return None
        return _dense_mask(call.mask, seqlen_q, seqlen_k)
    assert call.cu_seqlens_k is not None, "a packed call has cu_seqlens_k"
    return _document_mask(call.mask, call.cu_seqlens_q, call.cu_seqlens_k)


def _dense_shape(call: AttentionCall) -> tuple[int, int, int]:
    """(sequences, queries, keys) of the dense form; if lengths differ, one sequence holds all queries and keys."""
    assert call.cu_seqlens_k is not None, "a packed call has cu_seqlens_k"
    lengths_q, lengths_k = (set(bounds.diff().tolist()) for bounds in (call.cu_seqlens_q, call.cu_seqlens_k))
    if len(lengths_q) == 1 and len(lengths_k) == 1:
        return len(call.cu_seqlens_q) - 1, lengths_q.pop(), lengths_k.pop()
    return 1, call.q.shape[0], call.k.shape[0]


def _to_batch(packed: Tensor, count: int, length: int) -> Tensor:
    return packed.view(count, length, *packed.shape[1:]).transpose(1, 2)


def _dense_mask(mask: Mask, seqlen_q: int, seqlen_k: int) -> MaskMod:
    def mask_mod(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen: Tensor = mask.visible(i, j, seqlen_q, seqlen_k)
        return seen

    return mask_mod


def _document_mask(mask: Mask, bounds_q: Tensor, bounds_k: Tensor) -> MaskMod:
    """The mask of packed tensors as one long sequence: a query sees only keys of its own sequence.

    An example with a causal mask, with | and - between the sequences:

    ::

        lengths q 1, 2   k 2, 3          k 0 1 | 0 1 2
                                    q 0    x x | . . .
                                      --------------
                                      0    . . | x x .
                                      1    . . | x x x
    """
    lengths_q, lengths_k = bounds_q.diff(), bounds_k.diff()
    numbers = torch.arange(len(lengths_q), device=bounds_q.device)
    sequence_q, sequence_k = numbers.repeat_interleave(lengths_q), numbers.repeat_interleave(lengths_k)
    index_q = torch.arange(len(sequence_q), device=bounds_q.device) - bounds_q[sequence_q]
    index_k = torch.arange(len(sequence_k), device=bounds_q.device) - bounds_k[sequence_k]
    own_q: Any = lengths_q[sequence_q]
    own_k: Any = lengths_k[sequence_q]

    def mask_mod(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = mask.visible(index_q[i], index_k[j], own_q[i], own_k[i])
        together: Tensor = (sequence_q[i] == sequence_k[j]) & seen
        return together

    return mask_mod


def _block_mask(mask_mod: MaskMod, seqlen_q: int, seqlen_k: int, device: torch.device) -> BlockMask:
    build = create_block_mask
    if seqlen_q * seqlen_k > EAGER_MASK_CELLS:
        build = torch.compile(create_block_mask)
    return build(mask_mod, None, None, seqlen_q, seqlen_k, device=device)


def _softcap(softcap: float) -> Callable[..., Tensor]:
    def score_mod(score: Tensor, _batch: Tensor, _head: Tensor, _i: Tensor, _j: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    return score_mod


def _from_dense(native: tuple[Tensor, Any]) -> tuple[Tensor, Tensor]:
    """Convert (batch, heads, seqlen, dim), and the LSE (batch, heads, seqlen) of an AuxOutput, to packed (out, lse)."""
    out, auxiliary = native
    return out.transpose(1, 2).flatten(0, 1), auxiliary.lse.transpose(0, 1).flatten(1)


def _nothing_visible(call: AttentionCall) -> Prepared:
    """The result of a call without queries or without keys: out 0 and lse -inf, and no launch."""
    total, heads, _ = call.q.shape

    def result(_: Any) -> tuple[Tensor, Tensor]:
        out = call.q.new_zeros(total, heads, call.v.shape[-1])
        return out, torch.full((heads, total), float("-inf"), device=call.q.device)

    return Prepared(launch=lambda: None, result=result)
