"""Where the dirty region of a remote log begins and ends, to the offset (S-243, S-249, S-250)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.decide.test_compaction import NOW_MS, SETTINGS, VIEW, segment, starts
from tiersidecar.decide.compaction import CleanableSegment, decide_compaction, group_segments
from tiersidecar.domain.offsets import Offset


@pytest.mark.parametrize(
    ("cleaner_offset", "first"),
    [
        pytest.param(28, 20, id="its last offset but one is dirty, and so it is"),
        pytest.param(29, 20, id="its last offset alone is dirty, and so it is"),
        pytest.param(30, 30, id="all of it is clean"),
        pytest.param(31, 30, id="the first offset of the next one is clean"),
    ],
)
def test_a_segment_is_dirty_that_has_an_offset_which_was_not_cleaned(cleaner_offset: int, first: int) -> None:
    plan = decide_compaction(replace(VIEW, cleaner_offset=Offset(cleaner_offset)), SETTINGS, now_ms=NOW_MS)
    assert starts(plan)[0][0] == first
    assert plan.first_dirty_offset == cleaner_offset
    clean = first // 10
    assert plan.dirty_ratio == pytest.approx((8 - clean) / 8), "and it counts as dirty whole"


@pytest.mark.parametrize(
    ("last_stable_offset", "bound"),
    [
        pytest.param(59, 50, id="its last offset is not stable"),
        pytest.param(60, 60, id="its last offset is"),
        pytest.param(61, 60, id="the next one is not stable whole"),
    ],
)
def test_a_segment_may_be_cleaned_that_is_stable_whole(last_stable_offset: int, bound: int) -> None:
    plan = decide_compaction(replace(VIEW, last_stable_offset=Offset(last_stable_offset)), SETTINGS, now_ms=NOW_MS)
    assert plan.first_uncleanable_offset == bound


@pytest.mark.parametrize(
    ("last_stable_offset", "reason"),
    [
        pytest.param(29, "a transaction that is open", id="its last offset is not stable: a transaction"),
        pytest.param(30, "has records within min.compaction.lag.ms", id="it is stable: the lag"),
    ],
)
def test_why_the_first_dirty_segment_waits(last_stable_offset: int, reason: str) -> None:
    settings = replace(SETTINGS, min_compaction_lag_ms=NOW_MS + 1)
    view = replace(VIEW, last_stable_offset=Offset(last_stable_offset))
    assert reason in decide_compaction(view, settings, now_ms=NOW_MS).reason


@pytest.mark.parametrize(
    ("lag_ms", "age_ms", "waits"),
    [
        pytest.param(0, 0, False, id="without a lag a record of this very moment may go"),
        pytest.param(0, -1, False, id="and one of the future"),
        pytest.param(1, 0, True, id="with a lag of a millisecond it stays"),
        pytest.param(1, 1, False, id="until that is over"),
    ],
)
def test_records_within_the_least_lag_stay(lag_ms: int, age_ms: int, waits: bool) -> None:
    view = replace(VIEW, segments=[segment(n, max_timestamp_ms=NOW_MS - age_ms) for n in range(8)])
    plan = decide_compaction(view, replace(SETTINGS, min_compaction_lag_ms=lag_ms), now_ms=NOW_MS)
    assert (plan.chunks == ()) is waits
    assert bool(plan.reason) is waits
    assert isinstance(plan.reason, str)


def test_a_first_timestamp_of_0_is_none_and_forces_no_round() -> None:
    unknown = [segment(number, first_timestamp_ms=0) for number in range(8)]
    view = replace(VIEW, segments=unknown, cleaner_offset=Offset(70))
    assert not decide_compaction(view, replace(SETTINGS, max_compaction_lag_ms=0), now_ms=NOW_MS).is_forced
    one = [*unknown[:7], segment(7, first_timestamp_ms=1)]
    assert decide_compaction(
        replace(view, segments=one), replace(SETTINGS, max_compaction_lag_ms=0), now_ms=NOW_MS
    ).is_forced


def with_indexes(*sizes: int) -> list[list[CleanableSegment]]:
    """Segments with offset indexes of these sizes, and the same with time indexes."""
    of_offsets = [replace(segment(number), offset_index_bytes=size) for number, size in enumerate(sizes)]
    return [of_offsets, [replace(segment(number), time_index_bytes=size) for number, size in enumerate(sizes)]]


def test_groups_are_filled_to_the_byte_of_each_index() -> None:
    for half in with_indexes(500, 500, 500, 500):
        assert [len(group) for group in group_segments(half, SETTINGS)] == [2, 2]
    for more in with_indexes(500, 501, 500, 500):
        assert [len(group) for group in group_segments(more, SETTINGS)] == [1, 1, 2]


def test_chunks_are_filled_to_the_byte() -> None:
    view = replace(VIEW, segments=[segment(number, size_bytes=150) for number in range(6)], cleaner_offset=None)
    exact = replace(SETTINGS, segment_bytes=300)
    assert starts(decide_compaction(view, exact, now_ms=NOW_MS)) == [[0, 10], [20, 30], [40, 50]]
    less = replace(SETTINGS, segment_bytes=299)
    assert starts(decide_compaction(view, less, now_ms=NOW_MS)) == [[0], [10], [20], [30], [40], [50]]
