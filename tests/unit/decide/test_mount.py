"""How a lost cluster is set up anew (issue 21): where each partition goes on, in which epoch, and where groups go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.metadata_events import FINISHED, STARTED, added
from tiersidecar.decide.mount import (
    EPOCHS_APART,
    MOST_LEADER_EPOCH,
    STRICT_CONFIGS,
    PartitionEnd,
    PartitionRemains,
    SeenPartition,
    TopicRemains,
    believed_epoch,
    decide_end,
    decide_group,
    decide_topic,
    followed_epoch,
    next_producer_id,
    partition_fault,
    read_only_topic,
)
from tiersidecar.domain.cluster_topics import ClusterTopic, Commit, NewPartition, NewTopic
from tiersidecar.domain.errors import MountRefusedError
from tiersidecar.domain.ids import Uuid
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.domain.segments import RemoteLogSegmentMetadata

TOPIC_ID, OTHER_ID = Uuid(b"orders-topic-id!"), Uuid(b"another-topicid!")


def live(number: int, start: int, end: int, epochs: Mapping[int, int] | None = None) -> RemoteLogSegmentMetadata:
    return replace(added(number, start, end, epochs), state=FINISHED)


@pytest.mark.parametrize(
    ("remains", "start", "end", "holes"),
    [
        pytest.param(PartitionRemains(), -1, 0, (), id="of which nothing is left, it begins at 0"),
        pytest.param(
            PartitionRemains(segments=[live(1, 0, 9), live(2, 10, 19)]), 0, 20, (), id="it goes on behind the last copy"
        ),
        pytest.param(
            PartitionRemains(segments=[live(1, 0, 9), added(2, 10, 19, state=STARTED)]),
            0,
            10,
            (),
            id="a copy that was never finished does not count",
        ),
        pytest.param(
            PartitionRemains(segments=[live(1, 0, 99, {0: 0}), live(2, 50, 69, {3: 50})]),
            0,
            70,
            (),
            id="what a deposed leader copied beyond its successor's end is no history",
        ),
        pytest.param(
            PartitionRemains(segments=[live(1, 0, 9)], highest_offsets={0: 9, 2: 29}),
            0,
            10,
            (),
            id="copies that are lost leave no hole at the end: their records are as lost as those never copied",
        ),
        pytest.param(
            PartitionRemains(highest_offsets={0: 300, 4: 99}), -1, 100, (), id="all was deleted, and it goes on there"
        ),
        pytest.param(
            PartitionRemains(segments=[live(1, 0, 9), live(2, 10, 19)], log_start=5),
            5,
            20,
            (),
            id="it can be read from where users and retention have left it",
        ),
        pytest.param(
            PartitionRemains(segments=[live(1, 0, 9), live(2, 20, 29)]), 0, 30, ((10, 20),), id="a hole is named"
        ),
        pytest.param(
            PartitionRemains(segments=[live(1, 0, 9)], log_start=40),
            40,
            40,
            (),
            id="users deleted beyond what was copied: no other record gets those offsets",
        ),
    ],
)
def test_where_a_partition_goes_on(
    remains: PartitionRemains, start: int, end: int, holes: tuple[tuple[int, int], ...]
) -> None:
    found = decide_end(remains)
    assert (found.start, found.end, found.holes) == (start, end, holes)


def at(segment: RemoteLogSegmentMetadata, copied_ms: int, records_ms: int | None = None) -> RemoteLogSegmentMetadata:
    """Copied then, and by default just after its last record."""
    return replace(
        segment, event_timestamp_ms=copied_ms, max_timestamp_ms=copied_ms - 1 if records_ms is None else records_ms
    )


@pytest.mark.parametrize(
    ("segments", "end", "cut"),
    [
        pytest.param([at(live(1, 0, 9), 50), at(live(2, 10, 19), 100)], 20, 0, id="all was copied by then"),
        pytest.param(
            [at(live(1, 0, 9), 50), at(live(2, 10, 19), 102), at(live(3, 20, 29), 150)],
            10,
            20,
            id="it ends before what was copied later",
        ),
        pytest.param(
            [at(live(1, 0, 9), 50), at(live(2, 10, 19), 102, 100)],
            20,
            0,
            id="what was written by then and copied later is there",
        ),
        pytest.param(
            [at(live(1, 0, 9), 50), at(live(2, 10, 19), 102, -1)],
            10,
            10,
            id="records without timestamps go by the copy alone",
        ),
        pytest.param(
            [at(live(1, 0, 9), 50, 10_000), at(live(2, 10, 19), 60)],
            20,
            0,
            id="a producer's clock that runs ahead makes nothing later than its copy",
        ),
        pytest.param(
            [at(live(1, 0, 9), 50), at(live(2, 10, 19), 102), at(live(3, 20, 29), 103, 10)],
            10,
            20,
            id="old timestamps behind later records bring nothing back",
        ),
        pytest.param(
            [at(live(1, 0, 9), 500, 40), at(live(2, 10, 19), 60), at(live(3, 20, 29), 150)],
            20,
            10,
            id="what was compacted or erased since counts by its records",
        ),
        pytest.param(
            [at(live(1, 0, 19), 50), at(live(2, 10, 29, {0: 0, 1: 20}), 150)],
            20,
            10,
            id="what another leader copied again is cut within",
        ),
        pytest.param(
            [at(live(1, 0, 9), 50), at(live(2, 10, 29), 60), at(live(3, 20, 39), 150)],
            30,
            10,
            id="within the last of several that are earlier, too",
        ),
        pytest.param([at(live(1, 30, 39), 150), at(live(2, 40, 49), 160)], 30, 20, id="nothing of then is left"),
        pytest.param(
            [at(live(1, 0, 9), 50), at(live(2, 10, 29), 60), at(live(3, 5, 19), 150)],
            30,
            0,
            id="what was copied again over two that adjoin changes nothing",
        ),
        pytest.param([at(live(1, 0, 9), 150)], 0, 10, id="all was copied later, from the first offset on"),
        pytest.param(
            [at(live(1, 0, 9), 50), at(live(2, 10, 19), 102, 0)],
            20,
            0,
            id="records of the time 0 are earlier than any other",
        ),
        pytest.param(
            [at(live(1, 0, 9), 50), at(live(2, 10, 19), 100, -1)],
            20,
            0,
            id="what was copied at that very moment counts",
        ),
        pytest.param(
            [at(live(1, 0, 99, {0: 0}), 50), at(live(2, 50, 69, {3: 50}), 60)],
            70,
            0,
            id="what a deposed leader copied beyond its successor's end is no history",
        ),
    ],
)
def test_where_a_partition_goes_on_as_of_an_earlier_time(
    segments: list[RemoteLogSegmentMetadata], end: int, cut: int
) -> None:
    found = decide_end(PartitionRemains(segments=segments), at_ms=100)
    assert (found.end, found.cut) == (end, cut)
    assert found.leader_epoch == max(one.segment_leader_epochs[-1].epoch for one in segments), "none is forgotten"
    assert found.last is None or found.last.next_offset == end


def test_the_copy_that_ends_at_the_earlier_time_tells_which_transactions_are_open() -> None:
    first, second = at(live(1, 0, 9), 50), at(live(2, 10, 19), 150)
    assert decide_end(PartitionRemains(segments=[first, second]), at_ms=100).last == first
    of_a_later_leader = at(live(0, 5, 9, {1: 5}), 60)
    second = replace(second, segment_leader_epochs=live(2, 10, 19, {1: 10}).segment_leader_epochs)
    for segments in ([first, of_a_later_leader, second], [of_a_later_leader, first, second]):
        assert decide_end(PartitionRemains(segments=segments), at_ms=100).last == of_a_later_leader


def test_users_deletes_stand_whatever_the_time() -> None:
    segments = [at(live(1, 0, 9), 50), at(live(2, 10, 19), 150)]
    found = decide_end(PartitionRemains(segments=segments, log_start=15), at_ms=100)
    assert (found.start, found.end) == (15, 15)


def test_finished_segments_below_the_end_are_counted() -> None:
    assert decide_end(PartitionRemains()).segments == 0
    assert decide_end(PartitionRemains(segments=[live(1, 0, 9), added(2, 10, 19, state=STARTED)])).segments == 1
    cut_off = live(3, 70, 79, {0: 70})
    assert decide_end(PartitionRemains(segments=[live(1, 0, 69), cut_off, live(2, 50, 69, {3: 50})])).segments == 2


def test_the_epoch_is_the_highest_that_anything_speaks_of() -> None:
    segments = [live(1, 0, 9, {3: 0, 5: 4})]
    assert decide_end(PartitionRemains(segments=segments)).leader_epoch == 5
    assert decide_end(PartitionRemains(segments=segments, highest_offsets={7: 3})).leader_epoch == 7
    assert decide_end(PartitionRemains(segments=segments, leader_epochs=(9,))).leader_epoch == 9


def test_only_a_copy_that_ends_where_the_log_goes_on_tells_which_transactions_are_open_there() -> None:
    last = live(2, 10, 19)
    assert decide_end(PartitionRemains(segments=[live(1, 0, 9), last])).last == last
    assert decide_end(PartitionRemains(segments=[last], log_start=30)).last is None
    deposed = [live(1, 0, 99, {0: 0}), live(2, 50, 69, {3: 50})]
    assert decide_end(PartitionRemains(segments=deposed, log_start=100)).last is None, "a deposed leader's does not"


def test_an_object_that_cannot_be_mounted_makes_no_partition() -> None:
    ends = {0: ending(9), 200_000: decide_end(PartitionRemains())}
    assert len(decide_topic(TopicRemains(name="orders", topic_id=TOPIC_ID, ends=ends), [1]).partitions) == 1


def ending(end: int, epoch: int = 0) -> PartitionEnd:
    return PartitionEnd(start=0, end=end, leader_epoch=epoch)


def test_a_topic_is_as_it_was() -> None:
    described = ClusterTopic(
        topic_id=TOPIC_ID,
        replication_factor=2,
        leader_epochs=(4, 12, 3),
        configs={"retention.ms": "7", "remote.storage.enable": "true"},
    )
    remains = TopicRemains(name="orders", topic_id=TOPIC_ID, ends={0: ending(20, 5), 1: ending(7)}, described=described)
    topic = decide_topic(remains, [1, 2, 3])
    assert (topic.name, topic.topic_id, topic.configs) == ("orders", TOPIC_ID, (("retention.ms", "7"),))
    assert [one.partition for one in topic.partitions] == [0, 1, 2]
    assert [one.start_offset for one in topic.partitions] == [20, 7, 0], "one that was never copied is there, and empty"
    assert {one.leader_epoch for one in topic.partitions} == {12 + EPOCHS_APART}, "above every epoch of any partition"
    assert [len(set(one.replicas)) for one in topic.partitions] == [2, 2, 2]
    assert {one.replicas[0] for one in topic.partitions} == {1, 2, 3}, "leaders are spread"


def test_a_topic_whose_settings_are_not_known_loses_nothing_by_defaults() -> None:
    topic = decide_topic(TopicRemains(name="orders", topic_id=TOPIC_ID, ends={2: ending(9)}, committed_epoch=31), [5])
    assert dict(topic.configs) == STRICT_CONFIGS
    assert [(one.start_offset, one.replicas) for one in topic.partitions] == [(0, (5,)), (0, (5,)), (9, (5,))]
    assert topic.partitions[0].leader_epoch == 31 + EPOCHS_APART, "a group has committed that epoch"


def test_a_topic_of_which_nothing_is_known_has_no_partitions() -> None:
    assert decide_topic(TopicRemains(name="orders", topic_id=TOPIC_ID, ends={}), [1]).partitions == ()


def test_a_topic_without_any_leader_epoch_gets_one_that_leaps_from_0() -> None:
    described = ClusterTopic(topic_id=TOPIC_ID, replication_factor=1, leader_epochs=(-1,))
    topic = decide_topic(TopicRemains(name="orders", topic_id=TOPIC_ID, ends={}, described=described), [1])
    assert [one.leader_epoch for one in topic.partitions] == [EPOCHS_APART]


@pytest.mark.parametrize(
    ("committed", "planned"),
    [
        pytest.param(9 + EPOCHS_APART, 9 + 2 * EPOCHS_APART, id="elections that the bucket never heard of"),
        pytest.param(2**31 - 1, 9 + 2 * EPOCHS_APART, id="one that a client made up: a broker takes any"),
        pytest.param(-1, 9 + EPOCHS_APART, id="none"),
    ],
)
def test_which_committed_epochs_are_believed(committed: int, planned: int) -> None:
    remains = TopicRemains(name="orders", topic_id=TOPIC_ID, ends={0: ending(9, 9)}, committed_epoch=committed)
    assert decide_topic(remains, [1]).partitions[0].leader_epoch == planned


def test_a_forged_epoch_that_leaves_no_higher_one_is_refused_and_named() -> None:
    remains = TopicRemains(name="orders", topic_id=TOPIC_ID, ends={0: ending(9, 2**31 - 1)})
    with pytest.raises(MountRefusedError, match="orders has the leader epoch 2147483647"):
        decide_topic(remains, [1])


def test_the_highest_epoch_that_leaves_room_is_mounted() -> None:
    remains = TopicRemains(name="orders", topic_id=TOPIC_ID, ends={0: ending(9, MOST_LEADER_EPOCH)})
    assert decide_topic(remains, [1]).partitions[0].leader_epoch == MOST_LEADER_EPOCH + EPOCHS_APART


def test_where_no_broker_has_reported_an_epoch_a_group_is_believed_as_far_as_from_0() -> None:
    remains = TopicRemains(name="orders", topic_id=TOPIC_ID, ends={}, committed_epoch=2**31 - 1)
    assert believed_epoch(remains) == EPOCHS_APART
    assert believed_epoch(replace(remains, committed_epoch=7)) == 7


def test_replicas_are_as_many_as_are_asked_for_and_no_more_than_brokers() -> None:
    remains = TopicRemains(name="orders", topic_id=TOPIC_ID, ends={0: ending(9)})
    assert len(decide_topic(remains, [1, 2, 3, 4]).partitions[0].replicas) == 3
    assert len(decide_topic(remains, [1, 2, 3], 1).partitions[0].replicas) == 1
    assert len(decide_topic(remains, [1, 2], 3).partitions[0].replicas) == 2


def test_each_partition_is_led_by_the_broker_that_follows_the_one_before() -> None:
    remains = TopicRemains(name="orders", topic_id=TOPIC_ID, ends={3: ending(9)})
    replicas = [one.replicas for one in decide_topic(remains, [4, 5, 6], 2).partitions]
    assert [after[0] for after in replicas[1:]] == [before[1] for before in replicas[:-1]]
    assert replicas[0] == replicas[3], "as many brokers later it is the first one's turn again"
    names = {decide_topic(replace(remains, name=name), [4, 5, 6]).partitions[0].replicas for name in "abcdefgh"}
    assert len(names) == 3, "topics begin with different brokers"


READ_ONLY = NewTopic(
    name="orders",
    topic_id=TOPIC_ID,
    partitions=(
        NewPartition(partition=0, replicas=(1, 2), leader_epoch=1005, start_offset=20),
        NewPartition(partition=1, replicas=(2, 1), leader_epoch=1009, start_offset=0),
    ),
    configs=(("min.insync.replicas", "2"), ("retention.ms", "7"), ("segment.bytes", "1000")),
)


def test_a_topic_that_is_served_and_never_written_has_empty_replicas_of_which_any_may_lead() -> None:
    made_ms = 1_800_000_000_000
    topic = read_only_topic(READ_ONLY, made_ms)
    assert (topic.name, topic.topic_id) == (READ_ONLY.name, READ_ONLY.topic_id)
    assert [(one.partition, one.replicas) for one in topic.partitions] == [(0, (1, 2)), (1, (2, 1))]
    assert {one.start_offset for one in topic.partitions} == {MOUNTED_START}
    assert [one.leader_epoch for one in topic.partitions] == [followed_epoch(epoch, made_ms) for epoch in (1005, 1009)]
    assert topic.configs == (("retention.ms", "7"), ("unclean.leader.election.enable", "true"))
    clean = replace(READ_ONLY, configs=(("unclean.leader.election.enable", "false"),))
    assert read_only_topic(clean, made_ms).configs == (("unclean.leader.election.enable", "true"),)


def test_producer_ids_begin_far_above_those_of_the_history() -> None:
    assert next_producer_id(-1) == 0
    assert next_producer_id(0) > 100_000, "a cluster gives out 0 first"
    assert next_producer_id(4_000) > 4_000 + 100_000


@pytest.mark.parametrize(
    ("committed", "known", "wanted", "ahead"),
    [
        pytest.param(Commit(offset=7, leader_epoch=3, metadata="m"), [], Commit(offset=7, leader_epoch=3, metadata="m"), None,
                     id="a group goes on where it was"),
        pytest.param(Commit(offset=20, leader_epoch=3), [], Commit(offset=20, leader_epoch=3), None,
                     id="one that had read all that was copied goes on with what comes"),
        pytest.param(Commit(offset=25, leader_epoch=3, metadata="m"), [], Commit(offset=20, metadata="m"), (25, 20),
                     id="one that had read what is lost goes on where new records begin, and is named"),
        pytest.param(Commit(offset=7, leader_epoch=1005), [], Commit(offset=7, leader_epoch=1005), None,
                     id="the epoch in which the partition begins is one that it will wait for"),
        pytest.param(Commit(offset=7, leader_epoch=1006), [], Commit(offset=7), None,
                     id="an epoch that no leader had would have the group wait forever"),
        pytest.param(Commit(offset=7), [("orders", 0)], None, None, id="what it has committed in the new cluster stays"),
    ],
)  # fmt: skip
def test_where_a_group_goes_on(
    committed: Commit, known: list[tuple[str, int]], wanted: Commit | None, ahead: tuple[int, int] | None
) -> None:
    place = "orders", 0
    restore = decide_group({("other", 0): committed, place: committed}, {place: 20}, known, {place: 1005})
    assert dict(restore.commits) == ({} if wanted is None else {place: wanted}), "and nothing of what is not mounted"
    assert dict(restore.ahead) == ({} if ahead is None else {place: ahead})
    assert restore.there_already == len(known)


def test_what_is_not_mounted_or_committed_already_holds_up_no_other_partition_of_a_group() -> None:
    commit = Commit(offset=7, leader_epoch=3)
    places = [("a", 0), ("b", 0), ("b", 1), ("c", 0)]
    ends = dict.fromkeys(places[1:], 20)
    restore = decide_group(dict.fromkeys(places, commit), ends, [("b", 0), ("b", 1)], dict.fromkeys(ends, 1005))
    assert (dict(restore.commits), restore.there_already) == ({("c", 0): commit}, 2)


PLANNED = NewPartition(partition=0, replicas=(1,), leader_epoch=1005, start_offset=20)
RIGHT = SeenPartition(topic_id=TOPIC_ID, leader_epoch=1006, log_start=20, log_end=20)


@pytest.mark.parametrize(
    ("seen", "fault"),
    [
        pytest.param(RIGHT, "", id="one that was seeded is right"),
        pytest.param(replace(RIGHT, log_start=25, log_end=90), "", id="and one that was written to and trimmed since"),
        pytest.param(replace(RIGHT, has_leader=False, leader_epoch=1005), "", id="without a leader it may be yet"),
        pytest.param(replace(RIGHT, has_leader=False), "start its brokers",
                     id="one that was led may hold records: nothing is elected"),
        pytest.param(None, "not seeded before their first start", id="controllers that were not seeded know nothing of it"),
        pytest.param(replace(RIGHT, topic_id=OTHER_ID), "another topic id", id="one that was created here is another"),
        pytest.param(replace(RIGHT, leader_epoch=1005), "by another plan", id="one that leads was elected, which adds one"),
        pytest.param(replace(RIGHT, leader_epoch=3), "by another plan", id="a low epoch would hide its history"),
        pytest.param(replace(RIGHT, log_start=0, log_end=0), "would get offsets of the history",
                     id="a broker that was not seeded begins at 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_partition_of_the_new_cluster(seen: SeenPartition | None, fault: str) -> None:
    found = partition_fault(TOPIC_ID, PLANNED, seen)
    assert fault in found
    assert bool(found) == bool(fault)


def test_a_read_only_mount_begins_above_all_that_an_earlier_one_can_have_elected() -> None:
    """Clients that run on have its topics' ids and epochs, and take no metadata of lower ones."""
    first_ms, again_ms = 1_800_000_000_000, 1_800_000_600_000
    assert followed_epoch(1_005, again_ms) - followed_epoch(1_005, first_ms) == 600
    assert followed_epoch(1_005, first_ms + 999) == followed_epoch(1_005, first_ms), "whole seconds count"
    assert followed_epoch(1_005, 0) == 501_005, "a clock that was never set"
    assert followed_epoch(2**31 - 1_001_000, 10**15) < 2**31 - 1
