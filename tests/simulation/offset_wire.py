"""ListOffsets and OffsetForLeaderEpoch of one partition, written and read with kio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.formats.wire.messages import read_message, write_message

_NOBODY = -1
"""Replica id of a consumer."""
_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetReply:
    """A broker's answer about an offset: -1 for what is not known.  OffsetForLeaderEpoch has no timestamp; its offset is an
    epoch's end, exclusive."""

    error: ErrorCode = ErrorCode.none
    timestamp_ms: int = -1
    offset: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetQuestion:
    """``subject`` is a timestamp or an :class:`OffsetSpec`, of ``OFFSET_FOR_LEADER_EPOCH`` an epoch; ``current_epoch`` is the
    leader's as the client knows it, -1: it does not."""

    api_key: ApiKey
    version: int
    subject: int
    current_epoch: int = -1
    read_committed: bool = False


def offset_request(question: OffsetQuestion, partition: TopicIdPartition) -> bytes:
    """Write a request as a consumer does."""
    schema = load_payload_module(question.api_key, question.version, EntityType.request)
    number, epoch = partition.partition, question.current_epoch
    if question.api_key is ApiKey.LIST_OFFSETS:
        row = {"partition_index": number, "current_leader_epoch": epoch, "timestamp": question.subject}
        topic = {"name": partition.topic, "partitions": (_made(schema.ListOffsetsPartition, row),)}
        values = {
            "replica_id": _NOBODY,
            "isolation_level": int(question.read_committed),
            "topics": (_made(schema.ListOffsetsTopic, topic),),
            "timeout": timedelta(seconds=_TIMEOUT_S),
        }
        return write_message(_made(schema.ListOffsetsRequest, values))
    row = {"partition": number, "current_leader_epoch": epoch, "leader_epoch": question.subject}
    topic = {"topic": partition.topic, "partitions": (_made(schema.OffsetForLeaderPartition, row),)}
    values = {"replica_id": _NOBODY, "topics": (_made(schema.OffsetForLeaderTopic, topic),)}
    return write_message(_made(schema.OffsetForLeaderEpochRequest, values))


def read_offset_request(api_key: ApiKey, version: int, body: bytes) -> tuple[int, OffsetQuestion]:
    """Return partition and question, as a broker reads them."""
    schema = load_payload_module(api_key, version, EntityType.request)
    is_list = api_key is ApiKey.LIST_OFFSETS
    message, _ = read_message(schema.ListOffsetsRequest if is_list else schema.OffsetForLeaderEpochRequest, body)
    ((row,),) = ([*topic.partitions] for topic in message.topics)
    return row.partition_index if is_list else row.partition, OffsetQuestion(
        api_key=api_key,
        version=version,
        subject=row.timestamp if is_list else row.leader_epoch,
        current_epoch=getattr(row, "current_leader_epoch", -1),
        read_committed=getattr(message, "isolation_level", 0) == 1,
    )


def offset_response(api_key: ApiKey, version: int, partition: TopicIdPartition, reply: OffsetReply) -> bytes:
    """Write a response as a broker does."""
    schema = load_payload_module(api_key, version, EntityType.response)
    row = {"error_code": reply.error, "leader_epoch": reply.leader_epoch}
    if api_key is ApiKey.LIST_OFFSETS:
        row |= {"partition_index": partition.partition, "timestamp": reply.timestamp_ms, "offset": reply.offset}
        rows = (_made(schema.ListOffsetsPartitionResponse, row),)
        topic = _made(schema.ListOffsetsTopicResponse, {"name": partition.topic, "partitions": rows})
        response = schema.ListOffsetsResponse
    else:
        row |= {"partition": partition.partition, "end_offset": reply.offset}
        rows = (_made(schema.EpochEndOffset, row),)
        topic = _made(schema.OffsetForLeaderTopicResult, {"topic": partition.topic, "partitions": rows})
        response = schema.OffsetForLeaderEpochResponse
    return write_message(_made(response, {"throttle_time": timedelta(0), "topics": (topic,)}))


def read_offset_response(api_key: ApiKey, version: int, body: bytes) -> OffsetReply:
    """Read a response as a client does."""
    schema = load_payload_module(api_key, version, EntityType.response)
    is_list = api_key is ApiKey.LIST_OFFSETS
    message, _ = read_message(schema.ListOffsetsResponse if is_list else schema.OffsetForLeaderEpochResponse, body)
    ((row,),) = ([*topic.partitions] for topic in message.topics)
    return OffsetReply(
        error=row.error_code,
        timestamp_ms=getattr(row, "timestamp", -1),
        offset=row.offset if is_list else row.end_offset,
        leader_epoch=getattr(row, "leader_epoch", -1),
    )


def _made(schema: Any, values: Mapping[str, object]) -> Any:
    """Make it of those fields that its version has."""
    known = {field.name for field in fields(schema)}
    return schema(**{name: value for name, value in values.items() if name in known})
