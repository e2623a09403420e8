"""The guard's stop: what begins it, and what alone ends it (issue 16, finding 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.expiry import HOUR_MS, NOW_MS, SEGMENT_BYTES, going, segment, segments, view
from tests.support.pins import pin_of
from tests.support.segments import local_segments
from tiersidecar.decide.expire import decide_expiry
from tiersidecar.decide.expiry_view import ExpiryLimits, ExpiryView
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.policy import GuardStop, RetentionMode, TopicPolicy, later_stop
from tiersidecar.domain.states import RemoteLogSegmentState as State

GUARDED = ExpiryLimits()
DAY_MS = 24 * HOUR_MS


def typed(hours: float, **fields: Any) -> ExpiryView:
    """Ten remote segments of 0 to 9 hours, a retention of so many; asked for at the broker."""
    fields = {"limits": GUARDED, "log_start_offset": 0, "high_watermark": 5000, "start": 0, **fields}
    return view(fields.pop("remote", segments(10)), retention_h=hours, **fields)


def stop_of(given: ExpiryView) -> GuardStop:
    stop = decide_expiry(given).guard_stop
    assert stop is not None
    return stop


STOP = stop_of(typed(2))


def test_a_stop_says_what_was_due_and_by_which_settings() -> None:
    stop = stop_of(typed(2))
    assert stop.up_to == 800
    assert (stop.retention_ms, stop.retention_bytes, stop.max_share, stop.max_bytes) == (2 * HOUR_MS, -1, 0.5, -1)
    assert (stop.since_ms, stop.is_over) == (NOW_MS, False)
    assert "8 segments are due at once, 8192 of 10240 bytes" in stop.reason
    assert "confirm with delete-records up to offset 800" in stop.reason


MORE = (*segments(10), *segments(20, first=1000))


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(typed(2), id="nothing changed"),
        pytest.param(typed(2, remote=MORE), id="more was copied: what is due is a small share now"),
        pytest.param(typed(2, remote=(*segments(1, youngest_h=9), *MORE[10:])), id="segments are gone"),
        pytest.param(typed(2, remote=MORE, start=400), id="a user deleted a part of what was due"),
        pytest.param(
            typed(2, remote=MORE, in_flight={MORE[0].remote_log_segment_id}), id="a copy in flight hides what is due"
        ),
        pytest.param(typed(1, remote=MORE), id="the retention is shorter still"),
        pytest.param(typed(2, remote=MORE, limits=ExpiryLimits(max_share=0.4)), id="a smaller share"),
        pytest.param(replace(typed(2, remote=MORE), now_ms=NOW_MS + DAY_MS), id="a day later"),
        pytest.param(
            replace(typed(2, remote=MORE), now_ms=NOW_MS - 5 * 60_000),
            id="a clock that was five minutes ahead is right",
        ),
        pytest.param(replace(typed(3), now_ms=NOW_MS + HOUR_MS), id="a longer retention, and still too much"),
    ],
)
def test_no_other_event_ends_a_stop(given: ExpiryView) -> None:
    plan = decide_expiry(replace(given, guard_stop=STOP))
    assert "segments are due at once" in plan.stop
    assert (plan.guard_stop is None) or not plan.guard_stop.is_over
    assert plan.remote_log_start_offset == given.remote_log_start_offset
    assert all(removal.metadata.end_offset < given.remote_log_start_offset for removal in plan.expired)


@pytest.mark.parametrize(
    ("given", "start"),
    [
        pytest.param(typed(6), 400, id="the retention is longer, and what is due is within the limits"),
        pytest.param(typed(365 * 24), 0, id="the retention is long, and nothing is due"),
        pytest.param(typed(2, limits=ExpiryLimits(max_share=1)), 800, id="an operator confirmed: a share of 1"),
        pytest.param(typed(2, limits=ExpiryLimits(max_share=0.9)), 800, id="a share that has room for it"),
        pytest.param(typed(2, start=800), 800, id="delete-records up to the offset that it names"),
        pytest.param(
            typed(0, policy=TopicPolicy(retention_ms=6 * HOUR_MS, retention_bytes=-1)),
            400,
            id="retention.ms is longer, and retention.bytes as it was",
        ),
        pytest.param(replace(typed(14), now_ms=NOW_MS - DAY_MS), 0, id="the clock that made it was a day ahead"),
    ],
)
def test_a_stop_ends_with_its_cause_or_by_an_operator(given: ExpiryView, start: int) -> None:
    plan = decide_expiry(replace(given, guard_stop=STOP))
    assert (plan.stop, plan.remote_log_start_offset) == ("", start)
    assert plan.guard_stop == replace(STOP, is_over=True)
    again = decide_expiry(replace(given, guard_stop=plan.guard_stop))
    assert (again.stop, again.guard_stop) == ("", None)


def test_beyond_what_was_confirmed_another_stop_begins() -> None:
    stop = stop_of(replace(typed(2, start=800, remote=segments(30)), guard_stop=STOP))
    assert (stop.up_to, stop.is_over) == (2800, False)
    assert "20 segments are due at once" in stop.reason


def test_copies_in_flight_do_not_cut_what_is_due_into_pieces_that_pass() -> None:
    remote = segments(10)
    plan = decide_expiry(typed(2, in_flight={remote[2].remote_log_segment_id}))
    assert "8 segments are due at once" in plan.stop
    assert going(plan) == []


def test_what_is_below_the_durable_start_counts_for_nothing() -> None:
    """It was decided before, and may stay for the delay of the trash."""
    remote = (*segments(8, youngest_h=20), *segments(2, first=800, youngest_h=9), *segments(1, first=1000))
    assert "2 segments are due at once, 2048 of 3072 bytes" in decide_expiry(typed(5, remote=remote, start=800)).stop


LOCAL = (0, 100, 200, 300, 400)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        pytest.param(
            typed(5, remote=(), local=LOCAL, local_age_h=9, start=-1),
            "4 segments are due at once, 4096 of 5120 bytes",
            id="nothing is remote",
        ),
        pytest.param(
            typed(5, remote=segments(1, first=300), local=LOCAL, local_age_h=9, start=-1),
            "3 segments are due at once, 3072 of 5120 bytes",
            id="what lies before the first remote segment",
        ),
    ],
)
def test_the_guard_counts_what_only_the_broker_holds(given: ExpiryView, reason: str) -> None:
    plan = decide_expiry(given)
    assert reason in plan.stop
    assert plan.remote_log_start_offset <= 0


RACE = TopicPolicy(mode=RetentionMode.RACE, retention_ms=5 * HOUR_MS)


@pytest.mark.parametrize(
    ("policy", "pins", "start"),
    [
        pytest.param(RACE, 4, 100, id="race mode: what only pins hold is walked, up to the first that is young"),
        pytest.param(RACE, 0, -1, id="race mode: what the broker holds is its own business"),
        pytest.param(replace(RACE, mode=RetentionMode.STRICT), 0, 100, id="strict mode"),
    ],
)
def test_the_walk_goes_over_what_was_never_copied_in_the_order_of_offsets(
    policy: TopicPolicy, pins: int, start: int
) -> None:
    """The remote segment behind it is old enough to go, and stays."""
    first, *others = local_segments(0, 100, 200, 300, 400, modified_ms=NOW_MS - HOUR_MS)
    local = (replace(first, modified_ms=NOW_MS - 9 * HOUR_MS), *others)
    local = tuple(replace(one, pinned=number < pins) for number, one in enumerate(local))
    given = view(
        segments(1, first=200, youngest_h=9),
        policy=policy,
        log_start_offset=100 * pins,
        high_watermark=500,
        broker_expires=True,
    )
    plan = decide_expiry(replace(given, local_segments=local))
    assert plan.remote_log_start_offset == (0 if start < 0 else start)
    assert going(plan) == []


def test_before_the_broker_is_asked_its_files_say_what_it_has() -> None:
    """Else each first look found something due, and said so, and the second one did not."""
    policy = TopicPolicy(mode=RetentionMode.RACE, retention_ms=HOUR_MS)
    plan = decide_expiry(view(segments(4, youngest_h=4), policy=policy, local=(0, 100, 200, 300, 400)))
    assert (going(plan), plan.stop) == ([], "")


@pytest.mark.parametrize(
    ("mode", "by", "log_start_offset", "gone"),
    [
        pytest.param(RetentionMode.STRICT, "time", 0, [(0, 99), (100, 199)], id="strict mode: the whole log is ours"),
        pytest.param(RetentionMode.RACE, "time", 0, [], id="race mode: the broker still has it"),
        pytest.param(RetentionMode.RACE, "size", 0, [], id="race mode: the broker still has it, and it is too large"),
        pytest.param(RetentionMode.RACE, "time", 150, [(0, 99)], id="race mode: the broker begins within a segment"),
        pytest.param(RetentionMode.RACE, "time", 200, [(0, 99), (100, 199)], id="race mode: the broker has let it go"),
        pytest.param(RetentionMode.RACE, "size", 400, [(0, 99), (100, 199)], id="race mode: only the store has it"),
    ],
)
def test_in_race_mode_retention_takes_nothing_that_the_broker_has(
    mode: RetentionMode, by: str, log_start_offset: int, gone: list[tuple[int, int]]
) -> None:
    """A start beyond the broker's would have its records deleted there, once tiering is strict again or at once (issue 16)."""
    given = view(
        segments(4, youngest_h=4),
        policy=TopicPolicy(
            mode=mode,
            retention_ms=6 * HOUR_MS if by == "time" else -1,
            retention_bytes=2 * SEGMENT_BYTES if by == "size" else -1,
        ),
        log_start_offset=log_start_offset,
        high_watermark=500,
    )
    plan = decide_expiry(given)
    assert going(plan) == gone
    assert plan.remote_log_start_offset == (gone[-1][1] + 1 if gone else max(plan.remote_log_start_offset, -1))
    assert plan.remote_log_start_offset <= max(log_start_offset, 200 if mode is RetentionMode.STRICT else 0)


