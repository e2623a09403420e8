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


class RootIsAwayError(OSError):
    """The root of a store is no directory, or on another file system than before: it says nothing about the store's objects."""


def require_directory(path: Path, *, before: os.stat_result | None = None) -> os.stat_result:
    """Return the status of ``path``, which is a directory, or a link to one; on the file system of ``before``, if given.

    Inodes are not compared: some mounts number them anew while they are mounted.

    Raises:
        RootIsAwayError: it is not there, or something else is, as where a volume was unmounted.
        OSError: it cannot be looked at.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RootIsAwayError(error.errno, error.strerror, str(path)) from error
    if not stat.S_ISDIR(status.st_mode):
        raise RootIsAwayError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if before is not None and status.st_dev != before.st_dev:
        raise RootIsAwayError(errno.ESTALE, "Another file system than a moment ago", str(path))
    return status


def _require_plain_file(path: Path, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no plain file")
    raise OSError(errno.EINVAL, f"this is {kind}, and objects are plain files: remove it", str(path))
