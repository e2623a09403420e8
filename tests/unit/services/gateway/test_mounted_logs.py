"""A read-only mount: clients see the source's remote log, and nothing of the broker's own, which is empty (issue 21)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

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
from tests.support.local_batches import batches_between
from tests.support.manual_clock import settle
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_runs import RemoteRun, behind, load_run
from tests.unit.reading.test_remote_log_reader import first_open_offset, only_until
from tests.unit.services.gateway.test_fetch_rewrite import NEWEST, OTHER, NotedMemory, fetched, plain
from tests.unit.services.gateway.test_offset_rewrites import (
    LEADER_EPOCH,
    FixedLineage,
    leader_epochs,
    listed,
    row_after,
)
from tiersidecar.decide.gateway_fill import OutOfRange
from tiersidecar.domain.errors import MetadataNotReadyError, ObjectNotFoundError, StoreError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.domain.offsets import Offset
from tiersidecar.domain.segments import RemotePartitionDeleteMetadata
from tiersidecar.ports.metrics.process import HALTED_PARTITIONS
from tiersidecar.reading.segment_lookup import OffsetBounds
from tiersidecar.services.gateway import mounted_logs
from tiersidecar.services.gateway.mounted_logs import MountedLogs
from tiersidecar.services.gateway.out_of_range import Classified
from tiersidecar.services.gateway.unplanned_logs import UnplannedLogs

END, EARLIER_END = 245, 175
"""Of the run `plain`, and before its last two segments were copied."""
EMPTY = (MOUNTED_START, MOUNTED_START)
UNSEEDED = (0, 0)
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


@asynccontextmanager
async def growing() -> AsyncIterator[tuple[World, RemoteRun, RemoteRun]]:
    """``mounted`` as far as EARLIER_END, the run that it sees, and the one that :func:`copy_on` takes the rest from."""
    whole, partition = await plain()
    run = await only_until(whole, partition, EARLIER_END)
    async with open_world(run, partition, local=EMPTY, is_mounted=True) as world:
        yield world, run, whole


async def copy_on(run: RemoteRun, whole: RemoteRun) -> None:
    """What the source copies later."""
    (partition,) = run.partitions
    known = list(run.metadata.events)
    for event in whole.metadata.events:
        if isinstance(event, RemotePartitionDeleteMetadata) or event in known:
            continue
        if event.remote_log_segment_id.topic_id_partition == partition:
            await run.metadata.publish(event)


async def test_a_client_at_the_end_has_what_is_copied_meanwhile_long_before_its_wait_is_over() -> None:
    async with growing() as (world, run, whole):
        waiting = asyncio.create_task(answer(world, EARLIER_END, max_wait=timedelta(seconds=10)))
        await world.clock.advance(2)
        assert not waiting.done()
        await copy_on(run, whole)
        await world.clock.advance(0.26)
        async with asyncio.timeout(10):
            row = await waiting
        assert row.error_code is ErrorCode.none
        assert row.records == batches_between("plain-0", EARLIER_END, END)
        assert (row.high_watermark, row.last_stable_offset) == (END, END)


@pytest.mark.parametrize("is_told", [pytest.param(True, id="empty"), pytest.param(False, id="not repeated")])
async def test_beside_partitions_of_the_broker_a_client_waits_half_a_second_at_the_end(is_told: bool) -> None:
    """The broker has answered at once, and watches for their records only once it is asked again."""
    async with mounted() as world:
        answered: dict[TopicIdPartition, Any] = {world.partition: out_of_range()}
        if is_told:
            answered[OTHER] = {"high_watermark": 7}
        asked = {OTHER: Ask(offset=7), world.partition: Ask(offset=END)}
        waiting = asyncio.create_task(fetched(world, asked, answered, max_wait=timedelta(seconds=10)))
        await world.clock.advance(0.49)
        assert not waiting.done()
        await world.clock.advance(0.02)
        assert waiting.done()
        await waiting


async def test_a_partition_at_its_end_takes_no_room_from_those_behind_it() -> None:
    whole, partition = await plain()
    async with open_world(whole, partition, local=EMPTY, is_mounted=True) as world:
        second = whole.partition("plain-1")
        world.broker.log_starts[second] = world.broker.last_stable_offsets[second] = MOUNTED_START
        world.tiered.known = [partition, second]
        most, end = 1024 * 1024, (await world.path.reader.bounds(second)).end
        for offsets in ({partition: END, second: 0}, {second: 0, partition: END}):
            asked = {one: Ask(offset=offset, max_bytes=most) for one, offset in offsets.items()}
            pieces = await fetched(world, asked, dict.fromkeys(asked, out_of_range()), max_bytes=most)
            assert pieces is not None
            row = read_rows(NEWEST, pieces)[key_of(NEWEST, second)]
            assert row.records == batches_between("plain-1", 0, end)


async def test_the_last_stable_offset_takes_no_room_either() -> None:
    whole = await load_run("plain")
    partition = whole.partition("transactions-0")
    run = await only_until(whole, partition, 86)
    async with open_world(run, partition, local=EMPTY, is_mounted=True) as world:
        memory = world.upstream.memory = NotedMemory()
        for isolation in (1, 0):
            task = asyncio.create_task(answer(world, first_open_offset(86), isolation_level=isolation))
            await settle()
            await world.clock.advance(0.5)
            await task
        assert memory.wanted[0] == 1, "the least that is asked for"
        assert memory.wanted[-1] > 1


async def test_at_the_end_offsets_are_those_of_now() -> None:
    """Those of the broker's log beside it may be half a minute old."""
    async with growing() as (world, run, whole):
        assert (await answer(world, 0)).high_watermark == EARLIER_END
        await world.clock.advance(20)
        await copy_on(run, whole)
        waiting = asyncio.create_task(answer(world, END))
        await settle()
        await world.clock.advance(0.5)
        row = await waiting
        assert (row.error_code, row.high_watermark, row.last_stable_offset) == (ErrorCode.none, END, END)


