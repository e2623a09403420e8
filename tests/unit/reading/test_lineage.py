"""Our lineage: the epoch blob of the last finished segment that agrees with the live file, then that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.inline_blocking import InlineBlocking
from tests.support.manual_clock import ManualClock
from tests.support.memory_metadata_log import MemoryMetadataLog
from tests.support.metadata_events import FINISHED, ORDERS, added, updated
from tests.support.remote_runs import load_run, open_run
from tiersidecar.domain.errors import CorruptDataError, MetadataNotReadyError, ObjectNotFoundError, StoreError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Lineage, Offset
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.reading.index_blobs import IndexBlobReader
from tiersidecar.reading.lineage import KeptEpochs, LineageKeeper, agrees

Epochs = dict[int, int]


def entries(epochs: Mapping[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in sorted(epochs.items()))


class FixedLog:
    """``reading.lineage.LiveLog``, as a test sets it."""

    def __init__(self, epochs: Mapping[int, int]) -> None:
        self.epochs = epochs
        self.pinned: Mapping[int, int] = {}

    def leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        assert isinstance(topic_id_partition, TopicIdPartition)
        return entries(self.epochs)

    def pinned_leader_epochs(self, topic_id_partition: TopicIdPartition) -> Sequence[EpochEntry]:
        assert isinstance(topic_id_partition, TopicIdPartition)
        return entries(self.pinned)


class Blobs:
    """``ports.metadata_log.ReadEpochs``: a blob per segment, by its start offset and last epoch."""

    def __init__(self) -> None:
        self.blobs: dict[object, tuple[EpochEntry, ...]] = {}
        self.reads: list[int] = []
        self.broken: dict[int, StoreError | CorruptDataError] = {}

    async def read_leader_epochs(self, metadata: RemoteLogSegmentMetadata) -> Sequence[EpochEntry]:
        self.reads.append(metadata.start_offset)
        if metadata.start_offset in self.broken:
            raise self.broken[metadata.start_offset]
        return self.blobs[metadata.remote_log_segment_id]


class Setting:
    """A partition with remote segments and a live file."""

    def __init__(self, live: Epochs) -> None:
        self.metadata, self.blobs, self.clock = MemoryMetadataLog(), Blobs(), ManualClock()
        self.live = FixedLog(live)
        self.keeper = LineageKeeper(
            metadata=self.metadata, epochs=self.blobs, live=self.live, blocking=InlineBlocking(), clock=self.clock
        )

    async def segment(self, number: int, start: int, end: int, blob: Epochs, owner: TopicIdPartition = ORDERS) -> None:
        """A finished segment whose own epochs follow from its blob."""
        await self.begun(number, start, end, blob, owner)
        await self.metadata.publish(updated(number, FINISHED, owner=owner))

    async def begun(self, number: int, start: int, end: int, blob: Epochs, owner: TopicIdPartition = ORDERS) -> None:
        """The same, not finished yet."""
        await self.metadata.assign([owner])
        own = Lineage.of(sorted(blob.items())).entries_in_range(start, end + 1)
        event = added(number, start, end, {entry.epoch: entry.start_offset for entry in own}, owner=owner)
        self.blobs.blobs[event.remote_log_segment_id] = entries(blob)
        await self.metadata.publish(event)

    async def lineage(self) -> Epochs:
        return dict((await self.keeper.lineage(ORDERS)).entries)


@pytest.mark.parametrize(
    ("live", "segments", "expected"),
    [
        pytest.param(
            {6: 130},
            [(0, 99, {0: 0, 2: 35, 4: 70}), (100, 119, {0: 0, 2: 35, 4: 70, 6: 105})],
            {0: 0, 2: 35, 4: 70, 6: 105},
            id="a trimmed live file: epochs below its log start come from the blob, and the true start of its first",
        ),
        pytest.param(
            {8: 200},
            [(0, 99, {0: 0, 2: 35, 4: 70})],
            {0: 0, 2: 35, 4: 70, 8: 200},
            id="a live file that begins in a later epoch than the last blob's",
        ),
        pytest.param(
            {0: 0, 2: 50},
            [(0, 59, {0: 0, 1: 40})],
            {0: 0, 2: 50},
            id="an unclean election: the divergent epoch is in no union",
        ),
        pytest.param(
            {2: 50},
            [(0, 39, {0: 0}), (40, 79, {0: 0, 1: 45})],
            {0: 0, 1: 45, 2: 50},
            id="epochs below the live file's first that no one contradicts are its past",
        ),
        pytest.param(
            {4: 70, 6: 105},
            [(70, 89, {0: 0, 2: 35, 4: 70}), (80, 119, {0: 0, 2: 35, 3: 60})],
            {0: 0, 2: 35, 4: 70, 6: 105},
            id="a deposed leader's segment ends higher: the last epoch counts, not the end",
        ),
        pytest.param(
            {4: 70, 6: 105},
            [(0, 69, {0: 0, 2: 35}), (70, 129, {0: 0, 2: 35, 4: 70, 5: 90})],
            {0: 0, 2: 35, 4: 70, 6: 105},
            id="a blob with an epoch that the live file does not have is passed over for an older one",
        ),
        pytest.param(
            {4: 70, 6: 105},
            [(0, 89, {0: 0, 2: 35, 4: 70}), (95, 129, {0: 0, 3: 30, 5: 90})],
            {0: 0, 2: 35, 4: 70, 6: 105},
            id="a blob of another history, which the segment's own one epoch does not show",
        ),
        pytest.param({0: 0, 3: 10}, [], {0: 0, 3: 10}, id="nothing remote yet: the live file"),
        pytest.param(
            {},
            [(0, 99, {0: 0, 2: 35, 4: 70}), (100, 119, {0: 0, 2: 35, 4: 70, 6: 105})],
            {0: 0, 2: 35, 4: 70, 6: 105},
            id="no log dir in this process: the last blob alone",
        ),
        pytest.param(
            {},
            [(70, 89, {0: 0, 4: 70}), (60, 119, {0: 0, 3: 60})],
            {0: 0, 4: 70},
            id="no log dir, and a deposed leader's segment",
        ),
    ],
)
async def test_lineages(live: Epochs, segments: list[tuple[int, int, Epochs]], expected: Epochs) -> None:
    setting = Setting(live)
    await setting.metadata.assign([ORDERS])
    for number, (start, end, blob) in enumerate(segments):
        await setting.segment(number, start, end, blob)
    assert await setting.lineage() == expected


CORRUPT = CorruptDataError(where="blob", position=0, reason="garbage")
GONE = ObjectNotFoundError(verb="fetch", key="blob", reason="no such object")
OLDER, NEWER = (0, 99, {0: 0, 2: 35, 4: 70}), (100, 119, {0: 0, 2: 35, 4: 70, 6: 105})


@pytest.mark.parametrize("error", [CORRUPT, GONE])
@pytest.mark.parametrize(
    ("live", "expected"),
    [
        pytest.param({4: 99, 6: 105}, {0: 0, 2: 35, 4: 70, 6: 105}, id="the blob before it meets the live file"),
        pytest.param({6: 130}, None, id="between the blob before it and the live file epochs may be missing"),
        pytest.param({}, None, id="there is no live file to say what came after the blob before it"),
    ],
)
async def test_a_blob_that_cannot_be_read_is_done_without_only_where_nothing_can_be_missing(
    live: Epochs, expected: Epochs | None, error: StoreError | CorruptDataError
) -> None:
    """Else one spoiled object would stop the copying of its partition for good (simulation, faults seed 253)."""
    setting = Setting(live)
    await setting.segment(0, *OLDER)
    await setting.segment(1, *NEWER)
    setting.blobs.broken[100] = error
    if expected is not None:
        assert await setting.lineage() == expected
        return
    with pytest.raises(type(error)):
        await setting.lineage()


async def test_where_the_live_file_has_all_that_is_remote_no_blob_need_be_read() -> None:
    setting = Setting({0: 0, 2: 35, 4: 70, 6: 105})
    await setting.segment(0, *OLDER)
    await setting.segment(1, *NEWER)
    setting.blobs.broken = {0: CORRUPT, 100: CORRUPT}
    assert await setting.lineage() == {0: 0, 2: 35, 4: 70, 6: 105}


@pytest.mark.parametrize("error", [CORRUPT, GONE])
@pytest.mark.parametrize(
    ("live", "segments", "expected"),
    [
        pytest.param({0: 11}, [(9, 18, {0: 9})], {0: 9}, id="a user has deleted into the only one"),
        pytest.param(
            {2: 130, 3: 150}, [(100, 140, {0: 90, 2: 120})], {0: 100, 2: 120, 3: 150}, id="with an epoch before"
        ),
        pytest.param({2: 130}, [(100, 119, {0: 90})], None, id="epochs between it and the live file may be missing"),
        pytest.param(
            {2: 130}, [(90, 99, {0: 90}), (100, 140, {2: 100})], None, id="it is not the first that is remote"
        ),
        pytest.param(
            {2: 130},
            [(100, 140, {2: 100, 3: 135})],
            {2: 130},
            id="it is of a history that the live file has not: nothing that is remote counts",
        ),
        pytest.param({}, [(100, 140, {2: 100})], None, id="there is no live file"),
    ],
)
async def test_where_no_blob_can_be_read_the_metadata_of_the_first_segment_tell_if_it_reaches_the_live_file(
    live: Epochs,
    segments: list[tuple[int, int, Epochs]],
    expected: Epochs | None,
    error: StoreError | CorruptDataError,
) -> None:
    setting = Setting(live)
    for number, (start, end, blob) in enumerate(segments):
        await setting.segment(number, start, end, blob)
        setting.blobs.broken[start] = error
    if expected is not None:
        assert await setting.lineage() == expected
        return
    with pytest.raises(type(error)):
        await setting.lineage()


async def test_a_store_that_is_away_is_no_blob_that_cannot_be_read() -> None:
    setting = Setting({4: 99, 6: 105})
    await setting.segment(0, *OLDER)
    await setting.segment(1, *NEWER)
    setting.blobs.broken[100] = StoreError(verb="fetch", key="blob", reason="503")
    with pytest.raises(StoreError, match="503"):
        await setting.lineage()


async def test_a_live_file_that_is_trimmed_later_costs_no_second_blob() -> None:
    setting = Setting({0: 0, 2: 35})
    await setting.segment(1, 0, 49, {0: 0, 2: 35})
    assert await setting.lineage() == {0: 0, 2: 35}
    setting.live.epochs = {2: 60, 4: 80}
    assert await setting.lineage() == {0: 0, 2: 35, 4: 80}
    assert setting.blobs.reads == [0]


async def test_the_first_segment_that_is_finished_counts_at_once_however_far_the_broker_has_trimmed() -> None:
    """Cluster seed 59: of what pins kept the first copy came late, and a gateway sent readers of it away."""
    setting = Setting({1: 326})
    await setting.metadata.assign([ORDERS])
    assert await setting.lineage() == {1: 326}
    await setting.segment(1, 0, 39, {1: 0})
    assert await setting.lineage() == {1: 0}
    assert await setting.lineage() == {1: 0}
    assert setting.blobs.reads == [0]


async def test_where_an_epoch_began_that_the_live_file_begins_with_is_known_once_it_is_remote() -> None:
    """As the one before: epoch 1 was taken to begin where the broker's log does, and its first records for a hole."""
    setting = Setting({1: 326})
    await setting.segment(1, 0, 34, {0: 0})
    assert await setting.lineage() == {0: 0, 1: 326}
    await setting.segment(2, 35, 60, {0: 0, 1: 35})
    assert await setting.lineage() == {0: 0, 1: 35}
    await setting.segment(3, 61, 90, {0: 0, 1: 35})
    assert await setting.lineage() == {0: 0, 1: 35}
    assert setting.blobs.reads == [0, 35]