@pytest.mark.parametrize(
    ("given", "start"),
    [
        pytest.param(view(segments(2, first=900), log_start_offset=0), 0, id="segments from 900 on were copied first"),
        pytest.param(view(segments(2, first=900), log_start_offset=950), 900, id="the broker was trimmed since"),
        pytest.param(view(local=(300, 400), log_start_offset=360), -1, id="before the first copy nothing is said"),
        pytest.param(
            view(local=(300, 400, 500), log_start_offset=360, local_age_h=9, retention_h=5),
            500,
            id="but what expiry gives up",
        ),
        pytest.param(
            view(local=(300, 400), log_start_offset=360, trim_offset=300, broker_expires=True),
            -1,
            id="the metadata have lost what was trimmed",
        ),
    ],
)
def test_nothing_is_given_up_because_of_what_is_remote(given: ExpiryView, start: int) -> None:
    """The remote log start is never derived from what happens to be remote."""
    assert decide_expiry(replace(given, high_watermark=2000)).remote_log_start_offset == start


def test_where_the_broker_deletes_by_itself_the_first_pin_says_where_the_log_starts() -> None:
    pins = tuple(pin_of(base, base + 100).segment for base in (100, 200))
    given = view(local=(300, 400), log_start_offset=300, high_watermark=500)
    given = replace(given, local_segments=(*pins, *given.local_segments))
    assert decide_expiry(replace(given, broker_expires=True)).remote_log_start_offset == 100
    assert decide_expiry(given).remote_log_start_offset == -1, "in strict mode a user deleted them"


