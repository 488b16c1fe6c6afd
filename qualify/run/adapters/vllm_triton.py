"""vLLM's Triton attention: one kernel for prompts, chunks and decode over a paged cache.

``unified_attention`` takes a paged cache only. The adapter passes the pages of a paged call without conversion. It adds
columns to the block table, because the kernel reads entries beyond the used ones, which the table of an engine has. It
copies the keys and values of a packed call into pages of 16 keys, vLLM's own size, outside the timed region.

If each sequence has one query, and there are few sequences, the kernel splits the keys into segments. A second kernel
merges the results (split-KV). The adapter allocates the same buffers for them as vLLM's backend. There is no LSE.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from qualify.facts.adapters import settle
from qualify.facts.dtypes import HALVES
from qualify.masks import UNBOUNDED
from qualify.run.adapters.interface import Adapter, AttentionCall, LibraryRefusal, Prepared
from qualify.run.adapters.packing import WINDOWED, refuse, tensor_scale, tried
from qualify.run.adapters.vllm_import import import_vllm

LIBRARY = "vLLM Triton"
PAGE_SIZE = 16
"""keys of a page into which the adapter copies packed keys"""
TABLE_MARGIN = 256
"""keys beyond the longest sequence for which the kernel may read the block table: two of its largest tiles"""
LEAST_BLOCKS = 128
"""``MIN_LAUNCH_GRID_SIZE_2D`` of vLLM's backend: decode splits the keys if sequences × KV heads is at most this"""
FP8_PER_TENSOR = 1
"""``KVQuantMode.FP8_PER_TENSOR``: the kernel reads the first factor of each tensor of descale factors"""
SEGMENTS = 16
"""``NUM_PAR_SOFTMAX_SEGMENTS`` of vLLM's backend: segments into which decode splits the keys of a sequence"""


def create(options: dict[str, Any]) -> Adapter:
    """The adapter of a card; there are no options.

    Raises:
        ImportError: the kernel cannot be imported, or vLLM turned Triton off; the message names the cause.
        ValueError: unknown option.
    """
    settle("vllm_triton", options)
    library = import_vllm("vllm.v1.attention.ops.triton_unified_attention")
    if not import_vllm("vllm.triton_utils").HAS_TRITON:
        raise ImportError("vLLM switched Triton off: it is not installed, or finds no driver of a GPU")
    return VllmTriton(library=library)


class VllmTriton:
    """Calls ``unified_attention`` of ``vllm.v1.attention.ops.triton_unified_attention``."""

    def __init__(self, *, library: Any) -> None:
        self.bind = partial(bind, library=library)

    def prepare(self, call: AttentionCall) -> Prepared:
        """Copy packed keys and values into pages, and make one call, which compiles the kernel.

        Raises:
            LibraryRefusal: the kernel does not support a parameter, or its own checks reject the call.
        """
        refuse(
            call,
            LIBRARY,
            masks=WINDOWED | {"chunked"},
            paged=True,
            softcap=True,
            sinks=True,
            spans=True,
            dtypes=HALVES | {"fp8_e4m3", "bf16_kv_fp8_e4m3", "fp16_kv_fp8_e4m3"},
        )
        refuse_mask(call)
        for name in ("q_descale", "k_descale", "v_descale"):
            tensor_scale(call, name, LIBRARY)
        return tried(self.bind(call), LIBRARY)


def bind(call: AttentionCall, *, library: Any) -> Prepared:
    """Bind the kernel to the arguments of the call, with keys and values in pages.

    Args:
        library: ``vllm.v1.attention.ops.triton_unified_attention``.
    """
    unified_attention, arguments = library.unified_attention, arguments_of(call)

    def launch() -> Tensor:
        out = torch.empty(call.q.shape, dtype=call.out_dtype, device=call.q.device)
        unified_attention(out=out, **arguments)
        return out

    return Prepared(launch=launch, result=without_lse)


def refuse_mask(call: AttentionCall) -> None:
    """Refuse masks that the kernel would interpret differently.

    Without a causal mask, the kernel gives both sides of a window the same size. It supports chunks only with a causal
    mask, and not together with a window. A right side of 0 counts as causal.

    Raises:
        LibraryRefusal: the kernel does not support the mask of the call; the message gives window and chunk.
    """
    left, right = call.window
    causal = call.causal or right == 0
    if not causal and left != right:
        raise LibraryRefusal(f"{LIBRARY}: both sides of a window are equal without a causal mask: window={call.window}")
    if call.chunk and not causal:
        raise LibraryRefusal(f"{LIBRARY}: chunks under a causal mask only: chunk={call.chunk}")
    if call.chunk and left != UNBOUNDED:
        raise LibraryRefusal(f"{LIBRARY}: a window or chunks, not both: window={call.window}, chunk={call.chunk}")


