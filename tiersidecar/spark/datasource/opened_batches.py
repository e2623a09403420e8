"""Whole record batches, collected until they are worth decoding together, and opened into one buffer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats.kafka.compression import DecompressionError, decompress
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, Compression, RecordBatchHeader
from tiersidecar.formats.kafka.records import MAX_OPENED_BYTES
from tiersidecar.spark.datasource.record_fields import Region

OPENED_TOGETHER_BYTES = 4 * 1024 * 1024
"""About so many bytes of records make one Arrow batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedBatches:
    """Batches of format 2 in ``data``: of each its header and where its records lie.  ``position`` is the first one's in
    ``where``."""

    where: str
    position: int
    data: bytes | memoryview
    headers: Sequence[RecordBatchHeader]
    regions: Sequence[Region]


class BatchCollector:
    """Takes batches of format 2 in order; asked for them when it :attr:`is_full`, and at the end.

    Batches that are not compressed and lie in one buffer are not copied.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._clear()

    def _clear(self) -> None:
        self._headers: list[RecordBatchHeader] = []
        self._parts: list[bytes | bytearray | memoryview] = []
        self._begins: list[int] = []
        self._buffer: memoryview | None = None
        self._position = 0
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._headers)

    @property
    def is_full(self) -> bool:
        return self._size_bytes >= OPENED_TOGETHER_BYTES

    def add(self, buffer: memoryview, begin: int, header: RecordBatchHeader, position: int) -> None:
        """The batch at ``begin`` of ``buffer``, its checksum compared already; ``position`` is for errors.

        Raises:
            CorruptDataError: it does not open.
        """
        if not self._headers:
            self._position, self._buffer = position, buffer
        if header.compression is not Compression.NONE or buffer is not self._buffer:
            self._buffer = None
        begin += BATCH_HEADER_SIZE
        records = buffer[begin : begin + header.size_bytes - BATCH_HEADER_SIZE]
        part = self._opened(records, header, position)
        self._headers.append(header)
        self._begins.append(begin)
        self._parts.append(part)
        self._size_bytes += len(part)

    def take(self) -> OpenedBatches:
        """What was added since the last time: at least one batch."""
        if self._buffer is not None:
            data: bytes | memoryview = self._buffer
            begins: Iterable[int] = self._begins
        else:
            data = b"".join(self._parts)
            begins = accumulate((len(part) for part in self._parts[:-1]), initial=0)
        regions = [
            Region(begin, begin + len(part), header.record_count)
            for begin, part, header in zip(begins, self._parts, self._headers, strict=True)
        ]
        taken = OpenedBatches(
            where=self._where, position=self._position, data=data, headers=self._headers, regions=regions
        )
        self._clear()
        return taken

    def _opened(self, records: memoryview, header: RecordBatchHeader, position: int) -> bytes | bytearray | memoryview:
        try:
            return decompress(records, header.compression, max_bytes=MAX_OPENED_BYTES)
        except DecompressionError as error:
            raise CorruptDataError(where=self._where, position=position, reason=str(error)) from error