async def test_that_a_copy_begins_is_no_news_and_that_it_ends_is() -> None:
    """Cluster seed 800525: asked for while segment 2 was being copied, the lineage stood, and its offsets were in a hole."""
    setting = Setting({1: 326})
    await setting.segment(1, 0, 34, {0: 0})
    await setting.begun(2, 35, 60, {0: 0, 1: 35})
    assert await setting.lineage() == {0: 0, 1: 326}
    await setting.metadata.publish(updated(2, FINISHED))
    assert await setting.lineage() == {0: 0, 1: 35}


async def test_where_the_live_file_no_longer_meets_what_was_known_the_blobs_are_asked_again() -> None:
    setting = Setting({0: 0})
    await setting.segment(1, 0, 49, {0: 0})
    assert await setting.lineage() == {0: 0}
    await setting.segment(2, 50, 99, {0: 0, 2: 60, 4: 80})
    setting.live.epochs = {6: 150}
    assert await setting.lineage() == {0: 0, 2: 60, 4: 80, 6: 150}


async def test_without_a_live_file_new_segments_count_after_a_while_and_at_once_when_refreshed() -> None:
    setting = Setting({})
    await setting.segment(1, 0, 49, {0: 0})
    assert await setting.lineage() == {0: 0}
    await setting.segment(2, 50, 99, {0: 0, 5: 70})
    assert await setting.lineage() == {0: 0}
    await setting.clock.advance(31)
    assert await setting.lineage() == {0: 0, 5: 70}
    await setting.segment(3, 100, 149, {0: 0, 5: 70, 7: 120})
    assert (await setting.keeper.refresh(ORDERS)).latest_epoch == 7
    assert (await setting.lineage())[7] == 120


