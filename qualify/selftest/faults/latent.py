"""Classes D and F in latent attention: one cache, whose first elements are key and value, and the rest only key."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault

YARN = 0.1 * math.log(40) + 1
"""factor on a rotated query where YaRN's correction is applied twice"""


class _LateValues(Simulator):
    """V is taken to be the last elements of a row of the cache."""

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        if name == "k" or not plan.latent:
            return super().fetch(name, tensor, strides, slots, plan)
        late = tensor.as_strided(tensor.shape, strides, tensor.storage_offset() + plan.head_dim - plan.head_dim_v)
        return late[slots] if plan.table is None else late[slots // plan.page_size, slots % plan.page_size]


class _RowsOfValues(Simulator):
    """Values are read as if a row of the cache were only as long as its values."""

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        if name == "k" or not plan.latent:
            return super().fetch(name, tensor, strides, slots, plan)
        whole = tensor.untyped_storage().nbytes() // tensor.element_size() - int(tensor.storage_offset())
        rows = torch.arange(plan.heads_kv).view(1, -1, 1) + slots.view(-1, 1, 1) * plan.heads_kv
        return tensor.as_strided((whole,), (1,))[(rows * plan.head_dim_v + torch.arange(plan.head_dim_v)) % whole]


class _Weighed(Simulator):
    """The latent part and the rotated part of the queries are each multiplied by a factor."""

    def factors(self, plan: CallPlan) -> tuple[float, float]:
        """Factor of the elements that multiply the latent, and factor of the rotated elements."""
        raise NotImplementedError

    def queries(self, call: AttentionCall, plan: CallPlan, index: int) -> Tensor:
        q = super().queries(call, plan, index)
        if not plan.latent:
            return q
        latent, rotated = self.factors(plan)
        return torch.cat([q[..., : plan.head_dim_v] * latent, q[..., plan.head_dim_v :] * rotated], dim=-1)


class _NoRope(_Weighed):
    def factors(self, plan: CallPlan) -> tuple[float, float]:
        return 1.0, 0.0


class _OnlyRope(_Weighed):
    def factors(self, plan: CallPlan) -> tuple[float, float]:
        return 0.0, 1.0


class _ScaledTwice(_Weighed):
    """The scale multiplies the latent part of the queries, and then all scores again."""

    def factors(self, plan: CallPlan) -> tuple[float, float]:
        return plan.scale, 1.0


class _RopeYarn(_Weighed):
    def factors(self, plan: CallPlan) -> tuple[float, float]:
        return 1.0, YARN


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="latent-values-late",
        kind="D",
        mirrors="a cache whose rotated part comes first",
        does="latent: V is read from the last elements of the cache's rows",
        make=_LateValues,
    ),
    Fault(
        name="latent-rows-of-v",
        kind="D",
        mirrors="ik_llama.cpp#2031",
        does="latent: V is read as if rows of the cache were as long as V's",
        make=_RowsOfValues,
    ),
    Fault(
        name="latent-no-rope",
        kind="F",
        mirrors="scores of the latent part alone",
        does="latent: the rotated part is left out of the scores",
        make=_NoRope,
    ),
    Fault(
        name="latent-only-rope",
        kind="F",
        mirrors="scores of the rotated part alone",
        does="latent: the latent part is left out of the scores",
        make=_OnlyRope,
    ),
    Fault(
        name="latent-scaled-twice",
        kind="F",
        mirrors="a scale that is folded into the absorbed queries",
        does="latent: the latent part of the scores is scaled twice",
        make=_ScaledTwice,
    ),
    Fault(
        name="latent-rope-yarn",
        kind="F",
        mirrors="imp#880, mobius#548",
        does="latent: YaRN's correction of the scale multiplies the rotated part too",
        make=_RopeYarn,
    ),
)
"""Faults of latent attention."""
