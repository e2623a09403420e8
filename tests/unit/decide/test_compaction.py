"""Whether and how far a remote log is cleaned: row by row (S-243, S-247, S-249, S-250)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tiersidecar.decide.compaction import (
    CleanableSegment,
    CompactionPlan,
    CompactionSettings,
    CompactionView,
    decide_compaction,
    group_segments,
)
from tiersidecar.domain.offsets import Offset

NOW_MS = 1_000_000
SETTINGS = CompactionSettings(
    min_cleanable_dirty_ratio=0.5,
    min_compaction_lag_ms=0,
    max_compaction_lag_ms=2**63 - 1,
    segment_bytes=300,
    segment_index_bytes=1000,
)


def segment(
    number: int, *, size_bytes: int = 100, max_timestamp_ms: int = 0, first_timestamp_ms: int = -1
) -> CleanableSegment:
    return CleanableSegment(
        start_offset=Offset(number * 10),
        end_offset=Offset(number * 10 + 9),
        size_bytes=size_bytes,
        max_timestamp_ms=max_timestamp_ms,
        first_timestamp_ms=first_timestamp_ms,
    )


VIEW = CompactionView(
    segments=[segment(number) for number in range(8)],
    cleaner_offset=Offset(20),
    remote_log_start_offset=Offset(0),
    last_stable_offset=Offset(1000),
    free_disk_bytes=10_000,
)


def starts(plan: CompactionPlan) -> list[list[int]]:
    return [[one.start_offset for one in chunk] for chunk in plan.chunks]


def test_the_dirty_region_goes_in_chunks_of_a_segments_size() -> None:
    plan = decide_compaction(VIEW, SETTINGS, now_ms=NOW_MS)
    assert starts(plan) == [[20, 30, 40], [50, 60, 70]]
    assert (plan.first_dirty_offset, plan.first_uncleanable_offset) == (20, 80)
    assert plan.dirty_ratio == pytest.approx(6 / 8)
    assert not plan.was_reset


def test_a_chunk_is_as_large_as_the_clean_part_that_its_round_goes_over() -> None:
    settings = replace(SETTINGS, min_cleanable_dirty_ratio=0.4)
    plan = decide_compaction(replace(VIEW, cleaner_offset=Offset(40)), settings, now_ms=NOW_MS)
    assert starts(plan) == [[40, 50, 60, 70]]


def test_what_an_operator_asks_for_is_one_chunk_whatever_ratio_disk_and_sizes_are() -> None:
    asked = replace(VIEW, takes_all=True, free_disk_bytes=300)
    settings = replace(SETTINGS, min_cleanable_dirty_ratio=1.0)
    assert starts(decide_compaction(asked, settings, now_ms=NOW_MS)) == [[20, 30, 40, 50, 60, 70]]
    lagging = decide_compaction(asked, replace(settings, min_compaction_lag_ms=NOW_MS + 1), now_ms=NOW_MS)
    assert lagging.reason.endswith(": the one from offset 20 on has records within min.compaction.lag.ms")
    small = decide_compaction(replace(asked, free_disk_bytes=299), settings, now_ms=NOW_MS)
    assert "a third of the free disk" in small.reason


def test_where_readers_cross_over_an_operators_chunks_are_the_lanes_but_no_ratio_holds_them_up() -> None:
    asked = replace(VIEW, takes_all=True, is_crossed=True)
    settings = replace(SETTINGS, min_cleanable_dirty_ratio=1.0)
    plan = decide_compaction(asked, settings, now_ms=NOW_MS)
    assert starts(plan) == [[20, 30, 40], [50, 60, 70]]
    assert plan.first_uncleanable_offset == 80


def test_a_third_of_the_free_disk_bounds_a_chunk() -> None:
    plan = decide_compaction(replace(VIEW, free_disk_bytes=600), SETTINGS, now_ms=NOW_MS)
    assert starts(plan) == [[20, 30], [40, 50], [60, 70]]
    refused = decide_compaction(replace(VIEW, free_disk_bytes=299), SETTINGS, now_ms=NOW_MS)
    assert refused.chunks == ()
    assert refused.reason == "a segment has 100 bytes, and a third of the free disk is 99"


def test_a_ratio_that_is_not_above_the_least_starts_nothing() -> None:
    half = replace(VIEW, cleaner_offset=Offset(40))
    assert decide_compaction(half, SETTINGS, now_ms=NOW_MS).reason.startswith("the dirty ratio 0.500")
    assert decide_compaction(half, replace(SETTINGS, min_cleanable_dirty_ratio=0.49), now_ms=NOW_MS).chunks


def test_the_largest_lag_forces_a_round() -> None:
    old = [segment(number, first_timestamp_ms=number + 1) for number in range(8)]
    half = replace(VIEW, segments=old, cleaner_offset=Offset(40))
    forced = decide_compaction(half, replace(SETTINGS, max_compaction_lag_ms=NOW_MS - 6), now_ms=NOW_MS)
    assert forced.is_forced
    assert forced.chunks
    not_yet = decide_compaction(half, replace(SETTINGS, max_compaction_lag_ms=NOW_MS - 5), now_ms=NOW_MS)
    assert not not_yet.is_forced
    assert not not_yet.chunks


@pytest.mark.parametrize(
    ("view", "least_lag_ms", "bound"),
    [
        pytest.param(replace(VIEW, last_stable_offset=Offset(55)), 0, 50, id="an open transaction holds the LSO back"),
        pytest.param(
            replace(VIEW, last_stable_offset=Offset(60)), 0, 60, id="a segment that ends below the LSO is stable"
        ),
        pytest.param(
            replace(VIEW, segments=[segment(n, max_timestamp_ms=NOW_MS - 100 * (8 - n)) for n in range(8)]),
            300,
            60,
            id="a record within min.compaction.lag.ms; one just as old is not",
        ),
    ],
)
def test_the_region_ends_where_records_must_not_go_yet(view: CompactionView, least_lag_ms: int, bound: int) -> None:
    settings = replace(SETTINGS, min_compaction_lag_ms=least_lag_ms)
    assert decide_compaction(view, settings, now_ms=NOW_MS).first_uncleanable_offset == bound


@pytest.mark.parametrize(
    ("cleaner_offset", "first_dirty", "was_reset"),
    [
        pytest.param(None, 0, False, id="nothing was ever cleaned"),
        pytest.param(0, 0, False, id="what was cleaned ended where the log begins"),
        pytest.param(80, 80, False, id="all is clean"),
        pytest.param(81, 0, True, id="the log was cut off below it"),
    ],
)
def test_a_cleaner_offset_outside_the_log_makes_all_dirty(
    cleaner_offset: int | None, first_dirty: int, was_reset: bool
) -> None:
    offset = None if cleaner_offset is None else Offset(cleaner_offset)
    plan = decide_compaction(replace(VIEW, cleaner_offset=offset), SETTINGS, now_ms=NOW_MS)
    assert (plan.first_dirty_offset, plan.was_reset) == (first_dirty, was_reset)


def test_where_nothing_may_be_cleaned_nothing_is_dirty_and_it_is_said() -> None:
    plan = decide_compaction(replace(VIEW, cleaner_offset=Offset(80)), SETTINGS, now_ms=NOW_MS)
    assert (plan.chunks, plan.dirty_ratio, plan.reason) == ((), 0, "no dirty segment may be cleaned yet")
    held = decide_compaction(replace(VIEW, last_stable_offset=Offset(20)), SETTINGS, now_ms=NOW_MS)
    why = "no dirty segment may be cleaned yet: a transaction that is open, or whose end is not remote yet, begins at offset 20"
    assert (held.chunks, held.dirty_ratio, held.reason) == ((), 0, why)
    assert (held.first_dirty_offset, held.first_uncleanable_offset) == (20, 20)


def test_below_the_start_there_is_nothing_to_clean() -> None:
    plan = decide_compaction(replace(VIEW, remote_log_start_offset=Offset(30)), SETTINGS, now_ms=NOW_MS)
    assert (plan.first_dirty_offset, plan.was_reset) == (30, True)
    assert decide_compaction(replace(VIEW, segments=[]), SETTINGS, now_ms=NOW_MS).chunks == ()


def test_groups_stay_within_each_limit() -> None:
    def grouped(*segments: CleanableSegment) -> list[list[int]]:
        return [[one.start_offset for one in group] for group in group_segments(segments, SETTINGS)]

    assert grouped(*VIEW.segments) == [[0, 10, 20], [30, 40, 50], [60, 70]]
    large = replace(segment(1), size_bytes=301)
    assert grouped(segment(0), large, segment(2)) == [[0], [10], [20]]
    full_index = replace(segment(1), offset_index_bytes=600)
    assert grouped(replace(segment(0), offset_index_bytes=401), full_index, segment(2)) == [[0], [10, 20]]
    full_times = replace(segment(1), time_index_bytes=600)
    assert grouped(replace(segment(0), time_index_bytes=401), full_times, segment(2)) == [[0], [10, 20]]
    far = CleanableSegment(start_offset=Offset(2**31 - 20), end_offset=Offset(2**31), size_bytes=1, max_timestamp_ms=0)
    assert grouped(segment(0), far) == [[0], [2**31 - 20]]
    assert grouped(segment(0), replace(far, end_offset=Offset(2**31 - 1))) == [[0, 2**31 - 20]]
