"""The high watermark of partitions, as the broker tells this client: what a delete of offset -1 means at this moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v4.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v4.response import ListOffsetsResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from tiersidecar.formats.wire.messages import MalformedMessageError, UnaskedAnswerError, read_message, write_message
from tiersidecar.ports.broker import OffsetSpec
from tiersidecar.ports.clock import Blocking
from tiersidecar.services.gateway.exchange import Exchange
from tiersidecar.services.gateway.messages import RowKey
from tiersidecar.services.gateway.request_heads import ApiKey

_VERSION = 4
_CONSUMER, _READ_UNCOMMITTED = BrokerId(-1), i8(0)


async def high_watermarks(
    exchange: Exchange, keys: Collection[RowKey], blocking: Blocking, timeout_s: float
) -> tuple[dict[RowKey, int], dict[RowKey, ErrorCode]]:
    """Return those of ``keys``, or why the broker does not tell them, asked on the client's own connection: Delete implies
    Describe.

    Raises:
        TimeoutError: it has not answered in time.
        UpstreamClosedError: the broker connection is gone.
        UnaskedAnswerError: the answer is none, or is of another partition.
    """
    if not keys:
        return {}, {}
    body = await blocking.run(_written, keys)
    answer = await exchange.upstream.ask(ApiKey.LIST_OFFSETS, _VERSION, body, timeout_s=timeout_s)
    marks, refused = await blocking.run(_read, bytes(answer))
    if unasked := (marks.keys() | refused.keys()) - set(keys):
        raise UnaskedAnswerError(f"ListOffsets: of {next(iter(unasked))} nothing was asked")
    untold = set(keys) - marks.keys() - refused.keys()
    return marks, {**refused, **dict.fromkeys(untold, ErrorCode.leader_not_available)}


def _written(keys: Collection[RowKey]) -> bytes:
    rows = defaultdict[str, list[ListOffsetsPartition]](list)
    for topic, partition in keys:
        rows[topic].append(ListOffsetsPartition(partition_index=i32(partition), timestamp=i64(OffsetSpec.LATEST)))
    topics = tuple(ListOffsetsTopic(name=TopicName(topic), partitions=tuple(those)) for topic, those in rows.items())
    return write_message(ListOffsetsRequest(replica_id=_CONSUMER, isolation_level=_READ_UNCOMMITTED, topics=topics))


def _read(answer: bytes) -> tuple[dict[RowKey, int], dict[RowKey, ErrorCode]]:
    try:
        message, _ = read_message(ListOffsetsResponse, answer)
    except MalformedMessageError as error:
        raise UnaskedAnswerError(f"ListOffsets: {error}") from error
    marks, refused = dict[RowKey, int](), dict[RowKey, ErrorCode]()
    for topic in message.topics:
        for row in topic.partitions:
            key = str(topic.name), int(row.partition_index)
            if row.error_code is ErrorCode.none and row.offset >= 0:
                marks[key] = int(row.offset)
            else:
                refused[key] = row.error_code or ErrorCode.leader_not_available
    return marks, refused