def test_a_part_between_two_remote_segments_holds_back_what_comes_after_it() -> None:
    remote = (segment(0, 99, age_h=9), segment(150, 249, age_h=9))
    given = view(remote, retention_h=5, local=(0, 200, 300), local_age_h=1, start=0)
    plan = decide_expiry(given)
    assert (plan.remote_log_start_offset, going(plan)) == (100, [(0, 99)])


def test_the_copy_of_a_local_segment_ends_the_walk_before_it() -> None:
    copying = segment(100, 199, state=State.COPY_SEGMENT_STARTED)
    given = view(
        (segment(0, 99, age_h=9), copying),
        retention_h=5,
        local=(0, 100, 200, 300),
        local_age_h=9,
        in_flight={copying.remote_log_segment_id},
    )
    assert decide_expiry(given).remote_log_start_offset == 100


@pytest.mark.parametrize(
    ("newest_ms", "start"),
    [
        pytest.param(NOW_MS - 9 * HOUR_MS, 100, id="S-027 the newest record is old, the file is new"),
        pytest.param(NOW_MS, 0, id="S-027 the newest record is of now"),
        pytest.param(0, 100, id="a record of the first millisecond of 1970 is old"),
        pytest.param(-1, 0, id="records without a time count from the last write"),
        pytest.param(NOW_MS + DAY_MS, 0, id="U16 so do those of the future"),
    ],
)
def test_the_age_of_a_local_segment(newest_ms: int, start: int) -> None:
    given = view(local=(0, 100), retention_h=5, start=0)
    local = (replace(given.local_segments[0], max_timestamp_ms=newest_ms), given.local_segments[1])
    assert decide_expiry(replace(given, local_segments=local)).remote_log_start_offset == start


