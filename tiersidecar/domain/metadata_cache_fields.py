"""The two hot events as plain tuples: what a replay hands to the cache instead of dataclasses."""

from __future__ import annotations

from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate

RelativeEpochs = tuple[tuple[int, int], ...]
"""Leader epochs with their starts relative to the segment's: nearly all segments share ``((epoch, 0),)``."""

AddedFields = tuple[bytes, int, int, int, int, RelativeEpochs, bool, int, int, bytes | None, int]
"""Uuid, start, end, max timestamp, size, epochs, transaction index empty, broker, event timestamp, custom metadata, state."""

UpdatedFields = tuple[bytes, int, int, bytes | None, int]
"""Uuid, broker, event timestamp, custom metadata, state."""


def added_fields(metadata: RemoteLogSegmentMetadata) -> AddedFields:
    """The fields that :meth:`~tiersidecar.domain.metadata_cache.RemoteLogMetadataCache.add` takes."""
    start = metadata.start_offset
    return (
        metadata.remote_log_segment_id.uuid,
        start,
        metadata.end_offset,
        metadata.max_timestamp_ms,
        metadata.segment_size_in_bytes,
        tuple((entry.epoch, entry.start_offset - start) for entry in sorted(metadata.segment_leader_epochs)),
        metadata.txn_index_empty,
        metadata.broker_id,
        metadata.event_timestamp_ms,
        metadata.custom_metadata,
        int(metadata.state),
    )


def updated_fields(update: RemoteLogSegmentMetadataUpdate) -> UpdatedFields:
    """The fields that :meth:`~tiersidecar.domain.metadata_cache.RemoteLogMetadataCache.update` takes."""
    return (
        update.remote_log_segment_id.uuid,
        update.broker_id,
        update.event_timestamp_ms,
        update.custom_metadata,
        int(update.state),
    )
