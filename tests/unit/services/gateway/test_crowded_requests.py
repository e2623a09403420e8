"""Requests of thousands of partitions: what they cost the brokers, and the other connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from tests.support.gateway_conversations import FillsAll
from tests.support.gateway_world import open_world
from tests.support.inline_blocking import InlineBlocking
from tests.support.leaders_sidecar import CLUSTER, LeadersSidecar
from tests.support.manual_clock import ManualClock
from tests.support.remote_runs import load_run
from tests.support.scripted import ScriptedBroker
from tests.unit.services.gateway.test_offset_rewrites import DELETE_RECORDS, LIST_OFFSETS, built
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.segments import LeaderView
from tiersidecar.formats.wire.messages import read_message, write_message
from tiersidecar.ports.broker import OffsetAnswer, OffsetSpec
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.services.gateway.delete_records_rewrite import DeleteRecordsRewrite, SecondSteps
from tiersidecar.services.gateway.messages import read_exchange, write_rows
from tiersidecar.services.gateway.remote_deletes import Proposer
from tiersidecar.services.gateway.tiered_partitions import BothTiers, BrokerOffsetsCache

T = TypeVar("T")


class CountingBroker(ScriptedBroker):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[int] = []

    async def list_offsets(
        self,
        partitions: Mapping[TopicIdPartition, LeaderEpoch],
        spec: OffsetSpec | int,
        *,
        read_committed: bool = False,
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        self.requests.append(len(partitions))
        return await super().list_offsets(partitions, spec, read_committed=read_committed)


async def test_those_who_ask_together_are_asked_for_together() -> None:
    """ListOffsets by timestamp of a thousand partitions was three thousand requests to their leaders."""
    broker = CountingBroker()
    cache = BrokerOffsetsCache(broker=broker, clock=ManualClock())
    partitions = [TopicIdPartition(topic_id=Uuid(bytes(16)), topic="t", partition=number) for number in range(1000)]
    found = await asyncio.gather(*(cache.current([partition]) for partition in partitions))
    assert [list(one) for one in found] == [[partition] for partition in partitions]
    assert broker.requests == [1000, 1000, 1000]
    await cache.recent(partitions[:1])
    assert len(broker.requests) == 3
    await cache.aclose()


class NotedBlocking(InlineBlocking):
    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    async def run(self, function: Callable[..., T], *args: object) -> T:
        self.runs += 1
        return await super().run(function, *args)


def message(schema: Any, partitions: int, row: dict[str, Any]) -> bytes:
    topic_type = schema.__dataclass_fields__["topics"].type.__args__[0]
    row_type = topic_type.__dataclass_fields__["partitions"].type.__args__[0]
    rows = tuple(built(row_type, {"partition_index": number, **row}) for number in range(partitions))
    topics = (built(topic_type, {"name": "plain", "partitions": rows}),)
    times = {"throttle_time": timedelta(0), "timeout": timedelta(seconds=20)}
    head = {"replica_id": -1, "isolation_level": 0, **times, "topics": topics}
    return write_message(built(schema, head))


@pytest.mark.parametrize(("partitions", "runs"), [(3, 0), (2000, 2)])
async def test_large_messages_are_opened_and_written_off_the_loop(partitions: int, runs: int) -> None:
    """For 4,000 partitions they took a quarter of a second, in which no other client was served."""
    asked = {"current_leader_epoch": -1, "timestamp": 0}
    answered = {"error_code": ErrorCode.none, "timestamp": -1, "offset": 7, "leader_epoch": 0}
    request = message(load_request_schema(LIST_OFFSETS, 7), partitions, asked)
    response = message(load_response_schema(LIST_OFFSETS, 7), partitions, answered)
    run, blocking = await load_run("plain"), NotedBlocking()
    async with open_world(run, run.partition("plain-0"), local=(0, 0)) as world:
        exchange = world.exchange(LIST_OFFSETS, 7, request)
        opened = await read_exchange(exchange, memoryview(response), blocking)
        assert list(opened.asked) == list(opened.rows) == [("plain", number) for number in range(partitions)]
        assert await write_rows(opened.answered, {}, blocking) == response
    assert blocking.runs == runs


class DescribedBroker(ScriptedBroker):
    def __init__(self, views: tuple[LeaderView, ...]) -> None:
        super().__init__()
        self.views, self.described = views, list[Sequence[str] | None]()

    async def describe_partitions(self, topics: Sequence[str] | None = None) -> tuple[LeaderView, ...]:
        self.described.append(topics)
        await asyncio.sleep(0)
        return await super().describe_partitions(topics)


async def test_a_delete_of_all_partitions_asks_once_for_their_leaders() -> None:
    """It was once for each of them, and each answer told of all."""
    number_of, run = 200, await load_run("plain")
    partition = run.partition("plain-0")
    partitions = [replace(partition, partition=number) for number in range(number_of)]
    replicas = (BrokerId(1),)
    views = tuple(
        LeaderView(
            topic_id_partition=one,
            leader_id=replicas[0],
            leader_epoch=LeaderEpoch(4),
            replicas=replicas,
            in_sync_replicas=replicas,
        )
        for one in partitions
    )
    async with open_world(run, partition, local=(200, 246)) as world:
        world.tiered.known, world.tiered.leader_epoch = partitions, LeaderEpoch(4)
        broker, clock = DescribedBroker(views), ManualClock()
        for one in partitions:
            world.state.partition_states[one] = PartitionState().with_delete(Offset(50), LeaderEpoch(4), 0)
            broker.log_starts[one], broker.last_stable_offsets[one] = 200, 246
        bounds: Any = FillsAll()
        rewrite: Any = DeleteRecordsRewrite(
            second_steps=SecondSteps(),
            tiers=BothTiers(
                tiered=world.tiered,
                reader=bounds,
                offsets=BrokerOffsetsCache(broker=broker, clock=clock),
                pending=world.pending,
            ),
            state=world.state,
            proposer=Proposer(
                cluster_id=CLUSTER,
                broker_id=BrokerId(1),
                proposals=LeadersSidecar(
                    broker=broker, state=world.state, clock=clock, delays=TrashDelays(retention_ms=2_000, user_ms=1_000)
                ),
            ),
            broker=broker,
            blocking=InlineBlocking(),
            clock=clock,
        )
        request = message(load_request_schema(DELETE_RECORDS, 1), number_of, {"offset": 50})
        answer = {"low_watermark": 200, "error_code": ErrorCode.none}
        response = message(load_response_schema(DELETE_RECORDS, 1), number_of, answer)
        exchange = world.exchange(DELETE_RECORDS, 1, request)
        assert rewrite.prepare(exchange) is not None
        world.upstream.answers[DELETE_RECORDS] = lambda version, body: response
        pieces = await rewrite.rewrite(exchange, memoryview(response))
    schema: Any = load_response_schema(DELETE_RECORDS, 1)
    answered, _ = read_message(schema, b"".join(pieces))
    rows = answered.topics[0].partitions
    assert {(row.error_code, row.low_watermark) for row in rows} == {(ErrorCode.none, 50)}
    assert broker.described == [[partition.topic]] * 2, "for each of the two steps"
