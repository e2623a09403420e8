"""Appending to a file so that little of it is in memory at any time (U14).  All functions here block.

A large file is written past the page cache (O_DIRECT): no page is made for it, filled, handed to the disk and dropped again,
which was half of the processor time of a copy.  Where a file system cannot do that, dirty pages are written before fsync must
do so: by sync_file_range(2), which Python lacks.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from contextlib import suppress

from tiersidecar.ports.store import Buffer

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_LIBC.fstatfs.argtypes = (ctypes.c_int, ctypes.c_void_p)
_STATFS_BYTES = 256
_FUSE = 0x65735546  # FUSE_SUPER_MAGIC of linux/magic.h
_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4
_NOT_SUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP})


def begin_write_back(fileno: int, position: int, size_bytes: int) -> None:
    """Have the disk begin with these pages, without waiting.  A file system that cannot is no error: fsync makes them durable.

    Raises:
        OSError: there is no room for them.  Whoever hands pages over may be the only one who hears of it.
    """
    _sync_range(fileno, position, size_bytes, _WRITE)


def end_write_back(fileno: int, position: int, size_bytes: int) -> None:
    """Wait until the disk has these pages.  It makes nothing durable: fsync does.

    Raises:
        OSError: the disk did not take them.  Linux reports that once for each open file: fsync would not report it again.
    """
    _sync_range(fileno, position, size_bytes, _WAIT_BEFORE | _WRITE | _WAIT_AFTER)


def _sync_range(fileno: int, position: int, size_bytes: int, flags: int) -> None:
    if _LIBC.sync_file_range(fileno, position, size_bytes, flags) == 0:
        return
    code = ctypes.get_errno()
    if code not in _NOT_SUPPORTED:
        raise OSError(code, os.strerror(code))


WRITE_BACK_BYTES = 4 * 1024 * 1024
"""Most bytes that gather before they are handed to the disk, and in the page cache twice as many are in memory: the sync at the
end is short, the broker's own writes do not queue behind a segment at once, and a segment takes no room in the page cache from
what consumers read (U14).  Reused pages also cost less than fresh ones: a third of the processor time of a copy."""

_SMALL_STEP_BYTES = 1024 * 1024
"""The same for an upload that is in no hurry: handing 4 MiB of cached pages to the disk, and letting go of as many, takes a
core for 0.5 ms each.  Smaller ones would be seeks of a spinning disk."""

_COPIED_AT_ONCE = 1024 * 1024
_DIRECT_FROM_BYTES = 1024 * 1024
"""Smaller files (manifests, index blobs) are written through the page cache, which costs less than a buffer of their own."""

_HUGE_PAGE_BYTES = 2 * 1024 * 1024
_BLOCK_BYTES = 4096
"""What goes past the page cache begins and ends at a multiple of it, in memory and in the file: no disk asks for more."""


class FileWrites:
    """Appends to the open file ``fileno``, which is empty and is to have ``size_bytes`` (None: not known).

    Bytes are put where :meth:`room` says, or are copied by :meth:`write`; up to a step of them wait in memory until there are
    more, or :meth:`finish`.
    """

    def __init__(self, fileno: int, size_bytes: int | None) -> None:
        self._fileno = fileno
        self._step_bytes = self._let_go_bytes = WRITE_BACK_BYTES
        self._buffer = memoryview(b"")
        self._filled = self._in_file = self._begun = self._ended = 0
        self._most_bytes = WRITE_BACK_BYTES if size_bytes is None else max(size_bytes, _BLOCK_BYTES)
        is_large = size_bytes is None or size_bytes >= _DIRECT_FROM_BYTES
        self._is_direct = is_large and _keeps_order(fileno) and _set_direct(fileno, is_on=True)

    @property
    def taken_bytes(self) -> int:
        return self._in_file + self._filled

    def take_small_steps(self) -> None:
        """Gather less for the disk from now on, and drop pages in a later call than hands them over."""
        self._step_bytes, self._let_go_bytes = _SMALL_STEP_BYTES, _SMALL_STEP_BYTES // 2

    def room(self, most_bytes: int) -> memoryview:
        """Return where the next bytes may be put, at least 1 and at most ``most_bytes``; :meth:`took` says how many were."""
        if not self._buffer:
            self._buffer = _pages(min(self._step_bytes, self._most_bytes))
        stop = len(self._buffer)
        if self._filled < self._step_bytes:
            stop = min(stop, self._step_bytes)
        return self._buffer[self._filled : min(self._filled + most_bytes, stop)]

    def will_wait(self, count: int) -> bool:
        """Return whether :meth:`took` of ``count`` bytes will wait for the disk."""
        return self._is_direct and self._filled + count >= min(self._step_bytes, len(self._buffer))

    def took(self, count: int) -> None:
        """Note that :meth:`room` has ``count`` bytes now, from its beginning."""
        will_wait = self.will_wait(count)
        self._filled += count
        if will_wait:
            self._write_past_cache()
        elif not self._is_direct:
            self._write_gathered_to_cache()

    def write(self, piece: Buffer) -> None:
        """Append the whole of ``piece``.  It may be reused as soon as this returns."""
        rest = memoryview(piece).cast("B")
        while rest and self._is_direct:
            room = self.room(min(len(rest), _COPIED_AT_ONCE))
            room[:] = rest[: len(room)]
            self.took(len(room))
            rest = rest[len(room) :]
        if rest:
            self._write_to_cache(rest)

    def finish(self) -> None:
        """Hand on what is in memory; the part of a block at the end goes through the page cache.  It makes nothing durable."""
        if self._is_direct:
            self._write_past_cache()
        if self._is_direct:
            self._go_through_cache()

    def close(self) -> None:
        """Free the memory; nothing more is taken."""
        self._buffer = memoryview(b"")

    def _write_past_cache(self) -> None:
        """Write all whole blocks; what is left of the last one begins the buffer anew."""
        stop, done = self._filled - self._filled % _BLOCK_BYTES, 0
        while done < stop and self._is_direct:
            try:
                count = os.write(self._fileno, self._buffer[done:stop])
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
                count = 0  # a file system that takes O_DIRECT, and nothing that is written so
            self._in_file, done = self._in_file + count, done + count
            if not count or count % _BLOCK_BYTES:
                self._is_direct = False
        left = self._filled - done
        if done and left:
            self._buffer[:left] = bytes(self._buffer[done : self._filled])
        self._filled = left
        # Some file systems (ext4 with data=journal) take O_DIRECT and write to the page cache nevertheless.  Elsewhere there is
        # nothing to hand over and to let go of, and that is found out in a microsecond.
        self._let_go_of_cached()
        if not self._is_direct:
            self._go_through_cache()

    def _go_through_cache(self) -> None:
        """Write what is left, and all that comes, to the page cache."""
        self._is_direct = False
        _set_direct(self._fileno, is_on=False)
        self._write_gathered_to_cache()

    def _write_gathered_to_cache(self) -> None:
        filled, self._filled = self._filled, 0
        self._write_to_cache(self._buffer[:filled])

    def _write_to_cache(self, rest: memoryview) -> None:
        while rest:
            done = os.write(self._fileno, rest)
            self._in_file += done
            rest = rest[done:]
        self._let_go_of_cached()

    def _let_go_of_cached(self) -> None:
        """Let the disk begin with what gathered in the page cache, and wait for what had gathered before."""
        gathered = self._in_file - self._begun
        if gathered >= self._step_bytes:
            begin_write_back(self._fileno, self._begun, gathered)
        if gathered >= self._let_go_bytes and self._begun > self._ended:
            end_write_back(self._fileno, self._ended, self._begun - self._ended)
            os.posix_fadvise(self._fileno, self._ended, self._begun - self._ended, os.POSIX_FADV_DONTNEED)
            self._ended = self._begun
        if gathered >= self._step_bytes:
            self._begun = self._in_file


def _pages(size_bytes: int) -> memoryview:
    """Return memory that begins with a page, as malloc's does not.  Huge pages, where there are some, cost the kernel less to
    make and to hand to the disk: what lies in one is one request, of which else each page would be a part."""
    in_huge_pages = (
        -(-size_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES if size_bytes >= _DIRECT_FROM_BYTES else size_bytes
    )
    pages = mmap.mmap(-1, in_huge_pages, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)[:size_bytes]


def kind_of_file_system(fileno: int) -> int:
    """Return the magic number of the file system, 0 if it is not known."""
    status = (ctypes.c_uint32 * (_STATFS_BYTES // 4))()
    return 0 if _LIBC.fstatfs(fileno, status) else status[0] or status[1]  # a long on most machines


def _keeps_order(fileno: int) -> bool:
    """Return whether what is written past the page cache arrives as it was written.  Of one write a FUSE mount gets requests of
    at most 1 MiB, all at once and in any order, and that of an object store takes only what continues the file."""
    return kind_of_file_system(fileno) != _FUSE


def _set_direct(fileno: int, *, is_on: bool) -> bool:
    """Let writes pass the page cache, or no longer; return whether the file system can."""
    flags = fcntl.fcntl(fileno, fcntl.F_GETFL) & ~os.O_DIRECT
    try:
        fcntl.fcntl(fileno, fcntl.F_SETFL, flags | os.O_DIRECT if is_on else flags)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        return False
    return True
