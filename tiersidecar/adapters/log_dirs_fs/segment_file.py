"""An open .log."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tiersidecar.adapters.log_dirs_fs.page_cache import PageCacheFootprint
from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.adapters.short_turns import short_turns
from tiersidecar.domain.errors import LogDirError, SegmentChangedError, SegmentNotReadyError, TruncatedDataError
from tiersidecar.domain.segments import FollowTransactions, LocalSegment, SegmentScan
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.log_dirs import SegmentFingerprint

SLICE_BYTES = 1024 * 1024
"""Read and checked in one go: it stays in the processor's cache between the two, and holds up a cancellation for about
a millisecond."""

T = TypeVar("T")


class OpenSegmentFile:
    """Stays readable after the broker unlinks the file; read only, and never locked."""

    def __init__(self, segment: LocalSegment, *, blocking: Blocking) -> None:
        self._segment, self._blocking = segment, blocking
        self._path = segment.log_path
        self._fileno = -1
        self._size_bytes = 0
        self._footprint: PageCacheFootprint | None = None

    @property
    def fileno(self) -> int:
        return self._fileno

    @property
    def path(self) -> str:
        return self._path

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    async def open(self) -> None:
        """Raises:
        SegmentChangedError: the file is gone, or a sealed one has another size than when it was listed.
        LogDirError: it cannot be opened.
        """
        await self._run(self._open)
        listed = self._segment.size_bytes
        if self._segment.next_base_offset is not None and self._size_bytes != listed:
            reason = f"it has {self._size_bytes} bytes, {listed} when it was listed"
            raise SegmentChangedError(path=self._path, reason=reason)

    async def close(self) -> None:
        await self._blocking.run(self._close)

    async def fingerprint(self) -> SegmentFingerprint:
        status = await self._run(os.fstat, self._fileno)
        return SegmentFingerprint(inode=status.st_ino, size_bytes=status.st_size, modified_ns=status.st_mtime_ns)

    async def scan(self, transactions: FollowTransactions | None = None) -> SegmentScan:
        segment = self._segment
        scanner = SegmentScanner(
            where=self._path,
            base_offset=segment.base_offset,
            next_base_offset=segment.next_base_offset,
            transactions=transactions,
        )
        buffer = memoryview(bytearray(min(SLICE_BYTES, self._size_bytes)))
        position = 0
        while position < self._size_bytes:
            count = await self._run(self._scan_slice, scanner, position, buffer[: self._size_bytes - position])
            if count == 0:
                reason = f"it ends at byte {position}, {self._size_bytes} when it was opened"
                raise SegmentChangedError(path=self._path, reason=reason)
            position += count
        try:
            return scanner.finish()
        except TruncatedDataError as error:
            reason = f"it ends within the batch at byte {error.position}: {error.reason}"
            raise SegmentNotReadyError(path=self._path, reason=reason) from error

    async def read_into(
        self, position: int, buffer: memoryview, look: Callable[[int, memoryview], None] | None = None
    ) -> int:
        return await self._run(self._read_through, position, buffer, look)

    async def read_with_rests(
        self, position: int, buffer: memoryview, look: Callable[[int, memoryview], None] | None = None
    ) -> int:
        return await self._run(self._read_in_turns, position, buffer, look)

    def _open(self) -> None:
        self._fileno = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(self._fileno, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        self._size_bytes = os.fstat(self._fileno).st_size
        self._footprint = PageCacheFootprint(self._fileno, self._size_bytes)

    def _close(self) -> None:
        if self._fileno >= 0:
            os.close(self._fileno)
            self._fileno = -1

    def let_go(self, position: int, size_bytes: int) -> None:
        if self._footprint is not None:
            self._footprint.drop(position, size_bytes)

    def _read_through(self, position: int, buffer: memoryview, look: Callable[[int, memoryview], None] | None) -> int:
        done = 0
        while done < len(buffer):
            wanted = buffer[done : done + SLICE_BYTES]
            count = _read_into(self._fileno, position + done, wanted)
            if look is not None:
                look(position + done, wanted[:count])
            done += count
            if count < len(wanted):
                break
        return done

    def _read_in_turns(self, start: int, buffer: memoryview, look: Callable[[int, memoryview], None] | None) -> int:
        done = 0
        for position, wanted in short_turns(self._fileno, start, start + len(buffer)):
            part = buffer[done : done + wanted]
            count = _read_into(self._fileno, position, part)
            if look is not None:
                look(position, part[:count])
            done += count
            if count < wanted:
                break
        return done

    def _scan_slice(self, scanner: SegmentScanner, position: int, buffer: memoryview) -> int:
        count = _read_into(self._fileno, position, buffer)
        scanner.feed(buffer[:count])
        return count

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        with translated(self._path):
            return await self._blocking.run(function, *args)


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Errors of the system while a segment's file is read, as ours."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            raise SegmentChangedError(path=path, reason="it is gone") from error
        raise LogDirError(path=path, reason=explain_os_error(error)) from error


def _read_into(fileno: int, position: int, buffer: memoryview) -> int:
    """Fill ``buffer`` from ``position`` on; the count is short only at the end of the file."""
    done = 0
    while done < len(buffer) and (count := os.preadv(fileno, [buffer[done:]], position + done)):
        done += count
    return done
