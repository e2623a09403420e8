"""Record batch headers, the only part of a batch that most of tiersidecar parses (``DefaultRecordBatch``).

Message format 2, big endian::

    baseOffset i64 | batchLength i32 | partitionLeaderEpoch i32 | magic i8 | crc u32 | attributes i16
    | lastOffsetDelta i32 | baseTimestamp i64 | maxTimestamp i64 | producerId i64 | producerEpoch i16
    | baseSequence i32 | recordCount i32 | records

``batchLength`` counts from after itself; the CRC32C covers attributes to the end, so that the first 21 bytes have no
checksum.  Formats 0 and 1 (``LegacyRecord``) share offset, length and the place of the magic byte, and have a CRC32 of
magic to the end, no epoch, no producer, and for a compressed message only the offset of the last record inside.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from struct import Struct

from crc32c import crc32c

from tiersidecar.domain.errors import CorruptDataError, TruncatedDataError
from tiersidecar.domain.offsets import LeaderEpoch, Offset

Buffer = bytes | bytearray | memoryview

LOG_OVERHEAD = 12
"""Bytes before what ``batch_length`` counts."""
BATCH_HEADER_SIZE = 61
"""Bytes of a format 2 header: they hold everything about a batch but its records."""
MAGIC_POSITION = 16
CRC_START_V2 = 21

HEADER_V2 = Struct(">qiibIhiqqqhii")
_PREFIX = Struct(">qi4xb")
_LEGACY_V0 = Struct(">qiIbb")
_LEGACY_V1 = Struct(">qiIbbq")
_LEGACY_MINIMUM = {0: 14, 1: 22}

COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20

_SEQUENCE_MODULUS = 1 << 31
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1


class Compression(IntEnum):
    """Codec of a batch's records; the value is its three bits in ``attributes``."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


HIGHEST_COMPRESSION = max(Compression)


class TimestampType(StrEnum):
    """Source of the timestamps; the names are Kafka's."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBatchHeader:
    """The header of one batch; offsets and sequences inclusive, timestamps in ms, -1 for a missing value.

    Of a compressed format 0 or 1 message only the last offset is known without opening it: both offsets are that.
    """

    base_offset: Offset
    batch_length: int
    partition_leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Return the size of the whole batch, header and all."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> Offset:
        """Return the last offset, inclusive; compaction keeps it even when that record is gone."""
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        return Offset(self.last_offset + 1)

    @property
    def last_sequence(self) -> int:
        """Return the last sequence: producer sequences wrap from 2^31-1 to 0 (``DefaultRecordBatch.incrementSequence``)."""
        return incremented_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & COMPRESSION_MASK)

    @property
    def timestamp_type(self) -> TimestampType:
        is_append_time = self.attributes & _LOG_APPEND_TIME_FLAG
        return TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Return whether the records are markers, which consumers are not shown."""
        return bool(self.attributes & CONTROL_FLAG)


def incremented_sequence(sequence: int, count: int) -> int:
    """Return ``sequence`` moved on by ``count``, back to 0 after the highest; -1 where there is none."""
    return -1 if sequence < 0 else (sequence + count) % _SEQUENCE_MODULUS


def read_batch_header(
    buffer: Buffer, offset: int = 0, *, where: str = "record batch", position: int = 0
) -> RecordBatchHeader:
    """Return the header at ``buffer[offset:]``; its checksum is not looked at.  ``where`` and ``position`` are for errors.

    Raises:
        TruncatedDataError: the buffer ends within the header.
        CorruptDataError: no batch can look like this.
    """
    available = len(buffer) - offset
    if available <= MAGIC_POSITION:
        raise TruncatedDataError(where=where, position=position, reason=f"{available} bytes are not a batch header")
    magic = _PREFIX.unpack_from(buffer, offset)[2]
    match magic:
        case 2:
            header = _read_v2(buffer, offset, available, where, position)
        case 0 | 1:
            header = _read_legacy(buffer, offset, available, where, position)
        case _:
            raise CorruptDataError(where=where, position=position, reason=f"unknown message format {magic}")
    fault = header_fault(header)
    if fault is not None:
        raise CorruptDataError(where=where, position=position, reason=fault)
    return header


def header_fault(header: RecordBatchHeader) -> str | None:
    """Return what makes ``header`` impossible, or None: for the fields that no checksum covers, and those that we rely on."""
    least = BATCH_HEADER_SIZE - LOG_OVERHEAD if header.magic == 2 else _LEGACY_MINIMUM[header.magic]
    if header.batch_length < least:
        return f"batch length {header.batch_length} is below the least of {least}"
    if header.base_offset < 0 or header.last_offset_delta < 0:
        return f"offsets {header.base_offset} + {header.last_offset_delta} are negative"
    if header.attributes & COMPRESSION_MASK > HIGHEST_COMPRESSION:
        return f"unknown compression {header.attributes & COMPRESSION_MASK}"
    return None


