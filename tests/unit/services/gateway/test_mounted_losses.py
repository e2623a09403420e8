"""What a read-only mount does without: topics that its source has lost, and a store that hangs (issue 21)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from tests.support.gateway_world import Ask, key_of, open_world, out_of_range, read_rows
from tests.support.manual_clock import settle
from tests.unit.services.gateway.test_fetch_rewrite import NEWEST, fetched, plain
from tests.unit.services.gateway.test_mounted_logs import (
    EARLIER_END,
    EARLIEST,
    EMPTY,
    END,
    LATEST,
    answer,
    copy_on,
    growing,
    mounted,
)
from tests.unit.services.gateway.test_offset_rewrites import listed
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.domain.offsets import Offset
from tiersidecar.ports.metrics.process import HALTED_PARTITIONS
from tiersidecar.reading.segment_lookup import OffsetBounds
from tiersidecar.services.gateway import mounted_logs
from tiersidecar.services.gateway import out_of_range as out_of_range_module
from tiersidecar.services.gateway.tiered_partitions import BrokerOffsets

GONE = "its topic was deleted at the source"


async def test_what_the_source_has_lost_is_told_once_and_not_served() -> None:
    """Clients keep their offsets: nothing is told of the log, neither its end nor that an offset is out of range."""
    run, partition = await plain()
    async with open_world(run, partition, local=EMPTY, is_mounted=True) as world:
        labels = {"topic": partition.topic, "partition": str(partition.partition)}
        watching = asyncio.create_task(world.mounts.watch(world.broker, 5.0))
        await settle()
        with capture_logs() as logs:
            world.source_faults[partition] = GONE
            await world.clock.advance(15)
            assert (world.mounts.halted(partition), world.mounts.halts()) == (GONE, [GONE])
            assert world.mounts.reason_not_ready() == GONE
            assert world.telemetry.value(HALTED_PARTITIONS, **labels) == 1
            world.source_faults.clear()
            await world.clock.advance(10)
            assert world.mounts.halts() == []
            assert world.telemetry.value(HALTED_PARTITIONS, **labels) == 0
        assert [one["event"] for one in logs] == ["gateway.mount.halted", "gateway.mount.sound"]
        watching.cancel()


async def test_what_the_source_may_have_lost_is_not_served_until_that_is_known() -> None:
    """It is a reason not to be ready, and no halt: nobody has to look at it."""
    async with mounted() as world:
        watching = asyncio.create_task(world.mounts.watch(world.broker, 5.0))
        await settle()
        begin = Offset(MOUNTED_START)
        told = BrokerOffsets(log_start_offset=begin, high_watermark=begin, last_stable_offset=begin, asked_at_s=0.0)
        with capture_logs() as logs:
            world.source_unknown[world.partition] = "not known yet"
            await world.clock.advance(15)
            assert world.mounts.reason_not_ready() == "not known yet"
            assert await world.mounts.seen(world.partition, told) is None
            world.source_unknown.clear()
            await world.clock.advance(15)
            seen = await world.mounts.seen(world.partition, told)
            assert seen is not None
            assert seen.high_watermark == END
        assert logs == []
        watching.cancel()


async def test_a_log_written_to_is_told_of_whatever_the_source_has_lost() -> None:
    async with mounted() as world:
        world.source_faults[world.partition] = GONE
        world.mounts.check(world.partition, MOUNTED_START, MOUNTED_START + 1)
        assert "has been written to" in world.mounts.halted(world.partition)


async def emptied(partition: TopicIdPartition) -> OffsetBounds:
    """As of a topic of which the last segment has just gone, and no start was moved."""
    return OffsetBounds(start=Offset(0), end=Offset(0))


async def expired(partition: TopicIdPartition) -> OffsetBounds:
    """As of a topic of which the last segment has expired: its start was moved before."""
    return OffsetBounds(start=Offset(0), end=Offset(0), log_start=Offset(END))


@pytest.mark.parametrize("age_s", [0.5, 15, 40], ids=["known", "asked for behind the client's back", "asked for anew"])
async def test_while_the_segments_of_a_deleted_topic_go_no_offset_is_out_of_range(age_s: float) -> None:
    async with mounted() as world:
        assert (await answer(world, 0)).high_watermark == END
        await world.clock.advance(age_s)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("bounds", "current_bounds"):
                patch.setattr(world.path.reader, name, emptied)
            for offset in (0, END, END + 1):
                asking = asyncio.create_task(answer(world, offset))
                await settle()
                await world.clock.advance(0.5)
                assert (await asking).error_code is ErrorCode.not_leader_or_follower
            await world.clock.advance(11)
            for timestamp in (LATEST, EARLIEST):
                row = await listed(world, timestamp, (int(MOUNTED_START), -1))
                assert row.error_code is ErrorCode.leader_not_available
            for name in ("bounds", "current_bounds"):
                patch.setattr(world.path.reader, name, expired)
            await world.clock.advance(11)
            for timestamp in (LATEST, EARLIEST):
                row = await listed(world, timestamp, (int(MOUNTED_START), -1))
                assert (row.error_code, row.offset) == (ErrorCode.none, END), "of what has expired it is as ever"


async def test_the_end_that_was_told_last_counts_though_the_broker_was_asked_before() -> None:
    """A user's delete had moved the start before the last segments came, which go with their topic now."""

    async def emptied_from(partition: TopicIdPartition) -> OffsetBounds:
        return OffsetBounds(start=Offset(0), end=Offset(0), log_start=Offset(EARLIER_END))

    async with growing() as (world, run, whole):
        assert (await answer(world, 0)).high_watermark == EARLIER_END
        await copy_on(run, whole)
        await world.clock.advance(1)
        assert (await answer(world, EARLIER_END)).high_watermark == END
        with pytest.MonkeyPatch.context() as patch:
            for name in ("bounds", "current_bounds"):
                patch.setattr(world.path.reader, name, emptied_from)
            asking = asyncio.create_task(answer(world, END))
            await settle()
            await world.clock.advance(0.5)
            assert (await asking).error_code is ErrorCode.not_leader_or_follower


