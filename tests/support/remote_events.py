"""Contents of the metadata topic and in the store, read without any code of the daemon's but the codecs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from tiersidecar.domain.segments import (
    MetadataEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.formats.metadata.serde import read_event


async def fetch_events(client_settings: Mapping[str, Any], topic: str) -> list[MetadataEvent]:
    """Return every event of the metadata topic up to its end now, in order per partition."""
    async with AIOKafkaConsumer(**client_settings, auto_offset_reset="none", enable_auto_commit=False) as consumer:
        await consumer._client.force_metadata_update()
        partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        events: list[MetadataEvent] = []
        for partition in partitions:
            consumer.seek(partition, 0)
        while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                events += [read_event(record.value, where=topic) for record in records]
        return events


def read_events(client_settings: Mapping[str, Any], topic: str) -> list[MetadataEvent]:
    """:func:`fetch_events` from code that is not a coroutine."""
    return asyncio.run(fetch_events(client_settings, topic))


def fold(events: list[MetadataEvent]) -> list[RemoteLogSegmentMetadata]:
    """Return the last state of each segment, ascending by start offset, plainly folded."""
    segments: dict[object, RemoteLogSegmentMetadata] = {}
    for event in events:
        match event:
            case RemoteLogSegmentMetadata():
                segments[event.remote_log_segment_id] = event
            case RemoteLogSegmentMetadataUpdate():
                segments[event.remote_log_segment_id] = segments[event.remote_log_segment_id].with_update(event)
            case RemotePartitionDeleteMetadata():
                raise AssertionError("4.3.1 does not write these")
    return sorted(segments.values(), key=lambda segment: (segment.start_offset, segment.end_offset))


def in_state(segments: list[RemoteLogSegmentMetadata], state: RemoteLogSegmentState) -> list[RemoteLogSegmentMetadata]:
    return [segment for segment in segments if segment.state is state]


def object_keys_in(root: Path) -> set[str]:
    """Return keys of all objects below a filesystem store's root, which must exist; a daemon may delete what is below it
    meanwhile."""
    # Not by rglob: until Python 3.13 it raises when a directory goes between its listing and its turn, and the store removes
    # emptied ones.  A poll of what a deletion leaves met that moment once in some hundred runs.
    root.stat()
    return {
        str((Path(directory) / name).relative_to(root))
        for directory, _, names in os.walk(root)
        for name in names
        if name.endswith((".log", ".indexes", ".rsm-manifest"))
    }
