"""Plans: what the simulated kernel computes from a call on the host, and keeps for later calls with the same key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qualify.masks import PatternName
from qualify.run.adapters.interface import AttentionCall


@dataclass(frozen=True, kw_only=True, slots=True)
class CallPlan:
    """Everything that the launch needs of a call. A plan is kept for calls with the same key."""

    bounds_q: tuple[int, ...]
    starts_k: tuple[int, ...]
    """packed index of each sequence's first key; all 0 in a paged cache"""
    lengths_k: tuple[int, ...]
    page_size: int
    """0 = packed"""
    table: Tensor | None
    """(batch, max_pages)"""
    heads_q: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    max_seqlen_k: int
    causal: bool
    window: tuple[int, int]
    pattern: PatternName
    """pattern that hides keys within the causal mask and window; empty = none"""
    size: int
    """the pattern's number"""
    scale: float
    softcap: float
    dtype: torch.dtype
    """dtype of q and of the weights P; with an fp8 cache and 16-bit queries it has 16 bits"""
    strides: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    """strides of q, k and v, in elements"""
    spans: tuple[tuple[int, int, int], ...]
    """images as (sequence, start, end): key positions that see each other"""
    latent: bool
    """whether V is the first elements of K, in the same memory"""

    @property
    def out_dtype(self) -> torch.dtype:
        """Dtype of the result."""
        return torch.bfloat16 if self.dtype.itemsize == 1 else self.dtype

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return len(self.lengths_k)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """A tile of queries of one sequence."""

    plan: CallPlan
    index: int
    """number of its sequence"""
    start: int
    """first query, within the sequence"""
    stop: int
    """one past the last"""
    seqlen_q: int
    seqlen_k: int

    @property
    def shift(self) -> int:
        """Key position of query 0: masks are aligned to the bottom right corner."""
        return self.seqlen_k - self.seqlen_q


class Planner:
    """Makes a plan for each call, or finds a kept plan by its key. It keeps all plans."""

    def __init__(self) -> None:
        self.plans: dict[Any, CallPlan] = {}

    def plan(self, call: AttentionCall) -> CallPlan:
        """The plan of the call: a kept one where its key is known, else a new one."""
        key = self.plan_key(call)
        if key not in self.plans:
            self.plans[key] = self.make_plan(call)
        return self.plans[key]

    def plan_key(self, call: AttentionCall) -> tuple[Any, ...]:
        """Everything that a plan depends on."""
        return tuple(sorted(self.key_parts(call).items()))

    def key_parts(self, call: AttentionCall) -> dict[str, Any]:
        """The parts of the key by name."""
        tensors = {
            "lengths_q": call.cu_seqlens_q,
            "table": call.block_table,
            "used": call.seqused_k,
            "bounds_k": call.cu_seqlens_k,
            "spans": call.bidirectional_spans,
        }
        return {
            "shapes": (call.q.shape, call.k.shape, call.v.shape),
            "strides": (call.q.stride(), call.k.stride(), call.v.stride()),
            "dtypes": (str(call.q.dtype), str(call.v.dtype)),
            "mask": (call.causal, call.window, call.mask.pattern, call.mask.size),
            "numbers": (call.scale, call.softcap, call.max_seqlen_k),
            **{name: () if tensor is None else contents(tensor) for name, tensor in tensors.items()},
        }

    def make_plan(self, call: AttentionCall) -> CallPlan:
        """Make a new plan: copy the lengths to the host, and note the geometry."""
        starts_k, lengths_k = self.key_lengths(call)
        spans = [] if call.bidirectional_spans is None else call.bidirectional_spans.tolist()
        return CallPlan(
            bounds_q=tuple(call.cu_seqlens_q.tolist()),
            starts_k=starts_k,
            lengths_k=lengths_k,
            page_size=0 if call.block_table is None else call.k.shape[1],
            table=None if call.block_table is None else call.block_table.long(),
            heads_q=call.q.shape[1],
            heads_kv=call.k.shape[-2],
            head_dim=call.q.shape[-1],
            head_dim_v=call.v.shape[-1],
            max_seqlen_k=call.max_seqlen_k,
            causal=call.causal,
            window=call.window,
            pattern=call.mask.pattern,
            size=call.mask.size,
            scale=self.scale(call),
            softcap=call.softcap,
            dtype=call.q.dtype,
            strides=(call.q.stride(), call.k.stride(), call.v.stride()),
            spans=tuple((sequence, start, end) for sequence, start, end in spans),
            latent=call.latent,
        )

    def key_lengths(self, call: AttentionCall) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """First packed key and number of keys of each sequence."""
        if call.cu_seqlens_k is None:
            assert call.seqused_k is not None, "a paged call has seqused_k"
            return (0,) * len(call.seqused_k), tuple(call.seqused_k.tolist())
        return tuple(call.cu_seqlens_k[:-1].tolist()), tuple(call.cu_seqlens_k.diff().tolist())

    def scale(self, call: AttentionCall) -> float:
        """The factor that multiplies q·k."""
        return call.scale


def contents(tensor: Tensor) -> tuple[torch.Size, bytes]:
    """Shape and bytes of a tensor: a key that is equal for tensors of one dtype with equal contents."""
    return tensor.shape, tensor.numpy().tobytes()
