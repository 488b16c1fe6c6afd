"""What this device reaches at best, measured in the session that quotes it."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from qualify.facts.devices import HOST, Scale
from qualify.facts.dtypes import FORMATS, Format
from qualify.facts.stack import Ceilings
from qualify.run.inputs.formats import TORCH_DTYPES
from qualify.run.machine.device import Processor

MATMUL_SIZE: dict[Scale, int] = {"small": 768, "large": 8192}
TRIAL_SIZE = 128
"""rows and columns of a product that only shows whether a large one may be faster in another dtype"""
COPY_BYTES: dict[Scale, int] = {"small": 128 << 20, "large": 2 << 30}
PIECES = 64
"""equal pieces of the copied bytes, so that few random ones are drawn"""
LARGE_CALLS: dict[Scale, int] = {"small": 1, "large": 3}
"""calls of a block of a large product or copy; on a CPU one takes milliseconds, and there is no launch to hide"""
EXP_BLOCKS: dict[Scale, int] = {"small": 5, "large": 3}
EXP_ELEMENTS: dict[Scale, int] = {"small": 1 << 16, "large": 1 << 24}


def measure_ceilings(processor: Processor) -> Ceilings:
    """A large matrix product per dtype on random data, a large copy, exponentials in registers, an empty launch.

    On a CPU every dtype is granted the float32 product, unless that of bf16 is faster.
    """
    if processor.kind == HOST:
        # A kernel may compute in float32 whatever its inputs are. Products of fp16 take seconds on some CPUs, and those
        # of bf16 on every one that has no instructions for them.
        products: dict[str, float] = dict.fromkeys(FORMATS, _matmul(processor, "fp32"))
        if 2 * _matmul(processor, "bf16", TRIAL_SIZE) > _matmul(processor, "fp32", TRIAL_SIZE):
            products["bf16"] = max(products["fp32"], _matmul(processor, "bf16"))
    else:
        descaled = [name for name, known in FORMATS.items() if known.descaled]
        products = {name: _matmul(processor, name) for name in FORMATS if name not in descaled}
        for name in descaled:
            products[name] = _scaled_matmul(processor, name) if processor.multiplies_fp8() else products["bf16"]
    return Ceilings(
        matmul_flops_per_s=products,
        copy_bytes_per_s=_copy(processor),
        exps_per_s=_exponentials(processor),
        launch_us=_launch(processor),
    )


def best_of(a: Ceilings, b: Ceilings) -> Ceilings:
    """The higher of two measurements of each ceiling: whatever disturbed one made it lower."""
    return Ceilings(
        matmul_flops_per_s={name: max(rate, b.matmul_flops_per_s[name]) for name, rate in a.matmul_flops_per_s.items()},
        copy_bytes_per_s=max(a.copy_bytes_per_s, b.copy_bytes_per_s),
        exps_per_s=max(a.exps_per_s, b.exps_per_s),
        launch_us=min(a.launch_us, b.launch_us),
    )


def _best_us(processor: Processor, call: Callable[[], Any], repeats: int, calls: int = 3) -> float:
    """Median over blocks of a few calls, after warm-up, in µs per call."""
    for _ in range(calls):
        call()
    return median(processor.block_us([call] * calls, ahead_us=200) / calls for _ in range(repeats))


def _matmul(processor: Processor, name: Format, size: int = 0) -> float:
    """Operations a second of a product of two square matrices; of so many rows, 0 = large ones."""
    size = size or MATMUL_SIZE[processor.scale]
    if processor.kind != HOST and name == "fp32":
        size //= 2
    a, b = (torch.randn(size, size, device=processor.device).to(TORCH_DTYPES[name]) for _ in range(2))
    us = _best_us(processor, lambda: torch.matmul(a, b), repeats=5, calls=LARGE_CALLS[processor.scale])
    return 2 * size**3 / us * 1e6


def _scaled_matmul(processor: Processor, name: Format) -> float:
    """The same in 8 bits with the fast accumulator, as attention kernels use it.

    The second factor is always e4m3: cuBLAS multiplies no two matrices of e5m2, and both have one speed.
    """
    size = MATMUL_SIZE[processor.scale]
    random = [torch.randn(size, size, device=processor.device) for _ in range(2)]
    a, b = (factor.to(TORCH_DTYPES[of]) for factor, of in zip(random, (name, "fp8_e4m3"), strict=True))
    one = torch.ones((), device=processor.device)

    def product() -> torch.Tensor:
        # The second factor must be column-major.
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return 2 * size**3 / _best_us(processor, product, repeats=5) * 1e6


def _copy(processor: Processor) -> float:
    numbers = COPY_BYTES[processor.scale] // 8 // PIECES
    piece = torch.empty(numbers, dtype=torch.int64, device=processor.device).random_()
    source = piece.repeat(PIECES)
    target = torch.empty_like(source)
    us = _best_us(processor, lambda: target.copy_(source), repeats=5, calls=LARGE_CALLS[processor.scale])
    return 2 * source.nbytes / us * 1e6


def _exponentials(processor: Processor) -> float:
    values = torch.rand(EXP_ELEMENTS[processor.scale], device=processor.device)
    call, each = processor.exponentials(values)
    return each * values.numel() / _best_us(processor, call, repeats=EXP_BLOCKS[processor.scale]) * 1e6


def _launch(processor: Processor) -> float:
    tiny = torch.zeros(1, device=processor.device)
    for _ in range(3):
        tiny.add_(1)
    return median(processor.block_us([lambda: tiny.add_(1)] * 100, ahead_us=2_000) / 100 for _ in range(3))
