"""Whether tensors differ in a bit, whatever their dtype, their length and their place in memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from qualify.run.unlike import unlike

DTYPES = [torch.uint8, torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.int32, torch.float32, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 3, 8, 16])
def test_one_other_bit_is_found_at_every_place(dtype: torch.dtype, count: int) -> None:
    """In tensors that fill whole words and in others; each pair has an answer of its own."""
    values = torch.arange(count).to(dtype)
    for place in range(count):
        other = values.clone()
        other.view(torch.uint8)[place * dtype.itemsize] ^= 1
        assert [False, True, False] == unlike([(values, values.clone()), (values, other), (other, other.clone())])


def test_bits_are_compared_and_not_numbers() -> None:
    """A NaN is like itself, and 0 is unlike -0; tensors without elements are alike."""
    nan, zero, nothing = torch.tensor([math.nan, 1.0]), torch.zeros(2), torch.empty(0)
    assert [False, True, False] == unlike([(nan, nan.clone()), (zero, -zero), (nothing, nothing)])
    assert [] == unlike([])


def test_no_place_in_memory_is_a_problem() -> None:
    """Views that are not contiguous, or begin anywhere in a storage that begins anywhere."""
    whole = torch.arange(64, dtype=torch.int16).view(8, 8)
    for view in (whole[:, 1:5], whole.T, whole.view(-1)[3:11]):
        assert [False, True] == unlike([(view, view.clone()), (view, view + 1)])
    raw = np.zeros(68, dtype=np.uint8)
    shifted = torch.from_numpy(raw[4:].view(np.float32))[1:9]
    assert [False, True] == unlike([(shifted, shifted.clone()), (shifted, shifted + 1)])
