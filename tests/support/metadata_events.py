"""Metadata events for tests: segments named by a number, everything else with a default."""

from __future__ import annotations

from collections.abc import Mapping

from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState

ORDERS = TopicIdPartition(topic_id=Uuid(b"orders-topic-id!"), topic="orders", partition=0)
STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState


def segment_id(number: int, owner: TopicIdPartition = ORDERS) -> RemoteLogSegmentId:
    """Return segment ``number`` of ``owner``."""
    return RemoteLogSegmentId(topic_id_partition=owner, uuid=Uuid(number.to_bytes(16, "big")))


def added(
    number: int,
    start: int,
    end: int,
    epochs: Mapping[int, int] | None = None,
    *,
    owner: TopicIdPartition = ORDERS,
    state: RemoteLogSegmentState = STARTED,
    broker: int = 1,
    size: int = 1000,
    txn_index_empty: bool = True,
) -> RemoteLogSegmentMetadata:
    """Return COPY_SEGMENT_STARTED of segment ``number`` with offsets ``[start, end]``; in epoch 0 unless ``epochs`` says."""
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=segment_id(number, owner),
        start_offset=Offset(start),
        end_offset=Offset(end),
        max_timestamp_ms=end,
        broker_id=BrokerId(broker),
        event_timestamp_ms=number,
        segment_size_in_bytes=size,
        segment_leader_epochs=tuple(
            EpochEntry(LeaderEpoch(epoch), Offset(offset)) for epoch, offset in sorted((epochs or {0: start}).items())
        ),
        state=state,
        txn_index_empty=txn_index_empty,
    )


def updated(
    number: int,
    state: RemoteLogSegmentState,
    *,
    owner: TopicIdPartition = ORDERS,
    broker: int = 1,
    custom: bytes | None = None,
) -> RemoteLogSegmentMetadataUpdate:
    """Return an update of segment ``number`` to ``state``."""
    return RemoteLogSegmentMetadataUpdate(
        remote_log_segment_id=segment_id(number, owner),
        broker_id=BrokerId(broker),
        event_timestamp_ms=number + int(state),
        state=state,
        custom_metadata=custom,
    )
