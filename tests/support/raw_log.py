"""A partition as a client sees it in bytes: batches sent as they are, and everything that can be asked of the log.

It decodes nothing, so that it can say that two logs are the same where no client library would read them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.fetch.v11.response import FetchResponse, PartitionData
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v7.response import ListOffsetsPartitionResponse, ListOffsetsResponse
from kio.schema.produce.v7.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v7.response import ProduceResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import Records, i8, i16, i32, i32Timedelta, i64

from tests.support.kafka_admin import KafkaAdmin, KafkaConnection

_TIMEOUT = i32Timedelta.parse(timedelta(seconds=20))
_WAIT = i32Timedelta.parse(timedelta(milliseconds=500))
_HEAD = struct.Struct(">qi")
ISOLATION_LEVELS: Mapping[str, int] = {"read_uncommitted": 0, "read_committed": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLog:
    """Answers of Fetch and ListOffsets about a partition.

    ``batches`` are the log's bytes by isolation level; ``aborted`` the producer id and first offset of each aborted
    transaction that a read_committed reader got; ``offsets`` the answer (timestamp, offset) to each timestamp asked.
    """

    batches: Mapping[str, bytes]
    aborted: frozenset[tuple[int, int]]
    offsets: Mapping[int, tuple[int, int]]


def send_batch(connection: KafkaConnection, topic: str, batch: bytes) -> int:
    """Send one batch to partition 0 as it is; the offset that it got.

    Raises:
        AssertionError: the broker refused it.
    """
    row = PartitionProduceData(index=i32(0), records=Records(batch))
    request = ProduceRequest(
        transactional_id=None,
        acks=i16(-1),
        timeout=_TIMEOUT,
        topic_data=(TopicProduceData(name=TopicName(topic), partition_data=(row,)),),
    )
    answer = cast(ProduceResponse, connection.call(request)).responses[0].partition_responses[0]
    assert answer.error_code is ErrorCode.none, answer
    return answer.base_offset


def read_raw_log(admin: KafkaAdmin, topic: str, *, start: int, stop: int, timestamps: Iterable[int]) -> RawLog:
    """Return everything from ``start`` to ``stop`` (exclusive) of partition 0, and the offsets for ``timestamps``."""
    with admin.connected(timeout_s=60) as connection:
        answers = {
            level: list(_fetched(connection, topic, start, stop, number)) for level, number in ISOLATION_LEVELS.items()
        }
        offsets = {timestamp: offset_for(connection, topic, timestamp) for timestamp in timestamps}
    return RawLog(
        batches={level: b"".join(bytes(one.records or b"") for one in parts) for level, parts in answers.items()},
        aborted=frozenset(
            (one.producer_id, one.first_offset)
            for part in answers["read_committed"]
            for one in part.aborted_transactions or ()
        ),
        offsets=offsets,
    )


def offset_for(connection: KafkaConnection, topic: str, timestamp: int) -> tuple[int, int]:
    """Return the timestamp and the offset that ListOffsets answers for partition 0."""
    answer = offset_row(connection, topic, timestamp)
    assert answer.error_code is ErrorCode.none, (timestamp, answer)
    return answer.timestamp, answer.offset


def offset_row(connection: KafkaConnection, topic: str, timestamp: int) -> ListOffsetsPartitionResponse:
    """Return what ListOffsets answers for partition 0."""
    row = ListOffsetsPartition(partition_index=i32(0), timestamp=i64(timestamp))
    wanted = ListOffsetsTopic(name=TopicName(topic), partitions=(row,))
    request = ListOffsetsRequest(replica_id=BrokerId(-1), isolation_level=i8(0), topics=(wanted,))
    return cast(ListOffsetsResponse, connection.call(request)).topics[0].partitions[0]


def offsets_of(batches: bytes) -> list[int]:
    """Return the base offset of each batch."""
    found, position = [], 0
    while position < len(batches):
        base_offset, size = _HEAD.unpack_from(batches, position)
        found.append(base_offset)
        position += _HEAD.size + size
    return found


def _fetched(
    connection: KafkaConnection, topic: str, start: int, stop: int, isolation_level: int
) -> Iterator[PartitionData]:
    offset = start
    while offset < stop:
        row = FetchPartition(
            partition=i32(0), fetch_offset=i64(offset), partition_max_bytes=i32(50_000), log_start_offset=i64(-1)
        )
        request = FetchRequest(
            max_wait=_WAIT,
            min_bytes=i32(1),
            isolation_level=i8(isolation_level),
            session_epoch=i32(-1),
            topics=(FetchTopic(topic=TopicName(topic), partitions=(row,)),),
            forgotten_topics_data=(),
        )
        part = cast(FetchResponse, connection.call(request)).responses[0].partitions[0]
        assert part.error_code is ErrorCode.none, (offset, part.error_code)
        records = _whole_batches(bytes(part.records or b""))
        if not records:
            continue
        yield _with_records(part, records)
        offset = _next_offset(records)


def _with_records(part: PartitionData, records: bytes) -> PartitionData:
    return PartitionData(
        partition_index=part.partition_index,
        error_code=part.error_code,
        high_watermark=part.high_watermark,
        aborted_transactions=part.aborted_transactions,
        records=Records(records),
    )


def _whole_batches(data: bytes) -> bytes:
    """Return it without the part of a batch that a broker may send at the end."""
    position = 0
    while position + _HEAD.size <= len(data):
        size = _HEAD.unpack_from(data, position)[1]
        if position + _HEAD.size + size > len(data):
            break
        position += _HEAD.size + size
    return data[:position]


def _next_offset(batches: bytes) -> int:
    last = position = 0
    while position < len(batches):
        last = position
        position += _HEAD.size + _HEAD.unpack_from(batches, position)[1]
    base_offset = _HEAD.unpack_from(batches, last)[0]
    return int(base_offset + struct.unpack_from(">i", batches, last + 23)[0] + 1)
