"""Files of one segment: an open .log, read without displacing what the page cache holds for others, and its small companions.

What the broker has in the page cache for its consumers must stay (U14).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tiersidecar.adapters.os_errors import explain_os_error
from tiersidecar.adapters.short_turns import short_turns
from tiersidecar.domain.errors import (
    CorruptDataError,
    LogDirError,
    SegmentChangedError,
    SegmentNotReadyError,
    TruncatedDataError,
)
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import FollowTransactions, LocalSegment, SegmentScan
from tiersidecar.formats.kafka.indexes import read_offset_index, read_time_index, read_transaction_index
from tiersidecar.formats.kafka.log_dir_files import LogFileKind, log_file_name
from tiersidecar.formats.kafka.producer_state import read_producer_snapshot
from tiersidecar.formats.kafka.segment_scan import SegmentScanner
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.log_dirs import Artefact, ArtefactFault, SegmentArtefacts, SegmentFingerprint

FOOTPRINT_SLICE_BYTES = 1024 * 1024

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_FOLIO_SLICES = 4
_SLICES_AT_ONCE = 16
_REST_S = 0.0001
"""Asking takes a core for 0.02 to 0.04 ms for each MiB: of a large segment at once, for longer than a broker's thread should
wait.  With more rests opening one would be felt where copying has no quota."""
_IS_RESIDENT = bytes(state & 1 for state in range(256))
"""Bits by mincore(2)'s byte of a page, whose other bits are reserved."""
_MAP_FAILED = ctypes.c_void_p(-1).value


