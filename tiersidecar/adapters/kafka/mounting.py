"""Requests that only ``tiersidecar mount`` sends: first leaders, and the end of transactions whose coordinator is gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from kio.schema.errors import ErrorCode

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.connection import refused
from tiersidecar.adapters.kafka.routes import Routes
from tiersidecar.domain.cluster_topics import TopicPartition
from tiersidecar.domain.ids import BrokerId

_ALREADY = (ErrorCode.none, ErrorCode.election_not_needed)


class KafkaMounting:
    """Requests of ``tiersidecar mount``; it retries nothing."""

    def __init__(self, routes: Routes, *, broker_timeout_s: float) -> None:
        self._routes, self._broker_timeout_s = routes, broker_timeout_s

    async def elect_leaders(self, partitions: Collection[TopicPartition]) -> None:
        """Let any live replica, in sync or not, lead each of ``partitions`` that has no leader.

        Raises:
            BrokerRefusedError: with the first partition's error.
        """
        by_topic: defaultdict[str, list[int]] = defaultdict(list)
        for topic, partition in sorted(partitions):
            by_topic[topic].append(partition)
        connection = await self._routes.any()
        response = await connection.ask(
            apis.ELECT_LEADERS,
            lambda version: apis.elect_leaders(version, by_topic, timeout_s=self._broker_timeout_s),
        )
        if response.error_code is not ErrorCode.none:
            raise refused(apis.ELECT_LEADERS, "the cluster", response.error_code)
        for result in response.replica_election_results:
            for row in result.partition_result:
                if row.error_code not in _ALREADY:
                    what = f"{result.topic}-{row.partition_id}"
                    raise refused(apis.ELECT_LEADERS, what, row.error_code, row.error_message)

    async def abort(self, place: TopicPartition, leader_id: BrokerId, producer_id: int, producer_epoch: int) -> None:
        """Write an abort marker of a producer at the end of a partition that broker ``leader_id`` leads.

        Raises:
            BrokerRefusedError: with the error.
        """
        topic, partition = place
        connection = await self._routes.broker(leader_id)
        response = await connection.ask(
            apis.WRITE_TXN_MARKERS,
            lambda version: apis.write_abort_markers(version, producer_id, producer_epoch, {topic: (partition,)}),
        )
        rows = [row for marker in response.markers for one in marker.topics for row in one.partitions]
        for row in rows:
            if row.error_code is not ErrorCode.none:
                raise refused(apis.WRITE_TXN_MARKERS, f"{topic}-{partition}", row.error_code)
