"""Events of the metadata topic to bytes and back (RemoteLogMetadataSerde; docs/design/0002).

Reading takes records of every Kafka version, and skips tags that it does not know; writing leaves out fields that the target
version does not know.  A replay reads the two hot records with :mod:`tiersidecar.formats.metadata.hot` instead.

A reader of Kafka's flexible structs, field after field, that skips tags of later versions as Kafka does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class in all but its name
from typing import TypeVar

from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.domain.states import RemoteLogSegmentState, RemotePartitionDeleteState
from tiersidecar.formats.metadata import hot

_INT8, _INT32, _INT64 = Struct(">b"), Struct(">i"), Struct(">q")
_UVARINT_LIMIT = 2**31


class RecordCursor:
    """Reads ``data`` from ``position`` on.  ``where`` names it in errors.

    Every method raises CorruptDataError, with the position, when the bytes do not hold the requested value.
    """

    __slots__ = ("_data", "_position", "_where")

    def __init__(self, data: bytes, position: int, *, where: str) -> None:
        self._data, self._position, self._where = data, position, where

    def int8(self) -> int:
        return self._fixed(_INT8)

    def int32(self) -> int:
        return self._fixed(_INT32)

    def int64(self) -> int:
        return self._fixed(_INT64)

    def uuid(self) -> Uuid:
        return Uuid(self._take(16))

    def uvarint(self) -> int:
        """Read an unsigned LEB128 of at most 31 bits."""
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if value >= _UVARINT_LIMIT or shift > 35:
                raise self.corrupt("a variable-length integer of more than 31 bits")
            if byte < 0x80:
                return value

    def string(self) -> str:
        """Read a compact string."""
        data = self.nullable_bytes()
        if data is None:
            raise self.corrupt("null instead of a string")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.corrupt(f"not UTF-8: {error}") from error

    def nullable_bytes(self) -> bytes | None:
        """Read compact nullable bytes."""
        length = self.uvarint()
        return None if length == 0 else self._take(length - 1)

    def array_length(self) -> int:
        """Return how many elements of a compact array follow."""
        length = self.uvarint()
        if length == 0:
            raise self.corrupt("null instead of an array")
        return length - 1

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields at the end of a struct, known or not."""
        return {self.uvarint(): self._take(self.uvarint()) for _ in range(self.uvarint())}

    def skip_tags(self) -> None:
        self.tags()

    def end(self) -> None:
        """Check that nothing follows."""
        if self._position != len(self._data):
            raise self.corrupt("garbage after the record")

    def corrupt(self, reason: str) -> CorruptDataError:
        """Return an error at the position reached."""
        return CorruptDataError(where=self._where, position=self._position, reason=reason)

    def _fixed(self, layout: Struct) -> int:
        try:
            (value,) = layout.unpack_from(self._data, self._position)
        except StructError:
            raise self.corrupt(f"{layout.size} bytes expected") from None
        self._position += layout.size
        return int(value)

    def _take(self, count: int) -> bytes:
        stop = self._position + count
        if stop > len(self._data):
            raise self.corrupt(f"{count} bytes expected, {len(self._data) - self._position} left")
        data = self._data[self._position : stop]
        self._position = stop
        return data


S = TypeVar("S")

_HEADER_SIZE = 3
_SNAPSHOT_KIND = 3
_TXN_INDEX_EMPTY_TAG = 0
_PARTITION_DELETE = Struct(">16siBiqbB")
_SNAPSHOT = Struct(">16sqqiqq")


def read_event(value: bytes, *, where: str) -> MetadataEvent:
    """Read one record of the topic.  ``where`` names it in errors, such as ``__remote_log_metadata-7 offset 12``.

    Raises:
        CorruptDataError: not a record of the three kinds that the topic carries, or one that Kafka would refuse.
    """
    cursor = RecordCursor(value, _HEADER_SIZE, where=where)
    try:
        match _read_kind(value, where=where):
            case hot.ADDED:
                event: MetadataEvent = _read_added(cursor)
            case hot.UPDATED:
                event = _read_updated(cursor)
            case hot.PARTITION_DELETE:
                event = _read_partition_delete(cursor)
            case kind:
                raise CorruptDataError(where=where, position=1, reason=f"kind {kind}, which the topic never carries")
    except ValueError as error:
        raise cursor.corrupt(str(error)) from error
    cursor.end()
    return event


def read_snapshot(value: bytes, *, where: str) -> RemoteLogSegmentMetadataSnapshot:
    """Read a record of Kafka's snapshot files (S-107).

    Raises:
        CorruptDataError: anything else.
    """
    if _read_kind(value, where=where) != _SNAPSHOT_KIND:
        raise CorruptDataError(where=where, position=1, reason="not a snapshot record")
    cursor = RecordCursor(value, _HEADER_SIZE, where=where)
    try:
        snapshot = _read_snapshot(cursor)
    except ValueError as error:
        raise cursor.corrupt(str(error)) from error
    cursor.end()
    return snapshot


