"""DeleteRecords through the gateway: a user's delete, which moves the log start of both tiers (DESIGN.md section 5).

The broker is asked first: it authorises, and deletes what it has.  Only what it has accepted is published; a gateway that
dies in between has deleted local data alone, and its client, which got no answer, asks again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from kio.schema.errors import ErrorCode

from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.errors import BrokerRefusedError, TiersidecarError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.formats.wire.messages import MalformedMessageError
from tiersidecar.ports.broker import DescribePartitions
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.reading.remote_log_reader import RemoteLogReader
from tiersidecar.reading.user_deletes import Asker, DeletesLog, UserDelete
from tiersidecar.services.gateway.audit import audit_delete
from tiersidecar.services.gateway.broker_offsets import BrokerOffsets, BrokerOffsetsCache
from tiersidecar.services.gateway.exchange import Exchange, Rewrite, Rewritten
from tiersidecar.services.gateway.messages import (
    RowKey,
    changed_row,
    read_exchange,
    read_request,
    rows_of,
    write_rows,
)
from tiersidecar.services.gateway.tiered_partitions import TieredPartitions, ToldIds

log = structlog.get_logger(__name__)

HIGH_WATERMARK = -1
_ACCEPTED = frozenset({ErrorCode.none, ErrorCode.request_timed_out})
"""After its own time limit the leader has moved its start, only not every follower has."""


class DeleteRecordsRewrite(Rewrite):
    """``services.gateway.exchange.Rewrite`` of DeleteRecords."""

    reads_request = True
    alone = True

    def __init__(
        self,
        *,
        tiered: TieredPartitions,
        reader: RemoteLogReader,
        state: DeletesLog,
        broker: DescribePartitions,
        offsets: BrokerOffsetsCache,
        blocking: Blocking,
        clock: Clock,
        delays: TrashDelays,
    ) -> None:
        self._tiered, self._reader, self._state, self._blocking = tiered, reader, state, blocking
        self._broker, self._offsets = broker, offsets
        self._clock, self._delays = clock, delays

    def versions(self) -> range:
        """See :class:`Rewrite`."""
        return range(3)

    def prepare(self, exchange: Exchange) -> Rewritten:
        """As it is.

        Raises:
            MalformedMessageError: it names a partition twice: which offset the broker has taken, its answer does not tell.
        """
        request = read_request(exchange)
        if sum(len(topic.partitions) for topic in request.topics) != len(rows_of(request)):
            raise MalformedMessageError("DeleteRecords of one partition twice")
        return None

    async def rewrite(self, exchange: Exchange, response: memoryview) -> Rewritten:
        """See :class:`Rewrite`."""
        request, answered = await read_exchange(exchange, response, self._blocking)
        asked = rows_of(request)
        rows = {key: row for key, row in rows_of(answered).items() if row.error_code in _ACCEPTED}
        told = exchange.connection.topic_ids
        found = await asyncio.gather(*(self._row(key, row, asked[key].offset, told) for key, row in rows.items()))
        for key, new in zip(rows, found, strict=True):
            audit_delete(exchange, *key, int(asked[key].offset), new.error_code.name)
        changed = {key: new for (key, old), new in zip(rows.items(), found, strict=True) if new is not old}
        return [await write_rows(answered, changed, self._blocking)] if changed else None

    async def _row(self, key: RowKey, row: Any, offset: int, told: ToldIds) -> Any:
        try:
            view = self._tiered.find(*key, told)
            if view is None:
                return row
            if offset == HIGH_WATERMARK and row.error_code is ErrorCode.none:
                offset = row.low_watermark  # what the high watermark was
            low_watermark = await self._delete(view.topic_id_partition, offset)
        except TiersidecarError as error:
            # Its own part the broker has done; the client asks for the whole again.
            log.warning("gateway.delete_records.failed", topic=key[0], partition=key[1], reason=str(error))
            return changed_row(row, error_code=ErrorCode.request_timed_out, low_watermark=Offset(-1))
        return row if row.error_code is not ErrorCode.none else changed_row(row, low_watermark=low_watermark)

    async def _delete(self, partition: TopicIdPartition, offset: int) -> Offset:
        """Publish the delete; gives the first offset that is left.

        Raises:
            TiersidecarError: it could not be published, or not by this leader.
        """
        leader_epoch = await self._leader_epoch(partition)
        local = await self._local_offsets(partition)
        # Not all followers had it in time, but the leader's start is what the high watermark was.
        target = local.log_start_offset if offset == HIGH_WATERMARK else Offset(offset)
        if target > local.high_watermark:
            # Accepted by a leader that has been deposed since: said in the new one's epoch, it would delete what comes next.
            raise BrokerRefusedError(api="DeleteRecords", subject=str(partition), error="OFFSET_OUT_OF_RANGE")
        delete = UserDelete(offset=target, leader_epoch=leader_epoch, trims=target >= local.log_start_offset)
        is_new = not delete.is_said(self._state.partition_state(partition))
        asker = Asker(by="DeleteRecords through the gateway", now_ms=self._clock.now_ms(), delays=self._delays)
        start = await delete.say(self._state, partition, asker)
        if is_new:
            log.info(
                "gateway.records.deleted", topic=partition.topic, partition=partition.partition, offset=int(target)
            )
        return max(start, (await self._reader.bounds(partition)).start)

    async def _leader_epoch(self, partition: TopicIdPartition) -> LeaderEpoch:
        for view in await self._broker.describe_partitions([partition.topic]):
            if view.topic_id_partition == partition:
                return view.leader_epoch
        raise BrokerRefusedError(api="Metadata", subject=str(partition), error="UNKNOWN_TOPIC_OR_PARTITION")

    async def _local_offsets(self, partition: TopicIdPartition) -> BrokerOffsets:
        known = (await self._offsets.current([partition])).get(partition)
        if known is None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(partition), error="LEADER_NOT_AVAILABLE")
        return known
