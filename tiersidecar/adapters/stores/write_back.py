"""Write dirty pages of a file before fsync must: sync_file_range(2), which Python lacks."""

from __future__ import annotations

import ctypes
import errno
import os

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4
_NOT_SUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP})


def begin_write_back(fileno: int, position: int, size_bytes: int) -> None:
    """Without waiting.  A hint: a file system that cannot is no error, for durability is what fsync is for."""
    _LIBC.sync_file_range(fileno, position, size_bytes, _WRITE)


def end_write_back(fileno: int, position: int, size_bytes: int) -> None:
    """Wait until the disk has these pages.  Durable is nothing by it: that is what fsync is for.

    Raises:
        OSError: the disk did not take them.  Linux tells that once for each open file: fsync would not say it again.
    """
    if _LIBC.sync_file_range(fileno, position, size_bytes, _WAIT_BEFORE | _WRITE | _WAIT_AFTER) == 0:
        return
    code = ctypes.get_errno()
    if code not in _NOT_SUPPORTED:
        raise OSError(code, os.strerror(code))
