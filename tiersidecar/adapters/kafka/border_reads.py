"""What a leader's own log says of transactions that began in the remote tier, whose markers lie past it (S-156)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.protocol import RequestPayload

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.connection import BrokerConnection, refused
from tiersidecar.adapters.kafka.routes import Routes, Rows
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.formats.kafka.border_walk import BorderWalk
from tiersidecar.formats.kafka.indexes import AbortedTransaction

_UNTOLD = "OFFSET_OUT_OF_RANGE"
_STEP_BYTES = 256 * 1024

Answer = tuple[AbortedTransaction, ...] | str
"""The transactions, or why there are none to tell."""


async def read_aborted_beyond(
    routes: Routes, partition: TopicIdPartition, walk: BorderWalk, *, max_age_s: float
) -> Sequence[AbortedTransaction] | None:
    """The aborted transactions that reach over the border at which ``walk`` begins.

    One Fetch of the batch there tells the aborted ones that the broker knows: it lists each that reaches into what it returns,
    and goes on searching as long as one is missing, because no earlier marker has a last stable offset past the border.  For
    the others the batches are looked through up to their markers.
    None when a transaction is still open there, or the broker's log does not have the offset.

    Raises:
        BrokerRefusedError: we may not read the topic.
        BrokerUnreachableError: its leader does not answer.
    """

    async def ask(connection: BrokerConnection, group: Sequence[TopicIdPartition]) -> Rows[Answer]:
        return {(one.topic, one.partition): await _ask(connection, one, walk) for one in group}

    answer = (await routes.ask_leaders([partition], ask, str, max_age_s=max_age_s))[partition]
    if answer == _UNTOLD:
        return None
    if isinstance(answer, str):
        raise BrokerRefusedError(api="Fetch", subject=str(partition), error=answer)
    return answer


async def _ask(connection: BrokerConnection, partition: TopicIdPartition, walk: BorderWalk) -> Answer:
    end_offset, where = walk.next_offset, f"Fetch of {partition}"
    row = await _fetch(connection, partition, end_offset, max_bytes=1)
    if row.error_code is not ErrorCode.none:
        return str(row.error_code.name.upper())
    if row.last_stable_offset <= end_offset:
        return _UNTOLD
    stable = Offset(row.last_stable_offset)
    listed = frozenset((int(one.producer_id), int(one.first_offset)) for one in row.aborted_transactions or ())
    walk.take(bytes(row.records or b""), where=where)
    while walk.seeks(listed):
        if walk.next_offset >= stable:
            return _UNTOLD
        row = await _fetch(connection, partition, walk.next_offset, max_bytes=_STEP_BYTES)
        if row.error_code is not ErrorCode.none:
            return str(row.error_code.name.upper())
        if not walk.take(bytes(row.records or b""), where=where):
            return _UNTOLD
    return walk.aborted(listed, stable)


async def _fetch(connection: BrokerConnection, partition: TopicIdPartition, offset: int, *, max_bytes: int) -> Any:
    def request(version: int) -> RequestPayload:
        topic_id, number = partition.topic_id, partition.partition
        return apis.fetch(version, topic_id, number, offset, max_bytes=max_bytes, read_committed=True)

    response = await connection.ask(apis.FETCH, request)
    if response.error_code is not ErrorCode.none:
        raise refused(apis.FETCH, str(partition), response.error_code)
    (row,) = (row for topic in response.responses for row in topic.partitions)
    return row
