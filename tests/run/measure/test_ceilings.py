"""What a CPU is said to reach."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qualify.run.machine.device import processor_of
from qualify.run.measure.ceilings import MATMUL_SIZE, TRIAL_SIZE, measure_ceilings

LARGE = TRIAL_SIZE + 32


class SlowProducts(TorchDispatchMode):
    """Products of matrices of one dtype take a hundredth of a second more."""

    def __init__(self, slow: torch.dtype) -> None:
        super().__init__()
        self.slow = slow
        self.seen: set[tuple[torch.dtype, int]] = set()
        """dtype and rows of every product"""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.mm.default:
            self.seen.add((args[0].dtype, args[0].shape[0]))
            time.sleep(0.01 * (args[0].dtype is self.slow))
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large product is hardly larger than the trial: here it may take long in bf16."""
    monkeypatch.setitem(MATMUL_SIZE, "small", LARGE)


def test_a_cpu_that_is_slow_in_bf16_computes_no_large_product_in_it() -> None:
    """One without instructions for it would take seconds, and be granted the float32 product nevertheless."""
    with SlowProducts(torch.bfloat16) as products:
        found = measure_ceilings(processor_of("cpu")).matmul_flops_per_s
    assert (torch.bfloat16, LARGE) not in products.seen
    assert found["fp32"] == found["bf16"] == found["fp16"] > 0


def test_a_cpu_that_is_fast_in_bf16_reaches_more_in_it() -> None:
    """The large product counts."""
    with SlowProducts(torch.float32) as products:
        found = measure_ceilings(processor_of("cpu")).matmul_flops_per_s
    assert (torch.bfloat16, LARGE) in products.seen
    assert found["bf16"] > found["fp32"] == found["fp16"] > 0
