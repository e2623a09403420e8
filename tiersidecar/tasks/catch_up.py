"""Before a new leader decides anything, its metadata and its state must show what the former leader did last.

That one's last COPY_SEGMENT_FINISHED is durable, and yet our consumer may not have seen it: the broker that died may have led
the partition and its part of the metadata topic both, and a consumer finds a new leader in its own time.  Without it a segment
is copied twice, and the trims in the state topic look like data that is lost.  So it is with the state topic: a sidecar that
has not read what users deleted in the former epoch says a lower remote log start in the new one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.ports.metadata_log import CatchUpMetadata
from tiersidecar.ports.state_log import CatchUpState

LaneWork = Callable[[TieredPartition], Awaitable[None]]


class CatchUp:
    """Once per partition and leader epoch; what comes to the topics after that we read as it comes."""

    def __init__(self, metadata: CatchUpMetadata, state: CatchUpState) -> None:
        self._metadata, self._state = metadata, state
        self._caught_up: dict[TopicIdPartition, LeaderEpoch] = {}

    def before(self, work: LaneWork) -> LaneWork:
        """Return ``work`` of a led partition, begun when metadata and state are as of this leadership.  It raises what any part
        of it does."""

        async def caught_up(partition: TieredPartition) -> None:
            await self.ensure(partition)
            await work(partition)

        return caught_up

    async def ensure(self, partition: TieredPartition) -> None:
        """Return once both are as of this leadership; raises what asking for them does."""
        topic_id_partition, leader_epoch = partition.view.topic_id_partition, partition.view.leader_epoch
        if self._caught_up.get(topic_id_partition) != leader_epoch:
            await self._metadata.catch_up(topic_id_partition)
            await self._state.catch_up()
            self._caught_up[topic_id_partition] = leader_epoch
