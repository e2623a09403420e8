"""Assignment, replay aside, readiness and lost data, without a broker (S-093, S-094, S-095, S-096, T-69, T-70, T-71, T-73)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tests.support.metadata_events import DELETED, DELETING, FINISHED, added, updated
from tests.support.recorded_telemetry import RecordedTelemetry
from tests.unit.adapters.metadata_topic.replicas import FACTS, Topic, owner, partition_of, snapshot_of
from tiersidecar.adapters.internal_topics import TopicFacts
from tiersidecar.domain.errors import IllegalTransitionError, MetadataNotReadyError, UnknownSegmentError
from tiersidecar.domain.ids import Uuid
from tiersidecar.ports.metrics.process import METADATA_READY


def topic_with_two(*, finished: bool = True) -> Topic:
    """Events of partitions 0 and 1 in turn: segments 1 and 3 of 0, 2 and 4 of 1."""
    topic = Topic()
    for number, (which, start) in enumerate([(0, 0), (1, 0), (0, 10), (1, 10)], start=1):
        topic.write(added(number, start, start + 9, owner=owner(which)))
        if finished:
            topic.write(updated(number, FINISHED, owner=owner(which)))
    return topic


def restarted(topic: Topic) -> Topic:
    again = Topic(restored=snapshot_of(topic))
    again.records = list(topic.records)
    return again


async def test_ready_only_at_the_end_offset_seen_at_assignment() -> None:
    """S-095, T-71: later records do not put it off."""
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live(5)
    assert not topic.is_ready(0)
    with pytest.raises(MetadataNotReadyError, match="orders-0"):
        topic.segments(0)
    topic.write(added(9, 20, 29, owner=owner(0)))
    topic.read_live(3)
    assert topic.is_ready(0)
    assert topic.segments(0) == [1, 3]


@pytest.mark.parametrize("begin", [0, 500], ids=["nothing was ever written", "begin = end = 500"])
async def test_an_empty_metadata_partition_is_ready_at_once(begin: int) -> None:
    """T-71."""
    topic = Topic()
    topic.start([owner(0)])
    topic.replica.partitions[0].learn_bounds(begin, begin)
    assert topic.is_ready(0)
    assert topic.replica.halted_reason is None


async def test_only_metadata_partitions_of_assigned_partitions_are_read() -> None:
    topic = Topic(partition_count=50)
    topic.start([owner(0), owner(1)])
    topic.learn_bounds()
    assert set(topic.replica.live_positions()) == {partition_of(0, 50), partition_of(1, 50)}


async def test_skipped_records_are_read_aside_by_a_newcomer_while_the_others_go_on() -> None:
    """T-70 (KAFKA-16105), S-094."""
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live()
    topic.replica.assign([owner(0), owner(1)])
    topic.read_separately(3)
    assert (topic.is_ready(0), topic.is_ready(1)) == (True, False)
    topic.write(added(5, 20, 29, owner=owner(0)), added(6, 20, 29, owner=owner(1)))
    topic.read_live()
    assert topic.segments(0) == [1, 3, 5]
    topic.read_separately(4)
    assert not topic.is_ready(1)
    topic.read_separately()
    assert topic.is_ready(1)
    assert topic.segments(1) == [2, 4, 6]
    assert topic.replica.side_positions() == {}
    topic.write(updated(6, FINISHED, owner=owner(1)))
    topic.read_live()
    assert topic.replica.require(owner(1)).remote_log_segment_metadata(0, 25) is not None


async def test_a_second_newcomer_sends_the_side_consumer_back() -> None:
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live()
    topic.replica.assign([owner(0), owner(1)])
    topic.read_separately(3)
    topic.replica.assign([owner(0), owner(1), owner(2)])
    assert topic.replica.side_positions() == {0: 0}
    topic.read_separately()
    assert (topic.is_ready(1), topic.is_ready(2)) == (True, True)
    assert topic.segments(1) == [2, 4]


async def test_records_that_were_fetched_before_a_reassignment_are_not_applied() -> None:
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live(4)
    late = topic.records[4:6]
    topic.replica.assign([owner(1)])
    topic.learn_bounds()
    topic.replica.partitions[0].apply_live(list(late), read_from=4, position=6)
    assert topic.replica.live_positions() == {0: 0}
    topic.read_live()
    assert topic.segments(1) == [2, 4]


async def test_a_partition_that_leaves_and_comes_back_begins_from_the_beginning() -> None:
    """T-69, T-70."""
    topic = topic_with_two()
    topic.start([owner(0), owner(1)])
    topic.read_live()
    topic.replica.assign([owner(1)])
    with pytest.raises(MetadataNotReadyError):
        topic.segments(0)
    topic.write(added(5, 20, 29, owner=owner(0)))
    topic.read_live()
    topic.replica.assign([owner(0), owner(1)])
    topic.read_separately()
    assert topic.segments(0) == [1, 3, 5]


async def test_a_topic_made_again_under_the_same_name_is_another_partition() -> None:
    """Issue 4: topic deletion and re-creation."""
    topic = topic_with_two()
    again = replace(owner(0), topic_id=Uuid(b"orders-again-id!"))
    topic.write(added(8, 0, 9, owner=again))
    topic.start([again])
    topic.read_live()
    cache = topic.replica.require(again)
    assert [m.topic_id_partition for m in cache.list_remote_log_segments()] == [again]
    assert topic.replica.held(owner(0)) is None


async def test_a_restart_replays_only_the_tail() -> None:
    """T-73, U13."""
    topic = topic_with_two()
    topic.start([owner(0), owner(1)])
    topic.read_live()
    again = restarted(topic)
    again.write(updated(1, DELETING, owner=owner(0)), updated(1, DELETED, owner=owner(0)))
    again.start([owner(0), owner(1)])
    again.learn_bounds()
    assert again.replica.live_positions() == {0: 7}  # the last record once more, to see that it is the same
    again.read_live()
    assert (again.segments(0), again.segments(1)) == ([3], [2, 4])
    assert again.replica.halted_reason is None


async def test_a_partition_that_the_snapshot_lacks_is_read_aside() -> None:
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live()
    again = restarted(topic)
    again.start([owner(0), owner(1)])
    again.learn_bounds()
    assert (again.replica.live_positions(), again.replica.side_positions()) == ({0: 7}, {0: 0})
    again.read_live()
    assert (again.is_ready(0), again.is_ready(1)) == (True, False)
    again.read_separately()
    assert again.segments(1) == [2, 4]


async def test_a_snapshot_ahead_of_the_topic_is_read_from_and_halts() -> None:
    """Issue 4: keep it, serve reads from it, halt, name the recovery."""
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live()
    again = restarted(topic)
    again.cut(3)
    again.start([owner(0)])
    again.read_live()
    assert again.segments(0) == [1, 3]
    assert again.replica.live_positions() == {}
    assert again.replica.halted_reason == (
        "metadata-0 ends at offset 3, but was read up to 8 before: the topic lost data. Call the operator."
    )
    assert again.replica.is_lost


async def test_a_topic_that_loses_its_end_while_we_run_is_the_same() -> None:
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live()
    topic.cut(5)
    topic.replica.begin_session(FACTS)
    topic.read_live()
    assert topic.segments(0) == [1, 3]
    assert "ends at offset 5" in str(topic.replica.halted_reason)


async def test_a_topic_that_an_operator_brought_back_is_read_on() -> None:
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live()
    whole = list(topic.records)
    topic.cut(5)
    topic.replica.begin_session(FACTS)
    topic.read_live()
    assert topic.replica.is_lost
    topic.replica.begin_session(FACTS)
    assert topic.replica.is_lost, "until the bounds are known nothing is trimmed or deleted, as before"
    assert "ends at offset 5" in str(topic.replica.halted_reason)
    topic.read_live()
    assert "ends at offset 5" in str(topic.replica.halted_reason)
    topic.records = whole
    topic.write(added(5, 20, 29, owner=owner(0)))
    topic.replica.begin_session(FACTS)
    topic.read_live()
    assert topic.segments(0) == [1, 3, 5]
    assert topic.replica.halted_reason is None


async def test_a_truncated_topic_that_lost_nothing_of_ours_is_replayed_whole() -> None:
    """Issue 4: a truncated topic means a full replay.  Told by the last record, which is another one now."""
    topic = topic_with_two()
    topic.write(added(5, 20, 29, owner=owner(1)))
    topic.start([owner(0), owner(1)])
    topic.read_live()
    again = restarted(topic)
    again.cut(8)
    again.write(added(6, 20, 29, owner=owner(0)), updated(6, FINISHED, owner=owner(0)))
    again.start([owner(0), owner(1)])
    again.read_live()
    assert not again.is_ready(0)
    again.read_live()
    assert (again.segments(0), again.segments(1)) == ([1, 3, 6], [2, 4])
    assert again.replica.halted_reason is None


@pytest.mark.parametrize("custom", [b"c", b"c" * 200], ids=["of the common shape", "with long custom metadata"])
async def test_a_truncated_topic_that_says_that_a_segment_is_deleted_has_not_lost_it(custom: bytes) -> None:
    topic = topic_with_two()
    topic.write(added(5, 20, 29, owner=owner(1)))
    topic.start([owner(0), owner(1)])
    topic.read_live()
    again = restarted(topic)
    again.cut(8)
    again.write(*(updated(1, state, owner=owner(0), custom=custom) for state in (DELETING, DELETED)))
    again.start([owner(0), owner(1)])
    again.read_live()
    again.read_live()
    assert again.segments(0) == [3]
    assert again.replica.halted_reason is None


async def test_a_truncated_topic_that_lost_only_the_end_of_a_copy_halts_too() -> None:
    """Its COPY_SEGMENT_STARTED is still there: a day later it would be taken for a copy that never ended, and deleted."""
    topic = topic_with_two()
    topic.start([owner(0), owner(1)])
    topic.read_live()
    again = restarted(topic)
    again.cut(7)
    again.write(added(6, 20, 29, owner=owner(0)), updated(6, FINISHED, owner=owner(0)))
    again.start([owner(0), owner(1)])
    again.read_live()
    again.read_live()
    assert "was truncated and written on: 1 finished segments are no longer in it" in str(again.replica.halted_reason)
    cache = again.replica.require(owner(1))
    assert {segment.state for segment in cache.list_remote_log_segments()} == {FINISHED}


async def test_a_truncated_topic_that_lost_finished_segments_halts_and_the_former_answers_stay() -> None:
    topic = topic_with_two()
    topic.start([owner(0), owner(1)])
    topic.read_live()
    again = restarted(topic)
    again.cut(6)
    again.write(
        added(6, 20, 29, owner=owner(0)), updated(6, FINISHED, owner=owner(0)), added(7, 30, 39, owner=owner(0))
    )
    again.start([owner(0), owner(1)])
    again.read_live()
    again.read_live()
    assert again.segments(1) == [2, 4]
    assert "was truncated and written on: 1 finished segments are no longer in it" in str(again.replica.halted_reason)
    again.replica.begin_session(FACTS)
    again.write(added(9, 90, 99, owner=owner(0)))
    again.read_live()
    assert again.segments(1) == [2, 4]
    assert again.replica.is_lost


async def test_a_segment_whose_deletion_was_replayed_is_not_lost() -> None:
    topic = topic_with_two()
    topic.start([owner(0), owner(1)])
    topic.read_live()
    again = restarted(topic)
    again.cut(7)
    again.write(updated(4, FINISHED, owner=owner(1), broker=2), updated(4, DELETING, owner=owner(1)))
    again.write(updated(4, DELETED, owner=owner(1)))
    again.start([owner(0), owner(1)])
    again.read_live()
    again.read_live()
    assert again.segments(1) == [2]
    assert again.replica.halted_reason is None


async def test_records_that_went_unread_by_retention_are_a_gap_that_halts() -> None:
    """S-104."""
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live(4)
    topic.begin = 6
    topic.replica.begin_session(FACTS)
    topic.read_live()
    assert topic.segments(0) == [1]
    assert "metadata-0 lost offsets 4 to 5 before they were read" in str(topic.replica.halted_reason)


async def test_partitions_that_were_assigned_while_the_topic_had_lost_data_are_read_once_it_is_whole_again() -> None:
    """S-094: leadership moves on while the metadata partition is lost, and nothing is assigned after that."""
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live()
    whole = list(topic.records)
    topic.cut(5)
    topic.replica.begin_session(FACTS)
    topic.learn_bounds()
    assert topic.replica.is_lost
    topic.replica.assign([owner(1)])
    topic.records = whole
    topic.replica.begin_session(FACTS)
    topic.read_live()
    assert topic.is_ready(1)
    assert topic.replica.halted_reason is None


async def test_what_a_snapshot_has_of_a_partition_that_comes_later_is_compared_too() -> None:
    """Its last record is not seen again, where another partition was read from the beginning meanwhile."""
    topic = topic_with_two()
    topic.start([owner(1)])
    topic.read_live()
    again = restarted(topic)
    again.cut(0)
    again.start([owner(0)])
    again.write(*(added(number, 0, 9, owner=owner(0)) for number in range(10, 20)))
    again.read_live()
    again.replica.assign([owner(0), owner(1)])
    again.read_separately()
    assert "was truncated and written on: 2 finished segments are no longer in it" in str(again.replica.halted_reason)
    assert again.segments(1) == [2, 4]


async def test_what_a_snapshot_has_of_a_partition_that_comes_while_the_topic_is_lost_is_compared_afterwards() -> None:
    topic = topic_with_two()
    topic.start([owner(0), owner(1)])
    topic.read_live()
    again = restarted(topic)
    again.cut(2)
    again.start([owner(0)])
    again.read_live()
    again.replica.assign([owner(1)])
    assert again.segments(1) == [2, 4], "reads are answered from it meanwhile"
    again.write(*(added(number, 0, 9, owner=owner(0)) for number in range(10, 20)))
    again.replica.begin_session(FACTS)
    again.read_live()
    assert "was truncated and written on: 2 finished segments are no longer in it" in str(again.replica.halted_reason)
    assert again.segments(1) == [2, 4]


async def test_a_snapshot_has_no_newcomer_that_lacks_the_record_that_is_seen_again() -> None:
    topic = Topic()
    topic.write(added(1, 0, 9, owner=owner(1)))
    topic.start([owner(0)])
    topic.read_live()
    again = restarted(topic)
    again.start([owner(0), owner(1)])
    once_more = restarted(again)
    once_more.start([owner(0)])
    once_more.read_live()
    once_more.replica.assign([owner(0), owner(1)])
    once_more.read_separately()
    assert once_more.segments(1) == [1]


async def test_a_newcomer_is_not_fed_what_the_main_consumer_has_not_reached() -> None:
    """T-70: what is cut off there and written anew would be missed, for only the last record of the main one is seen again."""
    topic = Topic()
    topic.write(added(1, 0, 9, owner=owner(0)), updated(1, FINISHED, owner=owner(0)))
    topic.start([owner(0)])
    topic.read_live()
    topic.write(added(2, 10, 19, owner=owner(1)), updated(2, FINISHED, owner=owner(1)))
    topic.replica.assign([owner(0), owner(1)])
    topic.read_separately(4)
    topic.cut(2)
    topic.write(added(3, 10, 19, owner=owner(1)), updated(3, FINISHED, owner=owner(1)))
    topic.replica.begin_session(FACTS)
    topic.read_live()
    assert topic.segments(1) == [3]


async def test_a_topic_that_loses_an_end_that_was_not_read_yet_is_ready_without_it_and_halts() -> None:
    """S-095: what was to be read at the assignment is gone, so nothing else makes the partition ready."""
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live(4)
    topic.cut(6)
    topic.replica.begin_session(FACTS)
    topic.read_live()
    assert topic.segments(0) == [1, 3]
    assert "metadata-0 lost offsets 6 to 7 before they were read" in str(topic.replica.halted_reason)
    topic.write(added(9, 90, 99, owner=owner(0)), updated(9, FINISHED, owner=owner(0)))
    topic.replica.begin_session(FACTS)
    topic.read_live()
    assert topic.segments(0) == [1, 3, 9]
    assert "metadata-0 lost offsets 6 to 7" in str(topic.replica.halted_reason), "what they named is still unknown"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param(replace(FACTS, topic_id=Uuid(b"another-topicid!")), "has topic id", id="another topic id"),
        pytest.param(replace(FACTS, leader_epochs={0: 2}), "lower leader epochs", id="a lower leader epoch"),
    ],
)
async def test_another_topic_is_not_read_and_what_was_known_stays(facts: TopicFacts, reason: str) -> None:
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live()
    again = restarted(topic)
    assert reason in str(again.start([owner(0)], facts))
    assert again.segments(0) == [1, 3]
    assert reason in str(again.replica.halted_reason)
    again.replica.assign([owner(0), owner(1)])
    assert not again.is_ready(1)
    assert again.replica.begin_session(FACTS) is None  # the operator brought it back
    assert reason in str(again.replica.halted_reason), "how much of it is not known yet"
    again.read_live()
    again.read_separately()
    assert again.segments(1) == [2, 4]
    assert again.replica.halted_reason is None


async def test_a_missing_topic_halts() -> None:
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live()
    again = restarted(topic)
    assert again.replica.is_known
    again.replica.assign([owner(0)])
    again.replica.topic_is_missing()
    assert again.segments(0) == [1, 3]
    assert "metadata is gone" in str(again.replica.halted_reason)


async def test_a_snapshot_of_another_cluster_is_discarded() -> None:
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live()
    again = restarted(topic)
    again.cut(2)
    other = replace(FACTS, cluster_id="other", topic_id=Uuid(b"another-topicid!"))
    assert again.start([owner(0)], other) is None
    again.read_live()
    assert again.segments(0) == [1]
    assert again.replica.halted_reason is None


async def test_weak_settings_are_a_reason_to_halt() -> None:
    topic = topic_with_two()
    topic.start([owner(0)], replace(FACTS, weaknesses=("min.insync.replicas is 1", "one replica")))
    assert topic.replica.halted_reason == "min.insync.replicas is 1; one replica"


async def test_illegal_and_corrupt_records_are_passed_over_and_their_publisher_is_told() -> None:
    """S-100."""
    topic = Topic()
    topic.start([owner(0)])
    topic.read_live()
    topic.write(
        added(1, 0, 9, owner=owner(0)),
        updated(1, DELETED, owner=owner(0)),
        updated(7, FINISHED, owner=owner(0)),
        b"",
        None,
        b"\x01\x00\x00",
        b"\x01\x00\x00\xff",
        updated(1, FINISHED, owner=owner(0)),
    )
    read_back = topic.replica.partitions[0].read_back
    waiting = asyncio.create_task(read_back.wait(1))
    await asyncio.sleep(0)
    topic.read_live()
    with pytest.raises(IllegalTransitionError):
        await waiting
    with pytest.raises(UnknownSegmentError):
        await read_back.wait(2)
    await read_back.wait(7)
    assert topic.segments(0) == [1]


async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    topic = Topic()
    topic.start([owner(0)])
    topic.read_live()
    read_back = topic.replica.partitions[0].read_back
    waiting = asyncio.create_task(read_back.wait(0))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    topic.write(added(1, 0, 9, owner=owner(0)))
    topic.read_live()
    await read_back.wait(0)


async def test_a_halt_is_logged_once_and_shown_as_a_gauge() -> None:
    topic = topic_with_two()
    with capture_logs() as logs:
        topic.start([owner(0)])
        topic.replica.report()
        assert logs == []
        topic.replica.begin_session(replace(FACTS, weaknesses=("weak",)))
        topic.replica.report()
        topic.replica.begin_session(FACTS)
    assert [(line["event"], line["log_level"]) for line in logs] == [
        ("metadata.topic.halted", "error"),
        ("metadata.topic.sound", "info"),
    ]


async def test_bounds_are_learnt_for_whoever_is_kept_and_the_gauge_tells_whether_all_are_ready() -> None:
    """Of partitions of the metadata topic that nobody is kept of, none; of one with a newcomer, again."""
    topic, telemetry = topic_with_two(), RecordedTelemetry()
    topic.replica._telemetry = telemetry
    assert topic.replica.unbounded() == []
    topic.start([owner(0)])
    assert topic.replica.unbounded() == [0]
    topic.replica.report()
    assert telemetry.value(METADATA_READY) == 0
    topic.read_live(8)
    topic.replica.report()
    assert telemetry.value(METADATA_READY) == 1
    assert topic.replica.unbounded() == []
    topic.replica.assign([owner(0), owner(1)])
    assert topic.replica.unbounded() == [0], "the newcomer has to reach an end"
    assert telemetry.value(METADATA_READY) == 0


async def test_a_newcomer_to_all_that_was_read_needs_an_end_too() -> None:
    """It is fed with the others at once."""
    topic = Topic()
    topic.start([owner(0)])
    topic.read_live(0)
    topic.replica.assign([owner(0), owner(1)])
    assert topic.replica.partitions[0].joining == {}
    assert topic.replica.unbounded() == [0]


async def test_changes_count_what_was_applied_to_any_partition_and_what_was_refused() -> None:
    topic = topic_with_two()
    topic.start([owner(0)])
    topic.read_live()
    before = topic.replica.changes
    topic.write(updated(9, FINISHED, owner=owner(0)), added(5, 20, 29, owner=owner(1)))
    topic.read_live()
    assert topic.replica.changes == before + 1, "events of partitions that are not ours change nothing"
    topic.replica.begin_session(replace(FACTS, cluster_id="another"))
    assert topic.replica.changes >= before + 1
