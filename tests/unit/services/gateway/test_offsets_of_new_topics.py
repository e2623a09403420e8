"""ListOffsets of a topic that no look at the cluster has met is answered once it is known (issue 17).

librdkafka's ``query_watermark_offsets`` does not ask again after NOT_LEADER_OR_FOLLOWER, and its own tests ask of topics that
are 0.3 s old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from tests.support.gateway_deletes import Between, nothing
from tests.support.gateway_world import World
from tests.unit.services.gateway.test_asked_and_answered import world_before
from tests.unit.services.gateway.test_offset_rewrites import (
    HISTORY,
    LIST_OFFSETS,
    LOCAL_START,
    FixedLineage,
    list_offsets,
    row_after,
    topics,
)
from tiersidecar.domain.errors import MetadataNotReadyError, StoreStalledError
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.formats.wire.messages import write_message
from tiersidecar.services.gateway import list_offsets_rewrite

VERSION, EARLIEST, LATEST = 9, -2, -1


@dataclass(slots=True)
class Broker:
    """Answers the second request, ``meanwhile`` happening on the way."""

    world: World
    meanwhile: Between = nothing
    offset: int = LOCAL_START
    asked: int = 0

    def __call__(self, version: int, body: bytes) -> bytes:
        self.asked += 1
        self.meanwhile(self.world)
        schema: Any = load_response_schema(LIST_OFFSETS, version)
        rows = topics(schema, self.world.partition.topic, {**_ROW, "offset": self.offset})
        return write_message(schema(throttle_time=timedelta(0), topics=rows))


_ROW = {"error_code": ErrorCode.none, "offset": LOCAL_START, "timestamp": -1, "leader_epoch": -1}


async def listed(world: World, broker: Broker, between: Between, timestamp: int = EARLIEST) -> Any:
    """The row that the client gets where nothing is known of the topic when its request is sent."""
    world.upstream.answers[LIST_OFFSETS] = broker
    world.tiered.known, world.tiered.is_ready = [], False
    asked = {"timestamp": timestamp, "current_leader_epoch": -1}
    rewrite = list_offsets(world, FixedLineage(*HISTORY))
    answering = asyncio.create_task(row_after(world, rewrite, LIST_OFFSETS, VERSION, asked, _ROW, between))
    while not answering.done():
        await asyncio.sleep(0.01)
        await world.clock.advance(0.05)
    return await answering


def becomes_known(world: World) -> None:
    world.tiered.is_ready, world.tiered.known = True, [world.partition]


def becomes_known_later(world: World) -> None:
    asyncio.get_running_loop().call_later(0.1, becomes_known, world)


def turns_out_not_tiered(world: World) -> None:
    world.tiered.is_ready = True


def has_another_leader(world: World) -> None:
    world.tiered.leader_epoch = LeaderEpoch(world.tiered.leader_epoch + 1)


@pytest.mark.parametrize("between", [becomes_known, becomes_known_later])
async def test_once_it_is_known_the_broker_is_asked_again_and_both_tiers_answer(between: Between) -> None:
    async with world_before(nothing) as world:
        row = await listed(world, broker := Broker(world), between)
        assert (row.error_code, row.offset, broker.asked) == (ErrorCode.none, 0, 1)


async def test_its_metadata_is_waited_for_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world_before(nothing) as world:
        bounds, asked = world.path.reader.bounds, list[object]()

        async def read_later(partition: Any) -> Any:
            asked.append(partition)
            if len(asked) < 4:
                raise MetadataNotReadyError(subject=str(partition))
            return await bounds(partition)

        monkeypatch.setattr(world.path.reader, "bounds", read_later)
        row = await listed(world, broker := Broker(world), becomes_known)
        assert (row.error_code, row.offset, broker.asked) == (ErrorCode.none, 0, 1)


async def test_one_that_does_not_become_known_in_time_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_offsets_rewrite, "_NEW_WAIT_S", 0.2)
    async with world_before(nothing) as world:
        row = await listed(world, broker := Broker(world), nothing)
        assert (row.error_code, broker.asked) == (ErrorCode.leader_not_available, 0)


async def is_away(partition: object) -> None:
    raise StoreStalledError(verb="fetch", key=str(partition), reason="it took longer than 15 s")


async def hangs(partition: object) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("bounds", [is_away, hangs])
async def test_a_store_that_is_away_meanwhile_costs_no_client_its_connection(
    monkeypatch: pytest.MonkeyPatch, bounds: Callable[[object], Awaitable[None]]
) -> None:
    """Simulation, questions seed 70042."""
    monkeypatch.setattr(list_offsets_rewrite, "_NEW_WAIT_S", 0.2)
    async with world_before(nothing) as world:
        monkeypatch.setattr(world.path.reader, "bounds", bounds)
        row = await listed(world, broker := Broker(world), becomes_known)
        assert (row.error_code, broker.asked) == (ErrorCode.leader_not_available, 0)


@pytest.mark.parametrize("between", [turns_out_not_tiered, becomes_known_later])
async def test_the_end_of_the_log_is_the_broker_s_to_say_at_once(between: Callable[[World], None]) -> None:
    async with world_before(nothing) as world:
        row = await listed(world, broker := Broker(world), between, timestamp=LATEST)
        assert (row.error_code, row.offset, broker.asked) == (ErrorCode.none, LOCAL_START, 0)


async def test_one_that_turns_out_not_to_be_tiered_is_the_broker_s() -> None:
    async with world_before(nothing) as world:
        row = await listed(world, Broker(world), turns_out_not_tiered)
        assert (row.error_code, row.offset) == (ErrorCode.none, LOCAL_START)


async def test_one_of_which_nothing_is_remote_is_told_as_the_second_answer_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first may be of a former topic of that name."""

    async def as_the_broker_says(rewrite: Any, question: Any) -> Any:
        return question.row

    monkeypatch.setattr(list_offsets_rewrite.ListOffsetsRewrite, "_earliest", as_the_broker_says)
    async with world_before(nothing) as world:
        row = await listed(world, Broker(world, offset=7), becomes_known)
        assert (row.error_code, row.offset) == (ErrorCode.none, 7)


async def test_the_second_answer_is_of_what_was_known_when_it_was_asked_for() -> None:
    async with world_before(nothing) as world:
        row = await listed(world, Broker(world, has_another_leader), becomes_known)
        assert row.error_code is ErrorCode.leader_not_available