def arguments_of(call: AttentionCall) -> dict[str, Any]:
    """The keyword arguments of ``unified_attention``, except ``out``."""
    k, v, lengths, table = call.k, call.v, call.seqused_k, call.block_table
    if table is None:
        k, v, lengths, table = in_pages(call)
    left = call.chunk - 1 if call.chunk else call.window[0]
    return {
        "q": call.q,
        "k": k,
        "v": v,
        "cu_seqlens_q": call.cu_seqlens_q,
        "max_seqlen_q": call.max_seqlen_q,
        "seqused_k": lengths,
        "max_seqlen_k": call.max_seqlen_k,
        "softmax_scale": call.scale,
        "causal": call.causal or call.window[1] == 0,
        "window_size": (left, 0 if call.chunk else call.window[1]),
        "block_table": widened(table, k.shape[1]),
        "softcap": call.softcap,
        "q_descale": call.q_descale,
        "k_descale": call.k_descale,
        "v_descale": call.v_descale,
        "kv_quant_mode": FP8_PER_TENSOR if call.k_descale is not None else 0,
        "sinks": call.sinks,
        "mm_prefix_range": None if call.bidirectional_spans is None else ranges_of(call),
        "chunk_lookback": 0 if call.chunk else -1,
        **segments_of(call),
    }


def segments_of(call: AttentionCall) -> dict[str, Any]:
    """The keyword arguments for split-KV decode, with float32 buffers for the results of the segments.

    Decode splits the keys of at most ``seq_threshold_3D`` sequences, so the buffers have room for that number.
    """
    heads_q, head_dim = call.q.shape[1:]
    sequences = LEAST_BLOCKS // call.k.shape[-2]
    shape = (sequences, heads_q, SEGMENTS)
    padded = 1 << (head_dim - 1).bit_length()
    return {
        "seq_threshold_3D": sequences,
        "num_par_softmax_segments": SEGMENTS,
        "softmax_segm_output": torch.empty((*shape, padded), dtype=torch.float32, device=call.q.device),
        "softmax_segm_max": torch.empty(shape, dtype=torch.float32, device=call.q.device),
        "softmax_segm_expsum": torch.empty(shape, dtype=torch.float32, device=call.q.device),
    }


def ranges_of(call: AttentionCall) -> Tensor:
    """The bidirectional spans as (batch, most spans of a sequence, 2) int32 pairs (first, last), both inclusive.

    (0, 0) fills the unused pairs: the kernel ignores a pair of equal positions.
    """
    by_sequence: list[list[tuple[int, int]]] = [[] for _ in call.cu_seqlens_q[1:]]
    assert call.bidirectional_spans is not None, "there are spans"
    for sequence, start, end in call.bidirectional_spans.tolist():
        by_sequence[sequence].append((start, end - 1))
    most = max(1, *(len(ranges) for ranges in by_sequence))
    rows = [ranges + [(0, 0)] * (most - len(ranges)) for ranges in by_sequence]
    return torch.tensor(rows, dtype=torch.int32, device=call.q.device)


def in_pages(call: AttentionCall) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Copy the keys and values of a packed call into pages of PAGE_SIZE keys.

    Returns:
        k and v (pages, PAGE_SIZE, heads_kv, dim), lengths (batch,) int32, and block table (batch, max_pages) int32.
        Page 0 and the unused rest of each last page hold zeros. Unused entries of the block table name page 0.
    """
    assert call.cu_seqlens_k is not None, "a packed call has cu_seqlens_k"
    lengths = call.cu_seqlens_k.diff()
    pages = (lengths + PAGE_SIZE - 1) // PAGE_SIZE
    first = 1 + pages.cumsum(0) - pages
    columns = torch.arange(int(pages.max()), device=lengths.device)
    table = torch.where(columns < pages[:, None], first[:, None] + columns, 0).int()
    sequence = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    rows = call.cu_seqlens_k[0] + torch.arange(len(sequence), device=lengths.device)
    slots = first[sequence] * PAGE_SIZE + rows - call.cu_seqlens_k[sequence]

    def laid_out(packed: Tensor) -> Tensor:
        # Copy fp8 as bytes, because some devices cannot index tensors of that dtype.
        whole = packed.view(torch.uint8) if packed.dtype.itemsize == 1 else packed
        pool = whole.new_zeros(1 + int(pages.sum()), PAGE_SIZE, *whole.shape[1:])
        pool.flatten(0, 1)[slots] = whole[rows]
        return pool.view(packed.dtype)

    return laid_out(call.k), laid_out(call.v), lengths.int(), table


def widened(table: Tensor, page_size: int) -> Tensor:
    """The block table with columns for at least TABLE_MARGIN more keys; their entries name page 0."""
    return torch.nn.functional.pad(table, (0, -(-TABLE_MARGIN // page_size)))


def without_lse(native: Tensor) -> tuple[Tensor, None]:
    """(out, None): the library returns no LSE."""
    return native, None
