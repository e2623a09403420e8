"""Requests of the process to the kernel and the C library: file descriptors, reuse of freed memory, idle I/O (U14)."""

from __future__ import annotations

import ctypes
import os
import platform
import resource

_MOST_DESCRIPTORS = 1 << 20
"""Some systems allow a billion, and a program that iterates over all of them would take minutes."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3), as glibc's malloc.h numbers them."""

_MIB = 1024 * 1024
_SETTINGS = (
    # A thread that finds the arena locked is given one of its own, up to eight per core.  What is freed in one is not
    # reused from another: each keeps its own peak, and resident memory grows far past what the caches hold.
    (_M_ARENA_MAX, 1),
    # glibc maps what is larger than 128 KiB to 32 MiB, by what it has seen freed, page by page, and unmaps it when it is
    # freed.  Reading a chunk into pages that the kernel must first clear is ten times as slow as into pages we have.
    (_M_MMAP_THRESHOLD, 32 * _MIB),
    (_M_TRIM_THRESHOLD, 256 * _MIB),
)

_SYSCALLS = {"x86_64": (251, 252), "aarch64": (30, 31)}
"""Numbers of ioprio_set and ioprio_get, for which glibc has no functions."""
_WHO_PROCESS = 1
_THIS_THREAD = 0
_CLASS_SHIFT = 13
_CLASS_IDLE = 3

_LIBC = ctypes.CDLL(None, use_errno=True)


def take_descriptors() -> int:
    """Raise the soft limit of open files to what the system allows, and return it.

    Shells and containers start programs with 1,024, for those that use ``select``; each client of the gateway takes two.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def leave_no_core() -> None:
    """Have the system write no core of this process when it is aborted: records and credentials would be in it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def reuse_freed_memory() -> bool:
    """Make malloc reuse freed memory, whichever thread freed it; call it before the process starts a thread.

    Return False if the C library has no such settings (musl): everything works there too, with more memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return {mallopt(parameter, value) for parameter, value in _SETTINGS} == {1}


def enter_idle_io_class() -> None:
    """Give the calling thread idle I/O priority (ioprio_set(2)): its disk requests wait for all others, until it ends.

    Schedulers without priorities (``none``, ``mq-deadline``) ignore it.

    Raises:
        OSError: the kernel refuses, or this kind of machine is not known.
    """
    if _call(0, _CLASS_IDLE << _CLASS_SHIFT) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def io_class() -> int:
    """Return the I/O class of the calling thread: 0 for none of its own, 3 for idle."""
    return _call(1) >> _CLASS_SHIFT


def _call(which: int, *arguments: int) -> int:
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        raise OSError(f"ioprio_set is not known on {platform.machine()}")
    return int(_LIBC.syscall(numbers[which], _WHO_PROCESS, _THIS_THREAD, *arguments))
