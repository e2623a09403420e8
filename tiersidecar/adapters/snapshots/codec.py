"""Snapshots of partitions as objects.

::

    {"format":"tiersidecar-snapshot","version":1,...}\n     the head, JSON: everything but the segments
    <zstd frame>                                             the segments: each 4 bytes of length, and Kafka's own snapshot
                                                             record (RemoteLogSegmentMetadataSnapshot)
    <4 bytes>                                                CRC32C of all before, big endian

What the state topic says has the form of its records.  Fields of the head that we do not know are passed over.

Any writer to the bucket may put one there, and a sidecar reads it beside what it copies.  So the head, which is parsed at
once, the segments and their leader epochs are bounded, and compressed data is opened piece by piece: no writer can claim
more memory than the largest snapshot that we write.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import zstandard
from crc32c import crc32c

from tiersidecar.adapters.state_topic.codec import read_partition_state, read_topic_state, write_state
from tiersidecar.adapters.state_topic.entry_codec import read_kept, write_kept
from tiersidecar.adapters.state_topic.record_codecs import pause_key, read_pause, read_pause_key, write_pause
from tiersidecar.domain.errors import CorruptDataError, StoreError
from tiersidecar.domain.ids import RemoteLogSegmentId, TopicIdPartition, Uuid, format_uuid, parse_uuid, topic_name_fault
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import Pause
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataSnapshot
from tiersidecar.formats.metadata.serde import read_snapshot, write_snapshot
from tiersidecar.ports.partition_snapshots import PartitionSnapshot, SnapshotVersion

FORMAT, FORMAT_VERSION = "tiersidecar-snapshot", 1
MOST_SNAPSHOT_BYTES = 128 * 1024 * 1024
"""The most for an object.  Segments take 60 to 150 bytes each: their ids cannot be compressed."""
MOST_HEAD_BYTES = 8 * 1024 * 1024
"""The most for the head: the partition's record and those of its trash and pauses, each of which a topic of Kafka took."""
MOST_HEAD_VALUES = 400_000
"""In the head, counted as commas and brackets: JSON of nothing else takes 25 times its bytes when it is read.  A segment's id,
which the head has many of where much is in the trash, takes 25 bytes."""
MOST_SEGMENTS = 500_000
"""The most for a partition: 50 TB in segments of 100 MB.  So many take 210 MiB and some 10 s when they are read."""
MOST_RECORD_BYTES = 64 * 1024
"""The most for a segment, which has some hundred bytes, and 13 more for each further leader epoch."""
MOST_EPOCHS = 2 * MOST_SEGMENTS
"""The most for all segments together: each has one, and one more for each change of the leader while it was written."""
MOST_RECORDS_BYTES = 256 * 1024 * 1024
"""The most for all segments when opened."""
_MOST_WINDOW_BYTES = 8 * 1024 * 1024
"""The most memory to open a frame: four times that of the level that we compress at."""
_PIECE_BYTES = 256 * 1024
_SEAL = struct.Struct(">I")
_LENGTH = struct.Struct(">I")


