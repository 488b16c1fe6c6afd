"""Class J: state that is kept by the address of a tensor, or for the same tensor object, although contents change."""

from __future__ import annotations

import operator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault

LARGEST = 1 << 20
"""most elements of a tensor that is kept"""


class _KeptKeys(Simulator):
    """Keys are converted once for each address, and later contents at that address are not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        if name == "v" or tensor.numel() > LARGEST:
            return super().fetch(name, tensor, strides, slots, plan)
        place = (tensor.data_ptr(), tensor.shape, strides, tensor.dtype)
        if place not in self.kept:
            copy = tensor.as_strided(tensor.shape, strides).clone(memory_format=torch.contiguous_format)
            self.kept[place] = (tensor, copy)
        copy = self.kept[place][1]
        return super().fetch(name, copy, copy.stride(), slots, plan)


class _KeyedByAddress(Simulator):
    """Plans are kept by the addresses of some tensors, whatever their current contents."""

    def __init__(self, **tensors: str) -> None:
        super().__init__()
        self.tensors = tensors
        self.alive: list[Tensor] = []

    def key_parts(self, call: AttentionCall) -> dict[str, Any]:
        parts = super().key_parts(call)
        for part, field in self.tensors.items():
            tensor = getattr(call, field)
            if tensor is not None:
                self.alive.append(tensor)
                parts[part] = (tensor.data_ptr(), tensor.shape)
        return parts


class _KeptTable(Simulator):
    """A block table is copied once for each address and first column, so an appended page is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}

    def plan(self, call: AttentionCall) -> CallPlan:
        plan, table = super().plan(call), call.block_table
        if table is None:
            return plan
        place = (table.data_ptr(), table.shape, table.stride(), tuple(table[:, :1].flatten().tolist()))
        _, copy = self.kept.setdefault(place, (table, table.long().clone()))
        return replace(plan, table=copy)


class _PlanOfStep(Simulator):
    """Calls with the same metadata tensors, as from layers of one step, get the first call's mask and softcap."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata: tuple[Tensor | None, ...] = ()
        self.first: CallPlan | None = None

    def plan(self, call: AttentionCall) -> CallPlan:
        plan = super().plan(call)
        metadata = (call.cu_seqlens_q, call.cu_seqlens_k, call.block_table, call.seqused_k)
        first, self.metadata, before = self.first, metadata, self.metadata
        same = len(before) == len(metadata) and all(map(operator.is_, metadata, before))
        if first is None or not same:
            self.first = plan
            return plan
        return replace(plan, causal=first.causal, window=first.window, softcap=first.softcap)


class _Recorded(Simulator):
    """One of several calls with the same tensors is recorded, and from then on its keys are replayed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.place: tuple[Any, ...] = ()
        self.found: list[tuple[AttentionCall, Tensor]] = []

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        if call.k.numel() > LARGEST:
            return super().attend(call)
        place = tuple((each.data_ptr(), each.shape, each.stride(), each.dtype) for each in (call.q, call.k, call.v))
        if place != self.place:
            self.place, self.found = place, []
        if len(self.found) < self.number:
            self.found.append((call, call.k.clone()))
            return super().attend(call)
        return super().attend(replace(call, k=self.found[-1][1]))


class _ExtentOfFirst(Simulator):
    """The number of query rows is kept by the buffer's address; a later call's rows beyond it are not written."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[Any, ...], tuple[Tensor, int]] = {}

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        out, lse = super().attend(call)
        place = (call.q.data_ptr(), call.q.shape[1:], call.q.stride(), call.q.dtype)
        _, rows = self.kept.setdefault(place, (call.q, len(call.q)))
        out[rows:] = 0.0
        return out, lse


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="address-keys",
        kind="J",
        mirrors="ik_llama.cpp#2096",
        does="keys are converted once for each address and stay what they were",
        make=_KeptKeys,
    ),
    Fault(
        name="address-table",
        kind="J",
        mirrors="sglang#26019, vLLM-2080Ti-Definitive#183",
        does="a plan is kept under the address of the block table",
        make=partial(_KeyedByAddress, table="block_table"),
    ),
    Fault(
        name="address-lengths",
        kind="J",
        mirrors="ik_llama.cpp#2096, flashinfer#4365",
        does="a plan is kept under the addresses of the lengths",
        make=partial(_KeyedByAddress, used="seqused_k", bounds_k="cu_seqlens_k", lengths_q="cu_seqlens_q"),
    ),
    Fault(
        name="address-used",
        kind="J",
        mirrors="ik_llama.cpp#2096, vLLM-2080Ti-Definitive#183",
        does="a plan is kept under the address of the used lengths and the contents of everything else",
        make=partial(_KeyedByAddress, used="seqused_k"),
    ),
    Fault(
        name="address-queries",
        kind="J",
        mirrors="flashinfer#4365, ik_llama.cpp#2096",
        does="a plan is kept under the address of the lengths of queries and the contents of everything else",
        make=partial(_KeyedByAddress, lengths_q="cu_seqlens_q"),
    ),
    Fault(
        name="address-spans",
        kind="J",
        mirrors="vllm#30974, sglang#26019",
        does="a plan is kept under the address of the images",
        make=partial(_KeyedByAddress, spans="bidirectional_spans"),
    ),
    Fault(
        name="page-appended",
        kind="J",
        mirrors="sglang#26019, ik_llama.cpp#2096",
        does="the block table is copied once for each address and first column",
        make=_KeptTable,
    ),
    Fault(
        name="plan-of-step",
        kind="J",
        mirrors="flashinfer#1028, sglang#31501",
        does="layers with the same metadata tensors get the mask and softcap of the first",
        make=_PlanOfStep,
    ),
    Fault(
        name="extent-of-first",
        kind="J",
        mirrors="flashinfer#4146",
        does="the rows of a query buffer are those of the first call at its address",
        make=_ExtentOfFirst,
    ),
    Fault(
        name="graph-of-second",
        kind="J",
        mirrors="ik_llama.cpp#2096, history: a graph that is recorded once the library is warm",
        does="the keys of the second call with the same tensors are replayed from the third on",
        make=partial(_Recorded, 2),
    ),
    Fault(
        name="graph-of-third",
        kind="J",
        mirrors="history: a graph that is recorded once the library is warm",
        does="the keys of the third call with the same tensors are replayed from the fourth on",
        make=partial(_Recorded, 3),
    ),
)
