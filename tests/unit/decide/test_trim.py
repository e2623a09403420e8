"""How far the local log may be trimmed (S-048, S-049, S-050, S-051, S-052, S-054, U15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.segments import local_segments, remote_segment
from tiersidecar.decide.trim import TrimView, covering_segments, decide_trim, newest_ms, reason_behind_trash
from tiersidecar.domain.offsets import Lineage, Offset
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState

AT_ONCE = TopicPolicy(local_retention_ms=0)
LOCAL = (0, 100, 200, 300)
REMOTE = (remote_segment(0, 99), remote_segment(100, 199), remote_segment(200, 299))


def view(
    *,
    policy: TopicPolicy = AT_ONCE,
    remote: tuple[RemoteLogSegmentMetadata, ...] = REMOTE,
    bases: tuple[int, ...] = LOCAL,
    log_start: int = 0,
    now_ms: int = 1000,
    lineage: tuple[tuple[int, int], ...] = ((0, 0),),
    pressure: int = -1,
    drop: int = -1,
    last_resort: int = -1,
    given_up: int = -1,
    erased: Sequence[RemoteLogSegmentMetadata] = (),
) -> TrimView:
    return TrimView(
        erased={one.remote_log_segment_id.uuid for one in erased},
        policy=policy,
        lineage=Lineage.of(lineage),
        segments=local_segments(*bases),
        log_start_offset=log_start,
        remote_segments=remote,
        now_ms=now_ms,
        pressure_offset=pressure,
        drop_offset=drop,
        last_resort_offset=last_resort,
        given_up_offset=given_up,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(view(), [100, 200, 300], id="everything finished and past local retention goes"),
        pytest.param(view(policy=TopicPolicy()), [], id="without a limit nothing goes"),
        pytest.param(view(erased=[REMOTE[1]]), [100], id="what an erasure has replaced proves nothing"),
        pytest.param(
            view(policy=TopicPolicy(mode=RetentionMode.RACE, local_retention_ms=0)), [], id="race mode trims nothing"
        ),
        pytest.param(
            view(
                remote=(
                    REMOTE[0],
                    remote_segment(100, 199, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED),
                    REMOTE[2],
                )
            ),
            [100],
            id="S-048 a segment whose copy has not finished stays, and so does all after it",
        ),
        pytest.param(
            view(
                remote=(
                    REMOTE[0],
                    remote_segment(100, 199, state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED),
                    REMOTE[2],
                )
            ),
            [100],
            id="a remote segment that is being deleted holds nothing",
        ),
        pytest.param(
            view(remote=(remote_segment(0, 149), remote_segment(150, 299))),
            [100, 200, 300],
            id="U15 the other replica rolled elsewhere: two remote segments hold one local one",
        ),
        pytest.param(view(remote=(remote_segment(0, 149),)), [100], id="half of a segment remote is not enough"),
        pytest.param(
            view(remote=(remote_segment(0, 99, epochs=((7, 0),)),)), [], id="a segment of another history holds nothing"
        ),
        pytest.param(view(log_start=200), [300], id="what is below the log start has gone already"),
        pytest.param(view(log_start=99), [100, 200, 300], id="a log start that leaves one offset of a segment"),
        pytest.param(
            view(policy=TopicPolicy(local_retention_bytes=200), log_start=100),
            [200],
            id="by size what is below the log start counts no more",
        ),
        pytest.param(
            view(policy=TopicPolicy(local_retention_ms=500), now_ms=500),
            [100, 200, 300],
            id="by time at the limit exactly",
        ),
        pytest.param(
            replace(view(policy=TopicPolicy()), segments=local_segments(*LOCAL, size_bytes=1)),
            [],
            id="without a limit not even segments of one byte go",
        ),
        pytest.param(
            replace(view(policy=TopicPolicy(local_retention_bytes=3)), segments=local_segments(*LOCAL, size_bytes=1)),
            [100],
            id="by size a segment of one byte is too much as well",
        ),
        pytest.param(view(log_start=150, remote=REMOTE[1:]), [200, 300], id="a log start inside a segment"),
        pytest.param(
            view(policy=TopicPolicy(local_retention_bytes=250)), [100], id="by size only whole segments above the limit"
        ),
        pytest.param(
            view(policy=TopicPolicy(local_retention_bytes=300)), [100], id="by size down to the limit exactly"
        ),
        pytest.param(view(policy=TopicPolicy(local_retention_bytes=400)), [], id="by size within the limit"),
        pytest.param(
            view(policy=TopicPolicy(local_retention_ms=500), now_ms=499), [], id="by time the youngest record counts"
        ),
        pytest.param(
            view(policy=TopicPolicy(local_retention_ms=500), remote=(remote_segment(0, 99, max_timestamp_ms=1000),)),
            [],
            id="a record of this very millisecond is young, however old its file says that it is",
        ),
        pytest.param(
            view(
                policy=TopicPolicy(local_retention_ms=500),
                remote=tuple(replace(one, max_timestamp_ms=-1) for one in REMOTE),
            ),
            [100, 200, 300],
            id="S-027 records without a time are as old as their file",
        ),
        pytest.param(
            replace(
                view(policy=TopicPolicy(local_retention_ms=500)), segments=local_segments(*LOCAL, modified_ms=1000)
            ),
            [100, 200, 300],
            id="S-027 a replica that was built anew has files of today, and records of long ago",
        ),
        pytest.param(
            replace(
                view(
                    policy=TopicPolicy(local_retention_ms=500),
                    remote=(remote_segment(0, 149), remote_segment(150, 299, max_timestamp_ms=-1)),
                ),
                segments=local_segments(*LOCAL, modified_ms=1000),
            ),
            [100],
            id="S-027 where one of those that hold it has no time its file counts as well",
        ),
        pytest.param(
            view(policy=TopicPolicy(), pressure=200), [100, 200], id="for room on the disk what is remote goes sooner"
        ),
        pytest.param(view(policy=TopicPolicy(), pressure=250), [100, 200], id="for room too only whole segments go"),
        pytest.param(
            view(policy=TopicPolicy(), pressure=300, remote=REMOTE[:1]),
            [100],
            id="for room on the disk nothing goes that is not remote",
        ),
        pytest.param(
            view(policy=TopicPolicy(), pressure=300, drop=200, remote=REMOTE[:1]),
            [100, 200],
            id="drop-oldest lets go what is not remote, as far as it must",
        ),
        pytest.param(
            view(remote=REMOTE[1:], given_up=100), [], id="what is given up and only here stays until it is due"
        ),
        pytest.param(
            view(policy=TopicPolicy(), pressure=200, remote=REMOTE[1:], given_up=100),
            [100, 200],
            id="and goes for room on the disk, before anything that counts",
        ),
        pytest.param(
            view(policy=TopicPolicy(), pressure=300, remote=REMOTE[2:], given_up=150),
            [100],
            id="but only what lies below the start as a whole",
        ),
        pytest.param(
            view(policy=TopicPolicy(), pressure=300, remote=(remote_segment(150, 199), *REMOTE[2:]), given_up=150),
            [100, 200, 300],
            id="or is remote from the start on: a replica's segments begin elsewhere than the copies",
        ),
        pytest.param(
            view(policy=TopicPolicy(), pressure=100, remote=(remote_segment(150, 199), *REMOTE[2:]), given_up=150),
            [100],
            id="as far as room is needed",
        ),
        pytest.param(
            view(remote=(remote_segment(50, 99), *REMOTE[1:]), given_up=50),
            [],
            id="and without need it waits, with what lies behind it",
        ),
        pytest.param(
            view(policy=TopicPolicy(), drop=400, remote=()), [100, 200, 300], id="but never the active segment"
        ),
        pytest.param(view(policy=TopicPolicy(mode=RetentionMode.RACE), drop=300), [], id="nor anything in race mode"),
        pytest.param(view(policy=TopicPolicy(retention_ms=0)), [100, 200, 300], id="S-050 -2 is the total retention"),
    ],
)
def test_steps(given: TrimView, expected: list[int]) -> None:
    assert [step.offset for step in decide_trim(given)] == expected


def test_the_active_segment_never_goes() -> None:
    """S-305: not all is remote; what is written, and read at the tail, stays with the broker whatever is copied."""
    everything = (*REMOTE, remote_segment(300, 399))
    assert decide_trim(view(remote=everything))[-1].offset == 300


def test_every_step_names_its_reason_and_what_holds_it() -> None:
    step = decide_trim(view(remote=(remote_segment(0, 149), remote_segment(150, 299))))[1]
    assert step.reason == "local.retention.ms"
    assert [held.start_offset for held in step.remote] == [0, 150]


def test_cover_takes_the_fewest_of_overlapping_segments() -> None:
    overlapping = (remote_segment(0, 99), remote_segment(50, 80), remote_segment(50, 199))
    assert [s.start_offset for s in covering_segments(overlapping, 0, 200)] == [0, 50]
    assert covering_segments(overlapping, 0, 201) == ()
    longer_first = (remote_segment(0, 199), remote_segment(0, 99, uuid=b"of another one !"))
    assert covering_segments(longer_first, 0, 150) == longer_first[:1]


def test_what_is_dropped_names_nothing_that_holds_it_and_waits_for_nobody() -> None:
    copied, lost = decide_trim(view(policy=TopicPolicy(), drop=200, remote=REMOTE[:1]))
    assert (copied.forced, len(copied.remote), copied.reason) == (True, 1, "disk.reserve")
    assert (lost.forced, lost.remote, lost.reason) == (True, (), "disk.reserve")
    assert not decide_trim(view(policy=TopicPolicy(), pressure=200))[0].forced, "trim-copied waits for groups"


def test_copies_that_turn_out_damaged_hold_back_all_but_the_last_resort() -> None:
    steps = decide_trim(view(policy=TopicPolicy(), drop=300, last_resort=200))
    assert [step.is_last_resort for step in steps] == [True, True, False]
    kept = decide_trim(view(policy=TopicPolicy(), pressure=300, last_resort=200))
    assert not any(step.is_last_resort for step in kept), "where nothing is to be dropped there is no last resort"


def test_what_goes_by_size_says_so() -> None:
    (step,) = decide_trim(view(policy=TopicPolicy(local_retention_bytes=300)))
    assert step.reason == "local.retention.bytes"


def test_what_goes_from_the_trash_is_told_apart_from_what_is_lost() -> None:
    from_trash, remote = decide_trim(view(policy=TopicPolicy(), pressure=200, remote=REMOTE[1:], given_up=100))
    assert (from_trash.from_trash, from_trash.forced, from_trash.remote) == (True, True, ())
    assert from_trash.from_offset == from_trash.local.next_base_offset
    assert (remote.from_trash, remote.forced, len(remote.remote)) == (False, False, 1)


def test_what_is_in_the_trash_in_part_goes_only_with_the_proof_of_the_rest() -> None:
    """It was taken for lost, and gone without a look at its remote copy (drop-oldest)."""
    remote = (remote_segment(50, 99), *REMOTE[1:])
    first, second = decide_trim(view(policy=TopicPolicy(), pressure=200, remote=remote, given_up=50))
    assert (first.from_trash, first.forced, first.from_offset, first.remote) == (True, False, 50, remote[:1])
    assert (second.from_trash, second.from_offset) == (False, 100)
    forced, *_ = decide_trim(view(policy=TopicPolicy(), pressure=200, drop=200, remote=remote, given_up=50))
    assert (forced.from_trash, forced.forced, forced.remote) == (True, True, remote[:1])


@pytest.mark.parametrize(
    ("given", "is_told"),
    [
        pytest.param(view(remote=REMOTE[1:], given_up=100), True, id="what follows is remote and has to wait"),
        pytest.param(view(given_up=100), False, id="what is given up is remote, and waits for its delay in the store"),
        pytest.param(view(remote=REMOTE[1:], given_up=50), False, id="not given up: it is to be copied"),
        pytest.param(
            view(remote=(remote_segment(50, 99), *REMOTE[1:]), given_up=50), True, id="its front is in the trash"
        ),
        pytest.param(view(remote=REMOTE[1:], given_up=100, log_start=100), False, id="it is gone"),
        pytest.param(
            view(policy=TopicPolicy(mode=RetentionMode.RACE, local_retention_ms=0), remote=REMOTE[1:], given_up=100),
            False,
            id="race mode trims nothing",
        ),
    ],
)
def test_people_are_told_what_a_trim_waits_for(given: TrimView, is_told: bool) -> None:
    assert bool(reason_behind_trash(given)) is is_told


@pytest.mark.parametrize(
    ("sizes", "retention_bytes", "offsets"),
    [
        pytest.param(
            (0, 500, 500), 400, [100, 200], id="an empty segment in front goes with what is too much behind it"
        ),
        pytest.param((500, 0, 500), 100, [100, 200], id="an empty segment behind one that is too much"),
        pytest.param((0, 500, 500), 2000, [], id="nothing is too much"),
    ],
)
def test_empty_segments_do_not_stop_local_retention(
    sizes: tuple[int, ...], retention_bytes: int, offsets: list[int]
) -> None:
    """A compacted topic whose policy became delete has sealed segments of 0 bytes (``deleteRetentionSizeBreachedSegments``)."""
    given = view(policy=TopicPolicy(local_retention_bytes=retention_bytes))
    *sealed, active = given.segments
    sized = [replace(one, size_bytes=size) for one, size in zip(sealed, sizes, strict=True)]
    steps = decide_trim(replace(given, segments=(*sized, replace(active, size_bytes=0))))
    assert [step.offset for step in steps] == offsets


def test_a_step_says_whether_the_topic_is_compacted() -> None:
    assert {step.is_compacted for step in decide_trim(view())} == {False}
    assert {step.is_compacted for step in decide_trim(replace(view(), is_compacted=True))} == {True}


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        pytest.param(300, [100, 200, 300], id="at the end of the last one"),
        pytest.param(200, [100, 200], id="at the end of the second"),
        pytest.param(199, [100], id="within the second"),
        pytest.param(99, [], id="within the first"),
    ],
)
def test_nothing_goes_that_ends_above_where_trims_must_stop(stop: int, expected: list[int]) -> None:
    assert [step.offset for step in decide_trim(replace(view(), stop_offset=Offset(stop)))] == expected


@pytest.mark.parametrize(
    ("remote_ms", "local_ms", "newest"),
    [
        pytest.param([10, 20], -1, 20, id="by the copies"),
        pytest.param([10, -1], -1, 30, id="one copy's records have no time: the file's last write"),
        pytest.param([10, -1], 25, 25, id="which the segment's own records tell better"),
        pytest.param([10, 101], 25, 25, id="one copy's records are of the future"),
        pytest.param([10, 101], 101, 30, id="the segment's own are, too"),
        pytest.param([10, 100], 25, 100, id="records of this very moment are none of the future"),
        pytest.param([40, -1], 25, 40, id="the later one of what is known"),
        pytest.param([0], 25, 0, id="records of the time 0 have a time"),
    ],
)
def test_how_new_the_newest_record_is(remote_ms: list[int], local_ms: int, newest: int) -> None:
    given = view(now_ms=100)
    local = replace(given.segments[0], max_timestamp_ms=local_ms, modified_ms=30)
    cover = tuple(replace(REMOTE[0], max_timestamp_ms=one) for one in remote_ms)
    assert newest_ms(given, local, cover) == newest
