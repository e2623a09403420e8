"""A digest over the record batches of an offset range, however segments and buffers cut them.

Two copies of a log hold the same batches in a range exactly if the digests agree: each batch's 61-byte header, which has
its base offset, leader epoch and CRC32C, goes into the digest, and each CRC32C is checked against the batch's bytes.
"""

from __future__ import annotations

from hashlib import blake2b

from tiersidecar.domain.errors import TruncatedDataError
from tiersidecar.formats.kafka.record_batches import (
    BATCH_HEADER_SIZE,
    check_batch,
    complete_batches_size,
    iter_batch_headers,
)

Buffer = bytes | bytearray | memoryview


class BatchDigest:
    """Feed it the bytes of one or several segments in offset order; batches that overlap what was fed are left out.

    ``start_offset`` is inclusive, ``stop_offset`` exclusive: a batch counts if any of its offsets is in the range.
    """

    def __init__(self, *, start_offset: int, stop_offset: int) -> None:
        self._next_offset, self._stop_offset = start_offset, stop_offset
        self._digest = blake2b(digest_size=32)
        self._where = ""
        self._tail = b""
        self._position = 0

    @property
    def next_offset(self) -> int:
        """The offset after the last batch that counted, or the start while none did."""
        return self._next_offset

    def begin_segment(self, where: str) -> None:
        """The next buffer begins a segment; ``where`` names it in errors."""
        self._where, self._tail, self._position = where, b"", 0

    def feed(self, buffer: Buffer) -> None:
        """Bytes that follow those fed before in this segment.

        Raises:
            CorruptDataError: a batch fails its checks.
        """
        data = b"".join((self._tail, buffer)) if self._tail else buffer
        view = memoryview(data)
        whole = complete_batches_size(view)
        for position, header in iter_batch_headers(view[:whole], self._position, where=self._where):
            offset = position - self._position
            check_batch(view, header, offset, where=self._where, position=position)
            if header.last_offset >= self._next_offset and header.base_offset < self._stop_offset:
                self._digest.update(view[offset : offset + BATCH_HEADER_SIZE])
                self._next_offset = header.last_offset + 1
        self._tail = bytes(view[whole:])
        self._position += whole

    def end_segment(self) -> None:
        """No more bytes of this segment.

        Raises:
            TruncatedDataError: it ends in the middle of a batch.
        """
        if self._tail:
            raise TruncatedDataError(
                where=self._where, position=self._position, reason="it ends in the middle of a batch"
            )

    def digest(self) -> bytes:
        """32 bytes that stand for the batches seen."""
        return self._digest.digest()
