"""Class I beside an fp8 cache: 16-bit queries read it, and something about it is taken for something else."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault


def _is_mixed(call: AttentionCall) -> bool:
    """Whether 16-bit queries stand beside an fp8 cache."""
    return call.q.dtype.itemsize > call.k.dtype.itemsize


class _ValueFactorOnKeys(Simulator):
    """The descale of V multiplies K too."""

    def descale(self, name: str, call: AttentionCall, plan: CallPlan, index: int) -> Tensor | None:
        if _is_mixed(call):
            call = replace(call, k_descale=call.v_descale)
        return super().descale(name, call, plan, index)


class _KeyFactorDropped(Simulator):
    """The descale of K is left at 1, as where only V's reached the launch."""

    def descale(self, name: str, call: AttentionCall, plan: CallPlan, index: int) -> Tensor | None:
        return None if name == "k" and _is_mixed(call) else super().descale(name, call, plan, index)


class _ReadAsE5m2(Simulator):
    """The bytes of the cache are read in the other format of eight bits."""

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        rows = super().fetch(name, tensor, strides, slots, plan)
        mixed = plan.dtype.itemsize > rows.dtype.itemsize
        return rows.contiguous().view(torch.float8_e5m2) if mixed else rows


class _QueriesInFp8(Simulator):
    """The queries are rounded to e4m3 too, as the native fp8 kernels want them, and nobody said so."""

    def queries(self, call: AttentionCall, plan: CallPlan, index: int) -> Tensor:
        q = super().queries(call, plan, index)
        return q.to(torch.float8_e4m3fn).float() if _is_mixed(call) else q


class _PInFp8BesideCache(Simulator):
    """P is rounded to e4m3, so that the product with V is one of eight bits."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = False

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        self.mixed = _is_mixed(call)
        return super().attend(call)

    def round_p(self, tile: Tile, p: Tensor) -> Tensor:
        return p.to(torch.float8_e4m3fn).float() if self.mixed else super().round_p(tile, p)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="cache-v-descale-on-k",
        kind="I",
        mirrors="vllm#42580, vllm#51363",
        does="beside an fp8 cache the v_descale multiplies K too",
        make=_ValueFactorOnKeys,
    ),
    Fault(
        name="cache-k-descale-drop",
        kind="I",
        mirrors="vllm#42580",
        does="beside an fp8 cache the k_descale is dropped",
        make=_KeyFactorDropped,
    ),
    Fault(
        name="cache-e5m2",
        kind="I",
        mirrors="a cache of the other eight-bit format",
        does="the bytes of an e4m3 cache are read as e5m2",
        make=_ReadAsE5m2,
    ),
    Fault(
        name="cache-q-fp8",
        kind="I",
        mirrors="sglang#18882",
        does="beside an fp8 cache 16-bit queries are rounded to e4m3",
        make=_QueriesInFp8,
    ),
    Fault(
        name="cache-p-fp8",
        kind="I",
        mirrors="flash-attention#1848",
        does="beside an fp8 cache P is rounded to e4m3 although 16-bit arithmetic is declared",
        make=_PInFp8BesideCache,
    ),
)
"""An fp8 cache."""
