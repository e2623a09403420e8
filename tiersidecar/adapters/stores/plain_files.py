"""Opening files that other programs may have put there: a link could lead out of the store, and opening a named pipe may not
end."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_NO_PLAIN_FILE = frozenset({errno.ELOOP, errno.ENXIO})
"""Errors of opening a link that may not be followed, and a socket."""


@contextmanager
def open_plain_file(path: Path) -> Iterator[tuple[int, int]]:
    """Yield descriptor and size of a regular file, open for reading.  Directories above it may be links; it itself may not.

    Raises:
        IsADirectoryError: it is a directory.
        OSError: it is another kind of file, or cannot be opened.
    """
    try:
        # Without O_NONBLOCK the open of a named pipe waits for a writer.
        fileno = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NO_PLAIN_FILE:
            plain_file_status(path)
        raise
    try:
        status = os.fstat(fileno)
        _require_plain_file(path, status)
        os.set_blocking(fileno, True)  # some mounts cannot read even a plain file in non-blocking mode
        yield fileno, status.st_size
    finally:
        os.close(fileno)


def plain_file_status(path: Path) -> os.stat_result:
    """Return the status of a regular file.

    Raises:
        As :func:`open_plain_file`.
    """
    status = path.lstat()
    _require_plain_file(path, status)
    return status


def require_directory(path: Path) -> None:
    """Return if ``path`` is a directory, or a link to one.

    Raises:
        OSError: it is not there, or something else is: a store's root then says nothing about its objects.
    """
    if not stat.S_ISDIR(path.stat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def _require_plain_file(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no plain file")
    raise OSError(errno.EINVAL, f"this is {kind}, and objects are plain files: remove it", str(path))
