"""Which segments are copied next.

Shown here: S-013 S-014 S-019 S-021 S-022 S-023 S-025 S-026 S-027 S-028, T-02 T-03 T-04, T-15 T-16 T-17 T-18 T-19.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from tests.support.pins import pin_of
from tests.support.segments import FINISHED, local_segments, remote_segment
from tiersidecar.decide.copy import (
    CopyLag,
    CopyView,
    copied_offset_among,
    copy_lag,
    decide_copy,
    find_copied_offset,
    pending_segments,
)
from tiersidecar.domain.offsets import ByteRange, Lineage
from tiersidecar.domain.policy import TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState


def view(
    bases: list[int],
    *,
    copied: int = -1,
    lso: int = 10**9,
    policy: TopicPolicy | None = None,
    now_ms: int = 0,
    modified_ms: int = 0,
) -> CopyView:
    return CopyView(
        policy=policy or TopicPolicy(),
        segments=local_segments(*bases, modified_ms=modified_ms),
        copied_offset=copied,
        last_stable_offset=lso,
        now_ms=now_ms,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(view([0, 150]), [0], id="T-15 a sealed segment is copied and the active one is not"),
        pytest.param(
            view([0, 150], lso=150), [0], id="T-16 a segment that ends right below the last stable offset goes"
        ),
        pytest.param(view([0]), [], id="T-17 the active segment alone is never a candidate"),
        pytest.param(view([5, 10, 15, 20], lso=15), [5, 10], id="T-18 the next base may equal the last stable offset"),
        pytest.param(view([0, 100, 200], lso=99), [], id="S-023 LSO held back by an open transaction"),
        pytest.param(view([0, 100, 200], copied=99), [100], id="S-025 what is remote is not copied again"),
        pytest.param(
            view([0, 100, 200], copied=150),
            [100],
            id="DESIGN 3 replicas roll differently: the segment that contains the next",
        ),
        pytest.param(view([0, 100, 200], copied=199), [], id="all sealed segments are remote"),
        pytest.param(
            view([0, 100, 200], policy=TopicPolicy(copy_disabled=True)), [], id="S-189 copying is switched off"
        ),
        pytest.param(
            view([0, 100], policy=TopicPolicy(copy_lag_ms=10, copy_lag_bytes=0), now_ms=5),
            [0],
            id="S-026 one lag of 0 means at once",
        ),
        pytest.param(
            view([0, 100, 200], policy=TopicPolicy(copy_lag_ms=10, copy_lag_bytes=10**6), now_ms=9),
            [],
            id="S-027 too young and too few bytes after it",
        ),
        pytest.param(
            view([0, 100, 200], policy=TopicPolicy(copy_lag_ms=10, copy_lag_bytes=10**6), now_ms=10),
            [0, 100],
            id="S-027 old enough",
        ),
        pytest.param(
            view([0, 100, 200], policy=TopicPolicy(copy_lag_ms=10**6, copy_lag_bytes=200), now_ms=1),
            [0],
            id="S-027 enough bytes came after the first, not after the second",
        ),
        pytest.param(
            view([0, 100], policy=TopicPolicy(copy_lag_ms=1, copy_lag_bytes=10**6)),
            [],
            id="a lag of a millisecond is one",
        ),
        pytest.param(
            view([0, 100], policy=TopicPolicy(copy_lag_ms=1, copy_lag_bytes=10**6), now_ms=1),
            [0],
            id="and is over then",
        ),
        pytest.param(
            view([0, 100, 200], policy=TopicPolicy(copy_lag_ms=10**6, copy_lag_bytes=1)),
            [0, 100],
            id="a lag of a byte: whatever has anything after it",
        ),
        pytest.param(
            view([0, 100], policy=TopicPolicy(copy_lag_ms=-1, copy_lag_bytes=-1, local_retention_ms=50), now_ms=49),
            [],
            id="S-028 a lag of -1 is the local retention",
        ),
        pytest.param(
            view([0, 100], policy=TopicPolicy(copy_lag_ms=-1, copy_lag_bytes=-1, local_retention_ms=50), now_ms=50),
            [0],
            id="S-028 and it is over when that is",
        ),
        pytest.param(
            view([0, 100], policy=TopicPolicy(copy_lag_ms=-1, copy_lag_bytes=-1), now_ms=10**9),
            [],
            id="S-028 without a local retention nothing is old or large enough",
        ),
    ],
)
def test_segments(given: CopyView, expected: list[int]) -> None:
    assert [segment.base_offset for segment in decide_copy(given).segments] == expected


@pytest.mark.parametrize(
    ("copied", "policy", "expected"),
    [
        pytest.param(-1, TopicPolicy(), [0, 50, 100], id="what only pins hold comes first"),
        pytest.param(99, TopicPolicy(), [0, 50, 100], id="a hole below the copied offset that an earlier leader left"),
        pytest.param(
            -1,
            TopicPolicy(copy_lag_ms=10**6, copy_lag_bytes=10**6),
            [0, 50],
            id="no copy lag holds back what the broker has given up",
        ),
        pytest.param(-1, TopicPolicy(copy_disabled=True), [], id="S-189 copying is switched off"),
    ],
)
def test_pinned_segments(copied: int, policy: TopicPolicy, expected: list[int]) -> None:
    given = replace(
        view([100, 150], copied=copied, policy=policy),
        segments=(pin_of(0, 50).segment, pin_of(50, 100).segment, *local_segments(100, 150)),
    )
    assert [segment.base_offset for segment in decide_copy(given).segments] == expected


def test_lag_counts_what_may_not_be_copied_yet_as_well() -> None:
    """S-041, S-225."""
    given = view([0, 100, 200, 300], copied=99, lso=0, modified_ms=7)
    plan, lag = decide_copy(given), copy_lag(pending_segments(given.segments, 99))
    assert plan.segments == ()
    assert "last stable offset 0" in plan.held_back
    assert lag == CopyLag(segments=2, size_bytes=200, oldest_ms=7)


def test_without_sealed_segments_there_is_no_lag_and_nothing_halts() -> None:
    """U18: a gauge must fall back to 0."""
    assert (decide_copy(view([0])).halted, decide_copy(view([0])).held_back) == ("", "")
    assert copy_lag(pending_segments(local_segments(0), -1)) == CopyLag(segments=0, size_bytes=0, oldest_ms=None)


@pytest.mark.parametrize(
    ("policy", "now_ms", "copied"),
    [
        pytest.param(TopicPolicy(), 10**12, [0, 100, 200], id="without limits nothing expires"),
        pytest.param(TopicPolicy(retention_ms=50), 49, [0, 100, 200], id="all of it is inside retention.ms"),
        pytest.param(TopicPolicy(retention_ms=50), 50, [], id="the first is exactly as old as retention.ms"),
        pytest.param(TopicPolicy(retention_ms=50), 99, [], id="the first was written longer ago than retention.ms"),
        pytest.param(TopicPolicy(retention_bytes=300), 0, [], id="retention.bytes are there without it"),
        pytest.param(TopicPolicy(retention_bytes=301), 0, [0, 100, 200], id="one byte of it may still be kept"),
    ],
)
def test_expiry_looks_first_at_what_is_past_total_retention(
    policy: TopicPolicy, now_ms: int, copied: list[int]
) -> None:
    """U8: an upload that expiry would delete at once.  Each was last written at half its base offset."""
    given = view([0, 100, 200, 300], policy=policy, now_ms=now_ms)
    segments = tuple(replace(segment, modified_ms=segment.base_offset // 2) for segment in given.segments)
    given = replace(given, segments=segments)
    waiting = decide_copy(replace(given, may_expire=True))
    assert [segment.base_offset for segment in waiting.segments] == copied
    assert bool(waiting.held_back) == (copied == [])
    plan = decide_copy(given)
    assert [segment.base_offset for segment in plan.segments] == [0, 100, 200], "what it has not given up is copied"


def test_the_newest_record_tells_the_age_and_not_the_time_of_the_file() -> None:
    """S-027: a replica that was built anew has files of today."""
    given = view([0, 100], policy=TopicPolicy(retention_ms=50, copy_lag_ms=60, copy_lag_bytes=10**6), now_ms=99)
    old, active = given.segments
    for newest_ms, copied in ((30, [0]), (-1, []), (100, [])):
        segments = (replace(old, modified_ms=90, max_timestamp_ms=newest_ms), active)
        plan = decide_copy(replace(given, segments=segments))
        assert [segment.base_offset for segment in plan.segments] == copied


@pytest.mark.parametrize(
    ("start", "copied"),
    [
        pytest.param(-1, [100, 200], id="nobody has said where the remote log starts"),
        pytest.param(100, [100, 200], id="it starts where the first segment does"),
        pytest.param(199, [100, 200], id="what holds the start is copied whole"),
        pytest.param(200, [200], id="what lies wholly below it was given up by a decision"),
    ],
)
def test_nothing_is_passed_over_but_what_was_given_up(start: int, copied: list[int]) -> None:
    """Not even by a retention of a millisecond and a byte: only a decision moves the start."""
    given = view([100, 200, 300], policy=TopicPolicy(retention_ms=1, retention_bytes=1), now_ms=10**12)
    plan = decide_copy(replace(given, remote_log_start_offset=start))
    assert [segment.base_offset for segment in plan.segments] == copied


def test_a_hole_below_the_copied_offset_that_the_broker_still_holds_is_copied() -> None:
    """A former release passed over what was past its retention then."""
    given = replace(view([0, 100, 200, 300, 400], copied=299), holes=(ByteRange(50, 150),))
    assert [segment.base_offset for segment in decide_copy(given).segments] == [0, 100, 300]
    assert decide_copy(given).gap is None
    beside = replace(given, holes=(ByteRange(50, 100), ByteRange(200, 200)))
    assert [segment.base_offset for segment in decide_copy(beside).segments] == [0, 300]


def test_a_segment_past_retention_behind_one_that_is_not_is_copied() -> None:
    """Strictly oldest to newest, no gaps (S-014)."""
    given = view([0, 100, 200], policy=TopicPolicy(retention_ms=50), now_ms=100)
    young, old, active = given.segments
    plan = decide_copy(replace(given, segments=(replace(young, modified_ms=90), old, active)))
    assert [segment.base_offset for segment in plan.segments] == [0, 100]


def test_a_hole_between_the_tiers_is_named() -> None:
    assert decide_copy(view([500, 600, 700], copied=199)).gap == ByteRange(200, 500)
    front = replace(view([500, 600, 700], copied=199), readable_stop=450)
    assert decide_copy(front).gap == ByteRange(450, 500), "the front of a segment that an election cut is readable"
    assert decide_copy(replace(front, readable_stop=500)).gap is None
    assert decide_copy(view([500, 600, 700], copied=0)).gap == ByteRange(1, 500), "a single record is remote"
    pinned = (pin_of(50, 100).segment, *local_segments(500, 600))
    assert decide_copy(replace(view([], copied=99), segments=pinned)).gap == ByteRange(100, 500), (
        "whatever is pinned below"
    )
    assert decide_copy(view([500, 600, 700])).gap is None, "nothing remote yet: the log simply begins at 500"
    assert decide_copy(view([200, 201, 300], copied=199)).gap is None, "a segment of one record follows"
    assert decide_copy(view([201, 300], copied=199)).gap == ByteRange(200, 201), "one record is missing"


def find(lineage: Lineage, segments: list[RemoteLogSegmentMetadata]) -> int:
    def highest(epoch: int) -> int | None:
        ends = [s.end_offset for s in segments for e in s.segment_leader_epochs if e.epoch == epoch]
        return max(ends, default=None)

    def at(epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        of_epoch = [s for s in segments if any(entry.epoch == epoch for entry in s.segment_leader_epochs)]
        return next((s for s in of_epoch if s.start_offset <= offset <= s.end_offset), None)

    found = find_copied_offset(lineage, highest, at)
    assert found in (None, copied_offset_among(segments, lineage))
    return copied_offset_among(segments, lineage) if found is None else found


@pytest.mark.parametrize(
    ("entries", "segments", "expected"),
    [
        pytest.param([(0, 0)], [], -1, id="T-02 nothing remote"),
        pytest.param([(0, 0), (1, 500)], [remote_segment(0, 200)], 200, id="T-03 nothing of the latest epoch"),
        pytest.param(
            [(0, 0), (1, 150), (2, 300)],
            [remote_segment(0, 99), remote_segment(100, 200)],
            99,
            id="T-04 a segment past its epoch's end is of another history: the one below it counts",
        ),
        pytest.param(
            [(0, 0), (1, 150)],
            [remote_segment(0, 99), remote_segment(100, 199, epochs=((0, 100), (1, 150)))],
            199,
            id="a segment over an epoch border counts",
        ),
        pytest.param([(3, 0)], [remote_segment(0, 99)], -1, id="all replicas lost: the new history has nothing remote"),
    ],
)
def test_copied_offset(entries: list[tuple[int, int]], segments: list[RemoteLogSegmentMetadata], expected: int) -> None:
    assert find(Lineage.of(entries), segments) == expected


@pytest.mark.parametrize("state", [state for state in RemoteLogSegmentState if state is not FINISHED])
def test_what_is_not_finished_was_not_copied_where_the_last_copy_has_expired(state: RemoteLogSegmentState) -> None:
    """Found by the simulation (cluster, seed 33): each copy took its own STARTED for the copy of another leader's."""
    segments = [remote_segment(10, 17, state=state)]
    lineage = Lineage.of([(0, 0)])
    assert find_copied_offset(lineage, lambda epoch: 9, lambda epoch, offset: None) is None
    assert copied_offset_among(segments, lineage) == -1