def write_partition_snapshot(snapshot: PartitionSnapshot, key: str = "") -> bytes:
    """Return the object's bytes.  Takes about 10 us for each segment.

    Raises:
        StoreError: it is larger than what readers open.
    """
    records = b"".join(_records(snapshot, key))
    head = json.dumps(_head(snapshot, len(records)), separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()
    body = head + b"\n" + zstandard.ZstdCompressor(level=3).compress(records)
    if fault := _fault_of_size(snapshot, head, records, len(body)):
        raise StoreError(
            verb="put", key=key, reason=f"a snapshot of the partition has {fault}: readers would refuse it"
        )
    return body + _SEAL.pack(crc32c(body))


def _fault_of_size(snapshot: PartitionSnapshot, head: bytes, records: bytes, body_bytes: int) -> str:
    if len(snapshot.segments) > MOST_SEGMENTS:
        return f"more than {MOST_SEGMENTS:,} segments"
    if len(head) > MOST_HEAD_BYTES or _values_in(head) > MOST_HEAD_VALUES:
        return f"more than {MOST_HEAD_BYTES:,} bytes or {MOST_HEAD_VALUES:,} values of state, trash and pauses"
    if len(records) > MOST_RECORDS_BYTES or body_bytes > MOST_SNAPSHOT_BYTES - _SEAL.size:
        return f"more than {MOST_RECORDS_BYTES:,} bytes of segments, or {MOST_SNAPSHOT_BYTES:,} when compressed"
    if sum(len(one.segment_leader_epochs) for one in snapshot.segments) > MOST_EPOCHS:
        return f"more than {MOST_EPOCHS:,} leader epochs of segments"
    return ""


def read_partition_snapshot(data: bytes, *, where: str) -> PartitionSnapshot:
    """Read the snapshot.

    Raises:
        CorruptDataError: damaged, cut short, of a later format, or larger than what is written.
    """
    body, seal = memoryview(data)[: -_SEAL.size], data[-_SEAL.size :]
    if len(data) <= _SEAL.size or _SEAL.pack(crc32c(body)) != seal:
        raise CorruptDataError(where=where, position=len(body), reason="its checksum does not fit")
    end = data.find(b"\n", 0, min(len(body), MOST_HEAD_BYTES + 1))
    if end < 0:
        raise CorruptDataError(
            where=where, position=0, reason=f"its head does not end within {MOST_HEAD_BYTES:,} bytes"
        )
    head, frame = _read_head(data[:end], where), body[end + 1 :]
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


def _records(snapshot: PartitionSnapshot, key: str) -> Iterator[bytes]:
    for segment in snapshot.segments:
        record = write_snapshot(_record_of(segment), knows_txn_index_empty=True)
        if len(record) > MOST_RECORD_BYTES:
            reason = f"segment {segment.remote_log_segment_id} has more than {MOST_RECORD_BYTES:,} bytes of metadata"
            raise StoreError(verb="put", key=key, reason=f"{reason}: readers would refuse it")
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


def _values_in(text: bytes) -> int:
    """Return how many values JSON has at most: a text that has commas or brackets counts for more."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _read_head(text: bytes, where: str) -> dict[str, Any]:
    if _values_in(text) > MOST_HEAD_VALUES:
        raise CorruptDataError(where=where, position=0, reason=f"its head has more than {MOST_HEAD_VALUES:,} values")
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(where=where, position=0, reason=f"its head is not JSON: {error}") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise CorruptDataError(where=where, position=0, reason="its head is not that of a snapshot")
    if head.get("version") != FORMAT_VERSION:
        reason = (
            f"its format is {head.get('version')!r}, this release reads {FORMAT_VERSION}: use the release that wrote it"
        )
        raise CorruptDataError(where=where, position=0, reason=reason)
    return head


def _snapshot_of(head: Mapping[str, Any], frame: memoryview, where: str) -> PartitionSnapshot:
    if fault := topic_name_fault(topic := str(head["topic"])):
        raise ValueError(fault)
    owner = TopicIdPartition(topic_id=parse_uuid(head["topic_id"]), topic=topic, partition=_integer(head["partition"]))
    segments = tuple(_segment_of(owner, record) for record in _read_records(head, frame, where))
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


def _read_records(head: Mapping[str, Any], frame: memoryview, where: str) -> Iterator[RemoteLogSegmentMetadataSnapshot]:
    """Yield as many as the head says.  One is opened when it is asked for."""
    count, size = _integer(head["segments"]), _integer(head["records_bytes"])
    if not 0 <= count <= MOST_SEGMENTS:
        raise ValueError(f"{count} segments")
    if not 0 <= size <= min(MOST_RECORDS_BYTES, count * (_LENGTH.size + MOST_RECORD_BYTES)):
        raise ValueError(f"{size} bytes of records of {count} segments")
    epochs, opened = 0, _Opened(frame, size)
    for number in range(count):
        if opened.left_bytes == 0:
            raise ValueError(f"{number} segments where its head says {count}")
        (length,) = _LENGTH.unpack(opened.read(_LENGTH.size))
        if length > MOST_RECORD_BYTES:
            raise ValueError(f"a record of {length} bytes")
        record = read_snapshot(opened.read(length), where=where)
        epochs += len(record.segment_leader_epochs)
        if epochs > MOST_EPOCHS:
            raise ValueError(f"more than {MOST_EPOCHS:,} leader epochs")
        yield record
    opened.require_end(count)


class _Opened:
    """The ``size`` bytes of a frame, in their order, some at a time."""

    def __init__(self, frame: memoryview, size: int) -> None:
        self.left_bytes = size
        try:
            # Opened at once or not, a frame is believed as to its own size.
            if (said := zstandard.get_frame_parameters(frame).content_size) != size:
                raise ValueError(f"a frame of {said} bytes where its head says {size}")
        except zstandard.ZstdError as error:
            raise ValueError(f"its records cannot be opened: {error}") from error
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES)
        self._stream = io.BufferedReader(decompressor.stream_reader(frame, _PIECE_BYTES), _PIECE_BYTES)

    def read(self, count: int) -> bytes:
        """Read exactly ``count`` bytes.

        Raises:
            ValueError: so many are not left, or cannot be opened.
        """
        if count > self.left_bytes:
            raise ValueError("a record that is cut short")
        data = self._read(count)
        if len(data) != count:
            raise ValueError("its records end before what its head says")
        self.left_bytes -= count
        return data

    def require_end(self, count: int) -> None:
        """Check the end.  Raises ValueError: more follows than ``count`` segments."""
        if self.left_bytes or self._read(1):
            raise ValueError(f"more than {count} segments, where its head says {count}")

    def _read(self, count: int) -> bytes:
        try:
            return self._stream.read(count)
        except zstandard.ZstdError as error:
            raise ValueError(f"its records cannot be opened: {error}") from error


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{str(value)[:40]} is no integer")
    if not -(2**63) <= value < 2**63:
        raise ValueError("an integer of more than 64 bits")
    return value
