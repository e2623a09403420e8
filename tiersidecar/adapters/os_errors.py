"""Errors of the operating system as sentences of ours."""

from __future__ import annotations

import errno
import os

_HINTS = {
    errno.EACCES: "the daemon's user may not do that here",
    errno.EPERM: "the daemon's user may not do that here",
    errno.EROFS: "it is mounted read-only",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the user's disk quota is used up",
    errno.EXDEV: "the whole store has to be one file system",
    errno.EIO: "the disk fails",
    errno.EMFILE: "the process has no descriptors left: raise LimitNOFILE",
}


def explain_os_error(error: OSError) -> str:
    """Return the error, its path, and what it means: ``Permission denied: '/srv/tier' (the daemon's user may ...)``."""
    number = error.errno or 0
    said = error.strerror or os.strerror(number)
    places = " -> ".join(repr(os.fspath(place)) for place in (error.filename, error.filename2) if place is not None)
    hint = f" ({_HINTS[number]})" if number in _HINTS else ""
    return f"{said}: {places}{hint}" if places else f"{said}{hint}"