async def test_the_log_end_is_the_remote_end() -> None:
    setting = Setting({0: 0})
    await setting.segment(1, 0, 49, {0: 0})
    assert setting.keeper.log_end_offset(ORDERS) == 50


@pytest.mark.parametrize(
    ("live", "pinned", "segments", "expected"),
    [
        pytest.param(
            {4: 182},
            {0: 0, 2: 80},
            [(0, 163, {0: 0, 2: 80}), (164, 181, {0: 0, 2: 80, 4: 171})],
            {0: 0, 2: 80, 4: 171},
            id="a pin from before a trim: the live file's raised start is not taken for the true one",
        ),
        pytest.param(
            {5: 200},
            {0: 0, 2: 35},
            [(80, 119, {3: 80, 4: 100})],
            {0: 0, 2: 35, 3: 80, 4: 100, 5: 200},
            id="a hole before the first remote segment, which only pins hold",
        ),
        pytest.param(
            {5: 200},
            {3: 120, 4: 150},
            [(0, 119, {0: 0, 2: 80})],
            {0: 0, 2: 80, 3: 120, 4: 150, 5: 200},
            id="what the broker deleted since the last copy, which only pins hold",
        ),
        pytest.param({5: 200}, {0: 0, 2: 35}, [], {0: 0, 2: 35, 5: 200}, id="nothing is remote yet"),
        pytest.param({0: 0, 6: 90}, {0: 0, 5: 70}, [], {0: 0, 6: 90}, id="a pin of what an election cut off"),
    ],
)
async def test_pins_know_what_is_not_remote(
    live: Epochs, pinned: Epochs, segments: list[tuple[int, int, Epochs]], expected: Epochs
) -> None:
    setting = Setting(live)
    setting.live.pinned = pinned
    await setting.metadata.assign([ORDERS])
    for number, (start, end, blob) in enumerate(segments, 1):
        await setting.segment(number, start, end, blob)
    assert await setting.lineage() == expected


