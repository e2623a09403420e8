"""Say where the remote log of a partition starts, before the first of it is copied.

Until then users delete at the broker itself: what they deleted must not be readable again once the segment that it was in is
remote.  Afterwards only a decision moves the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from tiersidecar.decide.expiry_standing import standings
from tiersidecar.decide.first_start import first_start
from tiersidecar.decide.topics import TieredPartition, reason_not_to_trim
from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.pins import Pin, gone_below
from tiersidecar.domain.policy import RetentionMode
from tiersidecar.domain.segments import LocalPartition
from tiersidecar.ports.broker import DescribeConfigs, ListOffsets, OffsetSpec
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.failpoints import Failpoints
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.ports.state_log import StateLog
from tiersidecar.reading.pictured_segments import pictured_segments
from tiersidecar.tasks.partition_table import PartitionTable

log = structlog.get_logger(__name__)


class AskOfTopics(ListOffsets, DescribeConfigs, Protocol):
    """What the broker is asked."""


class FirstStart:
    """Asks the broker, once per partition in its life."""

    def __init__(
        self,
        *,
        table: PartitionTable,
        broker: AskOfTopics,
        metadata: MetadataView,
        state: StateLog,
        blocking: Blocking,
        failpoints: Failpoints,
    ) -> None:
        self._table, self._broker, self._metadata, self._state = table, broker, metadata, state
        self._blocking, self._failpoints = blocking, failpoints

    async def ensure(self, partition: TieredPartition, local: LocalPartition, lineage: Lineage) -> None:
        """Return once a start is durable, whoever said it.

        Raises:
            BrokerRefusedError: the broker does not say where its log starts, or another leads by now.
            BrokerUnreachableError: or does not answer.
        """
        topic_id_partition, leader_epoch = partition.view.topic_id_partition, partition.view.leader_epoch
        state = self._state.partition_state(topic_id_partition)
        if state.start_in(lineage) >= 0:
            return
        answer = (await self._broker.list_offsets({topic_id_partition: leader_epoch}, OffsetSpec.EARLIEST))[
            topic_id_partition
        ]
        if answer.error is not None:
            raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error=answer.error)
        pins = self._table.pins.of(topic_id_partition)
        broker_expires = await self._broker_expires(partition, pins, answer.offset)
        remote = await pictured_segments(self._metadata.picture(topic_id_partition), self._blocking)
        start = first_start(
            log_start_offset=answer.offset,
            found=standings(remote, lineage),
            segments=gone_below(answer.offset, local.segments, pins),
            broker_expires=broker_expires,
            trim_offset=lineage.as_of(state.trim_offset, state.trim_epoch),
            held_offset=state.held_in(lineage),
        )
        await self._state.publish_partition_state(
            topic_id_partition, state.with_delete(start, leader_epoch).with_epochs(lineage)
        )
        await self._failpoints.reach("copy.start.published")
        log.info(
            "remote_log_start.first",
            topic=topic_id_partition.topic,
            partition=topic_id_partition.partition,
            leader_epoch=leader_epoch,
            remote_log_start_offset=start,
            log_start_offset=answer.offset,
        )

    async def _broker_expires(self, partition: TieredPartition, pins: Sequence[Pin], log_start_offset: Offset) -> bool:
        """Whether the broker may have deleted by itself what only pins have: by the topic's settings of this moment, for those
        of the last check are those of before if it has."""
        topic = partition.view.topic_id_partition.topic
        if partition.policy.mode is RetentionMode.RACE or topic in self._table.untrimmable_topics:
            return True
        if not any(pin.base_offset < log_start_offset for pin in pins):
            return False
        configs = (await self._broker.describe_topic_configs([topic])).get(topic)
        return configs is None or bool(reason_not_to_trim(partition.policy, configs))
