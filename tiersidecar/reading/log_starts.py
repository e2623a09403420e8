"""Where the log of a partition begins for its readers, in both tiers."""

from __future__ import annotations

from typing import Protocol

from tiersidecar.domain.epochs import Lineage
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import Offset
from tiersidecar.ports.state_log import StateLog


class LogStarts(Protocol):
    """The remote log start: ours to keep (DESIGN.md section 5, where state lives)."""

    def remote_log_start_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        """The first offset of the history ``lineage`` that a reader may have at all; -1 while nothing moved it."""

    def held_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        """Up to where trims of the history ``lineage`` gave up what was remote; -1 while none did."""

    def log_start_for(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> Offset:
        """The first offset that a reader may have of what ``leader_epoch`` wrote; -1 while nothing moved it."""


class StateLogStarts:
    """Remote log starts from ``__tiersidecar_state``."""

    def __init__(self, state_log: StateLog) -> None:
        self._state_log = state_log

    def remote_log_start_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        """See :class:`LogStarts`."""
        return self._state_log.partition_state(topic_id_partition).start_in(lineage)

    def held_offset(self, topic_id_partition: TopicIdPartition, lineage: Lineage) -> Offset:
        """See :class:`LogStarts`."""
        return self._state_log.partition_state(topic_id_partition).held_in(lineage)

    def log_start_for(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> Offset:
        """See :class:`LogStarts`."""
        return self._state_log.partition_state(topic_id_partition).start_for(leader_epoch)
