"""The judge's memory that one host shares: what a call's tensors are copied into, and results come back through."""

from __future__ import annotations

import os
import weakref
from bisect import insort
from collections.abc import Callable

import torch
from torch import Tensor

from qualify.run.host.memory import DeviceMemory, SharedFile, allocate, forget, release
from qualify.run.host.messages import CloseMemory, OpenMemory, Region

ALIGNED = 512
"""copies begin at multiples of so many bytes, as the tensors of CUDA's allocator do"""
BLOCK = 512
"""bytes of a block, as the system counts what a file takes"""
SPARSE_BYTES = 32 << 20
"""on a CPU, only the touched pages are copied of memory that has at least so many bytes"""
LEFT_BYTES = 256 << 20
"""bytes of smaller copies that are gone, after which all free parts give their pages back, too"""
SLACK_BYTES = 2 * LEFT_BYTES
"""what the file may take beside the slots: those that are gone, and the rest of each slot's first and last page"""
KEPT_BYTES = 2 << 30
"""free bytes of a device that an arena keeps"""
SEGMENT_BYTES = 256 << 20
"""least bytes of a device that one request takes"""


class Slot:
    """Some bytes of the arena, given back once nobody has the slot any more."""

    def __init__(self, segment: int, first: int, count: int, view: Tensor) -> None:
        self.segment = segment
        self.first = first
        self.count = count
        self.view = view
        """(count,) uint8"""

    @property
    def region(self) -> Region:
        """As messages name it: segment, first byte, bytes."""
        return self.segment, self.first, self.count


class Free:
    """The free parts of one segment."""

    def __init__(self, size: int) -> None:
        self.parts = [(0, size)]
        """(first byte, bytes), in order"""
        self.most = size
        """bytes of the largest part"""

    def smallest(self, count: int) -> int:
        """Bytes of the smallest part that has so many; 0 where there is none."""
        return min(size for _, size in self.parts if size >= count) if self.most >= count else 0

    def take(self, count: int) -> int:
        """Take so many bytes of the smallest part that has them, and return the first; there must be such a part."""
        size, first = min((size, first) for first, size in self.parts if size >= count)
        index = self.parts.index((first, size))
        self.parts[index : index + 1] = [(first + count, size - count)] if size > count else []
        if size == self.most:
            self.most = max((size for _, size in self.parts), default=0)
        return first

    def give(self, first: int, count: int) -> None:
        """They are free again; neighbours become one."""
        insort(self.parts, (first, count))
        merged = [self.parts[0]]
        for start, size in self.parts[1:]:
            last, length = merged[-1]
            if last + length == start:
                merged[-1] = (last, length + size)
            else:
                merged.append((start, size))
        self.parts = merged
        self.most = max(size for _, size in merged)