@pytest.mark.parametrize("is_halted", [False, True])
@pytest.mark.parametrize(
    ("offset", "answered"),
    [
        pytest.param(
            MOUNTED_START,
            {name: int(MOUNTED_START) for name in ("high_watermark", "last_stable_offset", "log_start_offset")},
            id="the end of the broker's log",
        ),
        pytest.param(MOUNTED_START, {"records": b"foreign", "high_watermark": MOUNTED_START + 1}, id="a record"),
        pytest.param(MOUNTED_START + 1, out_of_range(), id="beyond it"),
    ],
)
async def test_from_the_start_of_the_broker_s_log_on_all_is_out_of_range(
    offset: int, answered: dict[str, Any], is_halted: bool
) -> None:
    """At once, whether or not the source can be asked."""
    run, partition = await plain()
    run = await behind(run, is_reachable=False)
    async with open_world(run, partition, local=EMPTY, is_mounted=True) as world:
        if is_halted:
            world.mounts.check(partition, MOUNTED_START, MOUNTED_START + 1)
        pieces = await fetched(world, {partition: Ask(offset=offset)}, {partition: answered})
        assert pieces is not None
        row = read_rows(NEWEST, pieces)[key_of(NEWEST, partition)]
        assert (row.error_code, row.records) == (ErrorCode.offset_out_of_range, b"")


@pytest.mark.parametrize(
    "answered",
    [
        pytest.param({"high_watermark": 0, "last_stable_offset": 0, "log_start_offset": 0}, id="its end"),
        pytest.param({"high_watermark": 3, "records": b"foreign", "log_start_offset": 0}, id="records"),
    ],
)
async def test_of_a_log_that_begins_at_0_nothing_passes(answered: dict[str, Any]) -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=UNSEEDED, is_mounted=True) as world:
        waiting = asyncio.create_task(fetched(world, {partition: Ask(offset=0)}, {partition: answered}))
        await settle()
        assert not waiting.done(), "a client that tries again at once would spin"
        await world.clock.advance(0.5)
        pieces = await waiting
        assert pieces is not None
        row = read_rows(NEWEST, pieces)[key_of(NEWEST, partition)]
        assert (row.error_code, row.records, row.high_watermark) == (ErrorCode.not_leader_or_follower, b"", -1)


