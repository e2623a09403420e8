"""What a broker gives though nobody may have it any more: after a crash its log start is that of a minute ago (S-136, U7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.gateway_world import Ask, World, key_of, open_world, out_of_range, read_rows
from tests.support.local_batches import batches_between, local_batches
from tests.unit.services.gateway.test_fetch_rewrite import HIGH_WATERMARK, NEWEST, OTHER, fetched, plain
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.formats.wire.fetch import FETCH_VERSIONS
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.services.gateway.exchange import ConnectionState

DELETED = 152
"""In the midst of a batch."""
FALLEN = (0, HIGH_WATERMARK)
"""The broker's log after a crash, with its log start fallen back."""


def said(offset: int, epoch: int = 0) -> PartitionState:
    return PartitionState(remote_log_start_offset=Offset(offset), remote_log_start_epoch=LeaderEpoch(epoch))


async def delete(world: World, offset: int = DELETED, epoch: int = 0) -> None:
    await world.state.publish_partition_state(world.partition, said(offset, epoch))


def given(offset: int, *, log_start: int = 0, stop: int = HIGH_WATERMARK) -> dict[str, Any]:
    """What a broker answers that has all of the log."""
    return {
        "records": batches_between("plain-0", offset, stop),
        "high_watermark": HIGH_WATERMARK,
        "last_stable_offset": HIGH_WATERMARK,
        "log_start_offset": log_start,
    }


async def rows_at(
    world: World, offset: int, answered: Mapping[TopicIdPartition, Any] | None = None, **fields: Any
) -> dict[tuple[str | bytes, int], Any] | None:
    """The gateway's response; None where the broker's passes as it is."""
    answer = dict(answered or {world.partition: given(offset)})
    pieces = await fetched(world, {world.partition: Ask(offset=offset)}, answer, **fields)
    return None if pieces is None else read_rows(fields.get("version", NEWEST), pieces)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
async def test_records_below_a_users_delete_are_out_of_range_and_all_others_pass_as_they_came(version: int) -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=FALLEN) as world:
        assert await rows_at(world, 80, version=version) is None, "nothing is deleted yet"
        await delete(world)
        for offset in (0, 80, DELETED - 1):
            rows = await rows_at(world, offset, version=version)
            assert rows is not None
            row = rows[key_of(version, partition)]
            assert (row.error_code, row.records) == (ErrorCode.offset_out_of_range, b"")
            assert version < 5 or row.log_start_offset == DELETED
            assert row.high_watermark == -1
        # Of the batch around the log start the client skips what lies before it.
        around = next(batch.header for batch in local_batches("plain-0") if batch.header.last_offset >= DELETED)
        assert around.base_offset < DELETED
        for offset in (DELETED, DELETED + 1, HIGH_WATERMARK - 1):
            assert await rows_at(world, offset, version=version) is None


async def test_beside_it_other_partitions_keep_their_records() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=FALLEN) as world:
        await delete(world)
        asked = {OTHER: Ask(offset=7), partition: Ask(offset=80)}
        pieces = await fetched(world, asked, {OTHER: {"records": b"anything"}, partition: given(80)})
        assert pieces is not None
        rows = read_rows(NEWEST, pieces)
        assert rows[key_of(NEWEST, OTHER)].records == b"anything"
        assert rows[key_of(NEWEST, partition)].error_code is ErrorCode.offset_out_of_range


async def test_beside_it_what_is_remote_is_filled_in() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=(200, HIGH_WATERMARK)) as world:
        twin = replace(partition, topic="twin", topic_id=Uuid(b"twin-of-a-topic!"))
        world.tiered.known = [*world.tiered.known, twin]
        await world.state.publish_partition_state(twin, said(DELETED))
        asked = {twin: Ask(offset=80), partition: Ask(offset=0)}
        began_s = world.clock.monotonic_s()
        for _ in range(2):  # once the remote part has been read ahead as well
            pieces = await fetched(world, asked, {twin: given(80), partition: out_of_range()})
            assert pieces is not None
            rows = read_rows(NEWEST, pieces)
            assert rows[key_of(NEWEST, twin)].error_code is ErrorCode.offset_out_of_range
            assert rows[key_of(NEWEST, partition)].records.startswith(batches_between("plain-0", 0, 1))
        assert world.clock.monotonic_s() == began_s, "who is told that is not kept waiting"


