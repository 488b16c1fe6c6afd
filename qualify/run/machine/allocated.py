"""Memory of this process by the account of the C library."""

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
    """Bytes that the C library has given out and not got back; 0 where it does not tell."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = _Mallinfo
    told = ask()
    return int(told.uordblks + told.hblkhd)
