"""How many files and sockets the process may have open.

How the C library hands out memory: chunks and requests are large, short-lived, and made in many threads.
"""

from __future__ import annotations

import ctypes
import resource

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


def reuse_freed_memory() -> bool:
    """Have malloc reuse what was freed, whichever thread freed it; for a process that has not started a thread yet.

    Gives False where the C library has no such settings (musl): everything works there too, in more memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return {mallopt(parameter, value) for parameter, value in _SETTINGS} == {1}


_ENOUGH = 1 << 20
"""Some systems allow a billion, for which whoever walks over all of them would wait."""


def take_descriptors() -> int:
    """Raise the soft limit to what the system allows; gives what it is then.

    Shells and containers start programs with 1,024, for those that use ``select``; each client of the gateway takes two.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
