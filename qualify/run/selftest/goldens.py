"""Golden results that specimens share: they meet the same inputs, on which alone a golden result depends."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import fields

import torch
from torch import Tensor

from qualify.run.adapters.interface import AttentionCall
from qualify.run.reference import ROW_LIMIT, Golden, golden

LIMIT_BYTES = 256 << 20
"""of golden results that a process keeps"""


class Goldens:
    """Computes golden results, and finds them again by everything that a call holds, bytes included.

    A kernel that wrote into its inputs makes another call of them, with a golden result of its own.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.kept: OrderedDict[bytes, Golden] = OrderedDict()

    def __call__(
        self,
        call: AttentionCall,
        *,
        dtype: torch.dtype = torch.float64,
        underflow: bool = False,
        scores: bool = False,
        row_limit: int = ROW_LIMIT,
    ) -> Golden:
        """What :func:`qualify.run.reference.golden` gives."""
        key = _digest(call, f"{dtype}/{underflow}/{scores}/{row_limit}")
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key]
        found = golden(call, dtype=dtype, underflow=underflow, scores=scores, row_limit=row_limit)
        self.kept[key] = found
        self.held_bytes += _size(found)
        while self.held_bytes > self.limit_bytes:
            _, oldest = self.kept.popitem(last=False)
            self.held_bytes -= _size(oldest)
        return found


def _digest(call: AttentionCall, asked: str) -> bytes:
    """Names the call and what was asked of it: shapes, dtypes, numbers, and the bytes of every tensor."""
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
    """Bytes of its tensors."""
    parts = (getattr(found, field.name) for field in fields(found))
    return sum(part.numel() * part.element_size() for part in parts if isinstance(part, Tensor))
