"""A directory of small segments with their manifests, and their events, with a few odd ones."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.offsets import ByteRange, EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.aiven.index_blob import SegmentIndexes
from tiersidecar.formats.aiven.keys import planned_keys
from tiersidecar.formats.aiven.manifest import write_manifest
from tiersidecar.formats.aiven.transforms import ChunkIndex
from tiersidecar.formats.metadata.hot import write_added, write_updated
from tiersidecar.reconcile.inputs import KnownTopic
from tiersidecar.reconcile.local import RawEvent

ODD_ONES_EACH = 10
WHEN_MS = 1_700_000_000_000
_SEGMENTS_PER_PARTITION, _OFFSETS = 1000, 1000
_LOG_BYTES = 100
_INDEXES = SegmentIndexes(
    offset=ByteRange(0, 16),
    timestamp=ByteRange(16, 40),
    producer_snapshot=ByteRange(40, 50),
    leader_epoch=ByteRange(50, 58),
    transaction=None,
)
_CHUNKS = ChunkIndex(
    original_chunk_size=_LOG_BYTES,
    original_file_size=_LOG_BYTES,
    transformed_chunk_size=_LOG_BYTES,
    final_transformed_chunk_size=_LOG_BYTES,
)


class LocalBucket:
    """``objects`` objects in ``root``, of which ten are missing and ten are nobody's."""

    def __init__(self, root: Path, objects: int) -> None:
        self.root = root
        self.events: list[RawEvent] = []
        self._topic = TopicIdPartition(topic_id=_uuid("topic"), topic="orders", partition=0)
        self.topics = [KnownTopic(topic="orders", topic_id=format_uuid(self._topic.topic_id))]
        count = objects // 3
        odd = set(range(0, count, count // ODD_ONES_EACH)[:ODD_ONES_EACH])
        for number in range(count):
            segment = segment_of(number)
            keys = planned_keys(segment)
            self._put(keys.log, bytes(_LOG_BYTES))
            self._put(keys.manifest, segment_manifest(segment))
            if number in odd:
                self._put(planned_keys(segment_of(number, salt="orphan")).log, b"12345")
            else:
                self._put(keys.indexes, bytes(_INDEXES.size_bytes))
            self._publish(segment)

    def _put(self, key: str, data: bytes) -> None:
        path = self.root / key
        try:
            path.write_bytes(data)
        except FileNotFoundError:
            path.parent.mkdir(parents=True)
            path.write_bytes(data)
        os.utime(path, (WHEN_MS / 1000, WHEN_MS / 1000))

    def _publish(self, segment: RemoteLogSegmentMetadata) -> None:
        update = RemoteLogSegmentMetadataUpdate(
            remote_log_segment_id=segment.remote_log_segment_id,
            broker_id=BrokerId(1),
            event_timestamp_ms=WHEN_MS,
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        )
        offset = len(self.events)
        self.events += [
            (0, offset, write_added(segment, knows_txn_index_empty=True)),
            (0, offset + 1, write_updated(update)),
        ]


def segment_of(
    number: int, segments_per_partition: int = _SEGMENTS_PER_PARTITION, salt: str = ""
) -> RemoteLogSegmentMetadata:
    """Segment ``number`` of topic ``orders``; ``salt`` makes its id another one."""
    partition, place = divmod(number, segments_per_partition)
    owner = TopicIdPartition(topic_id=_uuid("topic"), topic="orders", partition=partition)
    start = Offset(place * _OFFSETS)
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(topic_id_partition=owner, uuid=_uuid(f"{number} {salt}")),
        start_offset=start,
        end_offset=Offset(start + _OFFSETS - 1),
        max_timestamp_ms=WHEN_MS,
        broker_id=BrokerId(1),
        event_timestamp_ms=WHEN_MS,
        segment_size_in_bytes=_LOG_BYTES,
        segment_leader_epochs=(EpochEntry(LeaderEpoch(3), start),),
        txn_index_empty=True,
    )


def segment_manifest(segment: RemoteLogSegmentMetadata) -> bytes:
    """Its manifest."""
    return write_manifest(metadata=segment, chunk_index=_CHUNKS, indexes=_INDEXES, compression=False, encryption=None)


def _uuid(text: str) -> Uuid:
    return Uuid(hashlib.blake2b(text.encode(), digest_size=16).digest())
