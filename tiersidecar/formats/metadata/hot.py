"""Struct codec of the two hot records, RemoteLogSegmentMetadata and its update (docs/design/0002).

Reading is exact or declines: a record of another than the common shape (one leader epoch, no tag but TxnIndexEmpty, custom
metadata below 127 bytes) makes :func:`read_added` and :func:`read_updated` return None, and
:func:`tiersidecar.formats.metadata.serde.read_event` reads it instead.  No dataclass is made, which is what a replay of
millions of events needs; kio is the oracle of both in the tests.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - a class in all but its name

from tiersidecar.domain.metadata_cache_rows import AddedFields, UpdatedFields
from tiersidecar.domain.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
)

ADDED, UPDATED, PARTITION_DELETE = 0, 1, 2
"""apiKeys of the topic's records."""

PARTITION_KEY_SIZE = 20

_HEADS = {b"\x01\x00\x00": ADDED, b"\x01\x01\x00": UPDATED, b"\x01\x02\x00": PARTITION_DELETE}
_TAGS = {b"\x00": False, b"\x01\x00\x01\x01": True, b"\x01\x00\x01\x00": False}
# After the topic's name.  Topic id and partition, tags, segment uuid, tags, start, end, broker, max timestamp,
# event timestamp, epoch count + 1, epoch, its start, tags, size, custom metadata length + 1.
_ADDED = Struct(">20sB16sBqqiqqBiqBiB")
# Topic id and partition, tags, segment uuid, tags, broker, event timestamp, custom metadata length + 1.
_UPDATED = Struct(">20sB16sBiqB")
_EPOCH = Struct(">iqB")
_IDS = Struct(">16siB16sB")
_ADDED_NUMBERS = Struct(">qqiqq")
_UPDATED_NUMBERS = Struct(">iq")
_SIZE = Struct(">i")
_LAST_STATE = 3


def peek(value: bytes) -> tuple[int | None, int, bytes]:
    """Return the record's apiKey, where its topic id begins, and from there topic id and partition, 20 bytes: enough to decide
    whether it is of a partition that is kept here.  The apiKey is None when it is of no kind, frame or version that the topic
    may carry; the rest means nothing then.

    Raises:
        IndexError: the record ends before.
    """
    length = value[3]
    position = 3 + length if length < 0x80 else 4 + (length & 0x7F | value[4] << 7)
    return _HEADS.get(value[:3]), position, value[position : position + PARTITION_KEY_SIZE]


def read_added(value: bytes, position: int) -> AddedFields | None:
    """Return the fields of a RemoteLogSegmentMetadata record whose topic id begins at ``position``; None: read_event must."""
    try:
        (_, tags_1, uuid, tags_2, start, end, broker, max_timestamp, event_timestamp, epochs, epoch, epoch_start, tags_3,
         size, length) = _ADDED.unpack_from(value, position)  # fmt: skip
    except StructError:
        return None
    if epochs != 2 or tags_1 or tags_2 or tags_3 or length >= 0x80 or not 0 <= start <= end:
        return None
    position += _ADDED.size
    custom = None
    if length:
        custom = value[position : position + length - 1]
        position += length - 1
    is_empty = _TAGS.get(value[position + 1 :])
    if is_empty is None or value[position] > _LAST_STATE:
        return None
    return (uuid, start, end, max_timestamp, size, ((epoch, epoch_start - start),), is_empty,
            broker, event_timestamp, custom, value[position])  # fmt: skip


def read_updated(value: bytes, position: int) -> UpdatedFields | None:
    """Return the fields of a RemoteLogSegmentMetadataUpdate record, like :func:`read_added`."""
    try:
        _, tags_1, uuid, tags_2, broker, event_timestamp, length = _UPDATED.unpack_from(value, position)
    except StructError:
        return None
    if tags_1 or tags_2 or length >= 0x80:
        return None
    position += _UPDATED.size
    custom = None
    if length:
        custom = value[position : position + length - 1]
        position += length - 1
    if value[position + 1 :] != b"\x00" or value[position] > _LAST_STATE:
        return None
    return uuid, broker, event_timestamp, custom, value[position]


def write_added(metadata: RemoteLogSegmentMetadata, *, knows_txn_index_empty: bool) -> bytes:
    """Return the record of ``metadata``; the TxnIndexEmpty tag only for a target that knows it, and only when true."""
    numbers = _ADDED_NUMBERS.pack(
        metadata.start_offset,
        metadata.end_offset,
        metadata.broker_id,
        metadata.max_timestamp_ms,
        metadata.event_timestamp_ms,
    )
    tail = write_tail(metadata, knows_txn_index_empty=knows_txn_index_empty)
    return b"\x01\x00\x00" + _write_segment_id(metadata) + numbers + tail


def write_tail(
    metadata: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataSnapshot, *, knows_txn_index_empty: bool
) -> bytes:
    """Return the end of a segment's record and its snapshot record: epochs, size, custom metadata, state, tags."""
    epochs = sorted(metadata.segment_leader_epochs)
    return b"".join(
        (
            _write_uvarint(len(epochs) + 1),
            *(_EPOCH.pack(entry.epoch, entry.start_offset, 0) for entry in epochs),
            _SIZE.pack(metadata.segment_size_in_bytes),
            _write_nullable_bytes(metadata.custom_metadata),
            bytes((metadata.state,)),
            b"\x01\x00\x01\x01" if metadata.txn_index_empty and knows_txn_index_empty else b"\x00",
        )
    )


def write_updated(update: RemoteLogSegmentMetadataUpdate) -> bytes:
    """Return the record of ``update``."""
    return b"".join(
        (
            b"\x01\x01\x00",
            _write_segment_id(update),
            _UPDATED_NUMBERS.pack(update.broker_id, update.event_timestamp_ms),
            _write_nullable_bytes(update.custom_metadata),
            bytes((update.state, 0)),
        )
    )


def write_string(text: str) -> bytes:
    """Return a compact string."""
    return _write_nullable_bytes(text.encode())


def _write_segment_id(event: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate) -> bytes:
    segment = event.remote_log_segment_id
    owner = segment.topic_id_partition
    return write_string(owner.topic) + _IDS.pack(owner.topic_id, owner.partition, 0, segment.uuid, 0)


def _write_nullable_bytes(data: bytes | None) -> bytes:
    return b"\x00" if data is None else _write_uvarint(len(data) + 1) + data


def _write_uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
