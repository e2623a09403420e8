"""Requests of thousands of partitions: what they cost the brokers, and the other connections (DESIGN.md, rule 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from tests.support.gateway_world import open_world
from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.remote_runs import load_run
from tests.support.scripted import ScriptedBroker
from tests.unit.services.gateway.test_offset_rewrites import LIST_OFFSETS, built
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.formats.wire.messages import write_message
from tiersidecar.ports.broker import OffsetAnswer, OffsetSpec
from tiersidecar.services.gateway.broker_offsets import BrokerOffsetsCache
from tiersidecar.services.gateway.messages import read_exchange, rows_of, write_rows

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
    head = {"replica_id": -1, "isolation_level": 0, "throttle_time": timedelta(0), "topics": topics}
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
        read, found = await read_exchange(exchange, memoryview(response), blocking)
        assert list(rows_of(read)) == list(rows_of(found)) == [("plain", number) for number in range(partitions)]
        assert await write_rows(found, {}, blocking) == response
    assert blocking.runs == runs
