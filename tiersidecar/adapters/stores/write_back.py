"""Begin to write dirty pages of a file without waiting for it: sync_file_range(2), which Python lacks."""

from __future__ import annotations

import ctypes

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_SYNC_FILE_RANGE_WRITE = 2


def begin_write_back(fileno: int, position: int, size_bytes: int) -> None:
    """A hint: a file system that cannot is no error, for durability is what fsync is for."""
    _LIBC.sync_file_range(fileno, position, size_bytes, _SYNC_FILE_RANGE_WRITE)