async def test_nothing_of_it_passes_with_a_large_response_either() -> None:
    async with mounted() as world:
        asked = {OTHER: Ask(offset=7), world.partition: Ask(offset=0)}
        exchange = world.exchange(1, NEWEST, fetch_request(NEWEST, asked))
        assert world.fetch.prepare(exchange) is None
        world.fetch.forwarded(exchange)
        rows: dict[TopicIdPartition, dict[str, Any]] = {
            OTHER: {"records": b"local"},
            world.partition: {"records": b"foreign", "high_watermark": 1},
        }
        body = struct.pack(">ib", 1, 0) + fetch_response(NEWEST, rows)
        frame = struct.pack(">i", len(body)) + body
        passing = world.fetch.passing(exchange, len(frame))
        assert passing is not None
        read = read_rows(NEWEST, [b"".join(passing.feed(memoryview(frame)))[9:]])
        assert read[key_of(NEWEST, OTHER)].records == b"local"
        row = read[key_of(NEWEST, world.partition)]
        assert (row.error_code, row.records) == (ErrorCode.not_leader_or_follower, bytes(7))
        assert world.connection.fetches_to_collect > 0


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
        for replica_id, expected in ((-1, stable), (-2, end), (2, end)):  # as a broker has it: of clients alone
            asked = {"isolation_level": 1, "replica_id": replica_id}
            assert (await listed(world, LATEST, (int(MOUNTED_START), -1), **asked)).offset == expected


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
    """No later one is known, as at a broker: those of the broker here are none of the history."""
    async with mounted() as world, asked_of_source(world) as caught_up:
        rewrite = leader_epochs(world, FixedLineage((0, 0), (2, 40)))
        for asked, expected in ((0, (0, 40)), (1, (0, 40)), (2, (2, END)), (3, (-1, -1)), (500_003, (-1, -1))):
            row = await row_after(
                world,
                rewrite,
                LEADER_EPOCH,
                4,
                {"leader_epoch": asked, "current_leader_epoch": -1},
                {"error_code": ErrorCode.none, "leader_epoch": asked, "end_offset": int(MOUNTED_START)},
            )
            assert (row.error_code, row.leader_epoch, row.end_offset) == (ErrorCode.none, *expected)
            assert bool(caught_up) == (asked >= 2), "nobody is sent away, or back, by what may be behind"


HISTORY = FixedLineage((0, 0), (2, 40))


async def end_of(world: World, leader_epoch: int, lineages: FixedLineage = HISTORY) -> tuple[ErrorCode, int, int]:
    """Where the epoch ends, as a client is told."""
    asked = {"leader_epoch": leader_epoch, "current_leader_epoch": -1}
    told = {"error_code": ErrorCode.none, "leader_epoch": leader_epoch, "end_offset": int(MOUNTED_START)}
    row = await row_after(world, leader_epochs(world, lineages), LEADER_EPOCH, 4, asked, told)
    return row.error_code, row.leader_epoch, row.end_offset


async def test_the_latest_epoch_ends_no_earlier_than_another_gateway_may_have_told() -> None:
    """A client beyond the end would go back to it: leadership has come to a broker whose gateway is behind."""
    async with growing() as (world, run, whole):
        current_bounds = world.path.reader.current_bounds

        async def caught_up(partition: TopicIdPartition) -> OffsetBounds:
            await copy_on(run, whole)
            return await current_bounds(partition)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.path.reader, "current_bounds", caught_up)
            assert await end_of(world, 2) == (ErrorCode.none, 2, END)


@pytest.mark.parametrize("lineages", [HISTORY, FixedLineage()], ids=["of two epochs", "of nothing that is left"])
async def test_while_the_source_is_away_the_latest_epoch_sends_nobody_back(lineages: FixedLineage) -> None:
    """Nobody can tell where it ends, and who has read on by another gateway is to stay there; who asks of a later one asks
    again."""

    async def away(partition: TopicIdPartition) -> OffsetBounds:
        raise MetadataNotReadyError(subject=str(partition))

    async with mounted() as world:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.path.reader, "current_bounds", away)
            assert await end_of(world, 2, lineages) == (ErrorCode.none, 2, MOUNTED_START)
            if lineages is HISTORY:
                assert await end_of(world, 1) == (ErrorCode.none, 0, 40)
                assert (await end_of(world, 3))[0] is ErrorCode.not_leader_or_follower


