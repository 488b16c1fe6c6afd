"""Copies of the judge's tensors in the memory that a host shares.

The judge keeps tensors of its own. Whatever a kernel does to its copies, golden results are computed from the judge's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from qualify.masks import Mask
from qualify.run.adapters.interface import AttentionCall
from qualify.run.host.arena import SPARSE_BYTES, Arena, Slot
from qualify.run.host.memory import touched
from qualify.run.host.messages import Spec
from qualify.run.unlike import unlike

CALL_FIELDS = tuple(item.name for item in fields(AttentionCall))
PLAIN = frozenset((int, float, bool, type(None)))
MASK_FIELDS = tuple(item.name for item in fields(Mask))
LEAST_NEW = 32
"""after so many new copies those are looked for whose storage is gone"""
SWEPT_BYTES = 64 << 20
"""bytes of new copies after which they are looked for, however few they are"""


class _Copied:
    """A storage of the judge, and the slot that holds a copy of it."""

    def __init__(self, storage: torch.UntypedStorage, slot: Slot) -> None:
        self.weak = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self.slot = slot
        self.version: int | None = None
        """version counter of its tensors when it was copied; None = never copied, or they have no counter"""


class Placed:
    """The tensors of one call in the arena."""

    def __init__(self, copies: Mapping[str, tuple[Tensor, _Copied]], data: Mapping[str, Any]) -> None:
        self.copies = copies
        self.data = data
        """the call as a message has it"""


class Mirror:
    """Copies of the judge's tensors: one slot for each storage, as long as anybody has the storage."""

    def __init__(self, arena: Arena, settle: Callable[[], None]) -> None:
        """Nothing is copied yet.

        Args:
            settle: waits until the host's launches are done, before memory is overwritten that they may read.
        """
        self.arena = arena
        self.settle = settle
        self.copies: dict[int, _Copied] = {}
        self.left = 0
        """copies after the last sweep"""
        self.taken_bytes = 0
        """bytes that copies took since the last sweep"""

    def place(self, call: AttentionCall) -> Placed:
        """Copy what is not there yet, or has changed."""
        self._sweep_at_times()
        copies: dict[str, tuple[Tensor, _Copied]] = {}
        data: dict[str, Any] = {}
        for name in CALL_FIELDS:
            value = getattr(call, name)
            if type(value) in PLAIN:
                data[name] = value
            elif isinstance(value, Tensor):
                copies[name] = value, self._copied(value)
                data[name] = spec_of(value, copies[name][1].slot)
            elif isinstance(value, Mask):
                data[name] = {part: getattr(value, part) for part in MASK_FIELDS}
            else:
                data[name] = dtype_name(value)
        placed = Placed(copies, data)
        self.refresh(placed)
        return placed

    def spec(self, tensor: Tensor) -> tuple[Spec, _Copied]:
        """A tensor beside a call, as a message has it; the copy lives as long as it is held."""
        copied = self._copied(tensor)
        self.refresh(Placed({"": (tensor, copied)}, {}))
        return spec_of(tensor, copied.slot), copied

    def refresh(self, placed: Placed) -> None:
        """Copy again the tensors that were written to since they were copied."""
        changed: dict[int, tuple[Tensor, _Copied]] = {}
        for tensor, copied in placed.copies.values():
            version = _version(tensor)
            if version is None or copied.version != version:
                changed[id(copied)] = tensor, copied
        if not changed:
            return
        self.settle()
        for tensor, copied in changed.values():
            self._copy(_bytes(tensor), copied.slot)
            copied.version = _version(tensor)
        self.arena.copying |= copied.slot.view.is_cuda

    def _copy(self, values: Tensor, slot: Slot) -> None:
        """All bytes; of large memory on a CPU, which may be mostly untouched, only those that somebody has touched."""
        if values.is_cuda or values.numel() < SPARSE_BYTES:
            slot.view.copy_(values)
            return
        self.arena.clear(slot)
        for first, last in touched(values):
            slot.view[first:last].copy_(values[first:last])

    def read_back(self, call: AttentionCall) -> None:
        """Let the call's storages hold what their copies hold."""
        found: dict[int, tuple[Tensor, _Copied]] = {}
        for name in CALL_FIELDS:
            value = getattr(call, name)
            copied = self.copies.get(value.untyped_storage()._cdata) if isinstance(value, Tensor) else None
            if copied is not None and not copied.weak.expired():  # type: ignore[no-untyped-call]
                found[id(copied)] = _bytes(value), copied
        pairs = [(own, copied.slot.view) for own, copied in found.values()]
        for (own, copied), wrote in zip(found.values(), unlike(pairs), strict=True):
            if wrote:
                own.copy_(copied.slot.view)
                self.arena.copying |= own.is_cuda
                copied.version = None

    def sweep(self) -> None:
        """Let go of copies whose storage is gone."""
        for key in [key for key, copied in self.copies.items() if copied.weak.expired()]:  # type: ignore[no-untyped-call]
            del self.copies[key]
        self.left, self.taken_bytes = len(self.copies), 0

    def _sweep_at_times(self) -> None:
        """Sweep only after enough new copies: where many are held, asking every storage takes as long as a call."""
        many = len(self.copies) - self.left >= max(LEAST_NEW, self.left)
        if many or self.taken_bytes >= SWEPT_BYTES:
            self.sweep()

    def _slot(self, count: int) -> Slot:
        try:
            return self.arena.take(count)
        except torch.OutOfMemoryError:
            self.sweep()
            return self.arena.take(count)

    def _copied(self, tensor: Tensor) -> _Copied:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self.copies.get(key)
        if known is None or known.weak.expired():  # type: ignore[no-untyped-call]
            self.copies.pop(key, None)
            known = self.copies[key] = _Copied(storage, self._slot(storage.nbytes()))
            self.taken_bytes += known.slot.count
        return known


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """As messages have it."""
    return str(dtype).removeprefix("torch.")


def spec_of(tensor: Tensor, slot: Slot) -> Spec:
    """A tensor over a copy of its storage."""
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return (
        slot.segment,
        slot.first,
        slot.count,
        begin,
        dtype_name(tensor.dtype),
        tuple(tensor.shape),
        tuple(tensor.stride()),
    )


def _bytes(tensor: Tensor) -> Tensor:
    """(bytes,) uint8: the whole storage of a tensor."""
    with torch.no_grad():
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version
