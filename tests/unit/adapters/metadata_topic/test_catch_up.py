"""Catching up: everything that was durable when it was asked for has been applied when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.manual_clock import ManualClock
from tests.support.metadata_events import FINISHED, added, updated
from tests.support.scripted import ScriptedBroker
from tests.unit.adapters.metadata_topic.replicas import FACTS, Topic, owner
from tests.unit.adapters.no_clients import NoClients
from tiersidecar.adapters.metadata_topic.log import TopicAccess, TopicBasedMetadataLog
from tiersidecar.adapters.metadata_topic.settings import MetadataTopicSettings
from tiersidecar.domain.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    MetadataNotReadyError,
    PublishTimeoutError,
)
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.failpoints import NO_FAILPOINTS

US = owner(0)
METADATA = TopicIdPartition(topic_id=FACTS.topic_id, topic="metadata", partition=0)


class Behind:
    """A log whose consumer has read all that the topic had at first; ``grow`` is what it has not seen."""

    def __init__(self, *, consume_wait_ms: int = 60_000) -> None:
        self.topic, self.broker = Topic(), ScriptedBroker()
        self.topic.write(added(0, 0, 9), updated(0, FINISHED))
        self.topic.start([US])
        self.topic.read_live()
        settings = MetadataTopicSettings(
            bootstrap_servers="broker:1", topic="metadata", partitions=1, consume_wait_ms=consume_wait_ms
        )
        self.log = TopicBasedMetadataLog(
            settings,
            self.topic.replica,
            topic=TopicAccess(broker=self.broker, clients=NoClients()),  # type: ignore[arg-type]
            clock=ManualClock(),
            ids=None,  # type: ignore[arg-type]
            snapshot=None,
            failpoints=NO_FAILPOINTS,
            knows_txn_index_empty=lambda: True,
        )
        self.log._unreachable = None  # as after the first contact, which nobody makes here
        self.say_end()

    def say_end(self) -> None:
        self.broker.last_stable_offsets[METADATA] = len(self.topic.records)

    def grow(self) -> None:
        self.topic.write(added(1, 10, 19), updated(1, FINISHED))
        self.say_end()

    @property
    def known_end(self) -> int | None:
        return self.log.highest_offset_for_epoch(US, 0)


@asynccontextmanager
async def catching_up(log: TopicBasedMetadataLog) -> AsyncIterator[asyncio.Task[None]]:
    """Under way, and waiting if it has to."""
    task = asyncio.create_task(log.catch_up(US))
    for _ in range(10):
        await asyncio.sleep(0)
    yield task
    await asyncio.wait([task], timeout=20)


async def test_what_the_former_leader_finished_last_is_waited_for() -> None:
    behind = Behind()
    behind.grow()
    async with catching_up(behind.log) as task:
        assert not task.done()
        behind.topic.read_live(count=1)
        await asyncio.sleep(0)
        assert not task.done()
        behind.topic.read_live()
    assert task.exception() is None
    assert behind.known_end == 19


async def test_a_consumer_that_has_read_everything_waits_for_nothing() -> None:
    behind = Behind()
    async with catching_up(behind.log) as task:
        assert task.done()
        assert task.exception() is None


async def test_what_is_written_later_is_not_waited_for() -> None:
    behind = Behind()
    behind.topic.write(added(1, 10, 19))
    async with catching_up(behind.log) as task:
        assert task.done()
        assert task.exception() is None


async def test_events_that_do_not_come_in_time_leave_it_not_ready() -> None:
    """S-239."""
    behind = Behind(consume_wait_ms=1)
    behind.grow()
    with pytest.raises(MetadataNotReadyError):
        await behind.log.catch_up(US)


async def test_a_partition_that_was_never_assigned_is_not_ready() -> None:
    """S-239."""
    with pytest.raises(MetadataNotReadyError):
        await Behind().log.catch_up(owner(7))


async def test_a_topic_out_of_reach_is_told() -> None:
    behind = Behind()
    behind.log._unreachable = "nobody answers"
    with pytest.raises(BrokerUnreachableError, match="nobody answers"):
        await behind.log.catch_up(US)


async def test_a_leader_that_does_not_know_its_end_yet_is_a_refusal() -> None:
    """OFFSET_NOT_AVAILABLE: right after an election its high watermark lags."""
    behind = Behind()
    behind.broker.error = "OFFSET_NOT_AVAILABLE"
    with pytest.raises(BrokerRefusedError, match="OFFSET_NOT_AVAILABLE"):
        await behind.log.catch_up(US)


class Silent:
    """A producer whose broker does not answer; ``given_up`` counts the sends that were."""

    given_up = 0

    async def send(self, topic: str, **record: object) -> int:
        try:
            return await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise

    send_batch = send

    async def close(self) -> None: ...


async def test_a_publish_is_given_up_within_the_time_that_its_caller_has() -> None:
    behind, producer = Behind(), Silent()
    behind.log._producer = producer
    with pytest.raises(PublishTimeoutError) as raised:
        await behind.log.publish(added(1, 10, 19), until_s=behind.log._clock.monotonic_s() + 0.005)
    assert (raised.value.waited_ms, producer.given_up) == (5, 1)


async def test_nor_has_it_longer_than_all_publishes_have() -> None:
    behind, producer = Behind(consume_wait_ms=5), Silent()
    behind.log._producer = producer
    with pytest.raises(PublishTimeoutError) as raised:
        await behind.log.publish(added(1, 10, 19), until_s=behind.log._clock.monotonic_s() + 60)
    assert (raised.value.waited_ms, producer.given_up) == (5, 1)