@pytest.mark.parametrize(
    ("bases", "first_epoch", "live_start", "copied", "is_halted"),
    [
        pytest.param([0, 100, 200], 100, 0, [], True, id="a segment below the first leader epoch: data from before 0.11"),
        pytest.param([0, 100, 200], 150, 0, [], True, id="and nothing behind it, though that has an epoch"),
        pytest.param([0, 100, 200], 50, 0, [], True, id="a segment in which the first leader epoch begins"),
        pytest.param([0, 100, 200], 100, 100, [100], False, id="what lies below the start is nobody's"),
        pytest.param([0, 100, 200], 50, 50, [0, 100], False, id="a DeleteRecords within the segment cuts its epochs too"),
        pytest.param([0, 100, 200], 150, 120, [], True, id="a start below the first leader epoch gives up the rest only"),
        pytest.param([0, 100, 200], 0, 0, [0, 100], False, id="every offset has an epoch"),
    ],
)  # fmt: skip
def test_segments_without_a_leader_epoch_halt_the_partition(
    bases: list[int], first_epoch: int, live_start: int, copied: list[int], is_halted: bool
) -> None:
    """Finding 6 of issue 16: retried without end they never said so."""
    given = replace(
        view(bases), first_epoch_offset=first_epoch, live_start_offset=live_start, remote_log_start_offset=live_start
    )
    plan = decide_copy(given)
    assert [segment.base_offset for segment in plan.segments] == copied
    assert bool(plan.halted) is is_halted
    assert plan.held_back == plan.halted
    assert plan.gap is None


