"""The cleaner lane over real objects and the real folds: what is left, at every moment of a swap, and after a kill anywhere.

Shown here: S-243, S-244, S-245, S-250, S-251, S-256, S-257, S-263, S-265, S-274, S-276, S-277.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.property.test_compaction_model import Writing, segment_of
from tests.support.clean_world import CleanWorld, KilledError, live
from tests.support.compacted_logs import (
    ABORT,
    COMMIT,
    LogSegment,
    all_records,
    clean,
    committed_records,
    data_batch,
    table,
)
from tests.support.local_batches import LocalBatch
from tests.support.remote_builder import SegmentSource
from tiersidecar.adapters.key_wrapping.service_keys import ServiceKeys
from tiersidecar.decide.topics import PartitionRole
from tiersidecar.domain.cleaner import CleanerClaim, short_name
from tiersidecar.domain.data_keys import KeyContext, WrappedKey
from tiersidecar.domain.errors import BrokerRefusedError, KeyServiceError, MetadataNotReadyError, StateDirError
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.kafka.record_batches import RecordBatchHeader, iter_batch_headers
from tiersidecar.tasks.segment_objects import LayoutSettings

PLACES = ("mapped", "rewritten", "started", "uploaded", "proven", "finished", "trashed", "published")
RETENTION_S = 1.0


@pytest.fixture
def world(tmp_path: Path) -> CleanWorld:
    return CleanWorld(scratch=tmp_path / "cleaned")


def puts(base_offset: int, *records: tuple[bytes, bytes | None]) -> LogSegment:
    """A segment with a batch per record."""
    log = Writing(offset=base_offset)
    for record in records:
        one: list[tuple[bytes | None, bytes | None]] = [record]
        log.data(one, 0, -1)
    return segment_of(log.batches)


def random_log(seed: int, *, steps: int = 40, producers: int = 4) -> list[LogSegment]:
    """Plain, idempotent and transactional batches of all codecs; every transaction has ended."""
    draw, log = random.Random(seed), Writing()
    for _ in range(steps):
        producer_id = draw.randint(-1, producers)
        if producer_id in log.open_now and draw.random() < 0.5:
            log.end(producer_id, draw.choice([ABORT, COMMIT]))
            continue
        records: list[tuple[bytes | None, bytes | None]] = [
            (b"key-%d" % draw.randrange(12), None if draw.random() < 0.25 else draw.randbytes(20))
            for _ in range(draw.randint(1, 5))
        ]
        log.data(records, draw.randint(0, 4), producer_id)
    for producer_id in sorted(log.open_now):
        log.end(producer_id, draw.choice([ABORT, COMMIT]))
    cuts = sorted({0, len(log.batches), *(draw.randrange(1, len(log.batches)) for _ in range(5))})
    return [segment_of(log.batches[start:stop]) for start, stop in pairwise(cuts)]


def keys(segments: list[LogSegment]) -> list[bytes | None]:
    return [one.key for segment in segments for one in all_records(segment.log) if not one.is_control]


async def test_the_last_value_of_each_key_is_left_and_the_cleaner_offset_is_published(world: CleanWorld) -> None:
    old = await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2"), (b"c", b"1")))
    done = await world.clean()
    assert (done.left, done.cleaner_offset) == ("", 4)
    assert [one.start_offset for one in done.swapped] == [0], "of the second one all stays: the same bytes, and no swap"
    assert keys(await world.read()) == [b"b", b"a", b"c"]
    (claim,) = world.state.cleaner_claims(world.owner)
    assert (claim.leader_epoch, claim.offset, len(claim.segments)) == (0, 4, 2)
    (entry,) = world.state.trash(world.owner)
    assert world.in_trash() == {old[0].remote_log_segment_id.uuid}
    assert (entry.kind.value, entry.due_ms - entry.decided_ms) == ("compaction", 3_600_000)
    assert (await world.clean()).reason == "no dirty segment may be cleaned yet"
    assert list(world.scratch.iterdir()) == []
    assert world.journal.begun == set()


@pytest.mark.parametrize("seed", range(12))
async def test_what_is_left_is_what_one_round_of_the_rules_leaves(world: CleanWorld, seed: int) -> None:
    """Batch for batch, but for the last one of each segment, which stays."""
    log = random_log(seed)
    await world.add(*log)
    before = table(committed_records(log))
    done = await world.clean_all()
    assert done[0].cleaner_offset == log[-1].next_base_offset
    assert await world.table_read() == before, "tombstones stay for delete.retention.ms"
    expected = clean(log, now_ms=0, delete_retention_ms=1000, segment_bytes=1)
    assert keys(await world.read()) == keys(list(expected.segments))
    for mine, theirs in zip(await world.read(), expected.segments, strict=True):
        kept = {one.base_offset for _, one in iter_batch_headers(mine.log) if one.record_count}
        assert kept == {one.base_offset for _, one in iter_batch_headers(theirs.log) if one.record_count}
        last = list(iter_batch_headers(mine.log))[-1][1]
        assert last.next_offset == mine.next_base_offset


async def test_a_tombstone_after_an_abort_below_the_dirty_part_brings_no_older_value_back(world: CleanWorld) -> None:
    """Of that abort the first pass reads no marker: it ends no transaction that the dirty part has."""
    log = Writing()
    log.data([(b"a", b"older")], 0, -1)
    log.data([(b"b", b"aborted")], 0, 2)
    log.end(2, ABORT)
    log.data([(b"a", None)], 0, 2)
    log.end(2, COMMIT)
    log.data([(b"c", b"1")], 0, -1)
    log.data([(b"c", b"2")], 0, -1)
    for start, stop in ((0, 3), (3, 5), (5, 6), (6, 7)):
        await world.add(segment_of(log.batches[start:stop]))
        await world.clean_all()
        world.clock.jump(RETENTION_S * 2)
    assert (await world.table_read()).keys() == {b"c"}, "the tombstone is gone, and what it was of"


@pytest.mark.parametrize("seed", range(4))
async def test_tombstones_go_in_a_later_round_after_their_horizon_and_nothing_else_does(
    world: CleanWorld, seed: int
) -> None:
    log = random_log(seed)
    await world.add(*log)
    expected = live(table(committed_records(log)))
    await world.clean_all()
    for number in range(3):
        world.clock.jump(2 * RETENTION_S)
        end = log[-1].next_base_offset + number
        await world.add(puts(end, (b"new", b"%d" % number)))
        await world.clean_all()
        assert live(await world.table_read()) == expected | {b"new": (end, b"%d" % number)}
    assert [key for key, one in (await world.table_read()).items() if one.value is None] == []


async def test_a_tombstone_that_the_brokers_cleaner_has_seen_long_ago_stays_for_its_whole_time(
    world: CleanWorld,
) -> None:
    """The value was in the remote log until now: a reader may have read it a moment ago."""
    local = clean([puts(2, (b"a", None), (b"b", b"1"))], now_ms=world.clock.now_ms() - 10_000, delete_retention_ms=1000)
    await world.add(puts(0, (b"a", b"1"), (b"z", b"1")), *local.segments)
    await world.clean()
    assert (await world.table_read())[b"a"].value is None, "although its horizon was over"
    assert keys(await world.read()) == [b"z", b"a", b"b"]
    world.clock.jump(RETENTION_S / 2)
    await world.add(puts(4, (b"x", b"1")))
    await world.clean()
    assert b"a" in await world.table_read()
    world.clock.jump(RETENTION_S)
    await world.add(puts(5, (b"y", b"1")))
    await world.clean()
    assert keys(await world.read()) == [b"z", b"b", b"x", b"y"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("hit", [1, 2])
async def test_killed_anywhere_no_key_is_lost_none_comes_back_and_the_chunk_begins_again(
    world: CleanWorld, place: str, hit: int
) -> None:
    log = random_log(3, steps=60)
    await world.add(*log)
    expected = table(committed_records(log))
    left = hit

    async def kill() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KilledError

    try:
        await world.clean({f"clean.{place}": kill})
        was_killed = False
    except KilledError:
        was_killed = True
    assert was_killed or (place in {"mapped", "published"} and hit == 2), "or the test would say nothing"
    assert await world.table_read() == expected
    if place != "published" and was_killed:
        assert world.state.cleaner_claims(world.owner) == ()
    world.clock.jump(0.001)
    done = await world.clean_all()
    assert [one.left for one in done if one.left] == []
    assert await world.table_read() == expected
    reference = clean(log, now_ms=0, delete_retention_ms=1000, segment_bytes=1)
    assert keys(await world.read()) == keys(list(reference.segments))
    (claim,) = world.state.cleaner_claims(world.owner)
    assert claim.offset == log[-1].next_base_offset
    given = {one.remote_log_segment_id.uuid for offset in _starts(log) if (one := world.given(offset)) is not None}
    finished = {one.remote_log_segment_id.uuid for one in world.segments(State.COPY_SEGMENT_FINISHED)}
    assert finished - given == world.in_trash(), "whatever is not read is on its way out, and nothing else is"
    assert list(world.scratch.iterdir()) == []


def _starts(log: list[LogSegment]) -> list[int]:
    return [one.base_offset for one in log]


async def test_at_every_moment_of_a_round_a_reader_builds_the_same_table(world: CleanWorld) -> None:
    log = random_log(5, steps=60)
    await world.add(*log)
    expected, seen = table(committed_records(log)), 0

    async def look() -> None:
        nonlocal seen
        seen += 1
        assert await world.table_read() == expected

    await world.clean({f"clean.{place}": look for place in PLACES})
    assert seen > 2 * len(PLACES)


async def test_a_reader_that_goes_on_from_an_old_segment_into_new_ones_builds_the_same_table(world: CleanWorld) -> None:
    log = random_log(6, steps=60)
    await world.add(*log)
    expected = live(table(committed_records(log)))
    before = await world.read()
    await world.clean_all()
    after = await world.read()
    for count in range(len(before)):
        assert live(table(committed_records([*before[:count], *after[count:]]))) == expected


async def test_a_map_that_is_too_small_takes_several_rounds(world: CleanWorld) -> None:
    log = random_log(7, steps=60)
    await world.add(*log)
    world.dedupe_bytes = 24 * 9
    done = await world.clean_all()
    assert len(done) > 3
    offsets = [one.cleaner_offset for one in done if one.cleaner_offset >= 0]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == log[-1].next_base_offset
    assert await world.table_read() == table(committed_records(log))
    reference = clean(log, now_ms=0, delete_retention_ms=1000, segment_bytes=1)
    assert keys(await world.read()) == keys(list(reference.segments))


async def test_chunks_are_of_one_segments_size_and_each_moves_the_cleaner_offset(world: CleanWorld) -> None:
    """Later ones are as large as what is clean, which each round goes over again."""
    log = random_log(8, steps=60)
    await world.add(*log)
    world.configure(segment_bytes="14")
    done = await world.clean_all()
    offsets = [one.cleaner_offset for one in done if one.cleaner_offset >= 0]
    assert offsets[:3] == [one.next_base_offset for one in log[:3]]
    assert offsets[3:] == [log[-1].next_base_offset], "both segments that were left are smaller than what was clean"
    assert await world.table_read() == table(committed_records(log))


async def test_an_operators_round_takes_all_that_the_map_takes_whatever_the_ratio_is(world: CleanWorld) -> None:
    log = random_log(8, steps=60)
    await world.add(*log)
    world.configure(segment_bytes="14", min_cleanable_dirty_ratio="1")
    assert "dirty ratio" in (await world.clean()).reason
    world.takes_all = True
    done = await world.clean()
    assert (done.left, done.cleaner_offset) == ("", log[-1].next_base_offset)
    assert await world.table_read() == table(committed_records(log))
    assert (await world.clean()).reason == "no dirty segment may be cleaned yet"


async def test_what_is_open_where_the_remote_log_ends_is_left(world: CleanWorld) -> None:
    """Its marker may be an abort, in a segment that is local still: its records must hide no other."""
    log = Writing()
    log.data([(b"a", b"1")], 0, -1)
    first = segment_of(log.batches)
    log.batches.clear()
    log.data([(b"a", b"2")], 0, 2)
    second = segment_of(log.batches)
    log.batches.clear()
    log.end(2, ABORT)
    log.data([(b"b", b"1")], 0, -1)
    third = segment_of(log.batches)
    await world.add(first, second)
    assert (await world.clean()).cleaner_offset == 1
    await world.add(third)
    await world.clean_all()
    assert live(await world.table_read()) == {b"a": (0, b"1"), b"b": (3, b"1")}


async def test_nothing_at_or_above_the_last_stable_offset_is_cleaned(world: CleanWorld) -> None:
    await world.add(puts(0, (b"a", b"1")), puts(1, (b"a", b"2")))
    world.broker.last_stable_offsets[world.owner] = Offset(1)
    assert (await world.clean()).cleaner_offset == 1
    assert keys(await world.read()) == [b"a", b"a"]


async def test_deposed_while_it_uploads_it_finishes_nothing_and_claims_nothing(world: CleanWorld) -> None:
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))

    async def deposed() -> None:
        world.lead(1, PartitionRole.FOLLOWER)

    done = await world.clean({"clean.uploaded": deposed})
    assert done.left == "this broker does not lead it"
    assert len(world.segments(State.COPY_SEGMENT_FINISHED)) == 2
    assert (world.in_trash(), world.state.cleaner_claims(world.owner)) == (set(), ())


async def test_a_broker_that_refuses_our_epoch_ends_the_round(world: CleanWorld) -> None:
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))

    async def fenced() -> None:
        world.broker.error = "FENCED_LEADER_EPOCH"

    with pytest.raises(BrokerRefusedError):
        await world.clean({"clean.proven": fenced})
    assert len(world.segments(State.COPY_SEGMENT_FINISHED)) == 2


async def test_deposed_after_the_last_swap_it_does_not_move_the_cleaner_offset(world: CleanWorld) -> None:
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))

    async def deposed() -> None:
        world.lead(1, PartitionRole.FOLLOWER)

    done = await world.clean({"clean.trashed": deposed})
    assert (len(done.swapped), done.cleaner_offset) == (1, -1)
    assert world.state.cleaner_claims(world.owner) == ()


async def test_another_that_swapped_the_same_segment_meanwhile_wins(world: CleanWorld) -> None:
    """Two that both believe they lead: what they leave is the same table, and the one that comes late gives up."""
    log = [puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2"))]
    await world.add(*log)

    async def another() -> None:
        world.clock.jump(0.001)
        await world.clean()

    done = await world.clean({"clean.uploaded": another})
    assert done.left == "it was replaced or deleted meanwhile"
    assert await world.table_read() == table(committed_records(log))


async def test_a_new_leader_goes_on_from_the_offset_of_the_one_before(world: CleanWorld) -> None:
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))
    await world.clean()
    world.lead(1)
    assert (await world.clean()).reason == "no dirty segment may be cleaned yet"
    await world.add(puts(3, (b"b", b"2")))
    assert (await world.clean()).cleaner_offset == 4
    first, second = world.state.cleaner_claims(world.owner)
    assert (first.offsets, second.offsets) == ({0: 3}, {0: 3, 1: 4})
    assert keys(await world.read()) == [b"a", b"b"]


async def test_a_zombies_claim_moves_nothing(world: CleanWorld) -> None:
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))
    await world.clean()
    world.lead(1)
    await world.add(puts(3, (b"b", b"2")))
    await world.clean()
    late = CleanerClaim(leader_epoch=LeaderEpoch(0), offsets={LeaderEpoch(0): Offset(900)})
    await world.state.publish_cleaner_claim(world.owner, late)
    await world.add(puts(4, (b"a", b"3")))
    assert (await world.clean()).cleaner_offset == 5
    assert keys(await world.read()) == [b"b", b"a"]


async def test_a_segment_that_is_damaged_ends_the_round_and_nothing_moves(world: CleanWorld) -> None:
    old = await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))
    before = await world.table_read()

    async def lost() -> None:
        raise MetadataNotReadyError(subject="the store is away")

    with pytest.raises(MetadataNotReadyError):
        await world.clean({"clean.rewritten": lost})
    assert await world.table_read() == before
    assert len(world.segments()) == len(old)


async def test_without_a_data_key_for_the_new_segment_none_is_begun(world: CleanWorld) -> None:
    class Away:
        def wrap(self, data_key: bytes, context: KeyContext) -> WrappedKey:
            raise KeyServiceError(service="KMS", verb="wrap", reason="no answer")

        def unwrap(self, wrapped: WrappedKey, context: KeyContext) -> bytes:
            raise AssertionError

    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2")))
    world.layout = LayoutSettings(key_ring=ServiceKeys("kms", Away(), keep_s=1, now_s=lambda: 0.0))
    before = list(world.builder.run.metadata.events)
    with pytest.raises(KeyServiceError):
        await world.clean()
    assert world.builder.run.metadata.events == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"cleanup_policy": "delete"}, "the topic is not compacted", id="it is not compacted any more"),
        pytest.param({"delete_retention_ms": None}, "the topic is not compacted", id="a setting is not told"),
        pytest.param({"min_cleanable_dirty_ratio": "1"}, "the dirty ratio", id="it is not dirty enough"),
        pytest.param({"min_compaction_lag_ms": str(10**10)}, "no dirty segment", id="it is too young"),
    ],
)
async def test_what_the_topics_settings_forbid_is_left(
    world: CleanWorld, change: dict[str, str | None], reason: str
) -> None:
    await world.add(puts(0, (b"a", b"1")), puts(1, (b"a", b"2")))
    world.configure(**change)
    done = await world.clean()
    assert done.reason.startswith(reason)
    assert len(world.segments()) == 2


@pytest.mark.parametrize("policy", ["compact,delete", "compact"])
async def test_where_readers_pass_to_the_brokers_log_no_dirty_ratio_holds_the_cleaner_up(
    world: CleanWorld, policy: str
) -> None:
    """There the tombstone of what is still remote may be gone (seen in the simulation)."""
    await world.add(puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", None)))
    world.configure(cleanup_policy=policy, min_cleanable_dirty_ratio="1")
    done = await world.clean()
    assert (done.cleaner_offset == 3) is (policy == "compact,delete")
    assert done.reason.startswith("the dirty ratio") is (policy == "compact")


async def test_nor_does_a_producer_whose_clock_is_far_ahead(world: CleanWorld) -> None:
    """What was copied that long ago was written before: the broker's cleaner goes by no record's time either."""
    records: list[list[tuple[bytes | None, bytes | None]]] = [[(b"a", b"1"), (b"b", b"1")], [(b"a", None)]]
    ahead_ms = world.clock.now_ms() + 10**9
    world.builder.event_timestamp_ms = world.clock.now_ms()
    for start, rows in zip((0, 2), records, strict=True):
        await world.add(segment_of([data_batch(start, rows, base_timestamp=ahead_ms)]))
    world.configure(cleanup_policy="compact,delete", min_cleanable_dirty_ratio="1")
    world.table.assignment = {world.owner: replace(world.partition, policy=TopicPolicy(mode=RetentionMode.RACE))}
    assert (await world.clean()).reason.startswith("the dirty ratio")
    world.clock.jump(RETENTION_S / 2 + 0.001)
    assert (await world.clean()).cleaner_offset == 3


async def test_a_scratch_directory_that_cannot_be_made_is_told(world: CleanWorld) -> None:
    await world.add(puts(0, (b"a", b"1")), puts(1, (b"a", b"2")))
    world.scratch.parent.mkdir(parents=True, exist_ok=True)
    world.scratch.write_text("in its place")
    with pytest.raises(StateDirError):
        await world.clean()


async def test_it_begins_nothing_while_deletes_are_forbidden(world: CleanWorld) -> None:
    await world.add(puts(0, (b"a", b"1")), puts(1, (b"a", b"2")))
    world.switch.reason_not_to_delete = "a switch"
    assert (await world.clean()).reason == "a switch"


async def test_a_segment_whose_last_batch_ends_before_it_does_is_clean_to_its_end(world: CleanWorld) -> None:
    """A broker's cleaner took the rest out of it before it was copied."""
    gappy = LogSegment(base_offset=0, next_base_offset=10, log=puts(0, (b"a", b"1"), (b"b", b"1")).log)
    await world.add(gappy)
    assert (await world.clean()).cleaner_offset == 10


