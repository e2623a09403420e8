"""A segment of a broker's log, written anew from what the store has: for a topic that goes back to the brokers' disks.

```
.log, part by part ──> batches of the wanted offsets ──┬─> <base>.log           as they are, each one's checksum compared
                                                       ├─> .index .timeindex    made from their headers
producers before the segment ──────────────────────────┼─> .txnindex            made from their markers
                                                       └─> <next base>.snapshot
```
Where a log is restored without a hole, its batches alone say what was aborted: no index is trusted that a broker may have
lost, or the store damaged.  Behind a hole the store's own entries count as well.

All files have :data:`STAGED` behind their names, by which a broker passes over them.  It blocks.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tiersidecar.domain.errors import CorruptDataError, TruncatedDataError
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction, read_transaction_index, write_transaction_index
from tiersidecar.formats.kafka.log_dir_files import LogFileKind, log_file_name
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, iter_batch_headers
from tiersidecar.formats.kafka.records import ControlKind, read_control_marker, read_records
from tiersidecar.formats.kafka.segment_rebuild import SegmentRebuilder
from tiersidecar.formats.kafka.segment_scan import SegmentScanner

STAGED = ".tiersidecar-restored"
"""Neither the end of a segment's file, nor one of those that a broker removes when it starts (``LogLoader``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The offsets, [``start``, ``stop``), that a segment is to have.  The first batch of a log's first segment
    ``may_begin_before`` them: users may have deleted a part of it, and a batch is not cut."""

    start: Offset
    stop: Offset
    may_begin_before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredFile:
    """A file by its name in the partition directory, without :data:`STAGED`."""

    name: str
    size_bytes: int
    sha256: str
    modified_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredSegment:
    """The written segment.  ``producers`` is the producer snapshot at its end."""

    base_offset: Offset
    files: tuple[RestoredFile, ...]
    producers: bytes


class RestoredSegmentWriter:
    """Takes the .log of a remote segment in slices of any size, in order, and keeps the batches of ``span``.

    ``producers`` is the producer snapshot of what was restored before it; None for the first one.  Group and mode of the files
    are those of ``like``; the user is the broker's, who runs this.
    """

    def __init__(
        self,
        directory: Path,
        span: Span,
        *,
        lineage: Lineage,
        producers: bytes | None,
        like: os.stat_result,
        where: str,
    ) -> None:
        self._directory, self._span, self._lineage, self._like = directory, span, lineage, like
        self._producers, self._where = producers, where
        self._tail, self._position = b"", 0
        self._aborts: dict[int, int] = {}
        self._open: _Open | None = None

    def take(self, piece: memoryview) -> None:
        """Take the next slice of the .log.

        Raises:
            CorruptDataError: a batch is damaged, out of order, or lies across an end of the span.
            OSError: it cannot be written.
        """
        view = memoryview(b"".join((self._tail, piece))) if self._tail else piece
        whole, first, stop = 0, -1, 0
        for position, header in iter_batch_headers(view, self._position, where=self._where):
            start, whole = whole, whole + header.size_bytes
            if not self._wants(header, position):
                continue
            if first < 0:
                first = start
            stop = whole
            self._note(header, view[start:whole], position)
        self._tail = bytes(view[whole:])
        self._position += whole
        if self._open is not None and first >= 0:
            self._open.write(view[first:stop])

    def finish(self, transaction_index: bytes) -> RestoredSegment:
        """Make the other files, and all of them durable; ``transaction_index`` is the store's, empty where batches suffice.

        Raises:
            CorruptDataError: nothing was of the span, or what was written is of another history.
            OSError: it cannot be written.
        """
        if self._tail:
            raise TruncatedDataError(where=self._where, position=self._position, reason="it ends within a batch")
        if self._open is None:
            raise self._corrupt(f"it has no batch of the offsets [{self._span.start}, {self._span.stop})")
        log_file = self._open.close()
        scan, made = self._open.scanner.finish(), self._open.rebuilder.finish()
        if not self._lineage.explains(scan.leader_epochs, scan.leader_epoch_ends):
            raise self._corrupt(f"its batches have leader epochs {scan.leader_epochs}, which are not of this history")
        base = self._open.base_offset
        stored = read_transaction_index(transaction_index, base_offset=Offset(0), where=self._where)
        walked = read_transaction_index(made.transaction_index or b"", base_offset=base, where=self._where)
        aborted = write_transaction_index(self._aborted(stored, walked))
        contents = {
            log_file_name(base, LogFileKind.OFFSET_INDEX): made.offset_index,
            log_file_name(base, LogFileKind.TIME_INDEX): made.time_index,
            log_file_name(self._span.stop, LogFileKind.SNAPSHOT): made.producer_snapshot,
        } | ({log_file_name(base, LogFileKind.TRANSACTION_INDEX): aborted} if aborted else {})
        files = [self._written(name, data) for name, data in contents.items()]
        return RestoredSegment(base_offset=base, files=(log_file, *files), producers=made.producer_snapshot)

    def abandon(self) -> None:
        """Close what is open; the files are written anew at the next try."""
        if self._open is not None:
            self._open.abandon()

    def _wants(self, header: RecordBatchHeader, position: int) -> bool:
        """Return whether the batch is of the span."""
        span = self._span
        if header.last_offset < span.start or header.base_offset >= span.stop:
            return False
        begins_before = header.base_offset < span.start and not span.may_begin_before
        if begins_before or header.last_offset >= span.stop:
            batch = f"offsets {header.base_offset} to {header.last_offset} lie across the end of [{span.start}, {span.stop})"
            raise CorruptDataError(where=self._where, position=position, reason=f"a batch of {batch}: logs differ")
        if self._open is None:
            base = Offset(min(header.base_offset, span.start))
            self._open = _Open(self._directory, base, span.stop, self._producers, self._like, self._where)
        return True

    def _note(self, header: RecordBatchHeader, batch: memoryview, position: int) -> None:
        """Remember the abort markers: entries of the store's transaction index are taken only where there is one."""
        if not header.is_control:
            return
        for record in read_records(batch, where=self._where, position=position):
            marker = read_control_marker(record, where=self._where)
            if marker is not None and marker.kind is ControlKind.ABORT:
                self._aborts[header.base_offset] = header.producer_id

    def _aborted(
        self, stored: Iterable[AbortedTransaction], walked: Iterable[AbortedTransaction]
    ) -> list[AbortedTransaction]:
        """Return both together, by marker: behind a hole, the store's alone know where a transaction began before it."""
        found: dict[int, AbortedTransaction] = {}
        for entry in (*stored, *walked):
            if not self._span.start <= entry.last_offset < self._span.stop:
                continue
            if self._aborts.get(entry.last_offset) != entry.producer_id:
                raise self._corrupt(f"its transaction index has {entry}, and there is no such abort marker")
            before = found.get(entry.last_offset, entry)
            found[entry.last_offset] = entry._replace(
                first_offset=min(before.first_offset, entry.first_offset),
                last_stable_offset=min(before.last_stable_offset, entry.last_stable_offset),
            )
        return [found[offset] for offset in sorted(found)]

    def _written(self, name: str, data: bytes) -> RestoredFile:
        path = self._directory / f"{name}{STAGED}"
        with _created(path, self._like) as file:
            file.write(data)
            return _durable(file, name, hashlib.sha256(data).hexdigest())

    def _corrupt(self, reason: str) -> CorruptDataError:
        return CorruptDataError(where=self._where, position=0, reason=reason)