async def test_the_remote_end_grows_with_every_copy_and_not_with_every_lineage() -> None:
    """On a follower nothing makes the lineage anew: the read service must list what its leader has copied since."""
    setting = Setting({0: 0})
    await setting.metadata.assign([ORDERS])
    assert await setting.lineage() == {0: 0}
    assert setting.keeper.log_end_offset(ORDERS) == 0
    await setting.segment(1, 0, 49, {0: 0})
    assert setting.keeper.log_end_offset(ORDERS) == 50
    setting.live.epochs = {0: 0, 3: 70}
    await setting.segment(2, 50, 99, {0: 0, 3: 70})
    assert await setting.lineage() == {0: 0, 3: 70}
    assert setting.keeper.log_end_offset(ORDERS) == 100


async def test_where_nothing_is_remote_and_no_lineage_was_asked_for_the_remote_log_ends_at_0() -> None:
    setting = Setting({})
    await setting.metadata.assign([ORDERS])
    assert setting.keeper.log_end_offset(ORDERS) == 0


async def test_before_a_lineage_was_asked_for_the_remote_end_is_that_of_the_latest_leader() -> None:
    """A deposed leader's last segment may end higher than its successor's."""
    setting = Setting({})
    await setting.segment(1, 0, 49, {0: 0})
    await setting.segment(2, 40, 44, {0: 0, 1: 40})
    assert setting.keeper.log_end_offset(ORDERS) == 45


