"""A read-only mount: clients see the source's remote log, and nothing of the broker's own, which is empty (issue 21)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from tests.support.gateway_world import Ask, World, key_of, open_world, read_rows
from tests.support.manual_clock import settle
from tests.support.remote_runs import load_run
from tests.unit.reading.test_remote_log_reader import first_open_offset, only_until
from tests.unit.services.gateway.test_fetch_rewrite import NEWEST, fetched, plain
from tests.unit.services.gateway.test_offset_rewrites import (
    LEADER_EPOCH,
    FixedLineage,
    leader_epochs,
    listed,
    row_after,
)
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.reading.segment_lookup import OffsetBounds
from tiersidecar.services.gateway.mounted_logs import MountedLogs
from tiersidecar.services.gateway.unplanned_logs import UnplannedLogs

END = 245
"""Of the run `plain`."""
EMPTY = (MOUNTED_START, MOUNTED_START)
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)


@asynccontextmanager
async def mounted() -> AsyncIterator[World]:
    run, partition = await plain()
    async with open_world(run, partition, local=EMPTY, is_mounted=True) as world:
        yield world


@asynccontextmanager
async def asked_of_source(world: World) -> AsyncIterator[list[TopicIdPartition]]:
    """The partitions whose bounds were asked for as of now, which waits for the source."""
    asked, reader = list[TopicIdPartition](), world.path.reader
    current_bounds = reader.current_bounds

    async def noted(partition: TopicIdPartition) -> OffsetBounds:
        asked.append(partition)
        return await current_bounds(partition)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "current_bounds", noted)
        yield asked


async def answer(world: World, offset: int, **fields: Any) -> Any:
    """The row of a Fetch, which the broker says is out of range."""
    pieces = await fetched(world, {world.partition: Ask(offset=offset)}, **fields)
    return None if pieces is None else read_rows(NEWEST, pieces)[key_of(NEWEST, world.partition)]


async def test_what_is_remote_is_filled_with_the_end_of_the_remote_log_as_high_watermark() -> None:
    async with mounted() as world:
        row = await answer(world, 0)
        assert (row.error_code, row.high_watermark, row.last_stable_offset) == (ErrorCode.none, END, END)
        assert row.records


async def test_a_client_waits_at_the_end() -> None:
    """As at a broker: nothing, and no error, after its own wait.  The source is not asked for it, and may be away."""
    async with mounted() as world, asked_of_source(world) as asked:
        waiting = asyncio.create_task(answer(world, END))
        await settle()
        assert not waiting.done()
        await world.clock.advance(0.5)
        row = await waiting
        assert (row.error_code, row.high_watermark, bool(row.records)) == (ErrorCode.none, END, False)
        assert asked == []
        await answer(world, END + 1)
        assert asked == [world.partition], "before a client is sent away"


async def test_beyond_the_end_it_is_out_of_range() -> None:
    async with mounted() as world:
        assert await answer(world, END + 1) is None, "the broker's word stands"


async def test_committed_records_end_where_a_transaction_is_open() -> None:
    """Its end has not been copied yet: the broker here, which has none of it, is not asked."""
    whole = await load_run("plain")
    partition = whole.partition("transactions-0")
    run = await only_until(whole, partition, 86)
    async with open_world(run, partition, local=EMPTY, is_mounted=True) as world:
        stable, end = first_open_offset(86), (await world.path.reader.bounds(partition)).end
        assert stable < end
        task = asyncio.create_task(answer(world, stable, isolation_level=1))
        await settle()
        await world.clock.advance(0.5)
        row = await task
        assert (row.error_code, row.last_stable_offset, bool(row.records)) == (ErrorCode.none, stable, False)
        assert world.upstream.asked == []


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        pytest.param(LATEST, END, id="latest"),
        pytest.param(EARLIEST, 0, id="earliest"),
        pytest.param(EARLIEST_LOCAL, END, id="nothing is local"),
        pytest.param(LATEST_TIERED, END - 1, id="the last that is tiered"),
        pytest.param(PENDING_UPLOAD, END, id="nothing is to be uploaded"),
        pytest.param(2**50, -1, id="later than all records"),
    ],
)
async def test_offsets_are_those_of_the_remote_log(timestamp: int, expected: int) -> None:
    told = -1 if timestamp >= 0 or timestamp == LATEST_TIERED else int(MOUNTED_START)
    async with mounted() as world:
        row = await listed(world, timestamp, (told, -1))
        assert (row.error_code, row.offset) == (ErrorCode.none, expected)


async def test_the_latest_epoch_ends_where_the_remote_log_does() -> None:
    """And so does every later one: the epochs of the broker here are none of the history."""
    async with mounted() as world:
        rewrite = leader_epochs(world, FixedLineage((0, 0), (2, 40)))
        for asked, expected in ((0, (0, 40)), (2, (2, END)), (500_003, (2, END))):
            row = await row_after(
                world,
                rewrite,
                LEADER_EPOCH,
                4,
                {"leader_epoch": asked, "current_leader_epoch": -1},
                {"error_code": ErrorCode.none, "leader_epoch": asked, "end_offset": int(MOUNTED_START)},
            )
            assert (row.leader_epoch, row.end_offset) == expected


@pytest.mark.parametrize(
    "local",
    [
        pytest.param((MOUNTED_START, MOUNTED_START + 1), id="a record was written"),
        pytest.param((MOUNTED_START + 5, MOUNTED_START + 5), id="and has expired"),
        pytest.param((0, 0), id="a log that was never seeded"),
    ],
)
async def test_a_log_that_is_not_as_it_was_seeded_halts_the_mount(local: tuple[int, int]) -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=local, is_mounted=True) as world:
        with capture_logs() as logs:
            rows = [await retried(world), await retried(world)]
        assert rows == [ErrorCode.not_leader_or_follower] * 2
        assert "has been written to" in world.mounts.halted(partition)
        assert world.mounts.reason_not_ready() == world.mounts.halted(partition)
        assert [one["event"] for one in logs] == ["gateway.mount.halted"], "once"


async def retried(world: World) -> ErrorCode:
    task = asyncio.create_task(answer(world, 0))
    await settle()
    await world.clock.advance(0.5)
    return ErrorCode((await task).error_code)


async def test_the_watch_halts_what_nobody_reads() -> None:
    async with mounted() as world:
        watching = asyncio.create_task(world.mounts.watch(lambda: [world.partition], world.broker, 5.0))
        await settle()
        assert not world.mounts.reason_not_ready()
        world.broker.last_stable_offsets[world.partition] = MOUNTED_START + 3
        await world.clock.advance(5.0)
        await settle()
        assert world.mounts.halted(world.partition)
        watching.cancel()


def test_a_topic_that_was_made_anew_under_the_name_is_not_mounted() -> None:
    planned, other = Uuid(b"p" * 16), Uuid(b"o" * 16)
    known: dict[str, Uuid] = {}
    reader: Any = None
    clock: Any = None
    unplanned = UnplannedLogs(planned={}, seeded=tuple, clock=clock)
    mounts = MountedLogs(
        planned={"orders": planned}, unplanned=unplanned, topic_id=known.get, reader=reader, clock=clock
    )
    assert mounts.is_mounted_topic("orders"), "before anybody has looked at the cluster, its name counts"
    assert mounts.is_mounted_topic(planned)
    known["orders"] = other
    assert not mounts.is_mounted_topic("orders")
    assert not mounts.is_mounted_topic(other)
    assert not mounts.is_mounted(TopicIdPartition(topic_id=other, topic="orders", partition=0))