class _Open:
    """The .log while it is written, and what is made from its batches."""

    def __init__(
        self,
        directory: Path,
        base_offset: Offset,
        stop: Offset,
        producers: bytes | None,
        like: os.stat_result,
        where: str,
    ) -> None:
        self.base_offset = base_offset
        self.scanner = SegmentScanner(where=where, base_offset=base_offset, next_base_offset=stop)
        self.rebuilder = SegmentRebuilder(where=where, base_offset=base_offset, earlier_snapshot=producers)
        self._name = log_file_name(base_offset, LogFileKind.LOG)
        self._path = directory / f"{self._name}{STAGED}"
        self._file = _created(self._path, like)
        self._digest = hashlib.sha256()

    def write(self, batches: memoryview) -> None:
        self.scanner.feed(batches)
        self.rebuilder.feed(batches)
        self._digest.update(batches)
        self._file.write(batches)

    def close(self) -> RestoredFile:
        """Make it durable, and read it once more from the disk."""
        with self._file:
            written = _durable(self._file, self._name, self._digest.hexdigest())
        if digest_of(self._path) != written.sha256:
            raise CorruptDataError(
                where=str(self._path), position=0, reason="the disk has other bytes than were written"
            )
        return written

    def abandon(self) -> None:
        self._file.close()


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, read from the disk as far as the system lets go of what it has in memory.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _created(path: Path, like: os.stat_result) -> BinaryIO:
    """Create the file in place of one that an earlier try left there; no link is followed."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    if os.fstat(descriptor).st_gid != like.st_gid:
        os.fchown(descriptor, -1, like.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
    return os.fdopen(descriptor, "wb")


def _durable(file: BinaryIO, name: str, sha256: str) -> RestoredFile:
    file.flush()
    os.fsync(file.fileno())
    status = os.fstat(file.fileno())
    return RestoredFile(name=name, size_bytes=status.st_size, sha256=sha256, modified_ns=status.st_mtime_ns)
