"""Messages between a simulated client, the gateway and a simulated broker: Fetch and ListOffsets of one partition."""

from __future__ import annotations

import struct
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v9 import response as list_offsets_v9

from tiersidecar.adapters.kafka import apis
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.formats.wire.cursor import length_bytes, string_bytes
from tiersidecar.formats.wire.fetch_requests import PartitionKey, is_by_topic_id, is_flexible
from tiersidecar.formats.wire.fetch_responses import (
    FIRST_WITH_SESSIONS,
    FetchedPartition,
    FilledPartition,
    write_partition,
)
from tiersidecar.formats.wire.messages import read_message, write_message
from tiersidecar.ports.broker import OffsetAnswer

LIST_OFFSETS_VERSION = 9
_THROTTLE, _HEAD = struct.pack(">i", 0), struct.pack(">hi", 0, 0)


def key_of(version: int, partition: TopicIdPartition) -> PartitionKey:
    """What a Fetch of ``version`` names the partition by."""
    return (partition.topic_id if is_by_topic_id(version) else partition.topic), partition.partition


def fetch_response(version: int, key: PartitionKey, answer: FilledPartition) -> bytes:
    """A broker's answer, outside any session."""
    topic, number = key
    flexible = is_flexible(version)
    one, no_tags = length_bytes(1, flexible=flexible), b"\0" if flexible else b""
    name = topic if isinstance(topic, bytes) else string_bytes(topic, flexible=flexible)
    head = _THROTTLE + (_HEAD if version >= FIRST_WITH_SESSIONS else b"")
    return b"".join([head, one, name, one, *write_partition(version, number, answer), no_tags, no_tags])


def records_in(version: int, body: memoryview, row: FetchedPartition) -> bytes:
    """The record batches of one partition of a response: they stand last in it."""
    stop = row.stop - (1 if is_flexible(version) else 0)
    return bytes(body[stop - row.records_bytes : stop])


def list_offsets_request(partition: TopicIdPartition, timestamp: int) -> bytes:
    """A consumer's, read_uncommitted."""
    epochs = {partition.topic: {partition.partition: -1}}
    request: Any = apis.list_offsets(LIST_OFFSETS_VERSION, epochs, timestamp, read_committed=False, timeout_s=30)
    return write_message(request)


def list_offsets_response(partition: TopicIdPartition, answer: OffsetAnswer) -> bytes:
    """As the leader, or another broker that refuses, says it."""
    values: Any = {
        "partition_index": partition.partition,
        "error_code": ErrorCode.none if answer.error is None else ErrorCode.not_leader_or_follower,
        "offset": answer.offset,
        "leader_epoch": answer.leader_epoch,
    }
    name: Any = partition.topic
    rows = (list_offsets_v9.ListOffsetsPartitionResponse(**values),)
    topics = (list_offsets_v9.ListOffsetsTopicResponse(name=name, partitions=rows),)
    no_throttle: Any = timedelta(0)
    return write_message(list_offsets_v9.ListOffsetsResponse(throttle_time=no_throttle, topics=topics))


def listed_offset(body: bytes) -> int | None:
    """What a ListOffsets response of one partition says; None for an error, which clients try again."""
    message, _ = read_message(list_offsets_v9.ListOffsetsResponse, body)
    ((row,),) = ([*topic.partitions] for topic in message.topics)
    return int(row.offset) if row.error_code is ErrorCode.none else None
