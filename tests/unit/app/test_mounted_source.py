"""The source of a read-only mount: a topic that it has deleted, and a store that is not its own, are found out (issue 21)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock, settle
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.remote_runs import load_run
from tests.support.scripted import MemoryStateLog
from tiersidecar.adapters.clock import SystemIds
from tiersidecar.adapters.stores.memory import MemoryStore
from tiersidecar.app.mounted_source import MountedSource
from tiersidecar.decide.trash import TrashDelays, deleted_topic
from tiersidecar.domain.errors import StoreError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.mounts import Mount, MountedTopic
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.store import BytesBody
from tiersidecar.tasks.topic_owners import TopicOwner, owner_key

SOURCE = "source-cluster"
DELAYS = TrashDelays(retention_ms=2_000, user_ms=1_000)


class Known:
    """What a gateway has of its source: segments of ``partition``, which other clusters may have too, and a store."""

    def __init__(
        self,
        partition: TopicIdPartition,
        metadata: MemoryMetadataLog,
        store: AwayStore | None = None,
        *,
        state: MemoryStateLog | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.partition, self.metadata = partition, metadata
        self.state, self.clock = state or MemoryStateLog(), clock or ManualClock()
        self.store = store or AwayStore(clock=self.clock, ids=SystemIds())
        topic = MountedTopic(topic_id=partition.topic_id, partitions=partition.partition + 1)
        self.source = MountedSource(
            mount=Mount(source_cluster_id=SOURCE, topics={partition.topic: topic}),
            store=self.store,
            key_prefix="p/",
            metadata=metadata,
            state=self.state,
            clock=self.clock,
            blocking=InlineBlocking(),
        )

    @property
    def fault(self) -> str:
        return self.source.fault(self.partition)

    async def claim(self, cluster_id: str, *former: str, key_prefix: str = "p/") -> None:
        owner = TopicOwner(
            cluster_id=cluster_id, topic="orders", claimed_ms=1, broker_id=1, incarnation="i", former_clusters=former
        )
        topic_id = self.partition.topic_id
        await self.store.put_object(owner_key(key_prefix, topic_id), BytesBody(owner.write(topic_id)))


class AwayStore(MemoryStore):
    """It fails while it ``is_away``, and counts how often it is asked."""

    is_away, asked = False, 0

    async def fetch_object(self, key: str, *, max_bytes: int) -> bytes:
        self.asked += 1
        if self.is_away:
            raise StoreError(verb="fetch", key=key, reason="away")
        return await super().fetch_object(key, max_bytes=max_bytes)


async def known() -> Known:
    run = await load_run("plain")
    return Known(run.partition("plain-0"), run.metadata)


async def test_the_source_s_own_store_is_looked_at_once() -> None:
    found = await known()
    await found.claim(SOURCE)
    await found.source.look_first()
    watching = asyncio.create_task(found.source.watch(5.0))
    await found.clock.advance(50)
    assert (found.fault, found.store.asked) == ("", 1)
    watching.cancel()


async def test_a_cluster_that_has_taken_the_data_over_has_the_same() -> None:
    found = await known()
    await found.claim("later-cluster", SOURCE)
    await found.source.look_first()
    assert found.fault == ""


async def test_another_prefix_is_found_out_where_segments_are_known() -> None:
    found = await known()
    await found.claim(SOURCE, key_prefix="another/")
    await found.source.look_first()
    assert "another key.prefix" in found.fault
    without_segments = replace(found.partition, partition=7)
    await found.metadata.assign([without_segments])
    assert found.metadata.segment_count(without_segments) == 0
    assert found.source.fault(without_segments) == found.fault, "it is the topic's store"


async def test_a_topic_of_which_nothing_is_remote_has_no_owner_yet() -> None:
    run = await load_run("plain")
    partition = run.partition("plain-0")
    empty = MemoryMetadataLog()
    await empty.assign([partition])
    found = Known(partition, empty)
    await found.source.look_first()
    assert found.fault == ""


async def test_a_topic_that_becomes_remote_after_the_look_is_served_at_once() -> None:
    """The owner object was not there when it was looked for, and is there before the first segment."""
    run = await load_run("plain")
    partition = run.partition("plain-0")
    metadata = MemoryMetadataLog()
    await metadata.assign([partition])
    found = Known(partition, metadata)
    await found.source.look_first()
    await found.claim(SOURCE)
    await metadata.publish(run.metadata.events[0])
    assert found.fault == ""


async def test_an_owner_that_is_put_right_is_noticed_though_nothing_is_remote() -> None:
    run = await load_run("plain")
    partition = run.partition("plain-0")
    empty = MemoryMetadataLog()
    await empty.assign([partition])
    found = Known(partition, empty)
    await found.claim("another-cluster")
    await found.source.look_first()
    assert "are of cluster another-cluster" in found.fault
    watching = asyncio.create_task(found.source.watch(5.0))
    await found.claim(SOURCE)
    await found.clock.advance(5)
    await settle()
    assert found.fault == ""
    watching.cancel()


async def test_another_cluster_s_store_is_found_out_and_looked_at_again() -> None:
    found = await known()
    await found.claim("another-cluster")
    await found.source.look_first()
    assert "are of cluster another-cluster" in found.fault
    watching = asyncio.create_task(found.source.watch(5.0))
    await found.claim(SOURCE)
    await found.clock.advance(5)
    await settle()
    assert found.fault == ""
    watching.cancel()


async def test_a_store_that_is_away_is_asked_less_and_less_often() -> None:
    found = await known()
    await found.claim(SOURCE)
    found.store.is_away = True
    await found.source.look_first()
    assert (found.fault, found.store.asked) == ("", 1), "nobody knows yet"
    watching = asyncio.create_task(found.source.watch(5.0))
    for _ in range(100):
        await found.clock.advance(5)
    await settle()
    assert found.store.asked < 10
    found.store.is_away = False
    await found.clock.advance(300)
    await settle()
    asked = found.store.asked
    await found.clock.advance(300)
    assert (found.fault, found.store.asked) == ("", asked), "it has been told"
    watching.cancel()


async def test_a_topic_in_the_trash_is_not_served() -> None:
    found = await known()
    await found.claim(SOURCE)
    await found.source.look_first()
    await found.state.publish_partition_state(found.partition, started_at(0))
    assert found.fault == ""
    entry = deleted_topic(delays=DELAYS, now_ms=1, by="broker 1")
    await found.state.put_into_trash(found.partition, [entry])
    assert "was deleted at the source" in found.fault
    await found.state.take_out_of_trash(found.partition, [entry])
    assert found.fault == ""


def started_at(offset: int) -> PartitionState:
    return PartitionState().with_start(Offset(offset), LeaderEpoch(0))
