"""What this device reaches at best, measured in the session that quotes it."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from qualify.facts.stack import Ceilings
from qualify.run.inputs.tensors import FP8, TORCH_DTYPES
from qualify.run.measure.timing import Clock

MATMUL_SIZE = {"cuda": 8192, "cpu": 768}
COPY_BYTES = {"cuda": 2 << 30, "cpu": 128 << 20}
PIECES = 64
"""equal pieces of the copied bytes, so that few random ones are drawn"""
LARGE_CALLS = {"cuda": 3, "cpu": 1}
"""calls of a block of a large product or copy; on a CPU one takes milliseconds, and there is no launch to hide"""
EXP_ELEMENTS = {"cuda": 1 << 24, "cpu": 1 << 16}
CHAIN_LENGTH = 256
EXP_CHAIN = """
template <typename T> T chain(T x) {
  float y = x;
  #pragma unroll 16
  for (int i = 0; i < 256; i++) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(y));
  return y;
}
"""


def measure_ceilings(device: torch.device) -> Ceilings:
    """A large matrix product per dtype on random data, a large copy, exponentials in registers, an empty launch.

    On a CPU every dtype is granted the float32 product where that is faster.
    """
    clock = Clock(device)
    if device.type == "cpu":
        # A kernel may compute in float32 whatever its inputs are, and products of fp16 take seconds on some CPUs.
        products: dict[str, float] = dict.fromkeys(TORCH_DTYPES, _matmul(clock, device, torch.float32))
        products["bf16"] = max(products["fp32"], _matmul(clock, device, torch.bfloat16))
    else:
        products = {name: _matmul(clock, device, dtype) for name, dtype in TORCH_DTYPES.items() if dtype != FP8}
        products["fp8_e4m3"] = _fp8_matmul(clock, device) if _has_fp8(device) else products["bf16"]
    return Ceilings(
        matmul_flops_per_s=products,
        copy_bytes_per_s=_copy(clock, device),
        exps_per_s=_exponentials(clock, device),
        launch_us=_launch(clock, device),
    )


def best_of(a: Ceilings, b: Ceilings) -> Ceilings:
    """The higher of two measurements of each ceiling: whatever disturbed one made it lower."""
    return Ceilings(
        matmul_flops_per_s={name: max(rate, b.matmul_flops_per_s[name]) for name, rate in a.matmul_flops_per_s.items()},
        copy_bytes_per_s=max(a.copy_bytes_per_s, b.copy_bytes_per_s),
        exps_per_s=max(a.exps_per_s, b.exps_per_s),
        launch_us=min(a.launch_us, b.launch_us),
    )


def _best_us(clock: Clock, call: Callable[[], Any], repeats: int, calls: int = 3) -> float:
    """Median over blocks of a few calls, after warm-up, in µs per call."""
    for _ in range(calls):
        call()
    return median(clock.block_us([call] * calls, ahead_us=200) / calls for _ in range(repeats))


def _matmul(clock: Clock, device: torch.device, dtype: torch.dtype) -> float:
    size = MATMUL_SIZE[device.type]
    if device.type == "cuda" and dtype == torch.float32:
        size //= 2
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _best_us(clock, lambda: torch.matmul(a, b), repeats=5, calls=LARGE_CALLS[device.type]) * 1e6


def _has_fp8(device: torch.device) -> bool:
    """Whether the tensor cores multiply e4m3: Ada, Hopper and later."""
    return torch.cuda.get_device_capability(device) >= (8, 9)


def _fp8_matmul(clock: Clock, device: torch.device) -> float:
    """The same with e4m3 inputs and the fast accumulator, as attention kernels use it."""
    size = MATMUL_SIZE["cuda"]
    a, b = (torch.randn(size, size, device=device).to(FP8) for _ in range(2))
    one = torch.ones((), device=device)

    def product() -> torch.Tensor:
        # The second factor must be column-major.
        return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return 2 * size**3 / _best_us(clock, product, repeats=5) * 1e6


def _copy(clock: Clock, device: torch.device) -> float:
    piece = torch.empty(COPY_BYTES[device.type] // 8 // PIECES, dtype=torch.int64, device=device).random_()
    source = piece.repeat(PIECES)
    target = torch.empty_like(source)
    us = _best_us(clock, lambda: target.copy_(source), repeats=5, calls=LARGE_CALLS[device.type])
    return 2 * source.nbytes / us * 1e6


def _exponentials(clock: Clock, device: torch.device) -> float:
    values = torch.rand(EXP_ELEMENTS[device.type], device=device)
    if device.type == "cuda":
        chain = torch.cuda.jiterator._create_jit_fn(EXP_CHAIN)
        return CHAIN_LENGTH * values.numel() / _best_us(clock, lambda: chain(values), repeats=3) * 1e6
    return values.numel() / _best_us(clock, lambda: torch.exp(values, out=values), repeats=5) * 1e6


def _launch(clock: Clock, device: torch.device) -> float:
    tiny = torch.zeros(1, device=device)
    for _ in range(3):
        tiny.add_(1)
    return median(clock.block_us([lambda: tiny.add_(1)] * 100, ahead_us=2_000) / 100 for _ in range(3))
