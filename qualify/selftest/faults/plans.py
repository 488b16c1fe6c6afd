"""Class J: plans, buffers and workspaces that are reused where they no longer fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Partial, Simulator
from qualify.selftest.specimen import Fault


class _ForgetfulKey(Simulator):
    """Some parts are missing from the key by which plans are kept."""

    def __init__(self, *missing: str) -> None:
        super().__init__()
        self.missing = missing

    def key_parts(self, call: AttentionCall) -> dict[str, Any]:
        parts = super().key_parts(call)
        return {name: part for name, part in parts.items() if name not in self.missing}


class _StickyWindow(Simulator):
    """Every plan gets the window of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.window: tuple[int, int] | None = None

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        self.window = self.window or plan.window
        return replace(plan, window=self.window)


class _StickyCausal(Simulator):
    """After one causal call, every later call is causal."""

    def __init__(self) -> None:
        super().__init__()
        self.causal = False

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        self.causal |= plan.causal
        return replace(plan, causal=self.causal)


class _DtypeOfFirst(Simulator):
    """P is always rounded to the dtype of the first planned call."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype: torch.dtype | None = None

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        self.dtype = self.dtype or plan.dtype
        return replace(plan, dtype=self.dtype)


class _ResultReused(Simulator):
    """Results are returned in a buffer that the next call of the same shape overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def allocate(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        shape = (*call.q.shape, call.v.shape[-1], call.out_dtype)
        if shape not in self.buffers:
            self.buffers[shape] = super().allocate(call)
        return self.buffers[shape]


class _ColdStart(Simulator):
    """The first call is wrong, as with a workspace that nobody cleared."""

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(call)
        if self.calls == 1:
            out += 1
        return out, lse


class _CoarseKey(Simulator):
    """One part of the key by which plans are kept is coarser than what the plan depends on.

    Pages are always read from the call, so the block table is no part of the key.
    """

    def __init__(self, part: str, coarse: Callable[[AttentionCall], Any]) -> None:
        super().__init__()
        self.part, self.coarse = part, coarse

    def key_parts(self, call: AttentionCall) -> dict[str, Any]:
        parts = super().key_parts(call)
        return parts | {"table": "", self.part: self.coarse(call)}

    def plan(self, call: AttentionCall) -> CallPlan:
        """Pages are read from the call's own table."""
        plan = super().plan(call)
        return plan if call.block_table is None else replace(plan, table=call.block_table.long())


def _total_and_longest(call: AttentionCall) -> tuple[int, int] | str:
    lengths = call.seqused_k
    return str(call.cu_seqlens_k) if lengths is None else (int(lengths.sum()), int(lengths.max()))


class _StaleEmptySplit(Simulator):
    """From sequence 64 on, a split without keys leaves an earlier call's result in its part of the workspace."""

    def __init__(self) -> None:
        super().__init__()
        self.workspace: dict[tuple[Any, ...], Partial] = {}

    def store(self, tile: Tile, number: int, starts: Sequence[int], partial: Partial) -> Partial:
        if self.split_count(tile) == 1 or tile.index < 64:
            return partial
        place = (tile.index, number, partial[0].shape)
        if len(starts):
            self.workspace[place] = partial
        return self.workspace.get(place, partial)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="stale-len",
        kind="J",
        mirrors="ik_llama.cpp#2096, vllm#41834",
        does="a plan, or captured graph, keeps the lengths that it was made for",
        make=partial(_ForgetfulKey, "lengths_q", "used", "bounds_k", "numbers"),
    ),
    Fault(
        name="stale-table",
        kind="J",
        mirrors="sglang#26019, vLLM-2080Ti-Definitive#183",
        does="a plan keeps the block table that it was made for",
        make=partial(_ForgetfulKey, "table"),
    ),
    Fault(
        name="key-no-stride",
        kind="J",
        mirrors="flashinfer#4146, flashinfer#4270",
        does="the plan's key omits the strides",
        make=partial(_ForgetfulKey, "strides"),
    ),
    Fault(
        name="key-no-dtype",
        kind="J",
        mirrors="flashinfer#4270",
        does="the dtype of the first plan serves all",
        make=_DtypeOfFirst,
    ),
    Fault(
        name="key-no-mask",
        kind="J",
        mirrors="flashinfer#1028",
        does="the plan's key omits the mask",
        make=partial(_ForgetfulKey, "mask"),
    ),
    Fault(
        name="key-no-numbers",
        kind="J",
        mirrors="flashinfer#1028, pytorch#174049",
        does="the plan's key omits scale and softcap",
        make=partial(_ForgetfulKey, "numbers"),
    ),
    Fault(
        name="sticky-window",
        kind="J",
        mirrors="flashinfer#1028, sglang#31501",
        does="the window of the first plan is used for all",
        make=_StickyWindow,
    ),
    Fault(
        name="sticky-causal",
        kind="J",
        mirrors="flashinfer#1028",
        does="after a causal call every mask is causal",
        make=_StickyCausal,
    ),
    Fault(
        name="result-reused",
        kind="J",
        mirrors="mini-sglang#103",
        does="a result is returned in a buffer that the next call of the shape overwrites",
        make=_ResultReused,
    ),
    Fault(
        name="cold-start",
        kind="J",
        mirrors="flashinfer#1584, flashinfer#3465",
        does="the first call of the process is wrong",
        make=_ColdStart,
    ),
    Fault(
        name="key-totals",
        kind="J",
        mirrors="flashinfer#1028",
        does="a paged plan is kept under the sum and the maximum of its lengths",
        make=partial(_CoarseKey, "used", _total_and_longest),
    ),
    Fault(
        name="key-no-right",
        kind="J",
        mirrors="flashinfer#1028",
        does="the plan's key omits how far a query sees ahead",
        make=partial(_CoarseKey, "mask", lambda call: (call.causal, call.window[0], call.mask.size)),
    ),
    Fault(
        name="key-no-chunk",
        kind="J",
        mirrors="flashinfer#1028",
        does="the plan's key holds that there are chunks, not how long they are",
        make=partial(_CoarseKey, "mask", lambda call: (call.causal, call.window, call.mask.pattern)),
    ),
    Fault(
        name="key-no-spans",
        kind="J",
        mirrors="vllm#30974",
        does="the plan's key holds how many images there are, not where",
        make=partial(_CoarseKey, "spans", lambda call: str(getattr(call.bidirectional_spans, "shape", ()))),
    ),
    Fault(
        name="workspace-of-many",
        kind="J",
        mirrors="flashinfer#1584, vllm#47188",
        does="from sequence 64 on, a split without keys keeps what an earlier call left in the workspace",
        make=_StaleEmptySplit,
    ),
)
"""Faults of state that is kept between calls."""
