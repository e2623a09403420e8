"""Checks, before anything is done with a led partition, that every place that its segments name is in the configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.errors import PlaceRemovedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.formats.aiven.keys import place_in
from tiersidecar.ports.clock import Blocking
from tiersidecar.ports.metadata_log import MetadataView
from tiersidecar.tasks.catch_up import LaneWork
from tiersidecar.tasks.partition_table import PartitionTable


class PlaceChecks:
    """Looks once per partition and leader epoch: segments that this process copies itself lie in places that it knows."""

    def __init__(
        self, metadata: MetadataView, blocking: Blocking, table: PartitionTable, places: Container[str]
    ) -> None:
        self._metadata, self._blocking, self._table, self._places = metadata, blocking, table, places
        self._looked: dict[TopicIdPartition, LeaderEpoch] = {}

    def before(self, work: LaneWork, *, otherwise: LaneWork | None = None) -> LaneWork:
        """Return ``work`` of a led partition, begun when its places are known; it raises as :meth:`ensure` and ``work`` do.
        ``otherwise`` is all that is done where one is not known, before that is raised."""

        async def in_known_places(partition: TieredPartition) -> None:
            try:
                await self.ensure(partition)
            except PlaceRemovedError:
                if otherwise is not None:
                    await otherwise(partition)
                raise
            await work(partition)

        return in_known_places

    async def ensure(self, partition: TieredPartition) -> None:
        """Return if all places are known.

        Raises:
            PlaceRemovedError: segments name a place that the configuration does not have.
        """
        owner, leader_epoch = partition.view.topic_id_partition, partition.view.leader_epoch
        if self._looked.get(owner) == leader_epoch:
            return
        custom = self._metadata.picture(owner).custom_metadata
        unknown = await self._blocking.run(self._unknown, custom)
        for place, count in unknown.most_common(1):
            error = PlaceRemovedError(subject=str(owner), place=place, count=count)
            self._table.record(owner).removed_place = str(error)
            raise error
        self._table.record(owner).removed_place = ""
        self._looked[owner] = leader_epoch

    def _unknown(self, custom: tuple[bytes, ...]) -> Counter[str]:
        named = (place_in(one) for one in custom)
        return Counter(place for place in named if place and place not in self._places)
