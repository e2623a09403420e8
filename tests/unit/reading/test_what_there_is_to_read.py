"""Which segment holds an offset of a history, what there is to read at all, and what is told where there is nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.support.remote_runs import FixedLogStarts
from tests.support.segments import FINISHED, TOPIC_ID_PARTITION, remote_segment
from tiersidecar.domain.errors import HistoryChangedError, OffsetInHoleError, OffsetOutOfRangeError
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState
from tiersidecar.ports.metrics.reading import READ_HOLES
from tiersidecar.reading.segment_lookup import Hole, Located, SegmentLookup, agreed_stop

Epochs = Mapping[int, int]
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


def lineage_of(epochs: Epochs) -> Lineage:
    return Lineage.of((LeaderEpoch(epoch), Offset(start)) for epoch, start in epochs.items())


def remote(
    start: int, end: int, epochs: Epochs | None = None, state: RemoteLogSegmentState = FINISHED, *, aborts: bool = False
) -> RemoteLogSegmentMetadata:
    made = remote_segment(start, end, epochs=tuple((epochs or {0: 0}).items()), state=state)
    return replace(made, txn_index_empty=not aborts)


class World:
    """``before`` is what a lineage of up to 30 s ago knows; ``now`` is right."""

    def __init__(self, now: Epochs, before: Epochs | None = None, log_end: int = 1000) -> None:
        self.now, self.before, self.log_end = lineage_of(now), lineage_of(now if before is None else before), log_end
        self.metadata, self.log_starts, self.clock = MemoryMetadataLog(), FixedLogStarts(), ManualClock()
        self.anew: Lineage | None = None
        self.refreshed = 0
        self.telemetry = RecordedTelemetry()
        self.lookup = SegmentLookup(
            metadata=self.metadata,
            lineages=self,
            log_starts=self.log_starts,
            clock=self.clock,
            telemetry=self.telemetry,
        )

    async def lineage(self, topic_id_partition: TopicIdPartition, *, max_age_s: float = 30.0) -> Lineage:
        assert topic_id_partition == TOPIC_ID_PARTITION
        return self.now if max_age_s <= 1 else self.before

    async def refresh(self, topic_id_partition: TopicIdPartition) -> Lineage:
        assert topic_id_partition == TOPIC_ID_PARTITION
        self.refreshed += 1
        return self.anew or self.now

    def last(self, topic_id_partition: TopicIdPartition) -> Lineage | None:
        return self.before

    def log_end_offset(self, topic_id_partition: TopicIdPartition) -> Offset:
        assert topic_id_partition == TOPIC_ID_PARTITION
        return Offset(self.log_end)

    async def with_segments(self, *segments: RemoteLogSegmentMetadata, log_start: int = -1) -> World:
        self.log_starts.offsets[TOPIC_ID_PARTITION] = log_start
        await self.metadata.assign([TOPIC_ID_PARTITION])
        for segment in segments:
            await self.metadata.publish(replace(segment, state=STARTED))
            for state in (FINISHED, DELETING):
                if STARTED < state <= segment.state:
                    update = RemoteLogSegmentMetadataUpdate(
                        remote_log_segment_id=segment.remote_log_segment_id,
                        broker_id=BrokerId(1),
                        event_timestamp_ms=0,
                        state=state,
                    )
                    await self.metadata.publish(update)
        return self


def told(located: Located | None) -> tuple[int, int] | None:
    return None if located is None else (located.metadata.start_offset, located.stop_offset)


@pytest.mark.parametrize(
    ("theirs", "history", "offset", "stop"),
    [
        pytest.param({0: 0}, {0: 0}, 10, 30, id="one leader all along: to the segment's end"),
        pytest.param({0: 0, 1: 20}, {0: 0, 1: 20}, 10, 30, id="the same leaders"),
        pytest.param({0: 0}, {0: 0, 1: 20}, 10, 20, id="a deposed leader's goes on past the next epoch's start"),
        pytest.param({0: 0}, {0: 0, 1: 29}, 10, 29, id="by its very last record"),
        pytest.param({0: 0}, {0: 0, 1: 30}, 10, 30, id="the next epoch begins right behind it"),
        pytest.param({0: 0, 1: 20}, {0: 0}, 10, 20, id="its later epoch is of no history"),
        pytest.param({0: 0, 1: 20}, {0: 0, 1: 25}, 10, 20, id="the next epoch began later than it says"),
        pytest.param({0: 0, 1: 20}, {0: 0, 2: 20}, 10, 20, id="another leader from the same offset on"),
        pytest.param({0: 0, 1: 12, 2: 20}, {0: 0, 1: 12, 3: 25}, 15, 20, id="they part at the first that differs"),
        pytest.param({0: 0}, {0: 0, 1: 20, 2: 25}, 22, 25, id="what lies before the offset is no matter"),
        pytest.param({0: 0}, {0: 10, 1: 20}, 10, 20, id="from the offset on, not at it"),
    ],
)  # fmt: skip
def test_how_far_a_segment_is_of_a_history(theirs: Epochs, history: Epochs, offset: int, stop: int) -> None:
    assert agreed_stop(remote(10, 29, theirs), lineage_of(history), offset) == stop


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        pytest.param(9, None, id="before the first"),
        pytest.param(10, (10, 20), id="its first record"),
        pytest.param(19, (10, 20), id="its last record"),
        pytest.param(20, (20, 25), id="the next one's first"),
        pytest.param(24, (20, 25), id="the last before the next leader's"),
        pytest.param(25, (25, 40), id="the next leader's first, and no longer the deposed one's"),
        pytest.param(39, (25, 40), id="the very last"),
        pytest.param(40, None, id="past the end"),
        pytest.param(45, None, id="of a segment that is not finished"),
    ],
)
async def test_the_segment_that_holds_an_offset(offset: int, expected: tuple[int, int] | None) -> None:
    world = await World({0: 0, 2: 25}).with_segments(
        remote(10, 19), remote(20, 29), remote(25, 39, {2: 25}), remote(40, 49, {2: 25}, STARTED)
    )
    assert told(await world.lookup.locate(TOPIC_ID_PARTITION, offset)) == expected


async def test_a_lineage_of_a_while_ago_is_good_enough_where_it_finds_a_segment() -> None:
    world = await World({7: 0}, before={0: 0}).with_segments(remote(10, 19))
    assert told(await world.lookup.locate(TOPIC_ID_PARTITION, 15)) == (10, 20)


async def test_an_epoch_that_is_newer_than_the_lineage_is_found_all_the_same() -> None:
    """U25: the lineage may be half a minute old; before somebody is told that there is nothing, it is asked for again."""
    world = await World({0: 0, 1: 20}, before={0: 0}).with_segments(remote(10, 19), remote(20, 29, {1: 20}))
    assert told(await world.lookup.locate(TOPIC_ID_PARTITION, 25)) == (20, 30)
    assert await world.lookup.end_offset(TOPIC_ID_PARTITION) == 30
    assert await world.lookup.history(TOPIC_ID_PARTITION) == (world.now, 30)


BOUNDS = [
    ((), {0: 0}, -1, (0, 0), "nothing is remote"),
    ((), {}, -1, (0, 0), "nothing is known"),
    ((), {0: 0}, 5, (0, 0), "nothing is remote, and somebody has deleted"),
    ((remote(10, 19),), {0: 0}, -1, (10, 20), "one segment"),
    ((remote(10, 19),), {}, -1, (0, 0), "one segment, and no history"),
    ((remote(10, 19), remote(20, 29)), {0: 0}, -1, (10, 30), "two segments"),
    ((remote(10, 19), remote(30, 39)), {0: 0}, -1, (10, 40), "with a hole between"),
    ((remote(10, 19),), {0: 0}, 15, (15, 20), "the log starts within it"),
    ((remote(10, 19),), {0: 0}, 5, (10, 20), "the log starts before the first that is there"),
    ((remote(10, 19), remote(20, 29)), {0: 0}, 20, (20, 30), "the log starts at the border"),
    ((remote(10, 19),), {0: 0}, 20, (20, 20), "all of it is below the log start"),
    ((remote(10, 19),), {0: 0}, 50, (20, 20), "the log starts far behind it"),
    ((remote(10, 19, state=STARTED),), {0: 0}, -1, (0, 0), "one that is not finished"),
    ((remote(10, 19, state=DELETING), remote(20, 29)), {0: 0}, -1, (20, 30), "one that is being deleted"),
    ((remote(10, 29),), {0: 0, 1: 25}, -1, (10, 25), "a deposed leader copied past the end of its epoch"),
    ((remote(10, 29), remote(25, 39, {1: 25})), {0: 0, 1: 25}, -1, (10, 40), "and its successor went on"),
    ((remote(10, 29, {7: 0}),), {0: 0}, -1, (0, 0), "one of another history"),
    ((remote(10, 29, {7: 0}), remote(20, 29)), {0: 0}, -1, (20, 30), "another history's does not count"),
    ((remote(10, 29),), {0: 15}, -1, (15, 30), "the first epoch is known from within it on"),
    ((remote(0, 0),), {0: 0}, -1, (0, 1), "a single record"),
    ((remote(0, 19), remote(5, 29)), {0: 0}, 0, (0, 30), "everything from 0 on"),
    ((remote(0, 19),), {0: 0, 1: 21}, -1, (0, 20), "the next leader began behind what is remote"),
    ((remote(0, 19),), {0: 0, 1: 20}, -1, (0, 20), "the next leader began at its end"),
    ((remote(10, 19, {1: 10}), remote(5, 9)), {0: 0, 1: 10}, -1, (5, 20), "in the order of the epochs"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("segments", "history", "log_start", "expected"), [pytest.param(*row[:4], id=row[4]) for row in BOUNDS]
)
async def test_what_there_is_to_read(
    segments: Iterable[RemoteLogSegmentMetadata], history: Epochs, log_start: int, expected: tuple[int, int]
) -> None:
    world = await World(history).with_segments(*segments, log_start=log_start)
    bounds = await world.lookup.bounds(TOPIC_ID_PARTITION)
    assert (bounds.start, bounds.end) == expected
    assert (bounds.log_start, bounds.lineage) == (log_start, world.now)
    assert bounds.history == (world.now, bounds.end)


async def test_the_log_start_keeps_readers_out_though_the_segment_is_there() -> None:
    world = await World({0: 0}).with_segments(remote(10, 29), log_start=20)
    await world.lookup.check_start(TOPIC_ID_PARTITION, 20)
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 19 of .* is outside \[20, 30\)"):
        await world.lookup.check_start(TOPIC_ID_PARTITION, 19)


async def test_where_nobody_has_moved_the_start_a_negative_offset_is_out_of_range() -> None:
    world = await World({0: 0}).with_segments(remote(10, 29))
    await world.lookup.check_start(TOPIC_ID_PARTITION, 0)
    with pytest.raises(OffsetOutOfRangeError):
        await world.lookup.check_start(TOPIC_ID_PARTITION, -1)


async def test_a_batch_of_the_brokers_own_log_is_out_of_range_below_the_start_alone() -> None:
    world = await World({0: 0}).with_segments(log_start=20)
    world.lookup.check_batch_start(TOPIC_ID_PARTITION, 20, 0, Offset(100))
    for end, start in ((100, 20), (15, 15)):
        with pytest.raises(OffsetOutOfRangeError) as error:
            world.lookup.check_batch_start(TOPIC_ID_PARTITION, 19, 0, Offset(end))
        assert (error.value.offset, error.value.start, error.value.stop) == (19, start, end)


@pytest.mark.parametrize(
    ("offset", "hole"),
    [
        pytest.param(20, (20, 30), id="the first of the hole"),
        pytest.param(29, (20, 30), id="the last of the hole"),
        pytest.param(45, (40, 60), id="the second hole"),
        pytest.param(9, None, id="before everything"),
        pytest.param(70, None, id="past the end"),
        pytest.param(15, None, id="there is a segment: it has just come"),
        pytest.param(10, None, id="there is the very first record"),
        pytest.param(30, None, id="there is the first behind the hole"),
        pytest.param(70, None, id="at the end there is nothing yet"),
    ],
)
async def test_an_offset_that_is_not_there_is_in_a_hole_or_outside(offset: int, hole: tuple[int, int] | None) -> None:
    world = await World({0: 0}).with_segments(remote(10, 19), remote(30, 39), remote(60, 69), remote(22, 25, {9: 0}))
    error = await world.lookup.out_of_range(TOPIC_ID_PARTITION, offset)
    assert (error.subject, error.offset, error.start, error.stop) == (str(TOPIC_ID_PARTITION), offset, 10, 70)
    found = (error.hole_start, error.hole_stop) if isinstance(error, OffsetInHoleError) else None
    assert found == hole
    assert world.telemetry.value(READ_HOLES, topic=TOPIC_ID_PARTITION.topic) == (None if hole is None else 1)


HOLES = [
    ((remote(0, 9), remote(10, 19)), {0: 0}, 0, [], "no hole"),
    ((remote(0, 9), remote(15, 19)), {0: 0}, 0, [(10, 15)], "one"),
    ((remote(0, 9), remote(15, 19), remote(30, 39)), {0: 0}, 0, [(10, 15), (20, 30)], "two, ascending"),
    ((remote(0, 9), remote(15, 19), remote(30, 39)), {0: 0}, 16, [(20, 30)], "those behind the reader are none of his"),
    ((remote(0, 9), remote(15, 19)), {0: 0}, 12, [], "of the one that he is in he is told otherwise"),
    ((remote(0, 9), remote(15, 19)), {0: 0}, 10, [], "of the one that he has come to, too"),
    ((remote(0, 9), remote(15, 19)), {0: 0}, 9, [(10, 15)], "by the last record before it he will be"),
    ((remote(0, 9), remote(15, 19, {1: 12})), {0: 0, 1: 12}, 0, [(10, 15)], "across two leaders"),
    ((remote(0, 9), remote(15, 19, {1: 15})), {0: 0, 1: 15}, 0, [(10, 15)], "at the end of a leader's"),
    ((remote(0, 19), remote(15, 29, {1: 15})), {0: 0, 1: 15}, 0, [], "a deposed leader's overlap"),
    ((remote(0, 19), remote(17, 29, {1: 15})), {0: 0, 1: 15}, 0, [(15, 17)], "what a deposed leader has fills none"),
    ((remote(0, 9), remote(12, 13, {7: 0}), remote(15, 19)), {0: 0}, 0, [(10, 15)], "nor what another history has"),
    ((remote(5, 29), remote(0, 9), remote(35, 39)), {0: 0}, 0, [(30, 35)], "one within another"),
    ((remote(0, 9), remote(40, 49, {3: 40})), {0: 0, 1: 15, 2: 20, 3: 40}, 0, [(10, 40)], "leaders of whom nothing is"),
    ((remote(0, 9), remote(20, 29)), {}, 0, [], "without a history there is nothing"),
    ((remote(10, 19), remote(30, 39)), {0: 0}, 0, [(20, 30)], "what is before the first is no hole"),
    ((remote(0, 9), remote(15, 19, {1: 10}), remote(30, 39, {1: 10})), {0: 0, 1: 10}, 15, [(20, 30)], "of later leaders"),
    ((remote(0, 9), remote(15, 19, {1: 10})), {0: 0, 1: 10}, 10, [], "at the border of two leaders"),
    ((remote(10, 19), remote(12, 19), remote(19, 29)), {0: 0}, 5, [], "one that ends with another"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("segments", "history", "offset", "expected"), [pytest.param(*row[:4], id=row[4]) for row in HOLES]
)
async def test_holes_above_an_offset(
    segments: Iterable[RemoteLogSegmentMetadata], history: Epochs, offset: int, expected: list[tuple[int, int]]
) -> None:
    world = await World(history).with_segments(*segments)
    found = await world.lookup.holes(TOPIC_ID_PARTITION, offset)
    assert found == [Hole(*one) for one in expected]


@pytest.mark.parametrize(
    ("segment", "history", "log_start", "is_given_out"),
    [
        pytest.param(remote(10, 19), {0: 0}, -1, True, id="a finished one"),
        pytest.param(remote(10, 19, state=STARTED), {0: 0}, -1, False, id="one that is being copied"),
        pytest.param(remote(10, 19, state=DELETING), {0: 0}, -1, False, id="one that is being deleted"),
        pytest.param(remote(10, 19), {1: 0}, -1, False, id="one of another history"),
        pytest.param(remote(10, 19), {0: 0, 1: 15}, -1, False, id="one that an election has cut"),
        pytest.param(remote(10, 19), {0: 0}, 10, True, id="one that begins where the log does"),
        pytest.param(remote(10, 19), {0: 0}, 11, False, id="one whose first record was deleted"),
        pytest.param(remote(995, 1004), {0: 0}, -1, False, id="one past the end of the log"),
    ],
)
async def test_which_segment_is_given_out_whole(
    segment: RemoteLogSegmentMetadata, history: Epochs, log_start: int, *, is_given_out: bool
) -> None:
    world = await World(history).with_segments(segment, log_start=log_start)
    found = await world.lookup.segment(TOPIC_ID_PARTITION, segment.remote_log_segment_id.uuid)
    assert (found == replace(segment, state=FINISHED)) is is_given_out
    assert await world.lookup.segment(TOPIC_ID_PARTITION, Uuid(bytes(16))) is None


async def test_what_is_decided_by_lists_is_decided_by_a_lineage_of_now() -> None:
    world = await World({0: 0}, before={7: 0}).with_segments(remote(0, 9))
    uuid = remote(0, 9).remote_log_segment_id.uuid
    assert await world.lookup.segment(TOPIC_ID_PARTITION, uuid) is not None
    assert [one.start_offset async for one in world.lookup.segments(TOPIC_ID_PARTITION, lambda _: True)] == [0]
    assert [told(one) async for one in world.lookup.readable(TOPIC_ID_PARTITION, lambda _: True)] == [(0, 10)]
    bounds = await world.lookup.bounds(TOPIC_ID_PARTITION)
    assert (bounds.end, bounds.lineage) == (10, world.now)


LACKS = [
    ((remote(10, 19, {1: 10}),), {1: 10}, 5, 1, "the log starts before all that is known"),
    ((remote(10, 19, {1: 10}),), {1: 10}, 0, 1, "the log starts at 0"),
    ((remote(0, 0, {1: 0}),), {1: 1}, 0, 1, "a single record is remote"),
    ((remote(10, 19, {1: 10}),), {1: 10}, 10, 0, "the log starts where the first known epoch does"),
    ((remote(10, 19, {1: 10}),), {1: 10}, 15, 0, "the log starts later"),
    ((remote(10, 19, {1: 10}),), {1: 10}, -1, 0, "nobody moved the start"),
    ((), {1: 10}, 5, 0, "nothing is remote: no blob can tell more"),
    ((remote(10, 19, {1: 10}),), {}, 5, 0, "no epoch is known at all"),
]


@pytest.mark.parametrize(
    ("segments", "history", "log_start", "refreshed"), [pytest.param(*row[:4], id=row[4]) for row in LACKS]
)
async def test_a_lineage_that_lacks_its_beginning_is_built_anew(
    segments: Iterable[RemoteLogSegmentMetadata], history: Epochs, log_start: int, refreshed: int
) -> None:
    world = await World(history).with_segments(*segments, log_start=log_start)
    await world.lookup.bounds(TOPIC_ID_PARTITION)
    assert world.refreshed == refreshed


async def test_an_operator_is_told_of_the_hole_that_a_reader_is_in() -> None:
    world = await World({0: 0}).with_segments(remote(10, 19), remote(30, 39))
    with capture_logs() as logs:
        await world.lookup.out_of_range(TOPIC_ID_PARTITION, 25)
        await world.clock.advance(60)
        await world.lookup.out_of_range(TOPIC_ID_PARTITION, 26)
    (said,) = logs
    named = [said[name] for name in ("event", "topic", "partition", "offset", "first_missing_offset", "next_offset")]
    assert named == ["read.hole", TOPIC_ID_PARTITION.topic, TOPIC_ID_PARTITION.partition, 26, 20, 30]


async def test_all_whole_segments_of_the_history_are_listed_also_those_that_overlap() -> None:
    world = await World({0: 0, 1: 30}).with_segments(
        remote(20, 29),
        remote(0, 9),
        remote(5, 24),
        remote(10, 14, {7: 0}),
        remote(25, 34),
        remote(30, 39, {1: 30}),
        remote(40, 44, {1: 30}, STARTED),
    )
    every = [
        (segment.start_offset, segment.end_offset)
        async for segment in world.lookup.segments(TOPIC_ID_PARTITION, lambda _: True)
    ]
    assert every == [(0, 9), (5, 24), (20, 29), (30, 39)]
    wanted = [
        segment.start_offset
        async for segment in world.lookup.segments(TOPIC_ID_PARTITION, lambda one: one.start_offset >= 20)
    ]
    assert wanted == [20, 30]


READABLE = [
    ((remote(0, 9), remote(10, 19)), {0: 0}, -1, [(0, 10), (10, 20)], "all of them"),
    ((remote(0, 9), remote(10, 19)), {}, -1, [], "without a history none"),
    ((remote(0, 9), remote(10, 19)), {0: 0}, 10, [(10, 20)], "those below the log start are gone"),
    ((remote(0, 9), remote(10, 19)), {0: 0}, 9, [(0, 10), (10, 20)], "one of which a record is left is not"),
    ((remote(0, 9), remote(10, 19)), {0: 10}, -1, [(10, 20)], "before the first known epoch nothing is"),
    ((remote(0, 19),), {0: 0, 1: 15}, -1, [(0, 15)], "the front of one that an election has cut"),
    ((remote(0, 19),), {0: 0, 1: 15}, 15, [], "and nothing of it where that is deleted"),
    ((remote(0, 19, {7: 0}),), {0: 0}, -1, [], "nothing of another history's"),
    ((remote(0, 9, state=STARTED), remote(10, 19, state=DELETING)), {0: 0}, -1, [], "nothing that is not finished"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("segments", "history", "log_start", "expected"), [pytest.param(*row[:4], id=row[4]) for row in READABLE]
)
async def test_what_of_which_segment_can_be_read(
    segments: Iterable[RemoteLogSegmentMetadata], history: Epochs, log_start: int, expected: list[tuple[int, int]]
) -> None:
    world = await World(history).with_segments(*segments, log_start=log_start)
    assert [told(one) async for one in world.lookup.readable(TOPIC_ID_PARTITION, lambda _: True)] == expected
    starts = [start for start, _ in expected][1:]
    later = [
        told(one) async for one in world.lookup.readable(TOPIC_ID_PARTITION, lambda one: one.start_offset in starts)
    ]
    assert later == expected[1:]


NEXT_ABORTED = [
    ((remote(0, 9), remote(10, 19, aborts=True)), {0: 0}, 0, (10, 20), "the first that has some"),
    ((remote(0, 9, aborts=True), remote(10, 19, aborts=True)), {0: 0}, 10, (10, 20), "those before are passed over"),
    ((remote(0, 9, aborts=True),), {0: 0}, 10, None, "none is left"),
    ((remote(0, 9), remote(20, 29, {1: 15}, aborts=True)), {0: 0, 1: 15}, 0, (20, 30), "of a later leader"),
    ((remote(0, 29, aborts=True),), {0: 0, 1: 15}, 0, (0, 15), "as far as it is history"),
    ((remote(0, 29, aborts=True),), {0: 0, 1: 15}, 15, None, "past that it is of no history"),
    (
        (remote(0, 29, aborts=True), remote(20, 39, {1: 15}, aborts=True)),
        {0: 0, 1: 15},
        15,
        (20, 40),
        "the successor's instead",
    ),
    ((remote(0, 9, {7: 0}, aborts=True),), {0: 0}, 0, None, "another history's"),
    ((remote(0, 9, aborts=True),), {}, 0, None, "without a history"),
    ((remote(10, 19, aborts=True),), {0: 5}, 0, (10, 20), "from before the first known epoch on"),
]


@pytest.mark.parametrize(
    ("segments", "history", "offset", "expected"), [pytest.param(*row[:4], id=row[4]) for row in NEXT_ABORTED]
)
async def test_where_the_search_for_aborted_transactions_goes_on(
    segments: Iterable[RemoteLogSegmentMetadata], history: Epochs, offset: int, expected: tuple[int, int] | None
) -> None:
    world = await World(history).with_segments(*segments)
    assert told(await world.lookup.next_with_aborted_transactions(TOPIC_ID_PARTITION, offset)) == expected


async def test_what_was_decided_by_a_history_holds_until_somebody_else_wrote_what_is_left_of_it() -> None:
    world = await World({0: 0}).with_segments(remote(0, 29))
    seen = await world.lookup.history(TOPIC_ID_PARTITION)
    world.before = lineage_of({0: 0, 1: 20})
    await world.lookup.check_history(TOPIC_ID_PARTITION, seen._replace(end=Offset(20)), 10)
    with pytest.raises(HistoryChangedError) as error:
        await world.lookup.check_history(TOPIC_ID_PARTITION, seen, 10)
    assert (error.value.subject, error.value.end_offset) == (str(TOPIC_ID_PARTITION), 30)


@pytest.mark.parametrize("lists", ["segments", "readable"])
async def test_a_long_list_gives_others_their_turn_each_256_segments(lists: str) -> None:
    world = await World({0: 0}, log_end=10_000).with_segments(*(remote(number, number) for number in range(520)))
    turns, is_over = 0, False

    async def count() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    found = [one async for one in getattr(world.lookup, lists)(TOPIC_ID_PARTITION, lambda _: True)]
    is_over = True
    await counting
    assert (len(found), turns) == (520, 2)


@pytest.mark.parametrize(
    ("others", "is_left_out"),
    [
        pytest.param([(0, 9, FINISHED)], True, id="another holds its offsets"),
        pytest.param([(0, 4, FINISHED), (5, 12, FINISHED)], True, id="two others hold them"),
        pytest.param([(0, 9, STARTED)], False, id="what takes its place is not finished"),
        pytest.param([(0, 9, DELETING)], False, id="what took its place is being deleted"),
        pytest.param([(0, 4, FINISHED), (6, 9, FINISHED)], False, id="the others have a hole"),
        pytest.param([], False, id="nothing takes its place"),
    ],
)
async def test_what_an_erasure_has_replaced_is_not_given_out(
    others: list[tuple[int, int, RemoteLogSegmentState]], is_left_out: bool
) -> None:
    uuid = Uuid(b"the one replaced")
    old_id = RemoteLogSegmentId(topic_id_partition=TOPIC_ID_PARTITION, uuid=uuid)
    old = replace(remote(0, 9), remote_log_segment_id=old_id)
    beside = [remote(start, end, state=state) for start, end, state in others]
    world = await World({0: 0}).with_segments(old, *beside)
    assert await world.lookup.segment(TOPIC_ID_PARTITION, uuid) is not None
    world.log_starts.erased = frozenset({uuid})
    assert (await world.lookup.segment(TOPIC_ID_PARTITION, uuid) is None) is is_left_out
    listed = [one async for one in world.lookup.segments(TOPIC_ID_PARTITION, lambda _: True)]
    readable = [one.metadata async for one in world.lookup.readable(TOPIC_ID_PARTITION, lambda _: True)]
    for given in (listed, readable):
        assert (old_id not in {one.remote_log_segment_id for one in given}) is is_left_out
