"""The fold over metadata events, row by row.

Shown here: S-097 S-098 S-099 S-100 S-101, S-109 S-110 S-111 S-112 S-113, T-63 T-64 T-65 T-66 T-67 T-68.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.metadata_events import DELETED, DELETING, FINISHED, ORDERS, STARTED, added, segment_id, updated
from tiersidecar.domain.errors import IllegalTransitionError, UnknownSegmentError
from tiersidecar.domain.ids import BrokerId
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.domain.offsets import ByteRange
from tiersidecar.domain.segments import MetadataEvent, RemotePartitionDeleteMetadata, SegmentEvent
from tiersidecar.domain.states import RemoteLogSegmentState, RemotePartitionDeleteState


def cache_of(*events: MetadataEvent) -> RemoteLogMetadataCache:
    cache = RemoteLogMetadataCache(ORDERS)
    cache.mark_loaded()
    for event in events:
        cache.apply(event)
    return cache


def found(cache: RemoteLogMetadataCache, epoch: int, offset: int) -> int | None:
    metadata = cache.remote_log_segment_metadata(epoch, offset)
    return None if metadata is None else int.from_bytes(metadata.remote_log_segment_id.uuid, "big")


def listed(cache: RemoteLogMetadataCache, epoch: int | None = None) -> list[int]:
    return [int.from_bytes(m.remote_log_segment_id.uuid, "big") for m in cache.list_remote_log_segments(epoch)]


PATHS: dict[RemoteLogSegmentState | None, list[MetadataEvent]] = {
    None: [],
    STARTED: [added(1, 0, 9)],
    FINISHED: [added(1, 0, 9), updated(1, FINISHED)],
    DELETING: [added(1, 0, 9), updated(1, FINISHED), updated(1, DELETING)],
}


@pytest.mark.parametrize(
    ("source", "event", "target"),
    [
        pytest.param(None, added(1, 0, 9), STARTED, id="a new segment starts (S-109)"),
        pytest.param(STARTED, added(1, 0, 9), STARTED, id="started again, after a retry (S-113)"),
        pytest.param(STARTED, updated(1, FINISHED), FINISHED, id="a copy finishes (S-110)"),
        pytest.param(STARTED, updated(1, DELETING), DELETING, id="an abandoned copy is deleted (S-110)"),
        pytest.param(FINISHED, updated(1, FINISHED), FINISHED, id="finished again (S-113)"),
        pytest.param(FINISHED, updated(1, DELETING), DELETING, id="a finished segment is deleted (S-111)"),
        pytest.param(DELETING, updated(1, DELETING), DELETING, id="deletion starts again (S-113)"),
        pytest.param(DELETING, updated(1, DELETED), None, id="a deleted segment is evicted (S-112, S-101)"),
    ],
)
def test_legal_moves(
    source: RemoteLogSegmentState | None, event: MetadataEvent, target: RemoteLogSegmentState | None
) -> None:
    cache = cache_of(*PATHS[source])
    cache.check(event)
    cache.apply(event)
    metadata = cache.segment(segment_id(1).uuid)
    assert (None if metadata is None else metadata.state) == target


@pytest.mark.parametrize(
    ("source", "event", "sentence"),
    [
        pytest.param(None, added(1, 0, 9, state=FINISHED), "from none to COPY_SEGMENT_FINISHED", id="added finished"),
        pytest.param(None, added(1, 0, 9, state=DELETING), "from none to DELETE_SEGMENT_STARTED", id="added deleting"),
        pytest.param(STARTED, updated(1, DELETED), "to DELETE_SEGMENT_FINISHED", id="started to deleted"),
        pytest.param(STARTED, updated(1, STARTED), "to COPY_SEGMENT_STARTED", id="an update that starts a copy"),
        pytest.param(FINISHED, updated(1, DELETED), "to DELETE_SEGMENT_FINISHED", id="finished to deleted"),
        pytest.param(FINISHED, added(1, 0, 9), "to COPY_SEGMENT_STARTED", id="finished to started"),
        pytest.param(DELETING, updated(1, FINISHED), "to COPY_SEGMENT_FINISHED", id="deleting to finished"),
        pytest.param(DELETING, added(1, 0, 9), "to COPY_SEGMENT_STARTED", id="deleting to started"),
    ],
)
def test_illegal_moves_are_refused_and_change_nothing(
    source: RemoteLogSegmentState | None, event: MetadataEvent, sentence: str
) -> None:
    """T-63, T-64."""
    cache = cache_of(*PATHS[source])
    before = list(cache.list_remote_log_segments())
    with pytest.raises(IllegalTransitionError, match=sentence):
        cache.check(event)
    with pytest.raises(IllegalTransitionError, match=sentence):
        cache.apply(event)
    assert list(cache.list_remote_log_segments()) == before


@given(st.lists(st.tuples(st.integers(1, 2), st.booleans(), st.sampled_from(RemoteLogSegmentState)), max_size=8))
@example([(2, True, STARTED), (2, False, FINISHED), (2, False, DELETING), (2, False, DELETED), (2, True, STARTED)])
def test_a_list_of_events_may_be_applied_if_one_after_the_other_may(
    drawn: list[tuple[int, bool, RemoteLogSegmentState]],
) -> None:
    """T-63, T-64."""
    events: list[SegmentEvent] = [
        added(number, 0, 9, state=state) if is_added else updated(number, state) for number, is_added, state in drawn
    ]
    cache, other = cache_of(*PATHS[FINISHED]), cache_of(*PATHS[FINISHED])
    refused = ""
    try:
        for event in events:
            other.apply(event)
    except (IllegalTransitionError, UnknownSegmentError) as error:
        refused = str(error)
    said = ""
    try:
        cache.check_all(events)
    except (IllegalTransitionError, UnknownSegmentError) as error:
        said = str(error)
    assert said == refused
    assert list(cache.list_remote_log_segments()) == list(cache_of(*PATHS[FINISHED]).list_remote_log_segments())


@pytest.mark.parametrize("state", [FINISHED, DELETING, DELETED])
def test_an_update_of_an_unknown_segment_is_an_error_once_loaded_and_ignored_before(
    state: RemoteLogSegmentState,
) -> None:
    """T-63."""
    cache = RemoteLogMetadataCache(ORDERS)
    assert cache.apply(updated(7, state)) is False
    cache.mark_loaded()
    with pytest.raises(UnknownSegmentError, match="orders-0:"):
        cache.apply(updated(7, state))
    assert len(cache) == 0


def test_deleting_again_what_is_gone_may_be_asked_for() -> None:
    """The same state again is idempotent: a caller who was cancelled repeats its step."""
    cache = cache_of(*PATHS[DELETING], updated(1, DELETED))
    cache.check(updated(1, DELETED))
    with pytest.raises(UnknownSegmentError):
        cache.check(updated(1, DELETING))


@pytest.mark.parametrize(
    ("state", "is_read", "is_listed"),
    [
        pytest.param(STARTED, False, True, id="being copied: listed, not read"),
        pytest.param(FINISHED, True, True, id="finished: listed and read"),
        pytest.param(DELETING, False, True, id="being deleted: listed, not read"),
    ],
)
def test_what_each_state_shows(state: RemoteLogSegmentState, *, is_read: bool, is_listed: bool) -> None:
    """S-098, S-099, S-114, T-65."""
    cache = cache_of(*PATHS[state])
    assert (found(cache, 0, 5) == 1) is is_read
    assert (listed(cache) == [1]) is is_listed
    assert listed(cache, 0) == listed(cache)
    assert cache.highest_offset_for_epoch(0) == (None if state is STARTED else 9)
    assert cache.remote_log_size_bytes() == cache.remote_log_size_bytes(0) == 1000


@pytest.mark.parametrize(
    ("epoch", "offset", "expected"),
    [
        pytest.param(0, 0, 1, id="first offset of the first epoch"),
        pytest.param(0, 100, 1, id="last offset of the first epoch"),
        pytest.param(1, 110, None, id="an offset of a later epoch asked for in an earlier one"),
        pytest.param(2, 239, 2, id="last offset of an epoch that ends inside a segment"),
        pytest.param(2, 240, None, id="the offset after it"),
        pytest.param(3, 240, 2, id="first offset of an epoch that begins inside a segment"),
        pytest.param(3, 249, 2, id="last offset before the overlap"),
        pytest.param(3, 250, 3, id="first offset of the overlap: the later segment"),
        pytest.param(4, 370, 3, id="first offset of the last epoch"),
        pytest.param(4, 400, 3, id="last offset of all"),
        pytest.param(4, 401, None, id="after the last"),
        pytest.param(5, 301, None, id="an epoch that nothing was written in"),
    ],
)
def test_look_up_within_the_epochs_span(epoch: int, offset: int, expected: int | None) -> None:
    """T-66, S-098."""
    cache = cache_of(
        added(1, 0, 100),
        updated(1, FINISHED),
        added(2, 201, 300, {2: 201, 3: 240}),
        updated(2, FINISHED),
        added(3, 250, 400, {3: 250, 4: 370}),
        updated(3, FINISHED),
    )
    assert found(cache, epoch, offset) == expected


def test_highest_offsets_outlive_their_segment() -> None:
    """T-67."""
    cache = cache_of(added(1, 0, 79, {0: 0, 1: 20}), updated(1, FINISHED), updated(1, DELETING), updated(1, DELETED))
    assert (cache.highest_offset_for_epoch(0), cache.highest_offset_for_epoch(1)) == (19, 79)
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("events", "reads", "order"),
    [
        pytest.param(
            [added(1, 0, 100), updated(1, FINISHED), added(2, 0, 200), updated(2, FINISHED)],
            {50: 2, 150: 2},
            [2, 1],
            id="same start, larger end: the superset wins, the loser is listed after it (T-68)",
        ),
        pytest.param(
            [added(2, 0, 200), updated(2, FINISHED), added(1, 0, 100), updated(1, FINISHED)],
            {50: 2, 150: 2},
            [2, 1],
            id="the loser finishes late, by a deposed leader: nothing beyond it is hidden",
        ),
        pytest.param(
            [added(1, 10, 90), updated(1, FINISHED), added(2, 5, 100), updated(2, FINISHED)],
            {5: 2, 50: 2, 95: 2},
            [2, 1],
            id="a superset on both sides wins",
        ),
        pytest.param(
            [added(2, 5, 100), updated(2, FINISHED), added(1, 10, 90), updated(1, FINISHED)],
            {5: 2, 50: 2, 95: 2},
            [2, 1],
            id="a subset that finishes late is superseded at once",
        ),
        pytest.param(
            [added(1, 0, 50), updated(1, FINISHED), added(2, 51, 100), updated(2, FINISHED), added(3, 101, 200),
             updated(3, FINISHED), added(4, 0, 120), updated(4, FINISHED)],
            {50: 4, 51: 4, 101: 3, 120: 3, 150: 3},
            [4, 1, 2, 3],
            id="a new leader rolls differently and its segment covers two old ones in the middle",
        ),
        pytest.param(
            [added(1, 0, 100), updated(1, FINISHED), added(2, 0, 200), updated(2, FINISHED), updated(2, DELETING)],
            {50: 1, 150: None},
            [1, 2],
            id="what the loser holds is read again once the superset is being deleted",
        ),
        pytest.param(
            [added(1, 0, 100), updated(1, FINISHED), added(2, 0, 200), updated(2, FINISHED), updated(1, DELETING),
             updated(2, DELETING)],
            {50: None},
            [1, 2],
            id="a loser that is being deleted is not read again",
        ),
        pytest.param(
            [added(1, 0, 100), updated(1, FINISHED), added(2, 0, 100), updated(2, FINISHED)],
            {50: 2},
            [2, 1],
            id="of equal spans the later one is read, as in Kafka",
        ),
        pytest.param(
            [added(1, 0, 100), updated(1, FINISHED), added(2, 0, 200), updated(2, FINISHED), updated(1, FINISHED)],
            {50: 2, 150: 2},
            [2, 1],
            id="the loser's FINISHED comes twice",
        ),
        pytest.param(
            [added(1, 0, 100, {0: 0, 1: 50}), updated(1, FINISHED), added(2, 50, 200, {1: 50}), updated(2, FINISHED)],
            {},
            [1, 2],
            id="superseded in one epoch, read in another",
        ),
    ],
)  # fmt: skip
def test_duplicates_and_overlaps_after_elections(
    events: list[MetadataEvent], reads: dict[int, int | None], order: list[int]
) -> None:
    """Issue 4, epoch handling; U24."""
    cache = cache_of(*events)
    assert {offset: found(cache, 0, offset) for offset in reads} == reads
    assert sorted(listed(cache)) == sorted(order)
    if reads:
        assert listed(cache, 0) == order


def test_a_segment_superseded_in_one_epoch_is_still_read_in_the_other() -> None:
    cache = cache_of(
        added(1, 0, 100, {0: 0, 1: 50}), updated(1, FINISHED), added(2, 50, 200, {1: 50}), updated(2, FINISHED)
    )
    assert (found(cache, 0, 49), found(cache, 1, 50), found(cache, 1, 150)) == (1, 2, 2)


def test_a_copy_that_is_started_again_with_other_epochs_is_listed_in_the_new_ones_only() -> None:
    cache = cache_of(added(1, 0, 9, {0: 0}), added(1, 0, 9, {1: 0}))
    assert (listed(cache, 0), listed(cache, 1)) == ([], [1])


def test_an_update_changes_only_what_an_update_may() -> None:
    """S-117."""
    cache = cache_of(added(1, 0, 9, txn_index_empty=False), updated(1, FINISHED, broker=2, custom=b"\x01\x02"))
    metadata = cache.segment(segment_id(1).uuid)
    assert metadata == added(1, 0, 9, txn_index_empty=False).with_update(
        updated(1, FINISHED, broker=2, custom=b"\x01\x02")
    )


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        pytest.param(0, 2, id="the first one is empty: the second"),
        pytest.param(15, 2, id="inside the second"),
        pytest.param(20, 4, id="behind the second: over a gap to the fourth"),
        pytest.param(50, None, id="behind the last"),
    ],
)
def test_next_segment_with_a_transaction_index(offset: int, expected: int | None) -> None:
    """S-119, S-157."""
    cache = cache_of(
        *(added(n, 10 * (n - 1), 10 * n - 1, txn_index_empty=n % 2 == 1) for n in (1, 2, 4)),
        *(updated(n, FINISHED) for n in (1, 2, 4)),
    )
    metadata = cache.next_segment_with_txn_index(0, offset)
    assert (None if metadata is None else int.from_bytes(metadata.remote_log_segment_id.uuid, "big")) == expected
    assert cache.next_segment_with_txn_index(9, offset) is None


def test_listing_goes_on_while_segments_change_under_it() -> None:
    cache = cache_of(added(1, 0, 9), updated(1, FINISHED), added(2, 10, 19), updated(2, FINISHED), added(3, 20, 29))
    walk = cache.list_remote_log_segments()
    assert next(walk).start_offset == 0
    cache.apply(updated(2, DELETING))
    cache.apply(updated(2, DELETED))
    cache.apply(added(4, 30, 39))  # takes the row that segment 2 had
    assert [metadata.start_offset for metadata in walk] == [20]


def test_a_picture_stays_as_it_was_taken() -> None:
    """It is looked at in a thread, while the loop goes on changing what it was taken of."""
    cache = cache_of(added(1, 0, 9), updated(1, FINISHED, custom=b"x"), added(2, 10, 19), added(3, 20, 29, {5: 20}))
    picture, before = cache.picture(), tuple(cache.list_remote_log_segments())
    cache.apply(updated(1, DELETING))
    cache.apply(updated(1, DELETED))
    cache.apply(added(4, 30, 39, {7: 30}))  # takes the row that segment 1 had
    for state in RemotePartitionDeleteState:
        cache.apply(partition_delete(state))
    assert picture.segments() == before
    assert picture.segments(from_offset=10) == before[1:]
    assert (len(picture), len(cache.picture())) == (3, 0)


def partition_delete(state: RemotePartitionDeleteState) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(
        topic_id_partition=ORDERS, broker_id=BrokerId(1), event_timestamp_ms=0, state=state
    )


def test_a_partition_is_deleted_in_three_steps_and_then_holds_nothing() -> None:
    """S-184: never written by 4.3.1, but read."""
    marked, started, finished = map(partition_delete, RemotePartitionDeleteState)
    cache = cache_of(*PATHS[FINISHED])
    with pytest.raises(IllegalTransitionError, match="orders-0 cannot go from none to DELETE_PARTITION_FINISHED"):
        cache.apply(finished)
    for event in (marked, marked, started):
        cache.check(event)
        cache.apply(event)
    assert cache.delete_state is RemotePartitionDeleteState.DELETE_PARTITION_STARTED
    assert len(cache) == 1
    cache.apply(finished)
    assert len(cache) == 0
    assert cache.highest_offset_for_epoch(0) is None
    cache.check(marked)  # begins anew


def test_an_image_gives_the_same_answers_and_drops_the_gaps_of_deleted_segments() -> None:
    cache = cache_of(
        *(
            event
            for n in range(6)
            for event in (added(n, 10 * n, 10 * n + 14), updated(n, FINISHED, custom=bytes([n])))
        ),
        updated(2, DELETING),
        updated(2, DELETED),
        updated(4, DELETING),
    )
    image = cache.image()
    restored = RemoteLogMetadataCache.from_image(ORDERS, image)
    assert len(image.rows) == 5 * 62
    assert list(restored.list_remote_log_segments()) == list(cache.list_remote_log_segments())
    assert [found(restored, 0, offset) for offset in range(80)] == [found(cache, 0, offset) for offset in range(80)]
    assert restored.image() == image
    assert not restored.is_loaded


def test_an_image_whose_columns_disagree_is_refused() -> None:
    image = cache_of(*PATHS[FINISHED]).image()
    with pytest.raises(ValueError, match="1 rows"):
        RemoteLogMetadataCache.from_image(ORDERS, replace(image, custom=(None, None)))
    torn = replace(image.epochs[0], starts=image.epochs[0].starts[:0])
    with pytest.raises(ValueError, match="0 starts, 1 ends"):
        RemoteLogMetadataCache.from_image(ORDERS, replace(image, epochs=(torn,)))


@pytest.mark.parametrize("larger_comes", ["before", "after"])
def test_of_equal_spans_the_latest_is_read_also_once_what_covered_both_is_gone(larger_comes: str) -> None:
    """An erasure replaced one by the other: the records must not come back with the deletion of a third."""
    replaced: list[MetadataEvent] = [added(9, 0, 9), replace(updated(9, FINISHED), event_timestamp_ms=100)]
    by: list[MetadataEvent] = [added(2, 0, 9), replace(updated(2, FINISHED), event_timestamp_ms=101)]
    larger: list[MetadataEvent] = [added(5, 0, 19), updated(5, FINISHED)]
    pair: list[MetadataEvent] = [*replaced, *by]
    cache = cache_of(*larger, *pair) if larger_comes == "before" else cache_of(*pair, *larger)
    assert found(cache, 0, 4) == 5
    cache.apply(updated(5, DELETING))
    assert found(cache, 0, 4) == 2
    image = cache.image()
    assert found(RemoteLogMetadataCache.from_image(ORDERS, image), 0, 4) == 2


@pytest.mark.parametrize("gone", [pytest.param(9, id="the segment before it"), pytest.param(8, id="the one behind it")])
def test_what_was_replaced_is_not_read_again_when_another_segment_is_deleted(gone: int) -> None:
    """Retention takes the first segment, or what lost an election goes: readers were given what was cleaned or erased."""
    spans = [(9, 0, 9), (1, 10, 19), (8, 20, 29), (2, 10, 19), (3, 10, 19)]
    cache = RemoteLogMetadataCache(ORDERS)
    for at_ms, (number, start, end) in enumerate(spans, 100):
        cache.apply(added(number, start, end))
        cache.apply(replace(updated(number, FINISHED), event_timestamp_ms=at_ms))
    cache.apply(updated(gone, DELETING))
    assert found(cache, 0, 15) == 3
    cache.apply(updated(3, DELETING))
    assert found(cache, 0, 15) == 2, "of those that are left the latest"


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 9), st.sampled_from([STARTED, FINISHED, DELETING])), max_size=9
    ),
    start=st.integers(0, 35),
    length=st.integers(1, 9),
)
def test_segments_with_offsets_are_those_of_the_list_that_hold_any_of_them(
    spans: list[tuple[int, int, RemoteLogSegmentState]], start: int, length: int
) -> None:
    cache = RemoteLogMetadataCache(ORDERS)
    for number, (first, more, state) in enumerate(spans):
        cache.apply(added(number, first, first + more))
        for event in {STARTED: (), FINISHED: (FINISHED,), DELETING: (FINISHED, DELETING)}[state]:
            cache.apply(updated(number, event))
    wanted = range(start, start + length)
    expected = [
        one
        for one in cache.list_remote_log_segments()
        if any(at in wanted for at in range(one.start_offset, one.next_offset))
    ]
    assert cache.segments_with(ByteRange(start, start + length)) == expected


def test_the_latest_leader_epoch_is_that_of_any_segment_that_there_was() -> None:
    cache = RemoteLogMetadataCache(ORDERS)
    assert cache.latest_leader_epoch == -1
    cache.apply(added(1, 0, 9, {2: 0, 5: 4}))
    cache.apply(added(2, 10, 19, {3: 10}))
    assert cache.latest_leader_epoch == 5
    for event in (DELETING, DELETED):
        cache.apply(updated(1, event))
    assert cache.latest_leader_epoch == 5
