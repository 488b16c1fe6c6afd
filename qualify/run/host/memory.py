"""Memory that a judge and a host both map, as tensors.

On a CPU it is an anonymous file (``memfd_create``), which both map whole; on CUDA it is memory of the driver
(``cuMemAlloc``), whose inter-process handle the host opens. No object of torch crosses: both sides may be different
releases of it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

from qualify.run.process.memory import own_pages

CPU, CUDA = 1, 2
"""DLPack's numbers of devices"""
UNSIGNED = 1
"""DLPack's number of a kind of element"""
PEER_ACCESS = 1
HANDLE_BYTES = 64


class SharedFile:
    """An anonymous file as memory."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Map it.

        Args:
            descriptor: of the file; it stays open.
            size: its bytes; those that nobody touched take no memory.
        """
        self.mapped = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED)

    def bytes(self, first: int, count: int) -> Tensor:
        """(count,) uint8, a storage of its own over that part."""
        return torch.frombuffer(self.mapped, dtype=torch.uint8, offset=first, count=count)


PAGE = mmap.PAGESIZE
STATE_BITS = 62
"""the bits from here on, in an entry of Linux's pagemap, say whether the page is in memory or swapped out"""
PUNCH_HOLE_KEEP_SIZE = 3


def touched(flat: Tensor) -> list[tuple[int, int]]:
    """(first byte, one past the last) of the parts of memory that somebody has touched; the others hold zeros.

    Args:
        flat: (bytes,) uint8 on the CPU.
    """
    first = flat.data_ptr()
    begin, end = first // PAGE, -(-(first + flat.numel()) // PAGE)
    entries = bytearray(os.pread(own_pages(), 8 * (end - begin), 8 * begin))
    present = torch.frombuffer(entries, dtype=torch.int64).bitwise_right_shift(STATE_BITS).ne(0)
    edges = torch.nn.functional.pad(present.to(torch.int8), (1, 1)).diff().nonzero().flatten().tolist()
    pages = zip(edges[::2], edges[1::2], strict=True)
    return [
        (max(0, (begin + low) * PAGE - first), min(flat.numel(), (begin + high) * PAGE - first)) for low, high in pages
    ]


def forget(descriptor: int, first: int, count: int) -> None:
    """Give back the memory of a part of an anonymous file; it holds zeros then."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if libc.fallocate(descriptor, PUNCH_HOLE_KEEP_SIZE, first, count):
        raise OSError(ctypes.get_errno(), "fallocate")


class _Handle(ctypes.Structure):
    """``CUipcMemHandle``."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class _DLTensor(ctypes.Structure):
    """``DLManagedTensor`` of DLPack, flat."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_DESCRIBED: dict[tuple[int, int], Any] = {}
"""what DLPack was told, by address and bytes; torch reads it once more when a tensor ends, however late that is"""


class DeviceMemory:
    """Memory of a GPU, by its address in this process."""

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size

    def bytes(self, first: int, count: int) -> Tensor:
        """(count,) uint8, a storage of its own over that part."""
        address = self.address + first
        if (address, count) not in _DESCRIBED:
            shape = (ctypes.c_int64 * 1)(count)
            known = _DLTensor(data=address, device_type=CUDA, ndim=1, code=UNSIGNED, bits=8, lanes=1, shape=shape)
            _DESCRIBED[address, count] = known, shape
        known, _ = _DESCRIBED[address, count]
        new_capsule = ctypes.pythonapi.PyCapsule_New
        new_capsule.restype, new_capsule.argtypes = (
            ctypes.py_object,
            (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
        )
        return torch.utils.dlpack.from_dlpack(new_capsule(ctypes.addressof(known), b"dltensor", None))


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _ask(name: str, *arguments: Any) -> None:
    """Call the driver; raises RuntimeError with its words."""
    status = getattr(_driver(), name)(*arguments)
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'unknown error').decode()}")


def allocate(size: int) -> tuple[DeviceMemory, str]:
    """New memory of the present GPU, and the handle by which another process opens it.

    Raises:
        RuntimeError: there is no room, or the driver shares none.
    """
    torch.cuda.current_stream()  # the driver's calls need torch's context
    torch.zeros(1, device="cuda")
    address, handle = ctypes.c_uint64(), _Handle()
    _ask("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    _ask("cuIpcGetMemHandle", ctypes.byref(handle), address)
    return DeviceMemory(address.value, size), ctypes.string_at(ctypes.addressof(handle), HANDLE_BYTES).hex()


def release(memory: DeviceMemory) -> None:
    """Give it back to the driver."""
    _ask("cuMemFree_v2", ctypes.c_uint64(memory.address))


def closed(memory: DeviceMemory) -> None:
    """No longer see another process's memory."""
    _ask("cuIpcCloseMemHandle", ctypes.c_uint64(memory.address))


def opened(handle: str, size: int) -> DeviceMemory:
    """Another process's memory."""
    torch.zeros(1, device="cuda")
    address, known = ctypes.c_uint64(), _Handle()
    ctypes.memmove(ctypes.addressof(known), bytes.fromhex(handle), HANDLE_BYTES)
    _driver().cuIpcOpenMemHandle_v2.argtypes = (ctypes.c_void_p, _Handle, ctypes.c_uint)
    _ask("cuIpcOpenMemHandle_v2", ctypes.byref(address), known, PEER_ACCESS)
    return DeviceMemory(address.value, size)


def typed(flat: Tensor, first: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """A view of bytes as a tensor.

    Args:
        flat: (bytes,) uint8.
        first: first byte of it, a multiple of the element's size.
        strides: in elements.
    """
    empty = torch.empty(0, dtype=dtype, device=flat.device)
    return empty.set_(flat.untyped_storage(), first // dtype.itemsize, shape, strides)
