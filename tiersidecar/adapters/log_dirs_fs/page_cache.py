"""Which parts of a file are in the page cache: what the broker has there for its consumers must stay (U14)."""

from __future__ import annotations

import ctypes
import mmap
import os
import time

SLICE_BYTES = 1024 * 1024

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_FOLIO_SLICES = 4
_SLICES_AT_ONCE = 16
_REST_S = 0.0001
"""Asking takes a core for 0.02 to 0.04 ms for each MiB: of a large segment at once, for longer than a broker's thread should
wait.  With more rests opening one would be felt where copying has no quota."""
_IS_RESIDENT = bytes(state & 1 for state in range(256))
"""By what mincore(2) says of a page, whose other bits are reserved."""
_MAP_FAILED = ctypes.c_void_p(-1).value


class PageCacheFootprint:
    """A file as the page cache had it before we read it, in slices of 1 MiB.

    :meth:`drop` lets go of the pages of a slice that we brought in, and leaves alone a slice of which any page was there
    already.  A page that somebody else reads in the meantime goes with ours, and costs one read of the disk.
    """

    def __init__(self, fileno: int, size_bytes: int) -> None:
        self._fileno, self._size_bytes = fileno, size_bytes
        self._foreign = resident_slices(fileno, size_bytes)

    def drop(self, position: int, count: int) -> None:
        """``count`` bytes from ``position`` on were read, in order: the slices that end there are done with."""
        stop = position + count
        done = len(self._foreign) if stop >= self._size_bytes else stop // SLICE_BYTES
        for number in range(position // SLICE_BYTES, done):
            if not self._foreign[number]:
                # From some slices before: the kernel keeps a large folio of which a part is outside the range.
                start = number
                while start > max(number - _FOLIO_SLICES, 0) and not self._foreign[start - 1]:
                    start -= 1
                size = (number + 1 - start) * SLICE_BYTES
                os.posix_fadvise(self._fileno, start * SLICE_BYTES, size, os.POSIX_FADV_DONTNEED)


def resident_slices(fileno: int, size_bytes: int) -> list[bool]:
    """Of which slices any page is in the page cache: by mincore(2), which reads nothing.  Where it cannot tell, all count.

    Blocks, in short turns with rests between them."""
    count = -(-size_bytes // SLICE_BYTES)
    if not count:
        return []
    address = _LIBC.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fileno, 0)
    if address == _MAP_FAILED:
        return [True] * count
    try:
        resident: list[bool] = []
        at_once = _SLICES_AT_ONCE * SLICE_BYTES
        for position in range(0, size_bytes, at_once):
            if position:
                time.sleep(_REST_S)
            resident += _resident_slices_at(address + position, min(at_once, size_bytes - position))
        return resident
    finally:
        _LIBC.munmap(address, size_bytes)


def _resident_slices_at(address: int, size_bytes: int) -> list[bool]:
    """Of the file's slices that are mapped from ``address`` on."""
    pages, per_slice = -(-size_bytes // mmap.PAGESIZE), SLICE_BYTES // mmap.PAGESIZE
    states = (ctypes.c_ubyte * pages)()
    if _LIBC.mincore(address, size_bytes, states):
        return [True] * -(-pages // per_slice)
    resident = bytes(states).translate(_IS_RESIDENT)
    return [1 in resident[start : start + per_slice] for start in range(0, pages, per_slice)]
