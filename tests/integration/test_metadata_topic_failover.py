"""Events survive the death of the metadata topic's leaders (S-089, S-090, S-091; issue 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.integration.test_metadata_topic import opened, owner, ready, settings_of, until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.metadata_events import FINISHED, added, updated
from tests.support.patience import patient_s
from tiersidecar.adapters.metadata_topic.log import TopicBasedMetadataLog
from tiersidecar.domain.errors import RetriableError
from tiersidecar.domain.segments import MetadataEvent
from tiersidecar.formats.metadata.partitioner import metadata_partition

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TOPIC = "__remote_log_metadata"
OWNER = owner(0)
SEGMENTS = 40


async def publish_until_it_is_there(log: TopicBasedMetadataLog, event: MetadataEvent) -> None:
    """What a task does: the same step again, for as long as the error says that this may help."""
    async with asyncio.timeout(patient_s(60)):
        while True:
            try:
                await log.publish(event)
            except RetriableError:
                await asyncio.sleep(0.1)
            else:
                return


async def test_publishing_goes_on_when_the_leader_of_the_metadata_partition_is_killed(
    kafka_cluster: Callable[..., KafkaCluster],
) -> None:
    cluster = await asyncio.to_thread(kafka_cluster, brokers=3)
    settings = settings_of(cluster, TOPIC, replication_factor=3, min_insync_replicas=2, consume_wait_ms=10_000)
    async with opened(settings) as log, opened(settings) as other:
        await ready(log, OWNER)
        await ready(other, OWNER)
        for number in range(SEGMENTS):
            if number == SEGMENTS // 2:
                leader = cluster.leader_of(TOPIC, metadata_partition(OWNER, 3))
                await asyncio.to_thread(leader.kill9)
            await publish_until_it_is_there(log, added(number, 10 * number, 10 * number + 9))
            await publish_until_it_is_there(log, updated(number, FINISHED))
        segments = list(log.list_remote_log_segments(OWNER))
        assert [metadata.start_offset for metadata in segments] == [10 * number for number in range(SEGMENTS)]
        assert {metadata.state for metadata in segments} == {FINISHED}
        await until(lambda: list(other.list_remote_log_segments(OWNER)) == segments, "the other's view of it")
        assert (log.halted_reason, other.halted_reason) == (None, None)
    async with opened(settings) as log:
        await ready(log, OWNER)
        assert list(log.list_remote_log_segments(OWNER)) == segments