def test_of_two_stops_the_later_leaders_counts_and_of_one_leader_the_higher_number() -> None:
    first = replace(STOP, leader_epoch=LeaderEpoch(1), number=4)
    ended = replace(first, number=5, is_over=True)
    later = replace(STOP, leader_epoch=LeaderEpoch(2), number=0)
    assert later_stop(first, None) == later_stop(None, first) == first
    assert later_stop(first, ended) == later_stop(ended, first) == ended
    assert later_stop(ended, later) == later_stop(later, ended) == later


def sized(retention_bytes: int, **fields: Any) -> ExpiryView:
    return typed(0, policy=TopicPolicy(retention_ms=-1, retention_bytes=retention_bytes), **fields)


@pytest.mark.parametrize(
    ("given", "is_over"),
    [
        pytest.param(sized(5 * 1024), True, id="retention.bytes are more, and what is due is within the limits"),
        pytest.param(
            typed(0, policy=TopicPolicy(retention_ms=20 * HOUR_MS, retention_bytes=5 * 1024)),
            False,
            id="retention.bytes are more, but now there is a limit of time as well",
        ),
        pytest.param(sized(2 * 1024, remote=MORE[:5]), False, id="the same retention, and less is there"),
        pytest.param(sized(-1), True, id="without a limit nothing is due"),
    ],
)
def test_a_stop_by_size_ends_with_a_wider_retention_alone(given: ExpiryView, is_over: bool) -> None:
    stop = stop_of(sized(2 * 1024))
    plan = decide_expiry(replace(given, guard_stop=stop))
    assert (plan.stop == "") is is_over


def test_other_limits_judge_a_stop_anew_and_measure_its_end() -> None:
    narrower = typed(2, limits=ExpiryLimits(max_share=0.4), guard_stop=STOP)
    stop = stop_of(narrower)
    assert (stop.max_share, stop.is_over) == (0.4, False)
    same = replace(narrower, guard_stop=stop)
    assert decide_expiry(same).guard_stop is None, "nothing is new, and nothing is written"
    fewer_are_due = replace(same, remote_segments=MORE)
    assert decide_expiry(fewer_are_due).stop == stop.reason
    wider = replace(fewer_are_due, limits=ExpiryLimits(max_share=0.45))
    assert decide_expiry(wider).stop == ""


@pytest.mark.parametrize(
    ("max_bytes", "is_over"),
    [
        pytest.param(7 * 1024, False, id="the same limit"),
        pytest.param(6 * 1024, False, id="a lower one"),
        pytest.param(8 * 1024, True, id="one that has room for it"),
        pytest.param(-1, True, id="none"),
    ],
)
def test_a_stop_by_bytes_ends_with_a_wider_limit(max_bytes: int, is_over: bool) -> None:
    stop = stop_of(typed(2, limits=ExpiryLimits(max_share=1, max_bytes=7 * 1024)))
    assert "deletes.max.bytes.per.round of 7168" in stop.reason
    limits = ExpiryLimits(max_share=1, max_bytes=max_bytes)
    plan = decide_expiry(typed(2, limits=limits, guard_stop=stop))
    assert (plan.stop == "") is is_over
    less_is_due = typed(2, remote=segments(7, first=300), start=300, limits=limits, guard_stop=stop)
    assert (decide_expiry(less_is_due).stop == "") is is_over, "that less is due ends nothing"


def test_a_record_of_this_very_millisecond_is_young_however_old_the_file_says_that_it_is() -> None:
    given = view(local=(0, 100), local_age_h=9, retention_h=5, start=0)
    local = (replace(given.local_segments[0], max_timestamp_ms=NOW_MS), given.local_segments[1])
    assert decide_expiry(replace(given, local_segments=local)).remote_log_start_offset == 0


def test_another_retention_judges_a_stop_anew() -> None:
    stop = stop_of(typed(1, guard_stop=STOP))
    assert (stop.retention_ms, stop.up_to) == (HOUR_MS, 900)


def test_one_retention_that_is_longer_ends_a_stop_while_the_other_is_as_it_was() -> None:
    both = TopicPolicy(retention_ms=2 * HOUR_MS, retention_bytes=10**6)
    stop = stop_of(typed(0, policy=both))
    assert decide_expiry(typed(0, policy=replace(both, retention_ms=6 * HOUR_MS), guard_stop=stop)).stop == ""
    shorter = replace(both, retention_ms=6 * HOUR_MS, retention_bytes=10**6 - 1)
    assert decide_expiry(typed(0, policy=shorter, guard_stop=stop)).stop == stop.reason