async def test_what_a_later_leader_wrote_was_not_there_yet() -> None:
    """An unclean election cut the log, and this process has not heard of it: the batch's own leader epoch tells."""
    run, partition = await plain()
    async with open_world(run, partition, local=FALLEN) as world:
        await delete(world, epoch=-1)
        assert await rows_at(world, 80) is None
        await delete(world, epoch=3)
        rows = await rows_at(world, 80)
        assert rows is not None
        assert rows[key_of(NEWEST, partition)].error_code is ErrorCode.offset_out_of_range


async def test_while_nobody_can_tell_whether_it_is_tiered_the_client_tries_again() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=FALLEN) as world:
        await delete(world)
        world.tiered.is_ready = False
        rows = await rows_at(world, 80)
        assert rows is not None
        assert rows[key_of(NEWEST, partition)].error_code is ErrorCode.not_leader_or_follower
        assert await rows_at(world, DELETED) is None


async def test_what_is_not_tiered_is_the_brokers_alone() -> None:
    """Its earliest offset is the broker's too: a client that was sent away would come back."""
    run, partition = await plain()
    async with open_world(run, partition, local=FALLEN) as world:
        await delete(world)
        world.tiered.known = []
        assert await rows_at(world, 80) is None


async def test_a_follower_and_who_gets_no_whole_record_are_left_alone() -> None:
    """T-57."""
    run, partition = await plain()
    async with open_world(run, partition, local=FALLEN) as world:
        await delete(world)
        assert await rows_at(world, 80, version=12, replica_id=1) is None
        assert await rows_at(world, 80, {partition: {**given(80), "records": b""}}) is None
        assert await rows_at(world, 80, {partition: {**given(80), "records": given(80)["records"][:40]}}) is None


@pytest.mark.parametrize("replica_id", [-3, -2])
async def test_a_replica_id_that_no_replica_has_shows_nothing_that_was_deleted(replica_id: int) -> None:
    """The broker lets -2, a debugging consumer, read as any client."""
    run, partition = await plain()
    async with open_world(run, partition, local=FALLEN) as world:
        await delete(world)
        rows = await rows_at(world, 80, version=12, replica_id=replica_id)
        assert rows is not None
        assert rows[key_of(12, partition)].error_code is not ErrorCode.none


async def test_in_a_session_the_offset_that_a_request_leaves_out_counts() -> None:
    """KIP-227."""
    run, partition = await plain()
    async with open_world(run, partition, local=FALLEN) as world:
        await delete(world)
        empty = {partition: {**given(80), "records": b""}}
        asked = {partition: Ask(offset=80)}
        assert await fetched(world, asked, empty, session=(0, 0), session_id=9) is None
        pieces = await fetched(world, {}, {partition: given(80)}, session=(9, 1), session_id=9)
        assert pieces is not None
        row = read_rows(NEWEST, pieces)[key_of(NEWEST, partition)]
        assert row.error_code is ErrorCode.offset_out_of_range


async def test_a_session_that_began_on_another_connection_is_ended_where_the_brokers_log_begins_too_low() -> None:
    """Nobody knows which offset the records were asked from."""
    run, partition = await plain()
    async with open_world(run, partition, local=FALLEN) as world:
        await delete(world)
        connection = ConnectionState()
        sound = {partition: given(DELETED, log_start=DELETED)}
        assert await fetched(world, {}, sound, session=(9, 5), session_id=9, connection=connection) is None
        fallen = {partition: given(DELETED)}
        pieces = await fetched(world, {}, fallen, session=(9, 6), session_id=9, connection=connection)
        assert pieces is not None
        assert read_rows(NEWEST, pieces) == {}
        assert b"".join(pieces)[4:6] == int(ErrorCode.fetch_session_id_not_found).to_bytes(2, "big")


async def test_a_delete_in_the_midst_of_reading_what_is_remote_counts_for_what_is_local_beside_it() -> None:
    """The answer that is expected to come again is one without records."""
    run, partition = await plain()
    async with open_world(run, partition, local=(200, HIGH_WATERMARK)) as world:
        twin = replace(partition, topic="twin", topic_id=Uuid(b"twin-of-a-topic!"))
        world.tiered.known = [*world.tiered.known, twin]
        asked = {twin: Ask(offset=80), partition: Ask(offset=0)}
        answered = {twin: given(80, stop=81), partition: out_of_range()}
        for _ in range(2):
            pieces = await fetched(world, asked, answered)
            assert pieces is not None
            assert read_rows(NEWEST, pieces)[key_of(NEWEST, twin)].records == batches_between("plain-0", 80, 81)
        await world.state.publish_partition_state(twin, said(DELETED))
        pieces = await fetched(world, asked, answered)
        assert pieces is not None
        assert read_rows(NEWEST, pieces)[key_of(NEWEST, twin)].error_code is ErrorCode.offset_out_of_range