async def test_what_only_the_last_look_at_the_source_shows_sends_nobody_away() -> None:
    """Back after a while, the source says at once that the topic is in the trash, and that its first segments have gone."""

    async def cut(partition: TopicIdPartition) -> OffsetBounds:
        return OffsetBounds(start=Offset(EARLIER_END), end=Offset(END))

    async with mounted() as world:

        async def caught_up(partition: TopicIdPartition) -> OffsetBounds:
            world.source_faults[partition] = GONE
            return await cut(partition)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.path.reader, "bounds", cut)
            patch.setattr(world.path.reader, "current_bounds", caught_up)
            asking = asyncio.create_task(answer(world, 0))
            await settle()
            await world.clock.advance(0.5)
            assert (await asking).error_code is ErrorCode.not_leader_or_follower


async def test_a_store_that_hangs_keeps_a_fetch_of_other_partitions_for_seconds_alone() -> None:
    async def hang(partition: TopicIdPartition) -> OffsetBounds:
        await asyncio.Event().wait()
        raise AssertionError

    async with mounted() as world:
        assert (await answer(world, 0)).error_code is ErrorCode.none
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.path.reader, "bounds", hang)
            for module in (out_of_range_module, mounted_logs):
                patch.setattr(module, "_STORE_S", 0.01)
            asking = asyncio.create_task(answer(world, END))
            async with asyncio.timeout(10):
                while not asking.done():
                    await world.clock.advance(0.25)
                    await asyncio.sleep(0.01)
            assert (await asking).error_code is ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "asked for at first"])
async def test_beside_a_partition_that_hangs_another_gets_its_last_word(is_known: bool) -> None:
    """A client past the end would be told to try again for as long as the other one hangs."""
    whole, partition = await plain()
    async with open_world(whole, partition, local=EMPTY, is_mounted=True) as world:
        other = whole.partition("plain-1")
        world.broker.log_starts[other] = world.broker.last_stable_offsets[other] = MOUNTED_START
        world.tiered.known = [partition, other]
        if is_known:
            assert (await answer(world, 0)).error_code is ErrorCode.none
        bounds = world.path.reader.bounds

        async def hang(asked: TopicIdPartition) -> OffsetBounds:
            if asked != partition:
                await asyncio.Event().wait()
            return await bounds(asked)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.path.reader, "bounds", hang)
            patch.setattr(mounted_logs, "_STORE_S", 600)
            patch.setattr(out_of_range_module, "_STORE_S", 600)
            patch.setattr(out_of_range_module, "_LEAST_STORE_S", 2)
            asked = {other: Ask(offset=0), partition: Ask(offset=END + 1)}
            async with asyncio.timeout(60):
                pieces = await fetched(world, asked, dict.fromkeys(asked, out_of_range()), max_wait=timedelta(0))
        assert pieces is not None
        rows = read_rows(NEWEST, pieces)
        assert rows[key_of(NEWEST, partition)].error_code is ErrorCode.offset_out_of_range
        assert rows[key_of(NEWEST, other)].error_code is ErrorCode.not_leader_or_follower


async def test_a_partition_that_hangs_adds_up_no_waits_and_one_that_is_known_is_read_beside_it() -> None:
    """A Fetch waits for all its questions together, about as long as its client wants to."""
    whole, partition = await plain()
    async with open_world(whole, partition, local=EMPTY, is_mounted=True) as world:
        other = whole.partition("plain-1")
        world.broker.log_starts[other] = world.broker.last_stable_offsets[other] = MOUNTED_START
        world.tiered.known = [partition, other]
        assert (await answer(world, 0)).error_code is ErrorCode.none
        bounds = world.path.reader.bounds

        async def hang(asked: TopicIdPartition) -> OffsetBounds:
            if asked != partition:
                await asyncio.Event().wait()
            return await bounds(asked)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.path.reader, "bounds", hang)
            patch.setattr(mounted_logs, "_STORE_S", 600)
            patch.setattr(out_of_range_module, "_STORE_S", 600)
            patch.setattr(out_of_range_module, "_LEAST_STORE_S", 2)
            asked = dict.fromkeys([other, partition], Ask(offset=0))
            async with asyncio.timeout(60):
                pieces = await fetched(world, asked, dict.fromkeys(asked, out_of_range()), max_wait=timedelta(0))
        assert pieces is not None
        rows = read_rows(NEWEST, pieces)
        assert rows[key_of(NEWEST, partition)].records
        assert rows[key_of(NEWEST, other)].error_code is ErrorCode.not_leader_or_follower
