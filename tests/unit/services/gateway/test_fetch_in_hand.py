"""A Fetch that is judged while the broker looks at it: never served but on the broker's word, and as it would be later (U3)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.gateway_exchange import rewritten
from tests.support.gateway_world import (
    Ask,
    World,
    fetch_request,
    fetch_response,
    key_of,
    open_world,
    out_of_range,
    read_rows,
)
from tests.unit.services.gateway.test_fetch_rewrite import (
    FILL_BYTES,
    HIGH_WATERMARK,
    LOCAL_START,
    NEWEST,
    OTHER,
    plain,
    reading_on,
    row_of,
)
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.formats.wire.messages import MalformedMessageError
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.services.gateway.exchange import Exchange, InHand


async def forwarded(world: World, asked: dict[TopicIdPartition, Ask], **fields: Any) -> Exchange:
    """A Fetch that the broker has."""
    exchange = world.exchange(1, NEWEST, fetch_request(NEWEST, asked, **fields))
    assert world.fetch.prepare(exchange) is None
    world.fetch.forwarded(exchange)
    return exchange


async def asking(world: World, offset: int, **fields: Any) -> Exchange:
    return await forwarded(world, {world.partition: Ask(offset=offset, max_bytes=FILL_BYTES)}, **fields)


def is_expected(world: World) -> bool:
    in_hand = world.connection.fetch_in_hand
    return isinstance(in_hand, InHand) and in_hand.expected is not None


def answer(world: World, exchange: Exchange, **fields: Any) -> Any:
    """What the rewrite gives without waiting to the broker's OFFSET_OUT_OF_RANGE."""
    response = fetch_response(NEWEST, {world.partition: out_of_range()}, **fields)
    return world.fetch.rewrite(exchange, memoryview(response))


async def test_where_the_broker_says_the_same_again_what_was_judged_meanwhile_is_served() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        offset = await reading_on(world)
        taken_bytes = world.upstream.taken_bytes
        exchange = await asking(world, offset)
        assert is_expected(world)
        assert world.upstream.taken_bytes == taken_bytes, "nothing is held before the broker has answered"
        pieces = answer(world, exchange)
        assert not isinstance(pieces, Coroutine)
        assert world.upstream.taken_bytes > taken_bytes
        async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as fresh:
            alone = await row_of(fresh, offset, max_bytes=FILL_BYTES)
        assert read_rows(NEWEST, pieces)[key_of(NEWEST, partition)] == alone
        assert alone.records


@pytest.mark.parametrize(
    "row",
    [
        {"error_code": ErrorCode.topic_authorization_failed},
        {"error_code": ErrorCode.not_leader_or_follower},
        {"error_code": ErrorCode.unknown_topic_id},
        {"records": b"anything", "high_watermark": HIGH_WATERMARK},
        {},
    ],
    ids=str,
)
async def test_what_is_ready_stays_here_when_the_broker_says_anything_else(row: dict[str, Any]) -> None:
    """An ACL that was taken away since the last Fetch counts for this one."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        exchange = await asking(world, await reading_on(world))
        assert is_expected(world)
        taken_bytes = world.upstream.taken_bytes
        response = fetch_response(NEWEST, {partition: row})
        assert world.fetch.rewrite(exchange, memoryview(response)) is None, "it passes as it is"
        assert world.upstream.taken_bytes == taken_bytes


async def test_the_broker_s_throttle_time_of_this_answer_is_told() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        exchange = await asking(world, await reading_on(world))
        pieces = await rewritten(answer(world, exchange, throttle_ms=77))
        assert pieces is not None
        assert b"".join(pieces)[:4] == (77).to_bytes(4, "big")
        assert read_rows(NEWEST, list(pieces))[key_of(NEWEST, partition)].records


async def test_nothing_is_expected_after_a_delete_an_election_or_too_long_a_time() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        offset = await reading_on(world)
        world.tiered.leader_epoch = LeaderEpoch(world.tiered.leader_epoch + 1)
        await asking(world, offset)
        assert not is_expected(world)
        world.tiered.leader_epoch = LeaderEpoch(world.tiered.leader_epoch - 1)
        await asking(world, offset)
        assert is_expected(world)
        world.state.partition_states[partition] = PartitionState(
            remote_log_start_offset=Offset(LOCAL_START), remote_log_start_epoch=LeaderEpoch(0)
        )
        await asking(world, offset)
        assert not is_expected(world)


async def test_of_a_follower_that_fetches_nothing_is_expected() -> None:
    """T-57."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        offset, version = await reading_on(world), 14
        await row_of(world, offset, version=version, max_bytes=FILL_BYTES)
        for replica_id, expected in ((-1, True), (-2, True), (0, False), (1, False)):
            asked = {partition: Ask(offset=offset, max_bytes=FILL_BYTES)}
            exchange = world.exchange(1, version, fetch_request(version, asked, replica_id=replica_id))
            world.fetch.forwarded(exchange)
            assert is_expected(world) is expected


async def test_a_judgement_that_has_waited_for_the_broker_is_made_anew() -> None:
    """Deleted while a broker that hangs had the request: the longer way sees it."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        exchange = await asking(world, await reading_on(world))
        assert is_expected(world)
        world.state.partition_states[partition] = PartitionState(
            remote_log_start_offset=Offset(LOCAL_START), remote_log_start_epoch=LeaderEpoch(0)
        )
        run.log_starts.offsets[partition] = LOCAL_START
        await world.clock.advance(0.11)
        later = answer(world, exchange)
        assert isinstance(later, Coroutine)
        pieces = await later
        row = read_rows(NEWEST, pieces)[key_of(NEWEST, partition)] if pieces else None
        assert row is None or row.error_code is ErrorCode.offset_out_of_range


async def test_in_a_session_it_is_judged_by_the_offset_that_the_session_has() -> None:
    """KIP-227: a request says nothing of a partition whose offset has not changed, or that it forgets."""
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        offset = await reading_on(world)
        first = await asking(world, offset, session=(0, 0))
        assert await rewritten(answer(world, first, session_id=9))
        for epoch, asked in ((1, {partition: Ask(offset=50, max_bytes=FILL_BYTES)}), (2, {})):
            exchange = await forwarded(world, asked, session=(9, epoch))
            assert is_expected(world)
            pieces = await rewritten(answer(world, exchange, session_id=9))
            row = read_rows(NEWEST, list(pieces or ()))[key_of(NEWEST, partition)]
            async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as fresh:
                assert row.records == (await row_of(fresh, 50, max_bytes=FILL_BYTES)).records
        await forwarded(world, {OTHER: Ask(offset=1)}, session=(9, 3), forgotten=[partition])
        assert not is_expected(world)


async def test_a_request_that_is_none_ends_the_connection() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(LOCAL_START, HIGH_WATERMARK)) as world:
        whole = fetch_request(NEWEST, {partition: Ask(offset=0)})
        for size in range(len(whole)):
            exchange = world.exchange(1, NEWEST, whole[:size])
            assert world.fetch.prepare(exchange) is None
            with pytest.raises(MalformedMessageError):
                world.fetch.forwarded(exchange)