async def test_what_was_known_of_a_partition_that_is_ours_no_longer_is_dropped() -> None:
    """It may come back with another history."""
    setting = Setting({2: 60})
    setting.live.pinned = {1: 50, 2: 55}
    await setting.segment(1, 0, 54, {0: 0, 1: 40})
    first = await setting.lineage()
    await setting.lineage()
    assert setting.blobs.reads == [0]
    setting.keeper.forget(ORDERS)
    assert setting.keeper.log_end_offset(ORDERS) == 55, "as if no lineage had been asked for"
    assert not setting.keeper._extensions
    assert await setting.lineage() == first
    assert setting.blobs.reads == [0, 0]
    setting.keeper.forget(ORDERS)
    setting.keeper.forget(ORDERS)


async def test_a_lineage_is_carried_on_without_a_blob_while_pins_and_live_file_change() -> None:
    setting = Setting({0: 0})
    await setting.segment(1, 0, 49, {0: 0})
    assert await setting.lineage() == {0: 0}
    setting.live.epochs = {0: 0, 3: 60}
    assert await setting.lineage() == {0: 0, 3: 60}
    setting.live.epochs, setting.live.pinned = {0: 30, 3: 60, 4: 90}, {0: 0}
    assert await setting.lineage() == {0: 0, 3: 60, 4: 90}
    assert setting.blobs.reads == [0]


async def test_two_partitions_that_are_asked_for_at_once_have_each_their_own() -> None:
    setting, other = Setting({}), replace(ORDERS, partition=1)
    await setting.segment(1, 0, 49, {0: 0})
    await setting.segment(2, 0, 49, {7: 0}, owner=other)
    first, second = await asyncio.gather(setting.keeper.lineage(ORDERS), setting.keeper.lineage(other))
    assert (dict(first.entries), dict(second.entries)) == ({0: 0}, {7: 0})


async def test_without_live_files_the_blob_is_chosen_anew_when_segments_have_come_or_gone() -> None:
    """Of what another cluster copies: a list of a hundred thousand segments is not made each second, nor a blob read twice."""
    setting = Setting({})
    keeper = LineageKeeper(
        metadata=setting.metadata,
        epochs=KeptEpochs(setting.blobs),
        live=setting.live,
        blocking=InlineBlocking(),
        clock=setting.clock,
        changes=setting.metadata,
    )

    async def told() -> Epochs:
        return dict((await keeper.lineage(ORDERS, max_age_s=1.0)).entries)

    await setting.segment(1, 0, 49, {0: 0})
    assert await told() == {0: 0}
    await setting.clock.advance(2)
    pictures = setting.metadata.pictures
    assert await told() == {0: 0}
    assert setting.metadata.pictures == pictures
    await setting.segment(2, 50, 99, {0: 0, 3: 50})
    assert await told() == {0: 0, 3: 50}
    await setting.clock.advance(3600)
    assert await told() == {0: 0, 3: 50}
    assert dict((await keeper.lineage(ORDERS, max_age_s=0.0)).entries) == {0: 0, 3: 50}
    assert setting.metadata.pictures == pictures + 1, "whatever its age: who asks again and again costs nothing"
    assert setting.blobs.reads == [0, 50]
    await setting.segment(3, 100, 149, {0: 0, 3: 50})
    await setting.clock.advance(2)
    assert await told() == {0: 0, 3: 50}
    assert setting.blobs.reads == [0, 50], "the epoch's history is known"
    await keeper.refresh(ORDERS)
    assert setting.blobs.reads == [0, 50, 100], "who doubts it has it read"


