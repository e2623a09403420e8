"""Read brokers' own logs over Kafka's protocol, never from files: with our credentials from leaders, and with a caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.authorizer import BrokerAuthorizer
from tiersidecar.adapters.kafka.connection import BrokerConnection, refused
from tiersidecar.adapters.kafka.routes import Routes, Rows
from tiersidecar.domain.errors import BrokerRefusedError, HistoryChangedError, OffsetOutOfRangeError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset
from tiersidecar.ports.broker import Credentials, LocalBatches, OffsetAnswer

_LIST_OFFSETS_TIMEOUT_S = 30.0
_DIVERGED = "its leader has another history"

_Answer = LocalBatches | str
"""Batches of a leader, or the error code."""


async def fetch_committed(
    routes: Routes,
    partition: TopicIdPartition,
    offset: int,
    *,
    max_bytes: int,
    last_fetched_epoch: LeaderEpoch,
    max_age_s: float,
) -> LocalBatches:
    """Fetch a leader's own log as a read_committed reader sees it, from the end of the remote tier on (S-156).

    Raises:
        HistoryChangedError: the record before ``offset`` is of another epoch there than ``last_fetched_epoch``.
        BrokerRefusedError: we may not read the topic, or the leader does not have the offset.
        BrokerUnreachableError: its leader does not answer.
    """

    async def ask(connection: BrokerConnection, group: Sequence[TopicIdPartition]) -> Rows[_Answer]:
        answers = {}
        for one in group:
            row = await _fetch(
                connection,
                one,
                offset,
                max_bytes=max_bytes,
                read_committed=True,
                last_fetched_epoch=last_fetched_epoch,
            )
            answers[one.topic, one.partition] = _answer_of(row)
        return answers

    answer = (await routes.ask_leaders([partition], ask, str, max_age_s=max_age_s))[partition]
    if answer == _DIVERGED:
        raise HistoryChangedError(subject=str(partition), end_offset=Offset(offset))
    if isinstance(answer, str):
        raise BrokerRefusedError(api="Fetch", subject=str(partition), error=answer)
    return answer


def _answer_of(row: Any) -> _Answer:
    if row.error_code is not ErrorCode.none:
        return str(row.error_code.name.upper())
    if row.diverging_epoch.end_offset >= 0:
        return _DIVERGED
    return _batches(row)


async def _fetch(
    connection: BrokerConnection,
    topic_id_partition: TopicIdPartition,
    offset: int,
    *,
    max_bytes: int,
    read_committed: bool,
    last_fetched_epoch: LeaderEpoch,
) -> Any:
    """Return the partition's row of the response, which may have an error."""
    response = await connection.ask(
        apis.FETCH,
        lambda version: apis.fetch(
            version,
            topic_id_partition.topic_id,
            topic_id_partition.partition,
            offset,
            max_bytes=max_bytes,
            read_committed=read_committed,
            last_fetched_epoch=last_fetched_epoch,
        ),
    )
    if response.error_code is not ErrorCode.none:
        raise refused(apis.FETCH, str(topic_id_partition), response.error_code)
    (row,) = (row for topic in response.responses for row in topic.partitions)
    return row


def _batches(row: Any) -> LocalBatches:
    return LocalBatches(
        records=bytes(row.records or b""),
        high_watermark=Offset(row.high_watermark),
        last_stable_offset=Offset(row.last_stable_offset),
        aborted=tuple(
            (int(transaction.producer_id), Offset(transaction.first_offset))
            for transaction in row.aborted_transactions or ()
        ),
    )


class BrokerLocalReads:
    """Implements ``ports.broker.ReadLocal`` over the connections of the authorizer."""

    def __init__(self, authorizer: BrokerAuthorizer) -> None:
        self._authorizer = authorizer

    async def fetch(
        self,
        credentials: Credentials,
        topic_id_partition: TopicIdPartition,
        offset: int,
        *,
        max_bytes: int,
        read_committed: bool = False,
        last_fetched_epoch: LeaderEpoch = NO_EPOCH,
    ) -> LocalBatches:
        """Return batches from ``offset`` on."""
        row = await _fetch(
            await self._authorizer.connection(credentials),
            topic_id_partition,
            offset,
            max_bytes=max_bytes,
            read_committed=read_committed,
            last_fetched_epoch=last_fetched_epoch,
        )
        if row.error_code is ErrorCode.offset_out_of_range:
            error = await self._out_of_range(credentials, topic_id_partition, offset, row)
            if last_fetched_epoch >= 0 and offset >= error.start:
                # The broker returns this for an epoch that it does not know yet (``Partition.readRecords``).
                raise HistoryChangedError(subject=str(topic_id_partition), end_offset=offset)
            raise error
        if row.error_code is not ErrorCode.none:
            raise refused(apis.FETCH, str(topic_id_partition), row.error_code)
        if row.diverging_epoch.end_offset >= 0:
            raise HistoryChangedError(subject=str(topic_id_partition), end_offset=offset)
        return _batches(row)

    async def find_offset(
        self, credentials: Credentials, topic_id_partition: TopicIdPartition, timestamp_ms: int
    ) -> OffsetAnswer:
        """Return the ListOffsets answer for a timestamp (-1 latest, -3 the largest)."""
        connection = await self._authorizer.connection(credentials)
        response = await connection.ask(
            apis.LIST_OFFSETS,
            lambda version: apis.list_offsets(
                version,
                {topic_id_partition.topic: {topic_id_partition.partition: -1}},
                timestamp_ms,
                read_committed=False,
                timeout_s=_LIST_OFFSETS_TIMEOUT_S,
            ),
        )
        (row,) = (row for topic in response.topics for row in topic.partitions)
        if row.error_code is not ErrorCode.none:
            raise refused(apis.LIST_OFFSETS, str(topic_id_partition), row.error_code)
        return OffsetAnswer(
            offset=Offset(row.offset), timestamp_ms=row.timestamp, leader_epoch=LeaderEpoch(row.leader_epoch)
        )

    async def _out_of_range(
        self, credentials: Credentials, topic_id_partition: TopicIdPartition, offset: int, row: Any
    ) -> OffsetOutOfRangeError:
        """Return the error with the offsets there are, asked for: the answer to such a Fetch has -1 instead."""
        start, stop = Offset(row.log_start_offset), Offset(row.high_watermark)
        if start < 0 or stop < 0:
            start = (await self.find_offset(credentials, topic_id_partition, -2)).offset
            stop = (await self.find_offset(credentials, topic_id_partition, -1)).offset
        return OffsetOutOfRangeError(subject=str(topic_id_partition), offset=offset, start=start, stop=stop)
