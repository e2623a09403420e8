"""Catching up with the state topic: what was durable when it was asked for has been applied when it is over (S-067)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from aiokafka import TopicPartition

from tests.support.manual_clock import ManualClock
from tests.support.metadata_events import ORDERS
from tests.support.scripted import ScriptedBroker
from tests.unit.adapters.no_clients import NoClients
from tiersidecar.adapters.internal_topics import TopicFacts
from tiersidecar.adapters.state_topic.codec import partition_key, write_state
from tiersidecar.adapters.state_topic.log import TopicBasedStateLog
from tiersidecar.adapters.state_topic.replica import StateReplica
from tiersidecar.adapters.state_topic.settings import StateTopicSettings
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError, MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.ports.failpoints import NO_FAILPOINTS
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.ports.telemetry import NoTelemetry

FACTS = TopicFacts(cluster_id="cluster", topic_id=Uuid(b"state-topic-id-0"), leader_epochs={0: 3})
STATE = TopicIdPartition(topic_id=FACTS.topic_id, topic="state", partition=0)
DELETED = PartitionState(remote_log_start_offset=Offset(92), remote_log_start_epoch=LeaderEpoch(1))


@dataclass(frozen=True)
class FakeRecord:
    offset: int
    key: bytes
    value: bytes


class HandFedConsumer:
    """Gives what it was handed last."""

    def __init__(self) -> None:
        self.records: list[FakeRecord] = []

    async def getmany(self, *, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[FakeRecord]]:
        return {TopicPartition("state", 0): self.records}

    async def position(self, partition: TopicPartition) -> int:
        return self.records[-1].offset + 1 if self.records else 0


class Behind:
    """A log that was ready when the topic was empty; by now a user's delete is in it."""

    def __init__(self, *, consume_wait_ms: int = 60_000, recovery: str = "") -> None:
        self.broker, self.consumer, clients = ScriptedBroker(), HandFedConsumer(), NoClients()
        settings = StateTopicSettings(
            bootstrap_servers="broker:1", topic="state", consume_wait_ms=consume_wait_ms, recovery=recovery
        )
        self.replica = StateReplica(
            settings, broker=self.broker, clock=ManualClock(), ids=None, telemetry=NoTelemetry(),  # type: ignore[arg-type]
            clients=clients,
        )  # fmt: skip
        self.log = TopicBasedStateLog(
            settings, replica=self.replica, producer=clients.producer(), clock=ManualClock(), ids=None,  # type: ignore[arg-type]
            failpoints=NO_FAILPOINTS,
        )  # fmt: skip
        # As after the first contact, which nobody makes here.
        self.replica._facts, self.replica.unreachable = FACTS, None
        self.replica._ready_at, self.replica._position = 0, 0
        self.broker.last_stable_offsets[STATE] = 1

    async def read(self) -> None:
        self.consumer.records = [FakeRecord(0, partition_key(ORDERS), write_state(DELETED, {}))]
        await self.replica._read_some(self.consumer)


@asynccontextmanager
async def catching_up(log: TopicBasedStateLog) -> AsyncIterator[asyncio.Task[None]]:
    """Under way, and waiting if it has to."""
    task = asyncio.create_task(log.catch_up())
    for _ in range(10):
        await asyncio.sleep(0)
    yield task
    await asyncio.wait([task], timeout=20)


async def test_what_a_user_deleted_in_the_former_epoch_is_waited_for() -> None:
    behind = Behind()
    async with catching_up(behind.log) as task:
        assert not task.done()
        await behind.read()
    assert task.exception() is None
    assert behind.log.partition_state(ORDERS) == DELETED


async def test_one_that_has_read_everything_waits_for_nothing() -> None:
    behind = Behind()
    await behind.read()
    async with catching_up(behind.log) as task:
        assert task.done()
        assert task.exception() is None


async def test_records_that_do_not_come_in_time_leave_it_not_ready() -> None:
    with pytest.raises(MetadataNotReadyError):
        await Behind(consume_wait_ms=1).log.catch_up()


async def test_a_topic_out_of_reach_is_told() -> None:
    behind = Behind()
    behind.replica.unreachable = "nobody answers"
    with pytest.raises(BrokerUnreachableError, match="nobody answers"):
        await behind.log.catch_up()


@pytest.mark.parametrize(
    ("error", "is_missing"),
    [("TOPIC_AUTHORIZATION_FAILED", True), ("[Error 29] TopicAuthorizationFailedError: state", True), ("OTHER", False)],
)
async def test_a_right_that_is_missing_is_told_apart_until_there_is_contact(error: str, is_missing: bool) -> None:
    """Commands wait for an outage, and not for an operator who gives the right."""
    behind = Behind()
    refusal = BrokerRefusedError(api="Fetch", subject="state", error=error)
    behind.replica._contact_was_lost(refusal)
    assert behind.log.missing_right is (refusal if is_missing else None)
    assert behind.log.readiness_reason == str(refusal)
    behind.replica._contact_was_lost(BrokerUnreachableError(address="broker:1", reason="connection refused"))
    assert behind.log.missing_right is None


async def test_one_that_was_never_reached_is_told() -> None:
    behind = Behind()
    behind.replica._facts = None
    with pytest.raises(BrokerUnreachableError):
        await behind.log.catch_up()


async def test_a_leader_that_does_not_know_its_end_yet_is_a_refusal() -> None:
    """OFFSET_NOT_AVAILABLE: right after an election its high watermark lags."""
    behind = Behind()
    behind.broker.error = "OFFSET_NOT_AVAILABLE"
    with pytest.raises(BrokerRefusedError, match="OFFSET_NOT_AVAILABLE"):
        await behind.log.catch_up()


async def test_another_record_in_the_place_of_the_last_one_is_a_loss() -> None:
    """The topic lost its end and was written on: its length tells nothing then."""
    behind = Behind()
    await behind.read()
    assert behind.log.halted_reason is None
    behind.consumer.records = [FakeRecord(0, b"topic/AAAAAAAAAAAAAAAAAAAAAQ", b"{}")]
    with pytest.raises(BrokerRefusedError, match="LOG_TRUNCATION_DETECTED"):
        await behind.replica._read_some(behind.consumer)
    assert "another record at offset 0" in str(behind.log.halted_reason)


async def test_the_last_record_read_once_more_changes_nothing() -> None:
    behind = Behind()
    await behind.read()
    await behind.replica._read_some(behind.consumer)
    assert behind.log.halted_reason is None
    assert behind.log.highest_start(ORDERS.topic_id, ORDERS.partition) > 0