def batch_crc_fault(header: RecordBatchHeader, batch: memoryview) -> str | None:
    """Return what is wrong with the checksum of ``batch``, exactly one whole batch, or None."""
    actual = crc32c(batch[CRC_START_V2:]) if header.magic == 2 else zlib.crc32(batch[MAGIC_POSITION:])
    return None if actual == header.crc else f"checksum is {actual:#010x}, the header says {header.crc:#010x}"


def check_batch(
    buffer: Buffer, header: RecordBatchHeader, offset: int = 0, *, where: str = "record batch", position: int = 0
) -> None:
    """Compare the checksum of the batch at ``buffer[offset:]`` with its ``header``.

    Raises:
        TruncatedDataError: the buffer ends within the batch.
        CorruptDataError: the checksum differs.
    """
    batch = memoryview(buffer)[offset : offset + header.size_bytes]
    if len(batch) < header.size_bytes:
        reason = f"the batch has {header.size_bytes} bytes, only {len(batch)} are there"
        raise TruncatedDataError(where=where, position=position, reason=reason)
    fault = batch_crc_fault(header, batch)
    if fault is not None:
        raise CorruptDataError(where=where, position=position, reason=fault)


def iter_batch_headers(
    buffer: Buffer, base_position: int = 0, *, where: str = "record batch"
) -> Iterator[tuple[int, RecordBatchHeader]]:
    """Yield position and header of every whole batch of ``buffer``, whose first byte is byte ``base_position`` of ``where``.

    Ends without an error before a batch of which the buffer has only a part.

    Raises:
        CorruptDataError: no batch can look like this.
    """
    offset = 0
    while header := read_whole_batch_header(buffer, offset, where=where, position=base_position + offset):
        yield base_position + offset, header
        offset += header.size_bytes


def read_whole_batch_header(
    buffer: Buffer, offset: int, *, where: str = "record batch", position: int = 0
) -> RecordBatchHeader | None:
    """Return the header like :func:`read_batch_header`; None where the buffer has only a part of the batch.

    Raises:
        CorruptDataError: no batch can look like this.
    """
    available = len(buffer) - offset
    if available < BATCH_HEADER_SIZE and not _has_whole_legacy_message(buffer, offset):
        return None
    header = read_batch_header(buffer, offset, where=where, position=position)
    return header if header.size_bytes <= available else None


def _has_whole_legacy_message(buffer: Buffer, offset: int) -> bool:
    """Return whether it has: messages of formats 0 and 1 may be shorter than a format 2 header."""
    available = len(buffer) - offset
    if available <= MAGIC_POSITION:
        return False
    _, length, magic = _PREFIX.unpack_from(buffer, offset)
    return magic in _LEGACY_MINIMUM and available >= max(LOG_OVERHEAD + length, LOG_OVERHEAD + _LEGACY_MINIMUM[magic])


def _read_v2(buffer: Buffer, offset: int, available: int, where: str, position: int) -> RecordBatchHeader:
    if available < BATCH_HEADER_SIZE:
        raise TruncatedDataError(where=where, position=position, reason=f"{available} bytes are not a batch header")
    fields = HEADER_V2.unpack_from(buffer, offset)
    return RecordBatchHeader(
        base_offset=fields[0],
        batch_length=fields[1],
        partition_leader_epoch=fields[2],
        magic=fields[3],
        crc=fields[4],
        attributes=fields[5],
        last_offset_delta=fields[6],
        base_timestamp=fields[7],
        max_timestamp=fields[8],
        producer_id=fields[9],
        producer_epoch=fields[10],
        base_sequence=fields[11],
        record_count=fields[12],
    )


def _read_legacy(buffer: Buffer, offset: int, available: int, where: str, position: int) -> RecordBatchHeader:
    magic = _PREFIX.unpack_from(buffer, offset)[2]
    needed = (_LEGACY_V1 if magic else _LEGACY_V0).size
    if available < needed:
        raise TruncatedDataError(where=where, position=position, reason=f"{available} bytes are not a message header")
    timestamp = NO_TIMESTAMP
    if magic == 0:
        base_offset, length, crc, _, attributes = _LEGACY_V0.unpack_from(buffer, offset)
    else:
        base_offset, length, crc, _, attributes, timestamp = _LEGACY_V1.unpack_from(buffer, offset)
    return RecordBatchHeader(
        base_offset=base_offset,
        batch_length=length,
        partition_leader_epoch=LeaderEpoch(-1),
        magic=magic,
        crc=crc,
        attributes=attributes & (COMPRESSION_MASK | _LOG_APPEND_TIME_FLAG),
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=-1,
    )
