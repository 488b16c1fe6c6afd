"""Memory that this process has allocated, as the C library counts it."""

from __future__ import annotations

import ctypes


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )
    hblkhd: int
    uordblks: int


def malloc_bytes() -> int:
    """Bytes that are allocated from the C library now; 0 where it does not tell."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = _Mallinfo
    told = ask()
    return int(told.uordblks + told.hblkhd)