def test_an_old_segment_behind_what_is_remote_halts_too_and_is_no_gap() -> None:
    """What a former release copied over such a segment does not make it a hole that nobody has."""
    given = replace(view([0, 100, 200, 300], copied=299), first_epoch_offset=200, holes=(ByteRange(0, 200),))
    plan = decide_copy(given)
    assert (plan.segments, plan.gap, bool(plan.halted)) == ((), None, True)


def test_the_segments_are_walked_only_where_the_newest_of_an_epoch_does_not_tell() -> None:
    segments = [remote_segment(0, 99), remote_segment(100, 199)]
    assert find_copied_offset(Lineage.of([(0, 0)]), lambda epoch: 199, lambda epoch, offset: segments[1]) == 199
    zombie = [remote_segment(0, 199)]
    cut = Lineage.of([(0, 0), (1, 150)])
    assert find_copied_offset(cut, lambda epoch: 199 if epoch == 0 else None, lambda epoch, offset: zombie[0]) is None


@pytest.mark.parametrize(
    ("given", "unstable"),
    [
        pytest.param(view([0, 100, 200]), None, id="nothing waits"),
        pytest.param(view([0, 100, 200], lso=150), 100, id="the second is open"),
        pytest.param(view([0, 100, 200], lso=50), 0, id="the first is, and the second behind it"),
        pytest.param(
            view([0, 100, 200], lso=150, policy=TopicPolicy(copy_lag_ms=10, copy_lag_bytes=10**9), now_ms=5),
            None,
            id="the first waits for something else: who holds up what is behind it is no matter yet",
        ),
        pytest.param(
            view([0, 100, 200], lso=50, policy=TopicPolicy(copy_disabled=True)), 0, id="open, and switched off besides"
        ),
        pytest.param(replace(view([0, 100, 200], lso=50), first_epoch_offset=90), None, id="halted for good"),
    ],
)
def test_which_segment_an_open_transaction_holds_back(given: CopyView, unstable: int | None) -> None:
    found = decide_copy(given).unstable
    assert (None if found is None else found.base_offset) == unstable


