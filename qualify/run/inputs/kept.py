"""What a process keeps because checks need it many times. Nobody may write to a tensor that is kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Generic, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

Value = TypeVar("Value")
P = ParamSpec("P")
_FORGET: list[Callable[[], None]] = []
LENGTHS = 64
"""most tensors of lengths that are kept"""
BATCHES = 4
"""most batches whose places are kept: queries and keys of a case, and of what a check makes of it"""


def keep(count: int) -> Callable[[Callable[P, Value]], Callable[P, Value]]:
    """A decorator: what the function returned for its latest arguments is kept until :func:`forget`."""

    def decorated(function: Callable[P, Value]) -> Callable[P, Value]:
        keeping = lru_cache(maxsize=count)(function)
        _FORGET.append(keeping.cache_clear)
        return cast("Callable[P, Value]", keeping)

    return decorated


def forget() -> None:
    """Drop everything that is kept: its memory is needed, or a recorder has to see how it is made."""
    for drop in _FORGET:
        drop()


@keep(LENGTHS)
def lengths_on(values: tuple[int, ...], device: torch.device) -> Tensor:
    """(n,) int64 on the device. It is kept, because a copy from the host's memory takes longer than a launch."""
    return torch.tensor(values, dtype=torch.int64, device=device)


@keep(BATCHES)
def owners_and_positions(lengths: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """For each element of packed sequences of these lengths, its sequence and its position there; (total,) int64 each.

    They are kept, because most checks of a case need the same ones.
    """
    counts, total = lengths_on(lengths, device), sum(lengths)
    owner = torch.arange(len(lengths), device=device).repeat_interleave(counts, output_size=total)
    return owner, torch.arange(total, device=device) - (torch.cumsum(counts, 0) - counts)[owner]


class Kept(Generic[Value]):
    """A cache: values by key, as many as fit. The least recently used values are dropped first."""

    def __init__(self, limit_bytes: int, size: Callable[[Value], int]) -> None:
        self.limit_bytes = limit_bytes
        self.size = size
        self.held_bytes = 0
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of the key; where the cache lacks it, ``make`` makes it."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = make()
        self.held_bytes += self.size(value)
        while self.held_bytes > self.limit_bytes:
            _, oldest = self._values.popitem(last=False)
            self.held_bytes -= self.size(oldest)
        return value

    def clear(self) -> None:
        """Drop all values."""
        self._values.clear()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._values)
