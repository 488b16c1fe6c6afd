"""Which of several pairs of tensors differ in a bit, read with one wait for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WORD = 8
"""bytes that are compared at once, where tensors begin and end at multiples of it"""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, WORD: torch.int64}
"""integers by their number of bytes"""


def unlike(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[bool]:
    """For each pair of equal shape and dtype, whether any bit differs: 0 and -0 do, and equal bits of a NaN do not."""
    told: list[bool] = torch.stack([_any_unlike(*pair) for pair in pairs]).tolist() if pairs else []
    return told


def _any_unlike(a: Tensor, b: Tensor) -> Tensor:
    flat = [tensor.contiguous().view(-1) for tensor in (a, b)]
    size = a.element_size()
    begins = [begin for tensor in flat for begin in (tensor.data_ptr(), tensor.storage_offset() * size)]
    whole = not any(number % WORD for number in (a.numel() * size, *begins))
    one, other = (tensor.view(INTEGERS[WORD if whole else size]) for tensor in flat)
    return (one != other).any()
