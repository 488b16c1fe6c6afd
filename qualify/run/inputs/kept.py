"""A cache of values with a limit of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


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