class Arena:
    """Memory that one host shares."""

    def __init__(
        self, shared: int, size: int, tell: Callable[[OpenMemory], None], untell: Callable[[CloseMemory], bool]
    ) -> None:
        """Nothing is allocated yet.

        Args:
            shared: descriptor of the file that is shared on a CPU; -1 = the device's memory is shared.
            size: bytes of the file; untouched ones take no memory.
            tell: sends the handle of a new segment to the host.
            untell: asks the host to close one; False where somebody there still holds a part of it.
        """
        self.tell = tell
        self.untell = untell
        self.segments: list[SharedFile | DeviceMemory | None] = []
        """None: given back to the device"""
        self.free: dict[int, Free] = {}
        """free parts of the segments that are there, by number"""
        self.gone: list[tuple[int, int]] = []
        """slots given back that the host has not heard of"""
        self.copying = False
        """whether this process's device may still copy from or to the memory"""
        self.shared = shared
        self.handed_bytes = 0
        """bytes of all slots that somebody has"""
        self.left_bytes = 0
        """at most so many bytes of the file's free parts were slots, and still take memory"""
        if shared >= 0:
            self.segments.append(SharedFile(shared, size))
            self.free[0] = Free(size)

    @property
    def device_bytes(self) -> int:
        """Bytes of the device's memory that the arena holds."""
        return sum(segment.size for segment in self.segments if isinstance(segment, DeviceMemory))

    def lent_bytes(self) -> int:
        """Bytes of host memory that the file takes."""
        return 0 if self.shared < 0 else os.fstat(self.shared).st_blocks * BLOCK

    def beyond_bytes(self) -> int:
        """Bytes of memory that the host has filled in the file, where nobody gave it a slot; without the slack."""
        return max(0, self.lent_bytes() - self.handed_bytes - SLACK_BYTES)

    def take(self, count: int) -> Slot:
        """A slot of so many bytes.

        Raises:
            torch.OutOfMemoryError: the device has no room.
        """
        room = max(ALIGNED, -(-count // ALIGNED) * ALIGNED)
        sizes = [(free.smallest(room), segment) for segment, free in self.free.items()]
        fitting = [(size, segment) for size, segment in sizes if size]
        if not fitting:
            if self.shared >= 0:
                raise torch.OutOfMemoryError("the memory that is shared with a host is full")
            self._extend(max(SEGMENT_BYTES, room))
            fitting = [(0, len(self.segments) - 1)]
        segment = min(fitting)[1]
        return self._slot(segment, self.free[segment].take(room), count, room)

    def _extend(self, size: int) -> None:
        """Allocate one more segment of the device's memory; free segments are given back before."""
        self.trim(KEPT_BYTES)
        try:
            memory, handle = allocate(size)
        except RuntimeError:
            self.trim(0)
            torch.cuda.empty_cache()
            try:
                memory, handle = allocate(size)
            except RuntimeError as error:
                raise torch.OutOfMemoryError(str(error)) from error
        self.free[len(self.segments)] = Free(size)
        self.segments.append(memory)
        self.tell(OpenMemory(handle=handle, bytes=size))

    def trim(self, kept_bytes: int) -> None:
        """Give free segments back to the device, until the arena holds at most so many bytes of it."""
        for number, memory in enumerate(self.segments):
            if self.device_bytes <= kept_bytes:
                return
            free = self.free.get(number)
            if isinstance(memory, DeviceMemory) and free is not None and free.parts == [(0, memory.size)]:
                del self.free[number]
                if self.untell(CloseMemory(segment=number)):
                    release(memory)
                    self.segments[number] = None

    def _slot(self, segment: int, first: int, count: int, room: int) -> Slot:
        memory = self.segments[segment]
        assert memory is not None, "what was given back has no free parts"
        slot = Slot(segment, first, count, memory.bytes(first, max(count, 1))[:count])
        self.handed_bytes += room
        weakref.finalize(slot, self._give, segment, first, room).atexit = False
        return slot

    def _give(self, segment: int, first: int, room: int) -> None:
        self.free[segment].give(first, room)
        self.handed_bytes -= room
        if self.shared >= 0:
            self._forget(first, room)
        self.gone.append((segment, first))

    def _forget(self, first: int, room: int) -> None:
        """Give the pages of a large slot back at once, and those of small ones once there are many."""
        if room >= SPARSE_BYTES:
            forget(self.shared, first, room)
            return
        self.left_bytes += room
        if self.left_bytes >= LEFT_BYTES:
            for start, size in self.free[0].parts:
                forget(self.shared, start, size)
            self.left_bytes = 0

    def clear(self, slot: Slot) -> None:
        """Let a slot hold zeros that take no memory; on a CPU only."""
        forget(self.shared, slot.first, -(-slot.count // ALIGNED) * ALIGNED)

    def heard(self) -> tuple[tuple[int, int], ...]:
        """Slots that were given back since the last time."""
        gone, self.gone = tuple(self.gone), []
        return gone

    def wait(self) -> None:
        """Wait until this process's copies are done, because the host reads and writes next."""
        if self.copying:
            torch.cuda.current_stream().synchronize()
            self.copying = False

    def close(self) -> None:
        """Give everything back; the host must have ended."""
        for memory in self.segments:
            if isinstance(memory, DeviceMemory):
                release(memory)
        self.segments.clear()
        self.shared = -1  # the descriptor's number may soon be that of another host's file
