"""Keep the broker's own log start from lying below the remote log start: what may not be read is not kept locally either.

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
"""Time after the look whether it is undone, within which DeleteRecords is sent, or not at all: as
``removal.BEGUN_WITHIN_S``."""


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
        """Return whether the local log, as last seen, begins below ``remote_log_start_offset``."""
        topic_id_partition = partition.view.topic_id_partition
        local = self._table.local_partition(topic_id_partition)
        if local is None or not local.segments:
            return False
        if self._table.is_compacted_alone(topic_id_partition.topic):
            return False  # a broker refuses DeleteRecords there
        known = self._table.record(topic_id_partition).log_start_offset
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
        topic_id_partition, leader_epoch = partition.view.topic_id_partition, partition.view.leader_epoch
        if self._table.is_compacted_alone(topic_id_partition.topic):
            return
        target = Offset(min(remote_log_start_offset, high_watermark))
        if target <= log_start_offset or not self._table.leads(topic_id_partition, leader_epoch):
            return
        said = self._state.partition_state(topic_id_partition).with_trim(
            target, leader_epoch, None
        )  # nothing of it has to be remote
        await self._state.publish_partition_state(topic_id_partition, said)
        await self._failpoints.reach("expire.trim.published")
        looked_s = self._clock.monotonic_s()
        await self._state.catch_up()
        if self._state.partition_state(topic_id_partition).start_generation != start_generation:
            log.info(
                "expire.undone",
                topic=topic_id_partition.topic,
                partition=topic_id_partition.partition,
                leader_epoch=leader_epoch,
            )
            return
        if self._clock.monotonic_s() - looked_s > ASKED_WITHIN_S:
            raise MetadataNotReadyError(subject=str(topic_id_partition))
        self._ownership.require_role()
        answer = (
            await self._broker.delete_records(
                {topic_id_partition: target}, leader_epochs={topic_id_partition: leader_epoch}
            )
        )[topic_id_partition]
        if answer.error is not None:
            raise BrokerRefusedError(api="DeleteRecords", subject=str(topic_id_partition), error=answer.error)
        self._table.record(topic_id_partition).log_start_offset = answer.low_watermark
        await self._failpoints.reach("expire.records.deleted")
        log.info(
            "log.trimmed",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            leader_epoch=leader_epoch,
            log_start_offset=answer.low_watermark,
            reason="it lay below the remote log start",
        )
