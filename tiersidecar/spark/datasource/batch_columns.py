"""Headers of many record batches as numpy columns, and the choice of batches for a reader (``DefaultRecordBatch``)."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.formats.kafka.record_batches import BATCH_HEADER_SIZE, LOG_OVERHEAD, MAGIC_POSITION
from tiersidecar.formats.kafka.records import AbortedRanges

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
_TRANSACTIONAL_FLAG = 0x10
_CONTROL_FLAG = 0x20

_LENGTH_POSITION = 8
_LENGTH = Struct(">i")
_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("partition_leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)

Numbers = NDArray[np.int64]
Chosen = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """One entry per batch.  ``starts`` and ``stops`` bound its records, opened or not, in some buffer."""

    starts: Numbers
    stops: Numbers
    base_offset: Numbers
    last_offset: Numbers
    attributes: Numbers
    base_timestamp: Numbers
    max_timestamp: Numbers
    producer_id: Numbers
    record_count: Numbers

    def __len__(self) -> int:
        return len(self.starts)

    def those(self, chosen: Chosen | slice) -> BatchColumns:
        """Return only the chosen ones."""
        return BatchColumns(*(getattr(self, name)[chosen] for name in self.__slots__))

    @property
    def is_control(self) -> Chosen:
        """Return which are markers, which consumers are not shown."""
        flagged: Chosen = (self.attributes & _CONTROL_FLAG) != 0
        return flagged

    @property
    def is_transactional(self) -> Chosen:
        flagged: Chosen = (self.attributes & _TRANSACTIONAL_FLAG) != 0
        return flagged


def is_format_2(buffer: memoryview) -> bool:
    """Return whether the slice holds batches; a cutter never puts messages of the old formats into one with them."""
    return buffer[MAGIC_POSITION] == 2


def read_batch_columns(buffer: memoryview, *, where: str) -> BatchColumns:
    """Return the headers of all batches of ``buffer``, which are whole and of format 2.

    Raises:
        CorruptDataError: they are not.
    """
    positions = _positions(buffer, where)
    table = np.frombuffer(buffer, np.uint8)[positions[:, np.newaxis] + np.arange(BATCH_HEADER_SIZE)]
    heads = table.reshape(-1).view(_HEADER)
    column = {name: heads[name].astype(np.int64) for name in _HEADER.names or ()}
    return BatchColumns(
        positions + BATCH_HEADER_SIZE,
        positions + LOG_OVERHEAD + column["batch_length"],
        column["base_offset"],
        column["base_offset"] + column["last_offset_delta"],
        column["attributes"],
        column["base_timestamp"],
        column["max_timestamp"],
        column["producer_id"],
        column["record_count"],
    )


def hidden_by(aborted: AbortedRanges, batches: BatchColumns) -> Chosen:
    """Return which batches belong to an aborted transaction."""
    hidden = np.zeros(len(batches), np.bool_)
    transactional = batches.is_transactional
    for producer_id in np.unique(batches.producer_id[transactional]).tolist() if aborted.ranges else ():
        spans = aborted.ranges.get(producer_id)
        if spans is not None:
            # A span holds an offset if the latest end of all that begin at it or below does.
            firsts, lasts = np.array(sorted(spans), np.int64).T
            reached = np.maximum.accumulate(lasts)
            place = np.searchsorted(firsts, batches.base_offset, side="right") - 1
            is_within = (place >= 0) & (batches.base_offset <= reached[np.maximum(place, 0)])
            hidden |= transactional & (batches.producer_id == producer_id) & is_within
    return hidden


def _positions(buffer: memoryview, where: str) -> Numbers:
    found, position, size = list[int](), 0, len(buffer)
    unpack = _LENGTH.unpack_from
    while size - position >= BATCH_HEADER_SIZE:
        found.append(position)
        length = unpack(buffer, position + _LENGTH_POSITION)[0]
        if length < BATCH_HEADER_SIZE - LOG_OVERHEAD:
            break
        position += LOG_OVERHEAD + length
    if position != size:
        raise CorruptDataError(where=where, position=position, reason="the slice does not end with a batch")
    return np.array(found, np.int64)
