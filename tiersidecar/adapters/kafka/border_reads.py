"""A leader's own log as a read_committed reader sees it, from the end of the remote tier on (S-156)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.protocol import RequestPayload

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.connection import BrokerConnection, refused
from tiersidecar.adapters.kafka.routes import Routes, Rows
from tiersidecar.domain.errors import BrokerRefusedError, HistoryChangedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.ports.broker import LocalBatches

_DIVERGED = "its leader has another history"

_Answer = LocalBatches | str
"""What it gave, or why nothing."""


async def fetch_committed(
    routes: Routes,
    partition: TopicIdPartition,
    offset: int,
    *,
    max_bytes: int,
    last_fetched_epoch: LeaderEpoch,
    max_age_s: float,
) -> LocalBatches:
    """Raises:
    HistoryChangedError: the record before ``offset`` is of another epoch there than ``last_fetched_epoch``.
    BrokerRefusedError: we may not read the topic, or the leader does not have the offset.
    BrokerUnreachableError: its leader does not answer.
    """

    async def ask(connection: BrokerConnection, group: Sequence[TopicIdPartition]) -> Rows[_Answer]:
        answers = {one: await _fetch(connection, one, offset, max_bytes, last_fetched_epoch) for one in group}
        return {(one.topic, one.partition): _told(row) for one, row in answers.items()}

    answer = (await routes.ask_leaders([partition], ask, str, max_age_s=max_age_s))[partition]
    if answer == _DIVERGED:
        raise HistoryChangedError(subject=str(partition), end_offset=Offset(offset))
    if isinstance(answer, str):
        raise BrokerRefusedError(api="Fetch", subject=str(partition), error=answer)
    return answer


def _told(row: Any) -> _Answer:
    if row.error_code is not ErrorCode.none:
        return str(row.error_code.name.upper())
    if row.diverging_epoch.end_offset >= 0:
        return _DIVERGED
    return LocalBatches(
        records=bytes(row.records or b""),
        high_watermark=Offset(row.high_watermark),
        last_stable_offset=Offset(row.last_stable_offset),
        aborted=tuple((int(one.producer_id), Offset(one.first_offset)) for one in row.aborted_transactions or ()),
    )


async def _fetch(
    connection: BrokerConnection, partition: TopicIdPartition, offset: int, max_bytes: int, last_epoch: LeaderEpoch
) -> Any:
    def request(version: int) -> RequestPayload:
        return apis.fetch(
            version,
            partition.topic_id,
            partition.partition,
            offset,
            max_bytes=max_bytes,
            read_committed=True,
            last_fetched_epoch=last_epoch,
        )

    response = await connection.ask(apis.FETCH, request)
    if response.error_code is not ErrorCode.none:
        raise refused(apis.FETCH, str(partition), response.error_code)
    (row,) = (row for topic in response.responses for row in topic.partitions)
    return row