async def test_where_segments_overlap_the_round_ends_and_says_so(world: CleanWorld) -> None:
    await world.add(puts(0, (b"a", b"1"), (b"a", b"2")), puts(1, (b"a", b"2"), (b"a", b"3")))
    reason = "no dirty segment may be cleaned yet; the segment from offset 0 on overlaps another one"
    assert (await world.clean()).reason == reason
    assert len(world.segments()) == 2


async def _late(world: CleanWorld, during: Callable[[], Awaitable[None]]) -> None:
    """A cleaner of epoch 0 has proven its new segment; then ``during`` happens, and then its COPY_SEGMENT_FINISHED arrives."""
    is_late = False

    async def others() -> None:
        nonlocal is_late
        if not is_late:
            is_late = True
            await during()

    with pytest.raises(KilledError):
        await world.clean({"clean.finishing": others, "clean.finished": _killed})


async def _killed() -> None:
    raise KilledError


async def test_a_deposed_leaders_swap_that_is_finished_late_brings_no_key_back(world: CleanWorld) -> None:
    """It was cleaned by an older map, and takes the place of what the new leader has cleaned, below the cleaner offset."""
    await world.add(puts(0, (b"b", b"1"), (b"b", b"2"), (b"a", b"1")))

    async def new_leader() -> None:
        world.clock.jump(0.001)
        world.lead(1)
        await world.add(puts(3, (b"a", None), (b"c", b"1")))
        assert (await world.clean()).cleaner_offset == 5
        assert keys(await world.read()) == [b"b", b"a", b"c"]
        world.clock.jump(0.001)

    await _late(world, new_leader)
    assert keys(await world.read()) == [b"b", b"a", b"a", b"c"], "the late one is read: the value is there again"
    for number in range(3):
        world.clock.jump(2 * RETENTION_S)
        await world.add(puts(5 + number, (b"x", b"%d" % number)))
        await world.clean_all()
        assert b"a" not in live(await world.table_read())
    assert keys(await world.read()) == [b"b", b"c", b"x"], "and in the end the tombstone is gone, too"


