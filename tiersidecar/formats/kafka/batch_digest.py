"""A digest over the record batches of an offset range, however segments and buffers cut them.

Two copies of a log hold the same batches in a range exactly if the digests agree: each batch's 61-byte header, which has
its base offset, leader epoch and CRC32C, goes into the digest, and each CRC32C is checked against the batch's bytes.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

from crc32c import crc32c

from tiersidecar.domain.errors import TruncatedDataError
from tiersidecar.formats import native
from tiersidecar.formats.kafka.record_batches import (
    BATCH_HEADER_SIZE,
    COMPRESSION_MASK,
    CRC_START_V2,
    HIGHEST_COMPRESSION,
    LOG_OVERHEAD,
    Buffer,
    check_batch,
    read_whole_batch_header,
)
from tiersidecar.formats.native import Walks, clamped

_PLAIN = Struct(">qiibIhi")
"""The fields of a format 2 header that the short loop looks at."""
_LEAST_LENGTH_V2 = BATCH_HEADER_SIZE - LOG_OVERHEAD


class BatchDigest:
    """Digest the bytes of one or several segments in offset order; batches that overlap what was fed are left out.

    ``start_offset`` is inclusive, ``stop_offset`` exclusive: a batch counts if any of its offsets is in the range.
    """

    def __init__(self, *, start_offset: int, stop_offset: int) -> None:
        self._next_offset, self._stop_offset = start_offset, stop_offset
        self._digest = blake2b(digest_size=32)
        self._walks = native.core.walks
        self._where = ""
        self._tail = bytearray()
        self._position = 0

    @property
    def next_offset(self) -> int:
        """Return the offset after the last batch that counted, or the start while none did."""
        return self._next_offset

    def begin_segment(self, where: str) -> None:
        """Begin a segment; ``where`` names it in errors."""
        self._where, self._tail, self._position = where, bytearray(), 0

    def feed(self, buffer: Buffer) -> None:
        """Take bytes that follow those fed before in this segment.

        Raises:
            CorruptDataError: a batch fails its checks.
        """
        if self._tail:
            self._tail += buffer
            view = memoryview(self._tail)
        else:
            view = memoryview(buffer)
        offset = self._take_plain_batches(view, 0)
        while header := read_whole_batch_header(view, offset, where=self._where, position=self._position + offset):
            check_batch(view, header, offset, where=self._where, position=self._position + offset)
            if header.last_offset >= self._next_offset and header.base_offset < self._stop_offset:
                self._digest.update(view[offset : offset + BATCH_HEADER_SIZE])
                self._next_offset = header.last_offset + 1
            offset = self._take_plain_batches(view, offset + header.size_bytes)
        if offset or not self._tail:
            self._tail = bytearray(view[offset:])
        self._position += offset

    def _take_plain_batches(self, view: memoryview, offset: int) -> int:
        """Take batches of format 2 that are whole and sound, by a short loop: a segment has a million of them per GiB.  Return
        the offset of the first one that is left to the long way, where faults are named."""
        if self._walks is not None:
            return self._walk_plain_batches(self._walks, view, offset)
        unpack, checksum, update, size = _PLAIN.unpack_from, crc32c, self._digest.update, len(view)
        next_offset, stop_offset = self._next_offset, self._stop_offset
        while size - offset >= BATCH_HEADER_SIZE:
            base, length, _, magic, crc, attributes, delta = unpack(view, offset)
            end = offset + LOG_OVERHEAD + length
            if magic != 2 or length < _LEAST_LENGTH_V2 or end > size or base < 0 or delta < 0:
                break
            if (
                attributes & COMPRESSION_MASK > HIGHEST_COMPRESSION
                or checksum(view[offset + CRC_START_V2 : end]) != crc
            ):
                break
            if base + delta >= next_offset and base < stop_offset:
                update(view[offset : offset + BATCH_HEADER_SIZE])
                next_offset = base + delta + 1
            offset = end
        self._next_offset = next_offset
        return offset

    def _walk_plain_batches(self, walks: Walks, view: memoryview, offset: int) -> int:
        """Do the short loop in native code."""
        bounds = clamped(self._next_offset), clamped(self._stop_offset)
        stop, next_offset, headers = walks.digest(view, offset, *bounds)
        if headers:
            self._digest.update(headers)
            self._next_offset = next_offset
        return stop

    def end_segment(self) -> None:
        """End this segment.

        Raises:
            TruncatedDataError: it ends in the middle of a batch.
        """
        if self._tail:
            raise TruncatedDataError(
                where=self._where, position=self._position, reason="it ends in the middle of a batch"
            )

    def digest(self) -> bytes:
        """Return 32 bytes that stand for the batches seen."""
        return self._digest.digest()
