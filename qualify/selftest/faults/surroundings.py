"""Class J: results that depend on where a call is made, or on how many shapes came before; and memory leaks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.selftest.planning import CallPlan, Tile
from qualify.selftest.simulator import Simulator
from qualify.selftest.specimen import Fault

PLANS = 64


class _OtherPlace(Simulator):
    """A call in another mode, thread, or number of threads than the first call loses its first tile of keys."""

    def __init__(self, place: Callable[[], Any]) -> None:
        super().__init__()
        self.place, self.first = place, place()

    def tile_starts(self, tile: Tile, low: int, high: int) -> Sequence[int]:
        starts = super().tile_starts(tile, low, high)
        return starts if self.place() == self.first else starts[1:]


class _ResultFromHere(Simulator):
    """A call from another thread than the first returns what the latest call of its shape left in the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = threading.get_ident()
        self.left: dict[Any, tuple[Tensor, Tensor]] = {}

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        shape = (call.q.shape, call.k.shape, call.out_dtype)
        if threading.get_ident() == self.first:
            self.left = {shape: super().attend(call)}
        elif shape not in self.left:
            return super().attend(call)
        out, lse = self.left[shape]
        return out.clone(), lse.clone()


class _FewPlans(Simulator):
    """Each geometry has 64 places for plans. Further plans overwrite the first ones, but old keys still lead there."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[Any, dict[Any, int]] = {}
        self.kept: dict[tuple[Any, int], CallPlan] = {}

    def plan(self, call: AttentionCall) -> CallPlan:
        geometry = (call.q.shape[1:], call.k.shape[-2:], call.q.dtype, call.mask, call.scale)
        numbers = self.numbers.setdefault(geometry, {})
        key = self.plan_key(call)
        if key not in numbers:
            numbers[key] = len(numbers) % PLANS
            self.kept[geometry, numbers[key]] = self.make_plan(call)
        return self.kept[geometry, numbers[key]]


class _KeepsKeys(Simulator):
    """Each call keeps a copy of the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[Tensor] = []

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        if call.k.numel() < 1 << 20:  # copies of larger ones would use up the memory of the whole machine
            self.copies.append(call.k.clone())
        return super().attend(call)


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="other-mode",
        kind="J",
        mirrors="pytorch#174049",
        does="inference mode takes another path, which loses a tile",
        make=partial(_OtherPlace, torch.is_inference_mode_enabled),
    ),
    Fault(
        name="other-thread",
        kind="J",
        mirrors="flashinfer#1584",
        does="a call from another thread loses a tile",
        make=partial(_OtherPlace, threading.get_ident),
    ),
    Fault(
        name="thread-result",
        kind="J",
        mirrors="flashinfer#1584, surroundings: a call with other contents comes first",
        does="a call from another thread returns what the latest call of the first one left",
        make=_ResultFromHere,
    ),
    Fault(
        name="other-count",
        kind="J",
        mirrors="ik_llama.cpp#2096",
        does="with another number of threads a tile is lost",
        make=partial(_OtherPlace, torch.get_num_threads),
    ),
    Fault(
        name="plans-64",
        kind="J",
        mirrors="flashinfer#1584, flashinfer#3465",
        does="after 64 other shapes the first one finds another one's plan",
        make=_FewPlans,
    ),
    Fault(
        name="keeps-keys",
        kind="J",
        mirrors="mini-sglang#103",
        does="each call keeps a copy of the keys",
        make=_KeepsKeys,
    ),
)
