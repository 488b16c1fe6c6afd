"""What a CPU is said to reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qualify.facts.stack import Ceilings
from qualify.run.machine.device import processor_of
from qualify.run.measure.ceilings import MATMUL_SIZE, TRIAL_SIZE, measure_ceilings

LARGE = TRIAL_SIZE + 32


class SlowProducts(TorchDispatchMode):
    """A clock by which products of matrices of one dtype take a hundred times as long as others."""

    def __init__(self, slow: torch.dtype) -> None:
        super().__init__()
        self.slow = slow
        self.now_us = 0.0
        self.seen: set[tuple[torch.dtype, int]] = set()
        """dtype and rows of every product"""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.now_us += 1.0
        if function is torch.ops.aten.mm.default:
            self.seen.add((args[0].dtype, args[0].shape[0]))
            self.now_us += args[0].shape[0] ** 3 / (1e4 if args[0].dtype is self.slow else 1e6)
        return function(*args, **(kwargs or {}))

    def block_us(self, launches: Sequence[Callable[[], Any]], ahead_us: float) -> float:
        """As of a processor."""
        began = self.now_us
        for launch in launches:
            launch()
        return self.now_us - began


def measured(products: SlowProducts, monkeypatch: pytest.MonkeyPatch) -> Ceilings:
    """The ceilings of a CPU by that clock. A large product is small here: in bf16 it may take long."""
    monkeypatch.setitem(MATMUL_SIZE, "small", LARGE)
    processor = processor_of("cpu")
    monkeypatch.setattr(processor, "block_us", products.block_us)
    with products:
        return measure_ceilings(processor)


def test_a_cpu_that_is_slow_in_bf16_computes_no_large_product_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without instructions for it would take seconds, and be granted the float32 product nevertheless."""
    products = SlowProducts(torch.bfloat16)
    found = measured(products, monkeypatch).matmul_flops_per_s
    assert (torch.bfloat16, LARGE) not in products.seen
    assert found["fp32"] == found["bf16"] == found["fp16"] > 0


def test_a_cpu_that_is_fast_in_bf16_reaches_more_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The large product counts."""
    products = SlowProducts(torch.float32)
    found = measured(products, monkeypatch).matmul_flops_per_s
    assert (torch.bfloat16, LARGE) in products.seen
    assert found["bf16"] > 50 * found["fp32"]
    assert found["fp32"] == found["fp16"] > 0
