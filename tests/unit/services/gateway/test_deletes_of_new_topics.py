"""A delete of a topic that nothing is known of yet: the broker is asked again once it is known (issue 17).

aiokafka's own test deletes from a topic that is 0.2 s old, and aiokafka does not retry after REQUEST_TIMED_OUT as Java's client
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from tests.support.gateway_world import World
from tests.unit.services.gateway.test_asked_and_answered import (
    ASKED_AT,
    Between,
    deletes,
    led_in,
    nothing,
    world_before,
)
from tests.unit.services.gateway.test_offset_rewrites import DELETE_RECORDS, LOCAL_START, row_after, topics
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.formats.wire.messages import read_message, write_message
from tiersidecar.ports.state_log import PartitionState

VERSION, OFFSET = 2, 50


@dataclass(slots=True)
class Broker:
    """Answers the second request, ``meanwhile`` happening on the way; notes the offsets that it is asked to delete up to."""

    world: World
    error: ErrorCode = ErrorCode.none
    meanwhile: Between = nothing
    asked: list[int] = field(default_factory=list)

    def __call__(self, version: int, body: bytes) -> bytes:
        request: Any = read_message(load_request_schema(DELETE_RECORDS, version), body)[0]
        self.asked += [row.offset for topic in request.topics for row in topic.partitions]
        self.meanwhile(self.world)
        schema: Any = load_response_schema(DELETE_RECORDS, version)
        row = {"low_watermark": -1 if self.error else LOCAL_START, "error_code": self.error}
        rows = topics(schema, self.world.partition.topic, row)
        return write_message(schema(throttle_time=timedelta(0), topics=rows))


async def deleted(world: World, rewrite: Any, broker: Broker, between: Between, offset: int = OFFSET) -> Any:
    world.upstream.answers[DELETE_RECORDS] = broker
    answered = {"low_watermark": LOCAL_START, "error_code": ErrorCode.none}
    return await row_after(
        world, rewrite, DELETE_RECORDS, VERSION, {"offset": offset}, answered, between, timeout=timedelta(seconds=1)
    )


def becomes_known(world: World) -> None:
    world.tiered.known = [world.partition]


def is_not_ready(world: World) -> None:
    world.tiered.is_ready = False


def is_elected(world: World) -> None:
    led_in(world, ASKED_AT + 1)
    world.tiered.leader_epoch = LeaderEpoch(ASKED_AT + 1)


def is_set_back(world: World) -> None:
    world.state.partition_states[world.partition] = PartitionState(start_generation=1)


async def test_once_the_topic_is_known_the_broker_is_asked_again_and_the_delete_carried_out() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.known = []
        row = await deleted(world, rewrite, broker := Broker(world), becomes_known)
        assert (row.error_code, row.low_watermark) == (ErrorCode.none, OFFSET)
        assert broker.asked == [OFFSET]
        assert [one.offset for one in sidecar.proposed] == [OFFSET]


async def test_while_nothing_is_known_of_it_the_answer_waits() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.known = []

        def soon(world: World) -> None:
            is_not_ready(world)
            asyncio.get_running_loop().call_later(0.2, ready)

        def ready() -> None:
            world.tiered.is_ready, world.tiered.known = True, [world.partition]

        row = await deleted(world, rewrite, broker := Broker(world), soon)
        assert (row.error_code, row.low_watermark) == (ErrorCode.none, OFFSET)
        assert (broker.asked, len(sidecar.proposed)) == ([OFFSET], 1)


async def test_while_the_state_topic_is_read_it_waits_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_read(partition: TopicIdPartition) -> PartitionState:
        raise MetadataNotReadyError(subject=str(partition))

    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        monkeypatch.setattr(world.state, "partition_state", not_read)
        row = await deleted(world, rewrite, broker := Broker(world), lambda world: monkeypatch.undo())
        assert row.error_code is ErrorCode.none
        assert (broker.asked, len(sidecar.proposed)) == ([OFFSET], 1)


@pytest.mark.parametrize(
    ("between", "offset", "reason"),
    [
        pytest.param(is_not_ready, OFFSET, "not known", id="a topic that does not become known in time"),
        pytest.param(becomes_known, -1, "", id="up to the high watermark, which may have moved since"),
    ],
)
async def test_the_client_asks_for_itself_where_the_gateway_may_not(between: Between, offset: int, reason: str) -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.known = []
        row = await deleted(world, rewrite, broker := Broker(world), between, offset)
        assert (row.error_code, row.low_watermark) == (ErrorCode.request_timed_out, -1), reason
        assert (broker.asked, sidecar.proposed) == ([], [])


@pytest.mark.parametrize(
    "error", [ErrorCode.topic_authorization_failed, ErrorCode.unknown_topic_or_partition, ErrorCode.offset_out_of_range]
)
async def test_what_the_broker_refuses_the_second_time_is_refused(error: ErrorCode) -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.known = []
        row = await deleted(world, rewrite, Broker(world, error=error), becomes_known)
        assert (row.error_code, row.low_watermark, sidecar.proposed) == (error, -1, [])


@pytest.mark.parametrize("meanwhile", [is_elected, is_set_back])
async def test_the_second_answer_proves_nothing_of_what_has_changed_since(meanwhile: Callable[[World], None]) -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.known = []
        row = await deleted(world, rewrite, Broker(world, meanwhile=meanwhile), becomes_known)
        assert (row.error_code, sidecar.proposed) == (ErrorCode.request_timed_out, [])


async def test_a_topic_that_is_not_tiered_is_the_broker_s_alone() -> None:
    async with world_before(nothing) as world:
        rewrite, sidecar = deletes(world)
        world.tiered.known = []
        row = await deleted(world, rewrite, broker := Broker(world), nothing)
        assert (row.error_code, row.low_watermark) == (ErrorCode.none, LOCAL_START)
        assert (broker.asked, sidecar.proposed) == ([], [])
