"""Collect whole record batches until they are worth decoding together, and open them into one buffer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats.kafka.compression import DecompressionError, decompress
from tiersidecar.formats.kafka.record_batches import Compression
from tiersidecar.formats.kafka.records import MAX_OPENED_BYTES
from tiersidecar.spark.datasource.batch_columns import COMPRESSION_MASK, BatchColumns

OPENED_TOGETHER_BYTES = 16 * 1024 * 1024
"""About so many bytes of records are decoded together: the more batches, the less each step over all of them costs."""

_Part = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedBatches:
    """Batches whose records lie opened in ``data``.  ``position`` is about where the first one is in ``where``."""

    where: str
    position: int
    data: bytes | memoryview
    batches: BatchColumns


class BatchCollector:
    """Takes batches of format 2 in order; the caller takes them back when it :attr:`is_full`, and at the end.

    Batches that are not compressed and lie in one buffer are not copied.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._clear()

    def _clear(self) -> None:
        self._added: list[BatchColumns] = []
        self._parts: list[_Part] = []
        self._buffer: memoryview | None = None
        self._position = 0
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._added)

    @property
    def is_full(self) -> bool:
        return self._size_bytes >= OPENED_TOGETHER_BYTES

    def add(self, buffer: memoryview, batches: BatchColumns, position: int) -> int:
        """Add as many of ``batches``, at least one, with records in ``buffer``, as it takes to be full; return how many.

        Their checksums have been compared already; ``position`` is for errors.

        Raises:
            CorruptDataError: one does not open.
        """
        codecs = batches.attributes & COMPRESSION_MASK
        if not self._added and not codecs.any():
            # All of it, without touching it.
            self._added, self._buffer, self._position = [batches], buffer, position
            self._size_bytes = int((batches.stops - batches.starts).sum())
            return len(batches)
        self._copy_shared()
        count = 0
        bounds = zip(batches.starts.tolist(), batches.stops.tolist(), codecs.tolist(), strict=True)
        for start, stop, codec in bounds:
            part = self._opened(buffer[start:stop], codec, position)
            self._parts.append(part)
            self._size_bytes += len(part)
            count += 1
            if self.is_full:
                break
        if not self._added:
            self._position = position
        self._added.append(batches.those(slice(count)))
        return count

    def take(self) -> OpenedBatches:
        """Return the batches added since the last call: at least one."""
        if self._buffer is not None:
            (batches,), data = self._added, self._buffer
            taken = OpenedBatches(where=self._where, position=self._position, data=data, batches=batches)
        else:
            edges = np.fromiter(accumulate(map(len, self._parts), initial=0), np.int64, len(self._parts) + 1)
            batches = replace(_joined(self._added), starts=edges[:-1], stops=edges[1:])
            data_joined = b"".join(self._parts)
            taken = OpenedBatches(where=self._where, position=self._position, data=data_joined, batches=batches)
        self._clear()
        return taken

    def _copy_shared(self) -> None:
        """Turn batches kept without a copy into parts: more come from another buffer."""
        if self._buffer is not None:
            (batches,) = self._added
            bounds = zip(batches.starts.tolist(), batches.stops.tolist(), strict=True)
            self._parts = [self._buffer[start:stop] for start, stop in bounds]
            self._buffer = None

    def _opened(self, records: memoryview, codec: int, position: int) -> _Part:
        try:
            return decompress(records, Compression(codec), max_bytes=MAX_OPENED_BYTES)
        except (DecompressionError, ValueError) as error:
            raise CorruptDataError(where=self._where, position=position, reason=str(error)) from error


def _joined(added: list[BatchColumns]) -> BatchColumns:
    if len(added) == 1:
        return added[0]
    return BatchColumns(
        *(np.concatenate([getattr(columns, name) for columns in added]) for name in BatchColumns.__slots__)
    )
