"""Snapshots of partitions as objects.

::

    {"format":"tiersidecar-snapshot","version":1,...}\n     the head, JSON: everything but the segments
    <zstd frame>                                             the segments: each 4 bytes of length, and Kafka's own snapshot
                                                             record (RemoteLogSegmentMetadataSnapshot, FORMATS.md section 1)
    <4 bytes>                                                CRC32C of all before, big endian

What the state topic says has the form of its records.  Fields of the head that we do not know are passed over.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import zstandard
from crc32c import crc32c

from tiersidecar.adapters.state_topic.codec import read_partition_state, read_topic_state, write_state
from tiersidecar.adapters.state_topic.entry_codec import read_kept, write_kept
from tiersidecar.adapters.state_topic.record_codecs import pause_key, read_pause, read_pause_key, write_pause
from tiersidecar.domain.errors import CorruptDataError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid, format_uuid, parse_uuid, topic_name_fault
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.pauses import Pause
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataSnapshot
from tiersidecar.formats.metadata.serde import read_snapshot, write_snapshot
from tiersidecar.ports.partition_snapshots import PartitionSnapshot, SnapshotVersion

FORMAT, FORMAT_VERSION = "tiersidecar-snapshot", 1
MOST_SNAPSHOT_BYTES = 256 * 1024 * 1024
"""Of an object: a few million segments."""
_MOST_RECORDS_BYTES = 1024 * 1024 * 1024
_SEAL = struct.Struct(">I")
_LENGTH = struct.Struct(">I")


def write_partition_snapshot(snapshot: PartitionSnapshot) -> bytes:
    """The object's bytes.  Takes about 10 us for each segment."""
    records = b"".join(_records(snapshot))
    head = json.dumps(_head(snapshot, len(records)), separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()
    body = head + b"\n" + zstandard.ZstdCompressor(level=3).compress(records)
    return body + _SEAL.pack(crc32c(body))


def read_partition_snapshot(data: bytes, *, where: str) -> PartitionSnapshot:
    """The snapshot.

    Raises:
        CorruptDataError: damaged, cut short, or of a later format.
    """
    body, seal = data[: -_SEAL.size], data[-_SEAL.size :]
    if len(data) <= _SEAL.size or _SEAL.pack(crc32c(body)) != seal:
        raise CorruptDataError(where=where, position=len(body), reason="its checksum does not fit")
    text, _, frame = body.partition(b"\n")
    head = _read_head(text, where)
    try:
        return _snapshot_of(head, frame, where)
    except (
        AttributeError,
        IndexError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise CorruptDataError(where=where, position=0, reason=f"no snapshot: {error!r}") from error


def _head(snapshot: PartitionSnapshot, records_bytes: int) -> dict[str, Any]:
    owner, topic_state = snapshot.topic_id_partition, snapshot.topic_state
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "cluster_id": snapshot.cluster_id,
        "topic": owner.topic,
        "topic_id": format_uuid(owner.topic_id),
        "partition": owner.partition,
        "leader_epoch": snapshot.version.leader_epoch,
        "serial": snapshot.version.serial,
        "written_ms": snapshot.written_ms,
        "broker_id": snapshot.broker_id,
        "incarnation": snapshot.incarnation,
        "segments": len(snapshot.segments),
        "records_bytes": records_bytes,
        "highest_offsets": sorted(snapshot.highest_offsets.items()),
        "state": json.loads(write_state(snapshot.state, {})),
        "topic_state": None if topic_state is None else json.loads(write_state(topic_state, {})),
        "trash": [write_kept(one) for one in snapshot.trash],
        "pauses": {pause_key(pause.thing).decode(): json.loads(write_pause(pause)) for pause in snapshot.pauses},
        "settings": dict(snapshot.settings),
    }


def _records(snapshot: PartitionSnapshot) -> Iterator[bytes]:
    for segment in snapshot.segments:
        record = write_snapshot(_record_of(segment), knows_txn_index_empty=True)
        yield _LENGTH.pack(len(record))
        yield record


def _record_of(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadataSnapshot:
    return RemoteLogSegmentMetadataSnapshot(
        uuid=segment.remote_log_segment_id.uuid,
        start_offset=segment.start_offset,
        end_offset=segment.end_offset,
        max_timestamp_ms=segment.max_timestamp_ms,
        broker_id=segment.broker_id,
        event_timestamp_ms=segment.event_timestamp_ms,
        segment_size_in_bytes=segment.segment_size_in_bytes,
        segment_leader_epochs=segment.segment_leader_epochs,
        custom_metadata=segment.custom_metadata,
        state=segment.state,
        txn_index_empty=segment.txn_index_empty,
    )


def _segment_of(owner: TopicIdPartition, record: RemoteLogSegmentMetadataSnapshot) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(topic_id_partition=owner, uuid=Uuid(record.uuid)),
        start_offset=record.start_offset,
        end_offset=record.end_offset,
        max_timestamp_ms=record.max_timestamp_ms,
        broker_id=record.broker_id,
        event_timestamp_ms=record.event_timestamp_ms,
        segment_size_in_bytes=record.segment_size_in_bytes,
        segment_leader_epochs=record.segment_leader_epochs,
        custom_metadata=record.custom_metadata,
        state=record.state,
        txn_index_empty=record.txn_index_empty,
    )


def _read_head(text: bytes, where: str) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(where=where, position=0, reason=f"its head is not JSON: {error}") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise CorruptDataError(where=where, position=0, reason="its head is no snapshot's")
    if head.get("version") != FORMAT_VERSION:
        reason = (
            f"its format is {head.get('version')!r}, this release reads {FORMAT_VERSION}: use the release that wrote it"
        )
        raise CorruptDataError(where=where, position=0, reason=reason)
    return head


def _snapshot_of(head: Mapping[str, Any], frame: bytes, where: str) -> PartitionSnapshot:
    if fault := topic_name_fault(topic := str(head["topic"])):
        raise ValueError(fault)
    owner = TopicIdPartition(topic_id=parse_uuid(head["topic_id"]), topic=topic, partition=_integer(head["partition"]))
    segments = tuple(_segment_of(owner, record) for record in _read_records(head, frame, where))
    if len(segments) != _integer(head["segments"]):
        raise ValueError(f"{len(segments)} segments where its head says {head['segments']}")
    topic_state = head["topic_state"]
    return PartitionSnapshot(
        cluster_id=str(head["cluster_id"]),
        topic_id_partition=owner,
        version=SnapshotVersion(
            leader_epoch=LeaderEpoch(_integer(head["leader_epoch"])), serial=_integer(head["serial"])
        ),
        written_ms=_integer(head["written_ms"]),
        broker_id=_integer(head["broker_id"]),
        incarnation=str(head["incarnation"]),
        segments=segments,
        highest_offsets={_integer(epoch): _integer(offset) for epoch, offset in head["highest_offsets"]},
        state=read_partition_state(head["state"], where=where),
        topic_state=None if topic_state is None else read_topic_state(topic_state, where=where),
        trash=read_kept({"kept": head["trash"]}, where=where),
        pauses=tuple(_read_pauses(head["pauses"])),
        settings={str(name): str(value) for name, value in head["settings"].items()},
    )


def _read_pauses(said: Mapping[str, Mapping[str, Any]]) -> Iterator[Pause]:
    for key, value in said.items():
        thing = read_pause_key(key.encode())
        if thing is not None:
            yield read_pause(thing, value)


def _read_records(head: Mapping[str, Any], frame: bytes, where: str) -> Iterator[RemoteLogSegmentMetadataSnapshot]:
    size = _integer(head["records_bytes"])
    if not 0 <= size <= _MOST_RECORDS_BYTES:
        raise ValueError(f"{size} bytes of records")
    records = _opened(frame, size)
    position = 0
    while position < size:
        (length,) = _LENGTH.unpack_from(records, position)
        position += _LENGTH.size
        if position + length > size:
            raise ValueError("a record that is cut short")
        yield read_snapshot(records[position : position + length], where=where)
        position += length


def _opened(frame: bytes, size: int) -> bytes:
    try:
        # The decompressor allocates what the frame's own header says, whatever it is bounded to.
        if (said := zstandard.get_frame_parameters(frame).content_size) != size:
            raise ValueError(f"a frame of {said} bytes where its head says {size}")
        records = zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(f"its records cannot be opened: {error}") from error
    if len(records) != size:
        raise ValueError(f"{len(records)} bytes of records where its head says {size}")
    return records


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value
