"""Idle I/O priority for a thread: its disk requests go when nobody else has any (U14; ioprio_set(2))."""

from __future__ import annotations

import ctypes
import os
import platform

_SYSCALLS = {"x86_64": (251, 252), "aarch64": (30, 31)}
"""(ioprio_set, ioprio_get): glibc has no functions for them."""
_WHO_PROCESS = 1
_THIS_THREAD = 0
_CLASS_SHIFT = 13
_CLASS_IDLE = 3

_LIBC = ctypes.CDLL(None, use_errno=True)


def enter_idle_io_class() -> None:
    """For the calling thread, until it ends.  Schedulers without priorities (``none``, ``mq-deadline``) take no notice.

    Raises:
        OSError: the kernel refuses, or this kind of machine is not known.
    """
    if _call(0, _CLASS_IDLE << _CLASS_SHIFT) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def io_class() -> int:
    """Of the calling thread: 0 none of its own, 3 idle."""
    return _call(1) >> _CLASS_SHIFT


def _call(which: int, *arguments: int) -> int:
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        raise OSError(f"ioprio_set is not known on {platform.machine()}")
    return int(_LIBC.syscall(numbers[which], _WHO_PROCESS, _THIS_THREAD, *arguments))