async def test_what_is_copied_again_below_the_cleaner_offset_is_dirty_again(world: CleanWorld) -> None:
    log = [puts(0, (b"a", b"1"), (b"b", b"1")), puts(2, (b"a", b"2"), (b"b", b"2")), puts(4, (b"c", b"1"))]
    await world.add(*log)
    await world.clean()
    await world.builder.add(
        SegmentSource(
            batches=[LocalBatch(header, log[0].log[at : at + header.size_bytes]) for at, header in _batches(log[0])],
            start_offset=0,
            end_offset=1,
        )
    )
    assert keys(await world.read()) == [b"a", b"b", b"a", b"b", b"c"]
    await world.add(puts(5, (b"c", b"2")))
    assert (await world.clean()).cleaner_offset == 6
    assert keys(await world.read()) == [b"a", b"b", b"c"]


def _batches(segment: LogSegment) -> list[tuple[int, RecordBatchHeader]]:
    return list(iter_batch_headers(segment.log))


async def test_a_round_that_is_killed_leaves_what_it_swapped_clean(world: CleanWorld) -> None:
    """Each swap below the cleaner offset is said at once: the next round's map is of the dirty part alone."""
    await world.add(*(puts(2 * n, (b"a-%d" % n, b"1"), (b"b-%d" % n, b"1")) for n in range(4)))
    await world.clean()
    await world.add(puts(8, (b"a-0", b"2"), (b"a-1", b"2"), (b"a-2", b"2")))
    seen = 0

    async def kill() -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            raise KilledError

    with pytest.raises(KilledError):
        await world.clean({"clean.rewritten": kill})
    (claim,) = world.state.cleaner_claims(world.owner)
    assert claim.offset == 8
    given = [one.remote_log_segment_id.uuid for offset in range(0, 8, 2) if (one := world.given(offset)) is not None]
    assert list(claim.segments) == [short_name(one) for one in given]
    world.clock.jump(0.001)
    done = await world.clean()
    assert (done.cleaner_offset, [one.start_offset for one in done.swapped]) == (11, [4])


async def test_what_is_clean_is_not_written_again(world: CleanWorld) -> None:
    """Not even where a batch is kept empty."""
    await world.add(puts(0, (b"a", b"1"), (b"a", b"2")), puts(2, (b"a", b"3")))
    assert len((await world.clean()).swapped) == 1
    await world.add(puts(3, (b"b", b"1")))
    done = await world.clean()
    assert (done.cleaner_offset, done.swapped) == (4, ())
