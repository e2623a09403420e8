"""Who leads the partitions of one request, as the broker says after it has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import DescribePartitions


class Leaders:
    """Of the partitions of one request: the broker answers for whole topics, so those that ask at once ask together."""

    def __init__(self, broker: DescribePartitions) -> None:
        self._broker = broker
        self._asking: dict[str, asyncio.Future[Sequence[LeaderView]]] = {}

    async def leader(self, partition: TopicIdPartition) -> LeaderView:
        """Return what the broker says that is asked after the client's request was answered.

        Raises:
            BrokerRefusedError: there is no such partition.
            TiersidecarError: the broker does not tell.
        """
        for view in await self._views(partition.topic):
            if view.topic_id_partition == partition:
                return view
        raise BrokerRefusedError(api="Metadata", subject=str(partition), error="UNKNOWN_TOPIC_OR_PARTITION")

    async def _views(self, topic: str) -> Sequence[LeaderView]:
        asking = self._asking.get(topic)
        if asking is None:
            # A task, which the first to ask may not take with it when it is given up.
            asking = self._asking[topic] = asyncio.ensure_future(self._broker.describe_partitions([topic]))
            asking.add_done_callback(lambda done: self._forget(topic, done))
        return await asyncio.shield(asking)

    def _forget(self, topic: str, done: asyncio.Future[Sequence[LeaderView]]) -> None:
        del self._asking[topic]
        if not done.cancelled():
            done.exception()  # seen, also where nobody waits for it any more