async def test_without_live_files_one_unreadable_blob_is_not_looked_for_in_all_segments() -> None:
    """No older one would do; the bucket may be another one, with a hundred thousand that are not there."""
    setting = Setting({})
    for number in range(5):
        await setting.segment(number, number * 50, number * 50 + 49, {0: 0})
        setting.blobs.broken[number * 50] = GONE
    with pytest.raises(ObjectNotFoundError):
        await setting.keeper.lineage(ORDERS)
    assert setting.blobs.reads == [200]


async def test_before_the_replay_there_is_no_lineage() -> None:
    """S-096: never an empty lineage, by which everything remote would be foreign."""
    setting = Setting({0: 0})
    for ask in (setting.keeper.lineage, setting.keeper.refresh):
        with pytest.raises(MetadataNotReadyError):
            await ask(ORDERS)


async def test_the_plugins_own_blobs_give_the_lineage_that_the_broker_had() -> None:
    run = await load_run("plain")
    partition = run.partition("epochs-0")
    async with open_run(run) as path:
        reader = IndexBlobReader(store=run.store, blocking=InlineBlocking(), manifests=path.manifests)
        keeper = LineageKeeper(
            metadata=run.metadata,
            epochs=reader,
            live=FixedLog({6: 130}),
            blocking=InlineBlocking(),
            clock=ManualClock(),
        )
        assert dict((await keeper.lineage(partition)).entries) == {0: 0, 2: 35, 4: 70, 6: 105}


histories = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 30)), min_size=1, max_size=8).map(
    lambda steps: Lineage.of(
        (sum(step[0] for step in steps[: n + 1]), sum(step[1] for step in steps[: n + 1])) for n in range(len(steps))
    )
)


@settings(deadline=None)
@given(history=histories, cut=st.integers(0, 300), blob_end=st.integers(1, 300))
def test_any_past_of_a_history_agrees_with_any_trimmed_front_of_it(history: Lineage, cut: int, blob_end: int) -> None:
    """Whatever the broker forgets, and whenever the blob was taken, the two give the whole history again."""
    end = history.entries[-1].start_offset + 1
    live = Lineage(history.entries_in_range(min(cut, end - 1), end))
    blob = Lineage(history.entries_below(blob_end))
    if not live or live.entries[0].start_offset < history.entries[0].start_offset:
        return
    assert agrees(blob, live)
    if blob.latest_epoch >= live.entries[0].epoch:
        assert blob.extended_by(live.entries) == history


@pytest.mark.parametrize(
    ("blob", "live", "expected"),
    [
        pytest.param({0: 0, 1: 10}, {0: 0, 1: 10, 2: 20}, True, id="the live file goes on"),
        pytest.param({0: 0, 1: 10, 2: 20}, {0: 0, 1: 10}, False, id="the live file has not an epoch that the blob has"),
        pytest.param({0: 0, 1: 10}, {2: 20}, True, id="the live file begins later"),
        pytest.param(
            {0: 0, 1: 10}, {2: 10}, False, id="it begins where an epoch of the blob does: one of them has nothing"
        ),
        pytest.param(
            {0: 0, 1: 11}, {2: 10}, False, id="an epoch of the blob begins where the live file has a later one"
        ),
        pytest.param({0: 0, 1: 10}, {1: 15, 2: 20}, True, id="a moved log start has raised its first epoch's"),
        pytest.param({0: 0, 1: 15}, {1: 10, 2: 20}, False, id="its first epoch begins before it does in the blob"),
        pytest.param({0: 0, 1: 10, 2: 25}, {1: 15, 2: 20}, False, id="a later epoch begins elsewhere"),
        pytest.param({0: 0, 3: 30}, {0: 0, 2: 20, 3: 30}, False, id="an epoch in between that the blob has not"),
        pytest.param(
            {0: 0, 3: 30}, {2: 20, 3: 30}, True, id="unless it is the first: those before it have been dropped"
        ),
        pytest.param({0: 0}, {}, True, id="there is no live file"),
    ],
)
def test_whether_a_blob_can_be_the_past_of_a_live_file(blob: Epochs, live: Epochs, expected: bool) -> None:
    assert agrees(Lineage(entries(blob)), Lineage(entries(live))) is expected
