"""The four records of the metadata topic as kio entities (Kafka's storage/src/main/resources/message/*.json, version 0).

kio knows all requests and responses but not these.  Declared for its reader and writer they are the oracle of our codec.

No ``from __future__ import annotations`` here: kio reads the types of the fields, not their names.
"""

import io
from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32, i64

from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition
from tiersidecar.domain.offsets import EpochEntry
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIdPartitionEntry:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    name: str = field(metadata={"kafka_type": "string"})
    id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partition: i32 = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentIdEntry:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    topic_id_partition: TopicIdPartitionEntry
    id: UUID | None = field(metadata={"kafka_type": "uuid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLeaderEpochEntry:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    leader_epoch: i32 = field(metadata={"kafka_type": "int32"})
    offset: i64 = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataRecord:
    """apiKey 0."""

    __type__: ClassVar = EntityType.data
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    remote_log_segment_id: RemoteLogSegmentIdEntry
    start_offset: i64 = field(metadata={"kafka_type": "int64"})
    end_offset: i64 = field(metadata={"kafka_type": "int64"})
    broker_id: i32 = field(metadata={"kafka_type": "int32"})
    max_timestamp_ms: i64 = field(metadata={"kafka_type": "int64"})
    event_timestamp_ms: i64 = field(metadata={"kafka_type": "int64"})
    segment_leader_epochs: tuple[SegmentLeaderEpochEntry, ...]
    segment_size_in_bytes: i32 = field(metadata={"kafka_type": "int32"})
    custom_metadata: bytes | None = field(metadata={"kafka_type": "bytes"})
    remote_log_segment_state: i8 = field(metadata={"kafka_type": "int8"})
    txn_index_empty: bool = field(metadata={"kafka_type": "bool", "tag": 0}, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataUpdateRecord:
    """apiKey 1."""

    __type__: ClassVar = EntityType.data
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    remote_log_segment_id: RemoteLogSegmentIdEntry
    broker_id: i32 = field(metadata={"kafka_type": "int32"})
    event_timestamp_ms: i64 = field(metadata={"kafka_type": "int64"})
    custom_metadata: bytes | None = field(metadata={"kafka_type": "bytes"})
    remote_log_segment_state: i8 = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePartitionDeleteMetadataRecord:
    """apiKey 2."""

    __type__: ClassVar = EntityType.data
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    topic_id_partition: TopicIdPartitionEntry
    broker_id: i32 = field(metadata={"kafka_type": "int32"})
    event_timestamp_ms: i64 = field(metadata={"kafka_type": "int64"})
    remote_partition_delete_state: i8 = field(metadata={"kafka_type": "int8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataSnapshotRecord:
    """apiKey 3: in Kafka's snapshot files, never in the topic."""

    __type__: ClassVar = EntityType.data
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    segment_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    start_offset: i64 = field(metadata={"kafka_type": "int64"})
    end_offset: i64 = field(metadata={"kafka_type": "int64"})
    broker_id: i32 = field(metadata={"kafka_type": "int32"})
    max_timestamp_ms: i64 = field(metadata={"kafka_type": "int64"})
    event_timestamp_ms: i64 = field(metadata={"kafka_type": "int64"})
    segment_leader_epochs: tuple[SegmentLeaderEpochEntry, ...]
    segment_size_in_bytes: i32 = field(metadata={"kafka_type": "int32"})
    custom_metadata: bytes | None = field(metadata={"kafka_type": "bytes"})
    remote_log_segment_state: i8 = field(metadata={"kafka_type": "int8"})
    txn_index_empty: bool = field(metadata={"kafka_type": "bool", "tag": 0}, default=False)


Record = (
    RemoteLogSegmentMetadataRecord
    | RemoteLogSegmentMetadataUpdateRecord
    | RemotePartitionDeleteMetadataRecord
    | RemoteLogSegmentMetadataSnapshotRecord
)

RECORD_TYPES: tuple[type[Record], ...] = (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    RemoteLogSegmentMetadataSnapshotRecord,
)
"""By apiKey."""


def write_with_kio(event: MetadataEvent | RemoteLogSegmentMetadataSnapshot) -> bytes:
    """``event`` as kio writes it."""
    record = to_record(event)
    buffer = io.BytesIO()
    buffer.write(bytes((1, RECORD_TYPES.index(type(record)), 0)))
    entity_writer(type(record))(buffer, record)
    return buffer.getvalue()


def read_with_kio(value: bytes) -> Record:
    """The record as kio reads it; all of ``value`` is used."""
    record, size = entity_reader(RECORD_TYPES[value[1]])(value, 3)
    assert size + 3 == len(value)
    return record


def to_record(event: MetadataEvent | RemoteLogSegmentMetadataSnapshot) -> Record:
    """``event`` as the record that Kafka's transforms make of it."""
    match event:
        case RemoteLogSegmentMetadata():
            return RemoteLogSegmentMetadataRecord(
                remote_log_segment_id=_to_segment_id(event.remote_log_segment_id),
                start_offset=i64(event.start_offset),
                end_offset=i64(event.end_offset),
                broker_id=i32(event.broker_id),
                max_timestamp_ms=i64(event.max_timestamp_ms),
                event_timestamp_ms=i64(event.event_timestamp_ms),
                segment_leader_epochs=_to_epochs(event.segment_leader_epochs),
                segment_size_in_bytes=i32(event.segment_size_in_bytes),
                custom_metadata=event.custom_metadata,
                remote_log_segment_state=i8(event.state),
                txn_index_empty=event.txn_index_empty,
            )
        case RemoteLogSegmentMetadataUpdate():
            return RemoteLogSegmentMetadataUpdateRecord(
                remote_log_segment_id=_to_segment_id(event.remote_log_segment_id),
                broker_id=i32(event.broker_id),
                event_timestamp_ms=i64(event.event_timestamp_ms),
                custom_metadata=event.custom_metadata,
                remote_log_segment_state=i8(event.state),
            )
        case RemotePartitionDeleteMetadata():
            return RemotePartitionDeleteMetadataRecord(
                topic_id_partition=_to_topic_id_partition(event.topic_id_partition),
                broker_id=i32(event.broker_id),
                event_timestamp_ms=i64(event.event_timestamp_ms),
                remote_partition_delete_state=i8(event.state),
            )
        case RemoteLogSegmentMetadataSnapshot():
            return RemoteLogSegmentMetadataSnapshotRecord(
                segment_id=_to_uuid(event.uuid),
                start_offset=i64(event.start_offset),
                end_offset=i64(event.end_offset),
                broker_id=i32(event.broker_id),
                max_timestamp_ms=i64(event.max_timestamp_ms),
                event_timestamp_ms=i64(event.event_timestamp_ms),
                segment_leader_epochs=_to_epochs(event.segment_leader_epochs),
                segment_size_in_bytes=i32(event.segment_size_in_bytes),
                custom_metadata=event.custom_metadata,
                remote_log_segment_state=i8(event.state),
                txn_index_empty=event.txn_index_empty,
            )


def _to_topic_id_partition(owner: TopicIdPartition) -> TopicIdPartitionEntry:
    return TopicIdPartitionEntry(name=owner.topic, id=_to_uuid(owner.topic_id), partition=i32(owner.partition))


def _to_segment_id(segment: RemoteLogSegmentId) -> RemoteLogSegmentIdEntry:
    return RemoteLogSegmentIdEntry(
        topic_id_partition=_to_topic_id_partition(segment.topic_id_partition), id=_to_uuid(segment.uuid)
    )


def _to_epochs(epochs: tuple[EpochEntry, ...]) -> tuple[SegmentLeaderEpochEntry, ...]:
    return tuple(
        SegmentLeaderEpochEntry(leader_epoch=i32(entry.epoch), offset=i64(entry.start_offset))
        for entry in sorted(epochs)
    )


def _to_uuid(raw: bytes) -> UUID | None:
    # kio's idea of the reserved zero Uuid
    return UUID(bytes=raw) if any(raw) else None
