"""Events for the codec tests: hypothesis strategies, and Kafka's JSON rendering of an event."""

from __future__ import annotations

import base64
from typing import Any

from hypothesis import strategies as st

from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.domain.states import RemoteLogSegmentState, RemotePartitionDeleteState

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
UUIDS = st.binary(min_size=16, max_size=16).map(Uuid)
CUSTOM_METADATA = st.none() | st.binary(max_size=300)
TOPICS = st.text(alphabet="abcXYZ019._-", min_size=1, max_size=249)
TOPIC_ID_PARTITIONS = st.builds(TopicIdPartition, topic_id=UUIDS, topic=TOPICS, partition=st.integers(0, 2**31 - 1))
SEGMENT_IDS = st.builds(RemoteLogSegmentId, topic_id_partition=TOPIC_ID_PARTITIONS, uuid=UUIDS)
EPOCHS = st.dictionaries(st.integers(0, 2**31 - 1), OFFSETS, min_size=1, max_size=4).map(
    lambda entries: tuple(EpochEntry(LeaderEpoch(epoch), Offset(entries[epoch])) for epoch in sorted(entries))
)


@st.composite
def added_segments(draw: st.DrawFn) -> RemoteLogSegmentMetadata:
    start, end = sorted((draw(OFFSETS), draw(OFFSETS)))
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=draw(SEGMENT_IDS),
        start_offset=Offset(start),
        end_offset=Offset(end),
        max_timestamp_ms=draw(INT64),
        broker_id=BrokerId(draw(INT32)),
        event_timestamp_ms=draw(INT64),
        segment_size_in_bytes=draw(INT32),
        segment_leader_epochs=draw(EPOCHS),
        custom_metadata=draw(CUSTOM_METADATA),
        state=draw(st.sampled_from(RemoteLogSegmentState)),
        txn_index_empty=draw(st.booleans()),
    )


updates = st.builds(
    RemoteLogSegmentMetadataUpdate,
    remote_log_segment_id=SEGMENT_IDS,
    broker_id=INT32.map(BrokerId),
    event_timestamp_ms=INT64,
    state=st.sampled_from(RemoteLogSegmentState),
    custom_metadata=CUSTOM_METADATA,
)
partition_deletes = st.builds(
    RemotePartitionDeleteMetadata,
    topic_id_partition=TOPIC_ID_PARTITIONS,
    broker_id=INT32.map(BrokerId),
    event_timestamp_ms=INT64,
    state=st.sampled_from(RemotePartitionDeleteState),
)
events: st.SearchStrategy[MetadataEvent] = st.one_of(added_segments(), updates, partition_deletes)


def to_kafka_json(event: MetadataEvent) -> dict[str, Any]:
    """What Kafka's generated MetadataJsonConverters print for the record of ``event``."""
    match event:
        case RemoteLogSegmentMetadata():
            record: dict[str, Any] = {
                "remoteLogSegmentId": _segment_id(event.remote_log_segment_id),
                "startOffset": event.start_offset,
                "endOffset": event.end_offset,
                "brokerId": event.broker_id,
                "maxTimestampMs": event.max_timestamp_ms,
                "eventTimestampMs": event.event_timestamp_ms,
                "segmentLeaderEpochs": [
                    {"leaderEpoch": entry.epoch, "offset": entry.start_offset} for entry in event.segment_leader_epochs
                ],
                "segmentSizeInBytes": event.segment_size_in_bytes,
                "customMetadata": _base64(event.custom_metadata),
                "remoteLogSegmentState": int(event.state),
            }
            if event.txn_index_empty:
                record["txnIndexEmpty"] = True
            return {"apiKey": 0, "version": 0, "record": record}
        case RemoteLogSegmentMetadataUpdate():
            record = {
                "remoteLogSegmentId": _segment_id(event.remote_log_segment_id),
                "brokerId": event.broker_id,
                "eventTimestampMs": event.event_timestamp_ms,
                "customMetadata": _base64(event.custom_metadata),
                "remoteLogSegmentState": int(event.state),
            }
            return {"apiKey": 1, "version": 0, "record": record}
        case RemotePartitionDeleteMetadata():
            record = {
                "topicIdPartition": _topic_id_partition(event.topic_id_partition),
                "brokerId": event.broker_id,
                "eventTimestampMs": event.event_timestamp_ms,
                "remotePartitionDeleteState": int(event.state),
            }
            return {"apiKey": 2, "version": 0, "record": record}


def _segment_id(segment: RemoteLogSegmentId) -> dict[str, Any]:
    return {
        "topicIdPartition": _topic_id_partition(segment.topic_id_partition),
        "id": format_uuid(segment.uuid),
    }


def _topic_id_partition(owner: TopicIdPartition) -> dict[str, Any]:
    return {"name": owner.topic, "id": format_uuid(owner.topic_id), "partition": owner.partition}


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
