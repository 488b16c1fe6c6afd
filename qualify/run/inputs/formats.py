"""The formats of ``qualify.facts.dtypes`` as torch dtypes."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from qualify.facts.dtypes import FORMATS, Dtype, Format, dtype_of
from qualify.run.adapters.interface import AttentionCall

TORCH_DTYPES: dict[Format, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8_e4m3": torch.float8_e4m3fn,
}
"""the torch dtype of each format"""
_FORMATS = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def format_of(dtype: torch.dtype) -> Format:
    """The format of a torch dtype.

    Raises:
        KeyError: no tensor of a call has this dtype.
    """
    return _FORMATS[dtype]


def call_dtype(call: AttentionCall) -> Dtype | None:
    """The dtype of a call; None if no dtype has this combination of formats of q, k, v and out."""
    stored = [_FORMATS.get(dtype) for dtype in (call.q.dtype, call.k.dtype, call.v.dtype, call.out_dtype)]
    formats = [name for name in stored if name]
    return dtype_of(*formats) if len(formats) == len(stored) else None


def fitted(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values cast to a dtype. In fp8, which is descaled, values beyond the range become ± its largest number."""
    known = FORMATS[format_of(dtype)]
    return (values.float().clamp(-known.largest, known.largest) if known.descaled else values).to(dtype)


@lru_cache(maxsize=64)
def fitted_number(value: float, dtype: torch.dtype) -> float:
    """One value, cast to a dtype as :func:`fitted` does it."""
    return float(fitted(torch.tensor(value), dtype))
