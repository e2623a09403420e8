"""Reserve descriptors: clients may not take the last ones, which files, the store and health checks need."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress

_LEAST_KEPT, _MOST_KEPT, _KEPT_SHARE = 32, 256, 16
_LEAST_LEFT = 16
_USED_UP = frozenset({errno.EMFILE, errno.ENFILE})


def are_few(descriptor: int) -> bool:
    """Return whether a client's new ``descriptor`` is one of those that are kept back.

    The system gives the lowest number that is free: all below it are in use.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit != resource.RLIM_INFINITY and descriptor >= limit - kept_of(limit)


def kept_of(limit: int) -> int:
    """Return how many of ``limit`` are not for clients."""
    return min(max(limit // _KEPT_SHARE, _LEAST_KEPT), _MOST_KEPT)


def is_used_up(error: OSError) -> bool:
    """Return whether there was no descriptor left."""
    return error.errno in _USED_UP


class SpareDescriptors:
    """Open descriptors that are never read: each that is closed lets one more health check in."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._spare: list[int] = []
        self.refill()

    def refill(self) -> None:
        """Open as many as are missing and available."""
        with suppress(OSError):
            while len(self._spare) < self._count:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def let_go(self) -> bool:
        """Free one; return False where none is left."""
        if not self._spare:
            return False
        os.close(self._spare.pop())
        return True

    def close(self) -> None:
        """Free all."""
        while self.let_go():
            continue


def reason_not_ready() -> str:
    """Return why the process cannot take more clients; an empty text while it has descriptors."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    taken = list[int]()
    try:
        for _ in range(_LEAST_LEFT):  # free numbers may lie between others, so the lowest says little
            taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        is_machine = False
    except OSError as error:
        if not is_used_up(error):
            return ""
        is_machine = error.errno == errno.ENFILE
    finally:
        for one in taken:
            os.close(one)
    if is_machine:
        return "the machine has no descriptors left (fs.file-max)"
    if len(taken) < _LEAST_LEFT:
        return f"of {limit} descriptors {len(taken)} are left: raise LimitNOFILE, or find what holds them"
    if are_few(taken[0]):
        return f"of {limit} descriptors at least {taken[0]} are in use, the rest is kept back from clients: raise LimitNOFILE"
    return ""
