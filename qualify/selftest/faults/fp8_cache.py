"""Class I with an fp8 cache and 16-bit queries: descales, format or precision are mixed up."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault


def _is_mixed(call: AttentionCall) -> bool:
    """Whether the call has 16-bit queries and an fp8 cache."""
    return call.q.dtype.itemsize > call.k.dtype.itemsize


class _ValueFactorOnKeys(Simulator):
    """K is multiplied by V's descale instead of its own."""

    def descale(self, name: str, call: AttentionCall, plan: CallPlan, index: int) -> Tensor | None:
        if _is_mixed(call):
            call = replace(call, k_descale=call.v_descale)
        return super().descale(name, call, plan, index)


class _KeyFactorDropped(Simulator):
    """K's descale stays 1, as if only V's descale had reached the launch."""

    def descale(self, name: str, call: AttentionCall, plan: CallPlan, index: int) -> Tensor | None:
        return None if name == "k" and _is_mixed(call) else super().descale(name, call, plan, index)


class _ReadAsE5m2(Simulator):
    """The bytes of the cache are read as e5m2."""

    def fetch(self, name: str, tensor: Tensor, strides: tuple[int, ...], slots: Tensor, plan: CallPlan) -> Tensor:
        rows = super().fetch(name, tensor, strides, slots, plan)
        mixed = plan.dtype.itemsize > rows.dtype.itemsize
        return rows.contiguous().view(torch.float8_e5m2) if mixed else rows


class _QueriesInFp8(Simulator):
    """The queries are silently rounded to e4m3, the format that native fp8 kernels need."""

    def queries(self, call: AttentionCall, plan: CallPlan, index: int) -> Tensor:
        q = super().queries(call, plan, index)
        return q.to(torch.float8_e4m3fn).float() if _is_mixed(call) else q


class _PInFp8BesideCache(Simulator):
    """P is rounded to e4m3, so that the product with V is an fp8 product."""

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
"""Faults with an fp8 cache."""
