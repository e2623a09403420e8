"""Check a whole .log while it streams past: every batch's checksum, rising offsets, leader epochs."""

from __future__ import annotations

import zlib
from struct import Struct

from crc32c import crc32c

from tiersidecar.domain.errors import CorruptDataError, TruncatedDataError
from tiersidecar.domain.offsets import NO_EPOCH, EpochEntry, Offset
from tiersidecar.domain.segments import FollowTransactions, SegmentScan
from tiersidecar.formats import native
from tiersidecar.formats.kafka.producer_state import TRANSACTION_FLAGS, TransactionWalk
from tiersidecar.formats.kafka.record_batches import (
    BATCH_HEADER_SIZE,
    CRC_START_V2,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    Buffer,
    Compression,
    RecordBatchHeader,
    read_batch_header,
)
from tiersidecar.formats.native import Walks, clamped

_SCANNED = Struct(">qiibIhi8xq")
"""The fields of a format 2 header that the fast path looks at."""
_LEAST_LENGTH_V2 = BATCH_HEADER_SIZE - LOG_OVERHEAD
_MOST_CONTROL_BYTES = 64 * 1024
"""A control batch has one small record; a larger one ends no transaction, and is not kept."""
_HEADER_SIZES = {0: 18, 1: 26, 2: BATCH_HEADER_SIZE}


