"""What a leader's own log says of transactions that began in the remote tier, whose markers lie past it (S-156)."""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.errors import ErrorCode
from kio.static.protocol import RequestPayload

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.connection import BrokerConnection, refused
from tiersidecar.adapters.kafka.routes import Routes, Rows
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.indexes import AbortedTransaction

_UNTOLD = "OFFSET_OUT_OF_RANGE"

Answer = tuple[AbortedTransaction, ...] | str
"""The transactions, or why there are none to tell."""


async def read_aborted_beyond(
    routes: Routes, partition: TopicIdPartition, end_offset: int, *, max_age_s: float
) -> Sequence[AbortedTransaction] | None:
    """The aborted transactions that reach over ``end_offset``.

    One Fetch of the batch there tells them all: the broker lists each aborted transaction that reaches into what it returns,
    and goes on searching as long as one is missing, because no earlier marker has a last stable offset past the border.
    None when a transaction is still open there, or the broker's log does not have the offset.

    Raises:
        BrokerRefusedError: we may not read the topic.
        BrokerUnreachableError: its leader does not answer.
    """

    async def ask(connection: BrokerConnection, group: Sequence[TopicIdPartition]) -> Rows[Answer]:
        return {(one.topic, one.partition): await _ask(connection, one, end_offset) for one in group}

    answer = (await routes.ask_leaders([partition], ask, str, max_age_s=max_age_s))[partition]
    if answer == _UNTOLD:
        return None
    if isinstance(answer, str):
        raise BrokerRefusedError(api="Fetch", subject=str(partition), error=answer)
    return answer


async def _ask(connection: BrokerConnection, partition: TopicIdPartition, end_offset: int) -> Answer:
    def request(version: int) -> RequestPayload:
        topic_id, number = partition.topic_id, partition.partition
        return apis.fetch(version, topic_id, number, end_offset, max_bytes=1, read_committed=True)

    response = await connection.ask(apis.FETCH, request)
    if response.error_code is not ErrorCode.none:
        raise refused(apis.FETCH, str(partition), response.error_code)
    (row,) = (row for topic in response.responses for row in topic.partitions)
    if row.error_code is not ErrorCode.none:
        return str(row.error_code.name.upper())
    if row.last_stable_offset <= end_offset:
        return _UNTOLD
    stable = Offset(row.last_stable_offset)
    return tuple(
        AbortedTransaction(one.producer_id, Offset(one.first_offset), Offset(stable - 1), stable)
        for one in row.aborted_transactions or ()
    )