class PageCacheFootprint:
    """A file as the page cache had it before we read it, in slices of 1 MiB.

    :meth:`drop` lets go of the pages of a slice that we brought in, and leaves alone a slice of which any page was there
    already.  A page that another process reads in the meantime goes with ours, and costs one read of the disk.
    """

    def __init__(self, fileno: int, size_bytes: int) -> None:
        self._fileno, self._size_bytes = fileno, size_bytes
        self._foreign = resident_slices(fileno, size_bytes)

    def drop(self, position: int, count: int) -> None:
        """Let go of the slices that end within ``count`` bytes from ``position`` on, which were read in order."""
        stop = position + count
        done = len(self._foreign) if stop >= self._size_bytes else stop // FOOTPRINT_SLICE_BYTES
        for number in range(position // FOOTPRINT_SLICE_BYTES, done):
            if not self._foreign[number]:
                # From some slices before: the kernel keeps a large folio of which a part is outside the range.
                start = number
                while start > max(number - _FOLIO_SLICES, 0) and not self._foreign[start - 1]:
                    start -= 1
                size = (number + 1 - start) * FOOTPRINT_SLICE_BYTES
                os.posix_fadvise(self._fileno, start * FOOTPRINT_SLICE_BYTES, size, os.POSIX_FADV_DONTNEED)


def resident_slices(fileno: int, size_bytes: int) -> list[bool]:
    """Return which slices have any page in the page cache: by mincore(2), which reads nothing.  Where it cannot say, all count.

    Blocks, in short turns with rests between them."""
    count = -(-size_bytes // FOOTPRINT_SLICE_BYTES)
    if not count:
        return []
    address = _LIBC.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fileno, 0)
    if address == _MAP_FAILED:
        return [True] * count
    try:
        resident: list[bool] = []
        at_once = _SLICES_AT_ONCE * FOOTPRINT_SLICE_BYTES
        for position in range(0, size_bytes, at_once):
            if position:
                time.sleep(_REST_S)
            resident += _resident_slices_at(address + position, min(at_once, size_bytes - position))
        return resident
    finally:
        _LIBC.munmap(address, size_bytes)


def _resident_slices_at(address: int, size_bytes: int) -> list[bool]:
    """Return the same for the file's slices that are mapped from ``address`` on."""
    pages, per_slice = -(-size_bytes // mmap.PAGESIZE), FOOTPRINT_SLICE_BYTES // mmap.PAGESIZE
    states = (ctypes.c_ubyte * pages)()
    if _LIBC.mincore(address, size_bytes, states):
        return [True] * -(-pages // per_slice)
    resident = bytes(states).translate(_IS_RESIDENT)
    return [1 in resident[start : start + per_slice] for start in range(0, pages, per_slice)]


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
        """Open the file.

        Raises:
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

    async def read_and_make(
        self,
        position: int,
        buffer: memoryview,
        look: Callable[[int, memoryview], None],
        make: Callable[[memoryview], T],
    ) -> T:
        return await self._run(self._read_and_make, position, buffer, look, make)

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

    def _read_and_make(
        self,
        position: int,
        buffer: memoryview,
        look: Callable[[int, memoryview], None],
        make: Callable[[memoryview], T],
    ) -> T:
        return make(buffer[: self._read_through(position, buffer, look)])

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
    """Raise errors of the system while a segment's file is read as ours."""
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


_NO_TIMESTAMP = -1


def read_segment_artefacts(segment: LocalSegment) -> SegmentArtefacts:
    """Read the companions of a sealed segment, byte for byte as they lie on the disk.

    One that is not there, and a snapshot that fails its CRC, may come: the broker writes the snapshot after it has opened
    the following segment, and not in one step.

    Raises:
        SegmentChangedError: the segment itself is gone.
    """
    return _Reading(segment).artefacts()


class _Reading:
    """Reads of one segment's companions; what goes wrong gathers in ``faults``."""

    def __init__(self, segment: LocalSegment) -> None:
        assert segment.next_base_offset is not None, "only sealed segments have all their companions"
        self._segment, self._next_base_offset = segment, segment.next_base_offset
        self._end_offset = Offset(segment.next_base_offset - 1)
        self._faults: list[ArtefactFault] = []

    def artefacts(self) -> SegmentArtefacts:
        offset_index = self._offset_index()
        time_index, latest_timestamp_ms = self._time_index()
        transaction_index, producer_snapshot = self._transaction_index(), self._producer_snapshot()
        if self._faults and not Path(self._segment.log_path).exists():
            raise SegmentChangedError(path=self._segment.log_path, reason="it is gone")
        return SegmentArtefacts(
            offset_index=offset_index,
            time_index=time_index,
            transaction_index=transaction_index,
            producer_snapshot=producer_snapshot,
            earlier_snapshot=self._earlier_snapshot(),
            latest_timestamp_ms=latest_timestamp_ms,
            faults=tuple(self._faults),
        )

    def _offset_index(self) -> bytes | None:
        path, data = self._read(Artefact.OFFSET_INDEX, self._segment.base_offset, LogFileKind.OFFSET_INDEX)
        if data is None:
            return None
        try:
            read_offset_index(
                data,
                base_offset=self._segment.base_offset,
                where=str(path),
                segment_size_bytes=self._segment.size_bytes,
                end_offset=self._end_offset,
            )
        except CorruptDataError as error:
            self._at_fault(Artefact.OFFSET_INDEX, str(error))
            return None
        return data

    def _time_index(self) -> tuple[bytes | None, int | None]:
        path, data = self._read(Artefact.TIME_INDEX, self._segment.base_offset, LogFileKind.TIME_INDEX)
        if data is None:
            return None, None
        base_offset = self._segment.base_offset
        try:
            index = read_time_index(data, base_offset=base_offset, where=str(path), end_offset=self._end_offset)
        except CorruptDataError as error:
            self._at_fault(Artefact.TIME_INDEX, str(error))
            return None, None
        return data, index.timestamps_ms[-1] if index.timestamps_ms else _NO_TIMESTAMP

    def _transaction_index(self) -> bytes | None:
        path = self._path(self._segment.base_offset, LogFileKind.TRANSACTION_INDEX)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            read_transaction_index(data, base_offset=self._segment.base_offset, where=str(path))
        except CorruptDataError as error:
            self._at_fault(Artefact.TRANSACTION_INDEX, str(error))
            return None
        return data

    def _producer_snapshot(self) -> bytes | None:
        path, data = self._read(Artefact.PRODUCER_SNAPSHOT, self._next_base_offset, LogFileKind.SNAPSHOT)
        if data is None:
            return None
        try:
            read_producer_snapshot(data, where=str(path))
        except CorruptDataError as error:
            self._at_fault(Artefact.PRODUCER_SNAPSHOT, str(error), may_come=True)
            return None
        return data

    def _earlier_snapshot(self) -> bytes | None:
        path = self._path(self._segment.base_offset, LogFileKind.SNAPSHOT)
        try:
            data = path.read_bytes()
            read_producer_snapshot(data, where=str(path))
        except (FileNotFoundError, CorruptDataError):
            return None
        return data

    def _read(self, artefact: Artefact, offset: Offset, kind: LogFileKind) -> tuple[Path, bytes | None]:
        path = self._path(offset, kind)
        try:
            return path, path.read_bytes()
        except FileNotFoundError:
            self._at_fault(artefact, f"{path} is not there", may_come=True)
            return path, None

    def _at_fault(self, artefact: Artefact, reason: str, *, may_come: bool = False) -> None:
        self._faults.append(ArtefactFault(artefact=artefact, reason=reason, may_come=may_come))

    def _path(self, offset: Offset, kind: LogFileKind) -> Path:
        return Path(self._segment.path_of(log_file_name(offset, kind)))