class SegmentScanner:
    """Takes a .log in slices of any size, in order, and returns a :class:`SegmentScan` at the end.

    Batches may straddle slices: of an unfinished one only its header and a running checksum are kept, so that memory
    does not depend on what a damaged length field says.  Format 2 batches that lie whole in a slice and bring nothing
    new (same epoch, sound, rising) take a short loop; all others the long way, where faults are named.

    ``base_offset`` and ``next_base_offset`` are the segment's and its successor's: together they show a damaged offset,
    which no checksum covers.  A damaged epoch shows when the scan is compared with the lineage (``Lineage.explains``).
    ``transactions`` receives every sound batch that is of a transaction.
    """

    def __init__(
        self,
        *,
        where: str,
        base_offset: int = 0,
        next_base_offset: int | None = None,
        transactions: FollowTransactions | None = None,
    ) -> None:
        self._where = where
        self._transactions: FollowTransactions = TransactionWalk() if transactions is None else transactions
        self._walks = native.core.walks
        self._next_base_offset = next_base_offset
        self._slice_position = 0
        self._file_crc = 0
        self._is_summed = False
        self._batch_count = 0
        self._last_offset = base_offset - 1
        self._max_timestamp = NO_TIMESTAMP
        self._epoch: int = NO_EPOCH
        self._epochs: list[EpochEntry] = []
        self._epoch_ends: list[int] = []
        self._is_first_compressed = False
        self._batch_position = 0
        self._head = bytearray()
        self._header: RecordBatchHeader | None = None
        self._body_missing = 0
        self._body_crc = 0

    @property
    def next_offset(self) -> int:
        """Return the offset after the last batch that has been checked."""
        return self._last_offset + 1

    def feed(self, buffer: Buffer) -> None:
        """Check the next slice of the file.  The buffer may be reused as soon as this returns.

        Raises:
            CorruptDataError: with the position of the batch and what is wrong with it.
        """
        view = memoryview(buffer)
        self._is_summed = False
        offset = 0
        while offset < len(view):
            if not self._head:
                offset = self._take_plain_batches(view, offset)
                self._batch_position = self._slice_position + offset
            if offset < len(view):
                offset = self._take_part(view, offset)
        if not self._is_summed:
            self._file_crc = crc32c(view, self._file_crc)
        self._slice_position += len(view)

    def finish(self) -> SegmentScan:
        """Return the result, after the last slice.

        Raises:
            TruncatedDataError: the file ends within a batch.
            CorruptDataError: offsets go past the following segment's base offset.
        """
        if self._head:
            reason = "the file ends within a batch header"
            if self._header is not None:
                reason = f"the batch has {self._header.size_bytes} bytes, the last {self._body_missing} are not there"
            raise TruncatedDataError(where=self._where, position=self._batch_position, reason=reason)
        if self._next_base_offset is not None and self._last_offset >= self._next_base_offset:
            raise self._corrupt(f"offset {self._last_offset} is not below the next segment's {self._next_base_offset}")
        return SegmentScan(
            batch_count=self._batch_count,
            last_offset=self._last_offset if self._batch_count else -1,
            max_timestamp_ms=self._max_timestamp,
            leader_epochs=tuple(self._epochs),
            first_batch_compressed=self._is_first_compressed,
            crc32c=self._file_crc,
            leader_epoch_ends=(*self._epoch_ends, self._last_offset) if self._epochs else (),
        )

    def _take_plain_batches(self, view: memoryview, offset: int) -> int:
        """Run the short loops; return the offset of the first batch that they leave to :meth:`_take_part`."""
        if self._walks is None:
            return self._loop(view, offset, is_once=False)
        before = -1
        while offset != before:
            before = self._walk(self._walks, view, offset)
            offset = self._loop(view, before, is_once=True)
        return offset

    def _loop(self, view: memoryview, offset: int, *, is_once: bool) -> int:
        """Run the loop in Python, over only one batch if ``is_once``; return where it stopped."""
        # Locals throughout: this loop runs a million times per GiB of small batches.
        unpack, checksum, size = _SCANNED.unpack_from, crc32c, len(view)
        epoch, last_offset, max_timestamp = self._epoch, self._last_offset, self._max_timestamp
        count = 0
        while size - offset >= BATCH_HEADER_SIZE:
            base, length, batch_epoch, magic, crc, attributes, delta, timestamp = unpack(view, offset)
            stop = offset + LOG_OVERHEAD + length
            if magic != 2 or length < _LEAST_LENGTH_V2 or stop > size:
                break
            if batch_epoch != epoch or base <= last_offset or delta < 0:
                break
            if checksum(view[offset + CRC_START_V2 : stop]) != crc:
                break
            if attributes & TRANSACTION_FLAGS:
                place = self._slice_position + offset
                self._transactions.take(view[offset:stop], where=self._where, position=place)
            last_offset = base + delta
            if timestamp > max_timestamp:
                max_timestamp = timestamp
            count += 1
            offset = stop
            if is_once:
                break
        self._last_offset, self._max_timestamp = last_offset, max_timestamp
        self._batch_count += count
        return offset

    def _walk(self, walks: Walks, view: memoryview, offset: int) -> int:
        """Run :meth:`_loop` in native code, up to the first batch that it does not know for certain to be plain."""
        last_offset, latest = clamped(self._last_offset), self._max_timestamp
        if self._is_summed:
            stop, count, last_offset, latest, spans = walks.scan(view, offset, self._epoch, last_offset, latest)
        else:  # the first walk over a slice sums the whole slice on its way
            self._file_crc, stop, count, last_offset, latest, spans = walks.sum_and_scan(
                view, offset, self._file_crc, self._epoch, last_offset, latest
            )
            self._is_summed = True
        for begin, end in spans:
            self._transactions.take(view[begin:end], where=self._where, position=self._slice_position + begin)
        if count:
            self._last_offset, self._max_timestamp = last_offset, latest
            self._batch_count += count
        return stop

    def _take_part(self, view: memoryview, offset: int) -> int:
        """Go on with the batch that is open, or open one, and take the slice's part of it; return where that ends."""
        if self._header is None:
            offset = self._take_head(view, offset)
        header = self._header
        if header is None:
            return offset
        stop = min(offset + self._body_missing, len(view))
        if header.is_control and header.size_bytes <= _MOST_CONTROL_BYTES:
            self._head += view[offset:stop]
        self._body_crc = _extend_crc(header.magic, view[offset:stop], self._body_crc)
        self._body_missing -= stop - offset
        if self._body_missing == 0:
            self._close_batch(header)
        return stop

    def _take_head(self, view: memoryview, offset: int) -> int:
        head = self._head
        while (missing := _header_size(head) - len(head)) > 0:
            if offset == len(view):
                return offset
            taken = view[offset : offset + missing]
            head += taken
            offset += len(taken)
        header = read_batch_header(head, where=self._where, position=self._batch_position)
        self._header = header
        self._body_missing = header.size_bytes - len(head)
        start = CRC_START_V2 if header.magic == 2 else MAGIC_POSITION
        self._body_crc = _extend_crc(header.magic, memoryview(bytes(head))[start:], 0)
        return offset

    def _close_batch(self, header: RecordBatchHeader) -> None:
        if self._body_crc != header.crc:
            raise self._corrupt(f"checksum is {self._body_crc:#010x}, the header says {header.crc:#010x}")
        if header.base_offset <= self._last_offset:
            raise self._corrupt(f"base offset {header.base_offset} does not rise above {self._last_offset}")
        epoch = header.partition_leader_epoch
        if epoch != NO_EPOCH and epoch != self._epoch:
            if epoch < self._epoch:
                raise self._corrupt(f"leader epoch falls from {self._epoch} to {epoch}")
            if self._epochs:
                self._epoch_ends.append(self._last_offset)
            self._epochs.append(EpochEntry(epoch, Offset(header.base_offset)))
            self._epoch = epoch
        is_whole = not header.is_control or len(self._head) == header.size_bytes
        if header.attributes & TRANSACTION_FLAGS and is_whole:
            self._transactions.take(self._head, where=self._where, position=self._batch_position)
        if self._batch_count == 0:
            self._is_first_compressed = header.compression is not Compression.NONE
        self._batch_count += 1
        self._last_offset = header.last_offset
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        self._head, self._header = bytearray(), None

    def _corrupt(self, reason: str) -> CorruptDataError:
        return CorruptDataError(where=self._where, position=self._batch_position, reason=reason)


def _header_size(head: bytearray) -> int:
    """Return how many bytes the header has, as far as ``head`` shows: up to the magic byte at first."""
    if len(head) <= MAGIC_POSITION:
        return MAGIC_POSITION + 1
    # read_batch_header reports an unknown format, in its own words.
    return _HEADER_SIZES.get(head[MAGIC_POSITION], MAGIC_POSITION + 1)


def _extend_crc(magic: int, part: memoryview, crc: int) -> int:
    return crc32c(part, crc) if magic == 2 else zlib.crc32(part, crc)