async def test_a_gateway_that_knows_of_no_mount_tells_nobody_where_a_seeded_log_ends() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=EMPTY) as world:
        for known in ([], [partition]):
            world.tiered.known = known
            error, _, end = await end_of(world, 7)
            assert (error, end) == (ErrorCode.not_leader_or_follower, -1)


async def test_without_a_history_every_epoch_ends_where_the_log_does() -> None:
    async with mounted() as world:
        row = await row_after(
            world,
            leader_epochs(world, FixedLineage()),
            LEADER_EPOCH,
            4,
            {"leader_epoch": 7, "current_leader_epoch": -1},
            {"error_code": ErrorCode.none, "leader_epoch": 7, "end_offset": int(MOUNTED_START)},
        )
        assert (row.error_code, row.leader_epoch, row.end_offset) == (ErrorCode.none, 7, END)


@pytest.mark.parametrize(
    "local",
    [
        pytest.param((MOUNTED_START, MOUNTED_START + 1), id="a record was written"),
        pytest.param((MOUNTED_START + 5, MOUNTED_START + 5), id="and has expired"),
        pytest.param((0, 3), id="a log that was never seeded has records"),
        pytest.param((3, 3), id="or had some"),
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
        world.mounts.check(partition, *EMPTY)
        assert world.mounts.halted(partition), "for good"


async def test_an_empty_log_at_0_halts_until_its_node_has_been_seeded_again() -> None:
    """As a broker makes it on a new disk: nothing is spoilt."""
    run, partition = await plain()
    async with open_world(run, partition, local=UNSEEDED, is_mounted=True) as world:
        labels = {"topic": partition.topic, "partition": str(partition.partition)}
        watching = asyncio.create_task(world.mounts.watch(world.broker, 5.0))
        with capture_logs() as logs:
            await settle()
            reason = world.mounts.halted(partition)
            assert "seed it again by the same plan" in reason
            assert f"remove the partition's directory {partition} " in reason, (
                "what `mount seed` would refuse to write over"
            )
            assert "written" not in reason
            assert await retried(world) is ErrorCode.not_leader_or_follower
            assert world.telemetry.value(HALTED_PARTITIONS, **labels) == 1
            world.broker.log_starts[partition], world.broker.last_stable_offsets[partition] = EMPTY
            await world.clock.advance(5)
            assert world.mounts.halts() == []
            assert world.telemetry.value(HALTED_PARTITIONS, **labels) == 0
            assert (await answer(world, 0)).records == batches_between("plain-0", 0, END)
            world.broker.last_stable_offsets[partition] = MOUNTED_START + 1
            await world.clock.advance(5)
        assert "has been written to" in world.mounts.halted(partition)
        assert [one["event"] for one in logs] == ["gateway.mount.halted", "gateway.mount.sound", "gateway.mount.halted"]
        world.tiered.known = []
        await world.clock.advance(5)
        assert world.telemetry.value(HALTED_PARTITIONS, **labels) is None, "another broker leads it"
        watching.cancel()


async def test_the_words_of_two_leaders_halt_nothing_for_good() -> None:
    """One of them has lost its log, and leadership moves between the two questions."""
    async with mounted() as world:
        for told in ((0, MOUNTED_START), (MOUNTED_START, 0)):
            world.mounts.check(world.partition, *told)
            assert not world.mounts.halted(world.partition)


async def test_a_client_that_is_gone_is_not_waited_for() -> None:
    """It may have said that it waits for weeks."""
    async with growing() as (world, _, _):
        waiting = asyncio.create_task(answer(world, EARLIER_END, max_wait=timedelta(days=20)))
        await world.clock.advance(2)
        assert not waiting.done()
        world.upstream.is_client_gone = True
        await world.clock.advance(0.26)
        async with asyncio.timeout(10):
            await waiting


async def test_clients_that_wait_at_the_end_do_not_have_the_broker_asked_each_second() -> None:
    async with mounted() as world:
        asked, list_offsets = list[Any](), world.broker.list_offsets

        async def noted(*arguments: Any, **flags: Any) -> Any:
            asked.append(arguments)
            return await list_offsets(*arguments, **flags)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.broker, "list_offsets", noted)
            for _ in range(9):
                await world.offsets.recent([world.partition])
                await world.clock.advance(1)
            assert len(asked) == 3, "its two ends, and what is stable, once"
            await world.clock.advance(1)
            await world.offsets.recent([world.partition])
            await settle()
            assert len(asked) == 6


async def fails(partition: TopicIdPartition) -> Offset:
    raise StoreError(verb="fetch", key="k", reason="away")


async def hangs(partition: TopicIdPartition) -> Offset:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("away", [fails, hangs])
async def test_a_store_that_is_away_sends_nobody_away_who_waits_at_the_end(
    away: Callable[[TopicIdPartition], Awaitable[Offset]],
) -> None:
    """Another segment has been copied: what transactions are open in it, only the store tells."""
    async with growing() as (world, run, whole):
        assert (await answer(world, 0)).error_code is ErrorCode.none
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.path.reader, "last_stable_offset", away)
            for name in ("_STORE_S", "_STORE_AGAIN_S"):
                patch.setattr(mounted_logs, name, 0.01)
            await copy_on(run, whole)
            await world.clock.advance(31)
            for timestamp, isolation, expected in ((LATEST, 0, END), (LATEST, 1, EARLIER_END)):
                row = await listed(world, timestamp, (int(MOUNTED_START), -1), isolation_level=isolation)
                assert (row.error_code, row.offset) == (ErrorCode.none, expected)