@pytest.mark.parametrize(
    ("copied", "is_pending"),
    [
        pytest.param(99, True, id="all behind it"),
        pytest.param(198, True, id="its last offset"),
        pytest.param(199, False, id="none"),
    ],
)
def test_a_segment_is_pending_until_its_last_offset_is_remote(copied: int, is_pending: bool) -> None:
    pending = pending_segments(local_segments(100, 200), copied)
    assert [one.base_offset for one in pending] == ([100] if is_pending else [])


@drawn(
    pinned=st.lists(st.booleans(), min_size=1, max_size=6),
    copied=st.integers(-1, 700),
    start=st.integers(-1, 700),
    holes=st.lists(st.integers(0, 5), max_size=2),
)
def test_what_is_pending_is_what_the_rule_says_of_each_segment(
    pinned: list[bool], copied: int, start: int, holes: list[int]
) -> None:
    """Whatever is not looked at one by one: segments of 100 offsets, the last one active."""
    plain = local_segments(*range(0, 100 * len(pinned), 100))
    segments = tuple(replace(one, pinned=is_pinned) for one, is_pinned in zip(plain, pinned, strict=True))
    ranges = tuple(ByteRange(100 * number, 100 * number + 100) for number in holes)
    expected = [
        one.base_offset
        for number, one in enumerate(segments[:-1])
        if one.base_offset + 100 > start and (pinned[number] or one.base_offset + 100 > copied + 1 or number in holes)
    ]
    assert [one.base_offset for one in pending_segments(segments, copied, start, ranges)] == expected
