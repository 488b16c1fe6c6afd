"""Golden results that specimens share: a golden result depends on the inputs alone, and these are the same."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from functools import partial

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.run.golden.reference import golden
from qualify.run.golden.result import Golden
from qualify.run.golden.rows import ROW_LIMIT
from qualify.run.inputs.kept import Kept

LIMIT_BYTES = 320 << 20
"""most bytes of golden results that a process keeps: enough for one group of tasks (battery.shared_inputs)"""


class Goldens:
    """Computes golden results and keeps them by all contents of their calls, the bytes of tensors included.

    If a kernel writes into its inputs, the call's contents have changed, so it gets a golden result of its own.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.kept: Kept[Golden] = Kept(limit_bytes, _size)

    def __call__(
        self,
        call: AttentionCall,
        *,
        dtype: torch.dtype = torch.float64,
        underflow: bool = False,
        scores: bool = False,
        row_limit: int = ROW_LIMIT,
    ) -> Golden:
        """The result of :func:`qualify.run.golden.reference.golden`, computed or kept from an earlier call."""
        key = _digest(call, f"{dtype}/{underflow}/{scores}/{row_limit}")
        ask = partial(golden, call, dtype=dtype, underflow=underflow, scores=scores, row_limit=row_limit)
        return self.kept.get(key, ask)


def _digest(call: AttentionCall, asked: str) -> bytes:
    """The key of a call and its options: shapes, dtypes, numbers, and the bytes of every tensor."""
    digest = hashlib.sha256(asked.encode())
    for field in fields(call):
        value = getattr(call, field.name)
        if isinstance(value, Tensor):
            digest.update(f"|{field.name}: {value.dtype}{tuple(value.shape)}|".encode())
            digest.update(value.contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            digest.update(f"|{field.name}: {value!r}|".encode())
    return digest.digest()


def _size(found: Golden) -> int:
    """Bytes of all tensors of a golden result."""
    return sum(part.numel() * part.element_size() for part in found.tensors.values())