async def test_what_has_grown_is_seen_beside_what_cannot_be_read() -> None:
    async with growing() as (world, run, whole):
        damaged, end_offset = replace(world.partition, partition=1), world.path.reader.end_offset

        async def end_of_log(partition: TopicIdPartition) -> Offset:
            if partition == damaged:
                raise ObjectNotFoundError(verb="fetch", key="k", reason="gone")
            return await end_offset(partition)

        bounds = await world.path.reader.bounds(world.partition)
        both = [
            Classified(verdict=OutOfRange.AT_END, partition=one, bounds=bounds) for one in (damaged, world.partition)
        ]
        await copy_on(run, whole)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.path.reader, "end_offset", end_of_log)
            assert await world.fetch._classifier.has_any_grown(both, 10)


async def test_records_in_an_empty_log_that_has_halted_are_told() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=EMPTY, is_mounted=True) as world:
        world.mounts.check(partition, *UNSEEDED)
        world.mounts.check(partition, 0, 1)
        assert "has been written to" in world.mounts.halted(partition)


async def test_a_gateway_is_ready_as_long_as_one_of_its_mounted_partitions_is() -> None:
    run, partition = await plain()
    async with open_world(run, partition, local=EMPTY, is_mounted=True) as world:
        second = replace(partition, partition=1)
        world.tiered.known = [partition, second]
        assert (world.mounts.halts(), world.mounts.reason_not_ready()) == ([], "")
        world.mounts.check(partition, *UNSEEDED)
        assert (world.mounts.halts(), world.mounts.reason_not_ready()) == ([world.mounts.halted(partition)], "")
        world.mounts.check(second, *UNSEEDED)
        assert world.mounts.reason_not_ready() == f"{world.mounts.halted(partition)} (and 1 more)"
        world.tiered.known = []
        assert world.mounts.reason_not_ready() == "", "others lead them"


async def retried(world: World) -> ErrorCode:
    task = asyncio.create_task(answer(world, 0))
    await settle()
    await world.clock.advance(0.5)
    return ErrorCode((await task).error_code)


async def test_the_watch_halts_what_nobody_reads() -> None:
    async with mounted() as world:
        watching = asyncio.create_task(world.mounts.watch(world.broker, 5.0))
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
    mounts = MountedLogs(
        planned={"orders": planned},
        unplanned=UnplannedLogs(planned={}, seeded=tuple, topics=dict, clock=clock),
        topic_id=known.get,
        led=list,
        reader=reader,
        clock=clock,
        telemetry=RecordedTelemetry(),
    )
    assert mounts.is_mounted_topic("orders"), "before anybody has looked at the cluster, its name counts"
    assert mounts.is_mounted_topic(planned)
    known["orders"] = other
    assert not mounts.is_mounted_topic("orders")
    assert not mounts.is_mounted_topic(other)
    assert not mounts.is_mounted(TopicIdPartition(topic_id=other, topic="orders", partition=0))
