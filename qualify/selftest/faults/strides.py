"""Class D: kernels that assume strides instead of reading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)


class _Contiguous(Simulator):
    """Some tensors are read as contiguous, whatever their strides are."""

    def __init__(self, *which: int) -> None:
        super().__init__()
        self.which = which

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        shapes = (call.q.shape, call.k.shape, call.v.shape)
        strides = [dense(shape) if at in self.which else plan.strides[at] for at, shape in enumerate(shapes)]
        return replace(plan, strides=(strides[0], strides[1], strides[2]))


class _StridesOfKeys(Simulator):
    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        same = plan.head_dim == plan.head_dim_v
        return replace(plan, strides=(*plan.strides[:2], plan.strides[1] if same else plan.strides[2]))


class _BroadcastRead(Simulator):
    """A tensor with a stride of 0 is read as a contiguous one."""

    def make_plan(self, call: AttentionCall) -> CallPlan:
        plan = super().make_plan(call)
        shapes = (call.q.shape, call.k.shape, call.v.shape)
        strides = [dense(shape) if 0 in have else have for shape, have in zip(shapes, plan.strides, strict=True)]
        return replace(plan, strides=(strides[0], strides[1], strides[2]))


class _TableDense(Simulator):
    """The block table is read as contiguous, whatever its row stride is."""

    def plan(self, call: AttentionCall) -> CallPlan:
        """Pages are read from the call's own table."""
        plan, table = super().plan(call), call.block_table
        return plan if table is None else replace(plan, table=table.as_strided(table.shape, dense(table.shape)).long())


class _FactorsDense(Simulator):
    """Descale factors are read as contiguous, whatever their row stride is."""

    def descale(self, name: str, call: AttentionCall, plan: CallPlan, index: int) -> Tensor | None:
        factors: Tensor | None = getattr(call, f"{name}_descale")
        if factors is None:
            return None
        reach = int(factors.untyped_storage().nbytes()) // factors.element_size() - int(factors.storage_offset())
        flat: Tensor = factors.as_strided((reach,), (1,))
        return flat[(index * plan.heads_kv + self.head_map(plan, index)) % reach].view(-1, 1, 1)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="q-contiguous",
        kind="D",
        mirrors="flashinfer#4625, flash-attention#2665",
        does="q is taken for contiguous",
        make=partial(_Contiguous, 0),
    ),
    Fault(
        name="kv-contiguous",
        kind="D",
        mirrors="pytorch#112577, pytorch#163597, pytorch#181133",
        does="k and v are taken for contiguous",
        make=partial(_Contiguous, 1, 2),
    ),
    Fault(
        name="v-strides-of-k",
        kind="D",
        mirrors="ROCm/pytorch#3230, local-inference-lab/vllm#17",
        does="v is read with the strides of k",
        make=_StridesOfKeys,
    ),
    Fault(
        name="stride-0",
        kind="D",
        mirrors="pytorch#191937",
        does="an expanded tensor (stride 0) is read as if it were dense",
        make=_BroadcastRead,
    ),
    Fault(
        name="table-dense",
        kind="D",
        mirrors="flashinfer#4270",
        does="the block table is taken for contiguous",
        make=_TableDense,
    ),
    Fault(
        name="factors-dense",
        kind="D",
        mirrors="vllm#51363",
        does="fp8 factors are taken for contiguous",
        make=_FactorsDense,
    ),
)