def write_event(event: MetadataEvent, *, knows_txn_index_empty: bool) -> bytes:
    """Return the bytes that Kafka itself would publish for ``event``."""
    match event:
        case RemoteLogSegmentMetadata():
            return hot.write_added(event, knows_txn_index_empty=knows_txn_index_empty)
        case RemoteLogSegmentMetadataUpdate():
            return hot.write_updated(event)
        case RemotePartitionDeleteMetadata():
            owner = event.topic_id_partition
            numbers = (owner.topic_id, owner.partition, 0, event.broker_id, event.event_timestamp_ms, event.state, 0)
            return b"\x01\x02\x00" + hot.write_string(owner.topic) + _PARTITION_DELETE.pack(*numbers)


def write_snapshot(snapshot: RemoteLogSegmentMetadataSnapshot, *, knows_txn_index_empty: bool) -> bytes:
    """Return the bytes of a snapshot record, like :func:`write_event`."""
    numbers = _SNAPSHOT.pack(
        snapshot.uuid,
        snapshot.start_offset,
        snapshot.end_offset,
        snapshot.broker_id,
        snapshot.max_timestamp_ms,
        snapshot.event_timestamp_ms,
    )
    tail = hot.write_tail(snapshot, knows_txn_index_empty=knows_txn_index_empty)
    return b"\x01\x03\x00" + numbers + tail


def _read_kind(value: bytes, *, where: str) -> int:
    frame, kind, version = (value[0], value[1], value[2]) if len(value) >= _HEADER_SIZE else (-1, -1, -1)
    if frame != 1 or version != 0 or kind > _SNAPSHOT_KIND:
        raise CorruptDataError(where=where, position=0, reason=f"frame {frame}, kind {kind}, version {version}")
    return kind


def _read_added(cursor: RecordCursor) -> RemoteLogSegmentMetadata:
    segment_id = _read_segment_id(cursor)
    return _read_segment(cursor, partial(RemoteLogSegmentMetadata, remote_log_segment_id=segment_id))


def _read_updated(cursor: RecordCursor) -> RemoteLogSegmentMetadataUpdate:
    update = RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=_read_segment_id(cursor),
        broker_id=BrokerId(cursor.int32()),
        event_timestamp_ms=cursor.int64(),
        custom_metadata=cursor.nullable_bytes(),
        state=RemoteLogSegmentState(cursor.int8()),
    )
    cursor.skip_tags()
    return update


def _read_partition_delete(cursor: RecordCursor) -> RemotePartitionDeleteMetadata:
    event = RemotePartitionDeleteMetadata(
        topic_id_partition=_read_topic_id_partition(cursor),
        broker_id=BrokerId(cursor.int32()),
        event_timestamp_ms=cursor.int64(),
        state=RemotePartitionDeleteState(cursor.int8()),
    )
    cursor.skip_tags()
    return event


def _read_snapshot(cursor: RecordCursor) -> RemoteLogSegmentMetadataSnapshot:
    return _read_segment(cursor, partial(RemoteLogSegmentMetadataSnapshot, uuid=cursor.uuid()))


def _read_segment(cursor: RecordCursor, make: Callable[..., S]) -> S:
    """Read the fields of a segment that both kinds have, in the same order, behind its id."""
    start, end, broker = cursor.int64(), cursor.int64(), cursor.int32()
    max_timestamp_ms, event_timestamp_ms = cursor.int64(), cursor.int64()
    epochs, size = _read_epochs(cursor), cursor.int32()
    return make(
        start_offset=Offset(start),
        end_offset=Offset(end),
        max_timestamp_ms=max_timestamp_ms,
        broker_id=BrokerId(broker),
        event_timestamp_ms=event_timestamp_ms,
        segment_size_in_bytes=size,
        segment_leader_epochs=epochs,
        custom_metadata=cursor.nullable_bytes(),
        state=RemoteLogSegmentState(cursor.int8()),
        txn_index_empty=_read_txn_index_empty(cursor),
    )


def _read_topic_id_partition(cursor: RecordCursor) -> TopicIdPartition:
    topic, topic_id, partition = cursor.string(), cursor.uuid(), cursor.int32()
    cursor.skip_tags()
    return TopicIdPartition(topic_id=topic_id, topic=topic, partition=partition)


def _read_segment_id(cursor: RecordCursor) -> RemoteLogSegmentId:
    segment_id = RemoteLogSegmentId(topic_id_partition=_read_topic_id_partition(cursor), uuid=cursor.uuid())
    cursor.skip_tags()
    return segment_id


def _read_epochs(cursor: RecordCursor) -> tuple[EpochEntry, ...]:
    # A map, as in Kafka: of two entries for one epoch the later counts, and they ascend.
    starts: dict[int, int] = {}
    for _ in range(cursor.array_length()):
        epoch = cursor.int32()
        starts[epoch] = cursor.int64()
        cursor.skip_tags()
    return tuple(EpochEntry(LeaderEpoch(epoch), Offset(starts[epoch])) for epoch in sorted(starts))


def _read_txn_index_empty(cursor: RecordCursor) -> bool:
    return any(cursor.tags().get(_TXN_INDEX_EMPTY_TAG, b""))
