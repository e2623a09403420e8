"""Keep the broker's own log start from lying below the remote log start: what nobody may read is not kept locally either.

Unlike a trim this needs no remote copy: a user deleted these records, or total retention is over.  In race mode, and once a
topic's tiering is switched off, it follows users' deletes alone (:mod:`tiersidecar.decide.trash`).
"""

from __future__ import annotations

import structlog

from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.errors import BrokerRefusedError, MetadataNotReadyError
from tiersidecar.domain.offsets import NO_OFFSET, Offset
from tiersidecar.ports.broker import DeleteRecords
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.ports.state_log import StateLog
from tiersidecar.tasks.ownership import Ownership
from tiersidecar.tasks.partition_table import PartitionTable

log = structlog.get_logger(__name__)

ASKED_WITHIN_S = 5.0
"""After the look whether it is undone DeleteRecords is sent, or not at all: as ``removal.BEGUN_WITHIN_S``."""


class LocalStart:
    """Sends DeleteRecords up to the remote log start."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        broker: DeleteRecords,
        state: StateLog,
        clock: Clock,
        failpoints: Failpoints,
        ownership: Ownership,
    ) -> None:
        self._clock = clock
        self._table, self._broker, self._state, self._failpoints = table, broker, state, failpoints
        self._ownership = ownership

    def is_below(self, partition: TieredPartition, remote_log_start_offset: int) -> bool:
        """Whether the local log, as last seen, begins below ``remote_log_start_offset``."""
        tip = partition.view.topic_id_partition
        local = self._table.local_partition(tip)
        if local is None or not local.segments:
            return False
        known = self._table.record(tip).log_start_offset
        return (local.segments[0].base_offset if known == NO_OFFSET else known) < remote_log_start_offset

    async def raise_to(
        self,
        partition: TieredPartition,
        remote_log_start_offset: int,
        log_start_offset: int,
        high_watermark: int,
        start_generation: int,
    ) -> None:
        """Move the broker's log start, which is ``log_start_offset`` now, as far as the high watermark lets it; not where what
        was decided in ``start_generation`` is undone.

        Raises:
            MetadataNotReadyError: the state topic could not be read to its end, or not quickly: it may be undone.
            BrokerRefusedError: the broker does not; it is tried again.
        """
        tip, leader_epoch = partition.view.topic_id_partition, partition.view.leader_epoch
        target = Offset(min(remote_log_start_offset, high_watermark))
        if target <= log_start_offset or not self._table.leads(tip, leader_epoch):
            return
        said = self._state.partition_state(tip).with_trim(target, leader_epoch, None)  # nothing of it has to be remote
        await self._state.publish_partition_state(tip, said)
        await self._failpoints.reach("expire.trim.published")
        looked_s = self._clock.monotonic_s()
        await self._state.catch_up()
        if self._state.partition_state(tip).start_generation != start_generation:
            log.info("expire.undone", topic=tip.topic, partition=tip.partition, leader_epoch=leader_epoch)
            return
        if self._clock.monotonic_s() - looked_s > ASKED_WITHIN_S:
            raise MetadataNotReadyError(subject=str(tip))
        self._ownership.require_role()
        answer = (await self._broker.delete_records({tip: target}, leader_epochs={tip: leader_epoch}))[tip]
        if answer.error is not None:
            raise BrokerRefusedError(api="DeleteRecords", subject=str(tip), error=answer.error)
        self._table.record(tip).log_start_offset = answer.low_watermark
        await self._failpoints.reach("expire.records.deleted")
        log.info(
            "log.trimmed",
            topic=tip.topic,
            partition=tip.partition,
            leader_epoch=leader_epoch,
            log_start_offset=answer.low_watermark,
            reason="it lay below the remote log start",
        )
