"""Which remote segments go, and where the remote log starts then.

Shown here: S-057 S-058 S-059 S-061 S-062 S-064 S-065 S-066 S-069 S-070 S-074, T-31 T-32 T-33 T-38 T-39 T-40 T-41 T-42 T-43
T-44, U6, U8, U16, U24.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.expiry import HOUR_MS, NOW_MS, SEGMENT_BYTES, going, segment, segments, view
from tests.support.segments import remote_segment
from tiersidecar.decide.expire import decide_expiry
from tiersidecar.decide.expiry_view import ExpiryView
from tiersidecar.decide.trash import TrashDelays
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.domain.trash import TrashEntry, TrashId, TrashKind

STARTED, DELETING, DELETED = State.COPY_SEGMENT_STARTED, State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED
TWO = ((0, 99), (100, 199))
FOUR_EPOCHS = ((0, 0), (1, 1000), (2, 2450), (3, 4000))


def in_epochs(count: int, lineage: tuple[tuple[int, int], ...], **fields: int) -> tuple[RemoteLogSegmentMetadata, ...]:
    """Segments of 100 offsets, each with the epochs that the lineage gives it."""
    return tuple(
        segment(
            one.start_offset,
            one.end_offset,
            age_h=(NOW_MS - one.max_timestamp_ms) / HOUR_MS,
            epochs=tuple(
                (e, o) for e, o in lineage if o <= one.end_offset and _ends_after(e, lineage, one.start_offset)
            ),
        )
        for one in segments(count, **fields)
    )


def _ends_after(epoch: int, lineage: tuple[tuple[int, int], ...], offset: int) -> bool:
    following = [o for e, o in lineage if e > epoch]
    return not following or following[0] > offset


@pytest.mark.parametrize(
    ("given", "expected", "start"),
    [
        pytest.param(
            view(segments(3)), [], 0, id="without any limit nothing goes, and the log starts at its first segment"
        ),
        pytest.param(
            view(segments(3, first=500)), [], 500, id="S-018 the first leader says where the remote log starts"
        ),
        pytest.param(view(), [], -1, id="where nothing is remote nothing is said of its start"),
        # time
        pytest.param(view(segments(2), retention_h=0), list(TWO), 200, id="T-32 retention.ms of 0: both go, start 200"),
        pytest.param(
            view(segments(4, youngest_h=1), retention_h=3),
            [(0, 99), (100, 199)],
            200,
            id="S-058 time: as old as the limit goes",
        ),
        pytest.param(
            view((segment(0, 99, age_h=1), segment(100, 199, age_h=9)), retention_h=5),
            [],
            0,
            id="T-44 the first segment that stays ends the scan, however old the next one is",
        ),
        pytest.param(
            view(segments(2, youngest_h=5), policy=TopicPolicy(retention_ms=NOW_MS + 1)),
            [],
            0,
            id="S-058 a retention longer than time itself expires nothing",
        ),
        pytest.param(
            view((segment(0, 99, age_h=-24 * 365, copied_h=6),), retention_h=5),
            [(0, 99)],
            100,
            id="U16 records of the future count from their copy",
        ),
        pytest.param(
            view((segment(0, 99, age_h=-24 * 365, copied_h=4),), retention_h=5),
            [],
            0,
            id="U16 and not earlier than that",
        ),
        pytest.param(
            view((remote_segment(0, 99, max_timestamp_ms=-1, event_timestamp_ms=NOW_MS - HOUR_MS),), retention_h=5),
            [],
            0,
            id="records without a time count from their copy, and do not go at once",
        ),
        pytest.param(
            view((remote_segment(0, 99, max_timestamp_ms=0, event_timestamp_ms=NOW_MS),), retention_h=5),
            [(0, 99)],
            100,
            id="a record of the first millisecond of 1970 has a time",
        ),
        pytest.param(
            view((segment(0, 99, copied_h=9),), retention_h=5),
            [],
            0,
            id="a record of this very millisecond is not one of the future",
        ),
        pytest.param(
            view((segment(0, 99, age_h=6, copied_h=-90_000),), retention_h=5),
            [(0, 99)],
            100,
            id="a copy dated by a clock far ahead changes nothing for records that have a time",
        ),
        # size
        pytest.param(
            view(segments(2), retention_bytes=0), list(TWO), 200, id="T-32 retention.bytes of 0: both go, start 200"
        ),
        pytest.param(
            view(segments(11), retention_bytes=10 * SEGMENT_BYTES),
            [(0, 99)],
            100,
            id="size: the oldest above the limit goes",
        ),
        pytest.param(
            view(segments(10), retention_bytes=10 * SEGMENT_BYTES), [], 0, id="size: at the limit nothing goes"
        ),
        pytest.param(
            view(segments(11), retention_bytes=10 * SEGMENT_BYTES + 1),
            [],
            0,
            id="T-42 a segment goes only if all of it is too much",
        ),
        pytest.param(
            view(segments(5), retention_bytes=5 * SEGMENT_BYTES, local=(400, 500, 600), local_bytes=SEGMENT_BYTES),
            [(0, 99), (100, 199)],
            200,
            id="T-38 bytes that are only local count; those that are remote as well count once",
        ),
        pytest.param(
            view(segments(5), retention_bytes=5 * SEGMENT_BYTES, local=(400, 500, 600), high_watermark=600),
            [(0, 99)],
            100,
            id="local bytes above the high watermark do not count: a deposed leader may be filling them",
        ),
        pytest.param(
            view(segments(5, youngest_h=1), retention_h=5, retention_bytes=4 * SEGMENT_BYTES),
            [(0, 99)],
            100,
            id="T-43 what goes by time is no more too much by size",
        ),
        pytest.param(
            view(segments(1, size_bytes=1)), [], 0, id="without a limit of size not even a segment of one byte goes"
        ),
        pytest.param(
            view(segments(4), retention_bytes=3 * SEGMENT_BYTES, start=99),
            [(0, 99)],
            100,
            id="the segment whose last offset is the start still counts by size",
        ),
        pytest.param(
            view(segments(4), retention_bytes=3 * SEGMENT_BYTES, start=100),
            [(0, 99)],
            100,
            id="what is below the start goes, and does not count by size any more",
        ),
        # the remote log start
        pytest.param(
            view(segments(3), start=250),
            [(0, 99), (100, 199)],
            250,
            id="S-064 below the remote log start, also in the middle of a segment",
        ),
        pytest.param(
            view(segments(3), start=250, retention_bytes=2 * SEGMENT_BYTES),
            [(0, 99), (100, 199)],
            250,
            id="a start in the middle of a segment is never lowered to the segment's",
        ),
        pytest.param(
            view(segments(3), start=99, log_start_offset=5000, high_watermark=9000),
            [],
            99,
            id="DESIGN 5: the broker's log start is never evidence of a user's delete",
        ),
        pytest.param(
            view(segments(3, first=200), start=0, log_start_offset=100, high_watermark=900),
            [],
            0,
            id="a start of 0 is said, and no other takes its place",
        ),
        # states
        pytest.param(
            view((segment(0, 99, age_h=9, state=STARTED), *segments(2, first=100, youngest_h=8)), retention_h=5),
            [(100, 199), (200, 299)],
            300,
            id="an unfinished copy holds no data and does not end the scan",
        ),
        pytest.param(
            view(tuple(segment(100 * n, 100 * n + 99, state=DELETED) for n in range(2)), retention_h=0),
            [],
            -1,
            id="T-40 segments whose deletion is finished are nothing to delete, and move no start",
        ),
        # overlaps
        pytest.param(
            view((segment(0, 99, age_h=9), segment(50, 149, age_h=8)), retention_h=5),
            [(0, 99), (50, 149)],
            150,
            id="T-33 overlapping duplicates: both go, and the start is behind the later end",
        ),
        pytest.param(
            view((segment(0, 149, age_h=8), segment(0, 99, age_h=9)), retention_h=5),
            [(0, 149), (0, 99)],
            150,
            id="T-33 T-68 whichever comes first",
        ),
        pytest.param(
            view((*segments(3), segment(0, 99, age_h=2, uuid=b"another copy 16b")), retention_bytes=3 * SEGMENT_BYTES),
            [],
            0,
            id="U6 bytes held twice count once: no good segment goes for a duplicate",
        ),
        pytest.param(
            view((segment(0, 99), segment(50, 149), segment(150, 249)), retention_bytes=int(2.5 * SEGMENT_BYTES)),
            [],
            0,
            id="U6 of an overlap only the new offsets count",
        ),
    ],
)
def test_what_expires(given: ExpiryView, expected: list[tuple[int, int]], start: int) -> None:
    plan = decide_expiry(given)
    assert (sorted(going(plan), key=lambda one: (one[0], -one[1])), plan.remote_log_start_offset) == (expected, start)
    assert plan.stop == ""
    assert all(removal.reason for removal in plan.expired)


@pytest.mark.parametrize("by_size", [True, False], ids=["T-38 by size", "T-39 by time"])
@pytest.mark.parametrize("kept", [50, 49, 27, 1, 0])
def test_fifty_segments_over_four_epochs(kept: int, by_size: bool) -> None:
    """T-38, T-39: oldest first, and the log starts behind the last one that went."""
    remote = in_epochs(50, FOUR_EPOCHS)
    limit = {"retention_bytes": kept * SEGMENT_BYTES} if by_size else {"retention_h": kept}
    plan = decide_expiry(view(remote, lineage=FOUR_EPOCHS, **limit))  # type: ignore[arg-type]
    assert going(plan) == [(100 * n, 100 * n + 99) for n in range(50 - kept)]
    assert plan.remote_log_start_offset == (50 - kept) * 100


def test_only_finished_segments_of_the_lineage_count_by_size() -> None:
    """T-35, S-070: leftovers go in the first round; what is being copied counts once it is finished, and not before."""
    dangling = segment(0, 99, state=STARTED, uuid=b"dangling copy 16")
    deleting = segment(0, 99, state=DELETING, uuid=b"dangling delete!")
    gone = segment(0, 99, state=DELETED, uuid=b"deleted already!")
    foreign = segment(0, 99, epochs=((7, 0),), uuid=b"of another log 1")
    ten = segments(10)
    copying = segment(1000, 1099, state=STARTED)
    given = view(
        (dangling, deleting, gone, foreign, *ten, copying),
        retention_bytes=10 * SEGMENT_BYTES,
        in_flight={copying.remote_log_segment_id},
    )
    first = decide_expiry(given)
    assert {removal.metadata for removal in first.leftovers} == {dangling, deleting}
    assert going(first) == []
    second = decide_expiry(view((foreign, *ten, segment(1000, 1099)), retention_bytes=10 * SEGMENT_BYTES))
    assert (going(second), second.remote_log_start_offset) == ([(0, 99)], 100)


def test_a_copy_in_flight_ends_the_scan() -> None:
    """T-31, S-062: nothing from that segment on; the next round, without it in flight, takes the rest."""
    remote = segments(4, youngest_h=9)
    flying = view(remote, retention_h=5, in_flight={remote[2].remote_log_segment_id})
    assert going(decide_expiry(flying)) == [(0, 99), (100, 199)]
    assert going(decide_expiry(view(remote, retention_h=5))) == [(100 * n, 100 * n + 99) for n in range(4)]


UNCLEAN = ((0, 0), (2, 50))
"""A new leader, elected uncleanly, had only the first 50 offsets of epoch 0; epoch 1 is unknown to it."""
DIVERGED = segment(0, 99, age_h=9)
FOREIGN = segment(100, 199, age_h=9, epochs=((1, 100),))


@pytest.mark.parametrize(
    ("given", "expected", "start"),
    [
        pytest.param(
            view((DIVERGED, FOREIGN), lineage=UNCLEAN), [], 0, id="U24 without a limit nothing of another history goes"
        ),
        pytest.param(
            view((DIVERGED, FOREIGN), lineage=UNCLEAN, retention_h=10), [], 0, id="U24 nor before its own retention"
        ),
        pytest.param(
            view((DIVERGED, FOREIGN), lineage=UNCLEAN, retention_h=5),
            [(0, 99), (100, 199)],
            50,
            id="U24 past it both go, and the log starts behind what this history had of them",
        ),
        pytest.param(
            view((DIVERGED, FOREIGN, segment(50, 149, age_h=1, epochs=((2, 50),))), lineage=UNCLEAN, start=150),
            [(0, 99), (50, 149)],
            150,
            id="without a time limit what ends below the start goes, as in Kafka, but only epochs up to the one there",
        ),
        pytest.param(
            view((segment(0, 99, age_h=9, epochs=((1, 0),)),), lineage=((1, 50),), retention_h=5),
            [(0, 99)],
            100,
            id="a live file that has forgotten where its first epoch began: the segment is of this history",
        ),
        pytest.param(
            view((segment(40, 89, epochs=((2, 40),)),), lineage=UNCLEAN, start=200),
            [(40, 89)],
            200,
            id="one of the epoch that is there now, begun before it was, goes below the start",
        ),
        pytest.param(
            view((DIVERGED, FOREIGN, segment(50, 149, age_h=1, epochs=((2, 50),))), lineage=UNCLEAN, start=199),
            [(0, 99), (50, 149)],
            199,
            id="nor one that holds the start itself",
        ),
        pytest.param(
            view((segment(0, 99, age_h=1), segment(100, 150, age_h=9)), lineage=((0, 0), (1, 150)), retention_h=5),
            [],
            0,
            id="a segment with one offset of the next epoch's is not of this history, and held back by its front",
        ),
        pytest.param(
            view((segment(0, 0, age_h=9, epochs=((7, 0),)),), lineage=((0, 0),)),
            [],
            -1,
            id="a single record of an epoch that nobody knows says nothing of where the log starts",
        ),
        pytest.param(
            view(
                (segment(0, 99), segment(100, 199, age_h=9, epochs=((1, 100), (3, 150)))),
                lineage=((0, 0), (1, 100), (2, 120)),
                retention_h=5,
            ),
            [],
            0,
            id="of a segment of two epochs the front of the first is served, and waits for what comes before it",
        ),
        pytest.param(
            view(
                (segment(0, 99), segment(50, 99, age_h=9, epochs=((1, 50),))), lineage=((0, 0), (1, 100)), retention_h=5
            ),
            [(50, 99)],
            0,
            id="what ends right where its epoch begins in this history serves nothing, and goes by its own retention",
        ),
        pytest.param(
            view((DIVERGED, FOREIGN, segment(50, 149, age_h=1, epochs=((2, 50),))), lineage=UNCLEAN, start=200),
            [(0, 99), (50, 149), (100, 199)],
            200,
            id="and once the start is beyond all of it, all goes",
        ),
        pytest.param(
            view(
                (segment(0, 99, age_h=1), segment(50, 149, age_h=9, epochs=((2, 50),))), lineage=UNCLEAN, retention_h=5
            ),
            [],
            0,
            id="a segment that serves its front by time holds back what comes after it",
        ),
        pytest.param(
            view(
                (segment(0, 99, age_h=9), segment(50, 149, epochs=((2, 50),)), segment(150, 249, epochs=((2, 150),))),
                lineage=UNCLEAN,
                retention_bytes=SEGMENT_BYTES,
            ),
            [(0, 99), (50, 149)],
            150,
            id="by size it counts for nothing, and goes with what comes after it",
        ),
        pytest.param(
            view((*segments(2), segment(150, 249, epochs=((3, 150),))), lineage=((0, 0), (4, 200)), retention_bytes=0),
            list(TWO),
            200,
            id="T-44 S-070 a segment outside the lineage ends no scan and counts for nothing",
        ),
    ],
)
def test_other_histories(given: ExpiryView, expected: list[tuple[int, int]], start: int) -> None:
    plan = decide_expiry(given)
    assert (sorted(going(plan)), plan.remote_log_start_offset, plan.stop) == (expected, start, "")
    assert all(removal.reason for removal in plan.expired)
    of_this_history = {one.metadata for one in plan.expired if one.kind is TrashKind.RETENTION}
    assert of_this_history == {one.metadata for one in plan.expired if one.metadata.is_within(given.lineage)}


@pytest.mark.parametrize(
    ("given", "start"),
    [
        pytest.param(
            view(segments(1, youngest_h=9), local=(100, 200, 300), local_age_h=9, retention_h=5),
            300,
            id="U8 local segments that were never copied and are past total retention; the active one stays",
        ),
        pytest.param(
            view(segments(1, youngest_h=9), local=(50, 200, 300), local_age_h=4, retention_h=5),
            100,
            id="a local segment that holds younger records than the remote ones keeps its own offsets",
        ),
        pytest.param(
            view(segments(1, youngest_h=1), local=(100, 200, 300), local_age_h=9, retention_h=5),
            0,
            id="nothing local while something remote before it stays",
        ),
        pytest.param(
            view(local=(100, 200, 300), local_age_h=9, retention_h=5),
            300,
            id="S-052 copying is off: local data have a total retention too",
        ),
        pytest.param(view(local=(0, 100, 200, 300), retention_bytes=2 * SEGMENT_BYTES), 200, id="S-052 and by size"),
        pytest.param(
            view(local=(0, 100, 200, 300), retention_bytes=3 * SEGMENT_BYTES, log_start_offset=100, high_watermark=900),
            -1,
            id="what the broker has given up, and lists until its file is gone, counts for nothing",
        ),
        pytest.param(
            view(
                local=(0, 100, 200, 300),
                retention_bytes=3 * SEGMENT_BYTES,
                start=0,
                log_start_offset=100,
                high_watermark=900,
            ),
            0,
            id="nor where the remote log starts below it",
        ),
        pytest.param(
            view(local=(0, 100, 200, 300), local_age_h=9, retention_h=5, high_watermark=150),
            100,
            id="nothing above the high watermark",
        ),
        pytest.param(
            view(local=(0, 100, 200), local_age_h=9, retention_h=5, high_watermark=200), 200, id="what ends right at it"
        ),
        pytest.param(
            view(
                local=(0, 100, 200),
                local_age_h=9,
                policy=TopicPolicy(mode=RetentionMode.RACE, retention_ms=HOUR_MS),
            ),
            -1,
            id="in race mode local data are the broker's business",
        ),
    ],
)
def test_data_that_were_never_copied(given: ExpiryView, start: int) -> None:
    assert decide_expiry(given).remote_log_start_offset == start


@pytest.mark.parametrize(
    ("start", "first"),
    [
        pytest.param(-1, 100, id="nobody has said it: what is below was deleted before the first copy"),
        pytest.param(0, -1, id="it was said to be 0"),
        pytest.param(150, -1, id="it was said, and is above"),
    ],
)
def test_where_the_log_started_before_anybody_had_said_so(start: int, first: int) -> None:
    assert decide_expiry(view(segments(3, first=100), start=start)).first_start_offset == first


@pytest.mark.parametrize(
    ("broker_start", "start"),
    [
        pytest.param(199, 100, id="a segment that reaches over the broker's start by one offset stays"),
        pytest.param(200, 200, id="one that ends right below it goes"),
        pytest.param(250, 200, id="no start is beyond the broker's"),
    ],
)
def test_in_race_mode_what_the_broker_has_stays(broker_start: int, start: int) -> None:
    policy = TopicPolicy(mode=RetentionMode.RACE, retention_ms=HOUR_MS)
    given = view(segments(4, youngest_h=2), policy=policy, start=0, log_start_offset=broker_start, high_watermark=900)
    assert decide_expiry(given).remote_log_start_offset == start


def test_tiering_switched_off_with_deletion() -> None:
    """U10, KIP-950: everything remote goes, of any history, and readers begin at the local start."""
    remote = (*segments(2), segment(0, 99, epochs=((7, 0),), uuid=b"of another log 1"))
    policy = TopicPolicy(mode=RetentionMode.RACE, copy_disabled=True, delete_remote=True)
    not_asked = decide_expiry(view(remote, policy=policy))
    assert (going(not_asked), not_asked.remote_log_start_offset) == ([], -1)
    plan = decide_expiry(view(remote, policy=policy, log_start_offset=150, high_watermark=900))
    assert sorted(going(plan)) == [(0, 99), (0, 99), (100, 199)]
    assert plan.remote_log_start_offset == 150
    assert {removal.kind for removal in plan.expired} == {TrashKind.DISABLE}
    assert {removal.reason for removal in plan.expired} == {"tiering of the topic was switched off with deletion"}
    nothing_remote = view(policy=policy, log_start_offset=150, high_watermark=900)
    assert decide_expiry(nothing_remote).remote_log_start_offset == -1


def test_what_a_switch_off_decided_holds_as_long_as_tiering_is_switched_off() -> None:
    decided = TrashEntry(
        id=TrashId(generation=0, leader_epoch=LeaderEpoch(0), kind=TrashKind.DISABLE, opened_ms=NOW_MS - HOUR_MS),
        decided_ms=NOW_MS - HOUR_MS,
        due_ms=NOW_MS + HOUR_MS,
        up_to=Offset(200),
    )
    day = TrashDelays(retention_ms=24 * HOUR_MS, user_ms=HOUR_MS)
    off = view(
        segments(2),
        policy=TopicPolicy(mode=RetentionMode.RACE, copy_disabled=True, delete_remote=True),
        start=200,
        log_start_offset=200,
        high_watermark=900,
        trash=(decided,),
        delays=day,
    )
    assert decide_expiry(off).trash.take_out == ()
    assert decide_expiry(replace(off, policy=TopicPolicy())).trash.take_out == (decided,)


def test_without_a_limit_by_time_another_history_goes_once_the_start_has_left_it_behind() -> None:
    left_behind = segment(0, 99, epochs=((2, 0),), uuid=b"of another log 1")
    given = view((left_behind, segment(200, 299, epochs=((3, 200),))), lineage=((0, 0), (3, 100)), start=200)
    (removal,) = decide_expiry(given).expired
    assert (removal.metadata, removal.kind) == (left_behind, TrashKind.OUTSIDE_LINEAGE)


def test_the_tally() -> None:
    """S-057, U16: all segments known, finished bytes of the lineage, bytes only local, and who is from the future."""
    future = segment(200, 299, age_h=-5)
    foreign = segment(0, 99, epochs=((7, 0),), uuid=b"of another log 1")
    tally = decide_expiry(view((*segments(2), foreign, future), local=(200, 300, 400))).tally
    assert (tally.metadata_count, tally.remote_log_size_bytes) == (4, 4 * SEGMENT_BYTES)
    assert (tally.finished_bytes, tally.only_local_bytes) == (3 * SEGMENT_BYTES, 2 * SEGMENT_BYTES)
    assert tally.from_the_future == (future,)


def test_the_delete_lag_counts_what_has_not_gone_yet() -> None:
    """T-34: 2048 bytes in 2 segments, then 1024 in 1, then none."""
    remote = segments(2, youngest_h=9)
    lags = [decide_expiry(view(rest, retention_h=5, start=200)) for rest in (remote, remote[1:], ())]
    assert [(plan.lag_bytes, len(plan.expired)) for plan in lags] == [(2048, 2), (1024, 1), (0, 0)]


@pytest.mark.parametrize("policy", [TopicPolicy(retention_ms=-2), TopicPolicy(retention_bytes=-5)])
def test_a_retention_that_is_no_amount_is_refused(policy: TopicPolicy) -> None:
    """T-41."""
    with pytest.raises(ValueError, match="retention of"):
        view(segments(1), policy=policy)


def test_a_decision_is_put_into_the_trash_in_the_leaders_name_and_kept_until_the_broker_is_done() -> None:
    day = TrashDelays(retention_ms=24 * HOUR_MS)
    given = view(
        segments(4, youngest_h=8),
        retention_h=9.5,
        start=0,
        log_start_offset=0,
        high_watermark=900,
        leader_epoch=7,
        start_generation=3,
        by="broker 1",
        lineage=((0, 0), (7, 400)),
        delays=day,
    )
    (decided,) = decide_expiry(given).trash.put
    assert (decided.id.leader_epoch, decided.id.generation, decided.by, decided.up_to) == (7, 3, "broker 1", 200)
    due = replace(decided, due_ms=NOW_MS)
    after = replace(given, trash=(due,), remote_log_start_offset=Offset(200), remote_segments=given.remote_segments[2:])
    assert decide_expiry(after).trash.take_out == (), "its local log still begins below it"
    assert decide_expiry(replace(after, log_start_offset=200)).trash.take_out == (due,)
    shorter = replace(after, log_start_offset=150, high_watermark=150)
    assert decide_expiry(shorter).trash.take_out == (due,), "its local log ends below it"


@pytest.mark.parametrize(
    ("remote", "only_local", "finished"),
    [
        pytest.param((), 5, 0, id="nothing is remote"),
        pytest.param(
            (segment(0, 149), segment(100, 199), segment(250, 299)), 2.5, 2.5, id="overlaps, and a hole of a half"
        ),
        pytest.param((segment(0, 49), segment(50, 99)), 4, 2, id="one segment in two halves"),
        pytest.param((segment(50, 349),), 2, 1, id="one that begins and ends within local segments"),
        pytest.param(
            (segment(0, 199), segment(0, 99, uuid=b"another copy 16b")), 3, 1, id="a copy within a longer one"
        ),
        pytest.param((segment(0, 99), segment(0, 99, uuid=b"another copy 16b")), 4, 1, id="the same offsets twice"),
    ],
)
def test_each_offset_counts_once_by_size(
    remote: tuple[RemoteLogSegmentMetadata, ...], only_local: float, finished: float
) -> None:
    """U6: in segments of 100 offsets and 1024 bytes, the last of five still written to."""
    tally = decide_expiry(view(remote, local=(0, 100, 200, 300, 400))).tally
    assert tally.only_local_bytes == only_local * SEGMENT_BYTES
    assert tally.finished_bytes == finished * SEGMENT_BYTES


@pytest.mark.parametrize(
    ("given", "start"),
    [
        pytest.param(view(local=(100, 200), log_start_offset=100), -1, id="nothing is remote: the broker says it"),
        pytest.param(
            view(segments(2, first=100), local=(300, 400), log_start_offset=300),
            100,
            id="lower where segments are remote",
        ),
        pytest.param(
            view(segments(2, first=300), local=(150, 400), log_start_offset=150),
            150,
            id="not higher by what was copied late",
        ),
        pytest.param(
            view(segments(2, first=300), local=(300, 500), log_start_offset=350, trim_offset=350),
            300,
            id="a trim of ours, and what it trimmed is remote",
        ),
    ],
)
def test_the_first_start(given: ExpiryView, start: int) -> None:
    assert decide_expiry(replace(given, high_watermark=900)).remote_log_start_offset == start


def test_an_operators_hold_moves_no_start_and_keeps_all_that_is_not_below_it() -> None:
    """Issue 16: what was undeleted is not taken again at once."""
    plan = decide_expiry(view(segments(4, youngest_h=9), retention_h=1, start=200, hold="held until 12:00"))
    assert (plan.stop, plan.remote_log_start_offset) == ("held until 12:00", 200)
    assert going(plan) == [(0, 99), (100, 199)]


def test_each_removal_says_why() -> None:
    by_time, by_size = segment(100, 199, age_h=9), segment(200, 299)
    foreign = segment(0, 99, age_h=9, epochs=((7, 0),))
    policy = TopicPolicy(retention_ms=5 * HOUR_MS, retention_bytes=SEGMENT_BYTES)
    given = view((segment(0, 99), foreign, by_time, by_size, segment(300, 399)), policy=policy, start=100)
    reasons = {one.metadata: one.reason for one in decide_expiry(given).expired}
    assert reasons[given.remote_segments[0]] == "it ends below the remote log start 300"
    assert reasons[by_time] == "retention.ms of 18000000 is over"
    assert reasons[by_size] == "the log is larger than retention.bytes of 1024"
    assert reasons[foreign] == "it is outside the lineage, and past retention.ms"


def test_what_holds_the_start_is_neither_gone_nor_deleted() -> None:
    """Its last offset is the start."""
    given = view(segments(2), start=99, hold="held")
    plan = decide_expiry(given)
    assert (going(plan), plan.tally.finished_bytes) == ([], 2 * SEGMENT_BYTES)
    below = decide_expiry(replace(given, remote_log_start_offset=100))
    assert [removal.reason for removal in below.expired] == ["it ends below the remote log start 100"]
    assert below.tally.finished_bytes == SEGMENT_BYTES


def test_local_bytes_count_from_the_start_on_and_between_all_that_is_remote() -> None:
    from_150 = decide_expiry(view(local=(0, 100, 200), start=150)).tally
    assert from_150.only_local_bytes == 1.5 * SEGMENT_BYTES
    stripes = tuple(segment(base, base + 24) for base in (0, 50, 100, 150))
    assert decide_expiry(view(stripes, local=(0, 200, 300))).tally.only_local_bytes == 2.5 * SEGMENT_BYTES


def test_what_is_in_the_trash_and_due_waits_while_the_clock_is_in_doubt() -> None:
    day = TrashDelays(retention_ms=24 * HOUR_MS)
    given = view(
        segments(4, youngest_h=8), retention_h=9.5, start=0, delays=day, log_start_offset=0, high_watermark=900
    )
    (decided,) = decide_expiry(given).trash.put
    due = replace(given, trash=(replace(decided, due_ms=NOW_MS),), remote_log_start_offset=Offset(200))
    assert going(decide_expiry(due)) == [(0, 99), (100, 199)]
    assert going(decide_expiry(replace(due, clock_doubt="the wall clock jumped"))) == []


def test_named_segments_stay_in_the_trash_until_they_are_gone() -> None:
    day = TrashDelays(retention_ms=24 * HOUR_MS)
    given = view((segment(0, 99, age_h=9, epochs=((7, 0),)),), retention_h=5, delays=day)
    (named,) = decide_expiry(given).trash.put
    due = replace(given, trash=(replace(named, due_ms=NOW_MS),))
    assert decide_expiry(due).trash.take_out == ()
    assert decide_expiry(replace(due, remote_segments=())).trash.take_out == due.trash


def test_a_plan_belongs_to_the_generation_of_the_start_that_it_was_made_by() -> None:
    assert decide_expiry(view(segments(1), start_generation=3)).start_generation == 3


@pytest.mark.parametrize(
    ("mode", "is_put"),
    [
        pytest.param(
            RetentionMode.STRICT, True, id="the sidecar trims it: an entry of the trash says until when it stays"
        ),
        pytest.param(RetentionMode.RACE, False, id="in race mode the broker deletes it in its own time"),
    ],
)
def test_what_lies_below_the_start_and_only_in_the_brokers_log(mode: RetentionMode, is_put: bool) -> None:
    given = view(
        segments(1, first=200),
        local=(0, 100, 200, 300),
        policy=TopicPolicy(mode=mode),
        start=200,
        log_start_offset=0,
        high_watermark=300,
        delays=TrashDelays(retention_ms=24 * HOUR_MS),
    )
    assert bool(decide_expiry(given).trash.put) is is_put
