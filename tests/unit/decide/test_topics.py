"""Who cares for which partition, and which topics are refused (S-180, S-181).

Whose directory it is: a leader's file ends with the epoch in which it leads.

Settings of a compacted topic, and what retention may take of it: the table of policies, row by row (S-267, S-268).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.clean_world import COMPACTED
from tests.support.pins import local_partition
from tests.support.segments import TOPIC_ID_PARTITION, local_segments
from tiersidecar.decide.compaction import CompactionSettings
from tiersidecar.decide.topics import (
    CleanerSettings,
    CleanupPolicy,
    PartitionRole,
    UnwrittenEpoch,
    decide_assignment,
    decide_unseen,
    is_compacted,
    may_be_unwritten,
    read_cleaner_settings,
    read_cleanup_policy,
    reason_not_to_store,
    reason_not_to_tier,
    reason_not_to_trim,
    reason_to_doubt_directory,
    reason_unseen,
)
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.policy import RetentionMode, TopicPolicy
from tiersidecar.domain.segments import LeaderView

POLICY = TopicPolicy()


def leader_view(leader: int = 1, topic_id_partition: TopicIdPartition = TOPIC_ID_PARTITION) -> LeaderView:
    ids = (BrokerId(1), BrokerId(2))
    return LeaderView(
        topic_id_partition=topic_id_partition,
        leader_id=BrokerId(leader),
        leader_epoch=LeaderEpoch(5),
        replicas=ids,
        in_sync_replicas=ids,
    )


def assign(
    view: LeaderView,
    *,
    local: tuple[TopicIdPartition, ...] = (TOPIC_ID_PARTITION,),
    broker: int = 1,
    policy: Callable[[str], TopicPolicy | None] = lambda _: POLICY,
) -> dict[TopicIdPartition, PartitionRole]:
    return {
        topic_id_partition: tiered.role
        for topic_id_partition, tiered in decide_assignment([view], local, BrokerId(broker), policy).items()
    }


def test_a_partition_comes_with_its_view_and_the_policy_of_its_topic() -> None:
    of_orders = TopicPolicy(retention_ms=7)
    view = leader_view(1)
    found = decide_assignment([view], (TOPIC_ID_PARTITION,), BrokerId(1), {"orders": of_orders}.get)[TOPIC_ID_PARTITION]
    assert (found.view, found.policy) == (view, of_orders)


def test_leader_and_follower() -> None:
    assert assign(leader_view(1)) == {TOPIC_ID_PARTITION: PartitionRole.LEADER}
    assert assign(leader_view(2)) == {TOPIC_ID_PARTITION: PartitionRole.FOLLOWER}


INTERNAL = replace(TOPIC_ID_PARTITION, topic="__consumer_offsets")


@pytest.mark.parametrize(
    ("view", "others"),
    [
        pytest.param(leader_view(), {"broker": 3}, id="the broker has no replica"),
        pytest.param(leader_view(), {"local": ()}, id="its directory is not on a healthy log dir"),
        pytest.param(
            leader_view(),
            {"local": (replace(TOPIC_ID_PARTITION, topic_id=Uuid(b"0" * 16)),)},
            id="the directory is of an earlier topic of the same name",
        ),
        pytest.param(leader_view(), {"policy": lambda _: None}, id="the configuration does not tier it"),
        pytest.param(
            leader_view(topic_id_partition=INTERNAL), {"local": (INTERNAL,)}, id="internal topics are never tiered"
        ),
    ],
)
def test_not_ours(view: LeaderView, others: dict[str, Any]) -> None:
    assert assign(view, **others) == {}


def test_a_partition_that_is_not_ours_does_not_hide_those_after_it() -> None:
    views = [leader_view(topic_id_partition=INTERNAL), leader_view()]
    assert list(decide_assignment(views, (INTERNAL, TOPIC_ID_PARTITION), BrokerId(1), lambda _: POLICY)) == [
        TOPIC_ID_PARTITION
    ]


OLDER = replace(TOPIC_ID_PARTITION, topic_id=Uuid(b"0" * 16))


@pytest.mark.parametrize(
    ("view", "local", "policy", "is_unseen"),
    [
        pytest.param(leader_view(), (), POLICY, True, id="led, and its directory is nowhere"),
        pytest.param(leader_view(), (OLDER,), POLICY, True, id="the directory is of an earlier topic of the same name"),
        pytest.param(leader_view(), (TOPIC_ID_PARTITION,), POLICY, False, id="its directory is here"),
        pytest.param(leader_view(2), (), POLICY, False, id="another leads: its sidecar says so"),
        pytest.param(leader_view(), (), None, False, id="the configuration does not tier it"),
        pytest.param(
            leader_view(topic_id_partition=INTERNAL), (), POLICY, False, id="internal topics are never tiered"
        ),
    ],
)
def test_what_is_led_and_not_seen(
    view: LeaderView, local: tuple[TopicIdPartition, ...], policy: TopicPolicy | None, is_unseen: bool
) -> None:
    found = decide_unseen([view], local, BrokerId(1), lambda _: policy)
    assert [(one.view, one.role) for one in found.values()] == ([(view, PartitionRole.LEADER)] if is_unseen else [])


@pytest.mark.parametrize(
    ("configs", "word"),
    [
        ({"remote.storage.enable": "true"}, "remote.storage.enable"),
        ({"cleanup.policy": "compact"}, "compact"),
        ({"cleanup.policy": "compact,delete"}, "compact"),
        ({"cleanup.policy": "delete", "remote.storage.enable": "false"}, ""),
        ({"cleanup.policy": " delete , compact "}, "compact"),
    ],
)
def test_topics_that_cannot_be_tiered(configs: dict[str, str | None], word: str) -> None:
    reason = reason_not_to_tier(configs)
    assert word in reason
    assert bool(reason) is bool(word)
    is_native = word == "remote.storage.enable"
    assert bool(reason_not_to_tier(configs, tiers_compacted=True)) is is_native, "compaction.enabled admits the others"


@pytest.mark.parametrize(
    ("configs", "fits"),
    [
        pytest.param({"retention.ms": "-1", "retention.bytes": "-1"}, True, id="both without limit"),
        pytest.param(
            {"retention.ms": "604800000", "retention.bytes": "-1"}, False, id="the broker would delete by time"
        ),
        pytest.param({"retention.ms": "-1", "retention.bytes": "1000"}, False, id="the broker would delete by size"),
        pytest.param({}, False, id="unknown settings are not taken for good ones"),
        pytest.param({"retention.ms": "-1"}, True, id="retention.bytes is without limit unless it is set"),
        pytest.param({"retention.bytes": "-1"}, False, id="retention.ms is not: Kafka's default is a week"),
        pytest.param({"retention.ms": "1", "cleanup.policy": ""}, True, id="an empty cleanup.policy deletes nothing"),
        pytest.param({"retention.ms": "1", "cleanup.policy": "compact"}, True, id="nor does compact alone"),
        pytest.param({"retention.ms": "1", "cleanup.policy": "compact,delete"}, False, id="compact,delete does"),
    ],
)
def test_strict_mode_needs_a_broker_that_deletes_nothing(configs: dict[str, str | None], fits: bool) -> None:
    assert (reason_not_to_trim(POLICY, configs) == "") is fits
    assert reason_not_to_trim(TopicPolicy(mode=RetentionMode.RACE), configs) == ""


@pytest.mark.parametrize(
    ("topic", "max_name_bytes", "is_refused"),
    [
        pytest.param("t" * 232, 255, False, id="the longest name that a file system takes with its topic id"),
        pytest.param("t" * 233, 255, True, id="one character more: its directory could not be made"),
        pytest.param("t" * 249, None, False, id="the longest topic, in a store that limits whole keys only"),
    ],
)
def test_a_topic_whose_keys_the_store_cannot_hold_is_refused(
    topic: str, max_name_bytes: int | None, is_refused: bool
) -> None:
    assert bool(reason_not_to_store(topic, max_name_bytes)) is is_refused


LED = LeaderView(
    topic_id_partition=TOPIC_ID_PARTITION,
    leader_id=BrokerId(1),
    leader_epoch=LeaderEpoch(5),
    replicas=(BrokerId(1),),
    in_sync_replicas=(BrokerId(1),),
)


@pytest.mark.parametrize(
    ("epochs", "says"),
    [
        pytest.param([(5, 0)], "", id="a log that begins in this epoch, also an empty one"),
        pytest.param([(0, 0), (3, 100), (5, 200)], "", id="earlier epochs before it"),
        pytest.param([(5, 150)], "", id="a moved log start has dropped the earlier ones"),
        pytest.param([(0, 0), (3, 100)], "ends with leader epoch 3, and the broker leads in 5", id="an earlier disk"),
        pytest.param([(0, 0), (6, 100)], "ends with leader epoch 6, and the broker leads in 5", id="an older answer"),
        pytest.param([], "has no leader epoch, and the broker leads in 5", id="no file yet"),
    ],
)
def test_a_leaders_file_ends_with_its_own_epoch(epochs: list[tuple[int, int]], says: str) -> None:
    reason = reason_to_doubt_directory(LED, local_partition(local_segments(0, 100), epochs=epochs))
    assert says in reason
    assert bool(reason) is bool(says)


@pytest.mark.parametrize(
    ("told", "bases", "is_proven"),
    [
        pytest.param(
            (5, 3, 250), (0, 100, 250), True, id="the broker does not know its epoch either, and ends where we do"
        ),
        pytest.param((5, 3, 300), (0, 100, 250), True, id="our active segment may have records"),
        pytest.param((5, 3, 249), (0, 100, 250), False, id="we have sealed more than the broker has of the epoch"),
        pytest.param((4, 3, 250), (0, 100, 250), False, id="said in an earlier epoch"),
        pytest.param((5, 2, 250), (0, 100, 250), False, id="said of an earlier file"),
        pytest.param((5, 3, 250), (), False, id="a directory without segments"),
    ],
)
def test_a_log_moved_before_the_first_record_of_its_epoch_is_told_by_the_broker(
    told: tuple[int, int, int], bases: tuple[int, ...], is_proven: bool
) -> None:
    """An AlterReplicaLogDirs after an election; also where an earlier disk has the same batches, which does no harm."""
    leader_epoch, last_epoch, end_offset = told
    unwritten = UnwrittenEpoch(
        leader_epoch=LeaderEpoch(leader_epoch), last_epoch=LeaderEpoch(last_epoch), end_offset=Offset(end_offset)
    )
    local = local_partition(local_segments(*bases), epochs=[(0, 0), (3, 90)])
    assert bool(reason_to_doubt_directory(LED, local, unwritten)) is not is_proven


@pytest.mark.parametrize(
    ("epochs", "asks"),
    [
        pytest.param([(0, 0), (3, 100)], 3, id="a file that ends earlier"),
        pytest.param([(2, 0)], 2, id="a file of one epoch, an earlier one"),
        pytest.param([(0, 0), (3, 100), (4, 150)], 4, id="a file of three epochs, all earlier"),
        pytest.param([(5, 0)], None, id="it is proven"),
        pytest.param([(6, 0)], None, id="the answer is older than the file"),
        pytest.param([], None, id="no epoch to ask of: an empty log that was moved waits for its first record"),
    ],
)
def test_the_broker_is_asked_only_of_a_file_that_ends_in_an_earlier_epoch(
    epochs: list[tuple[int, int]], asks: int | None
) -> None:
    assert may_be_unwritten(LED, local_partition(local_segments(0, 100), epochs=epochs)) == asks


def test_a_log_dir_that_cannot_be_read_may_have_what_is_not_seen() -> None:
    assert "has its directory: it is not tiered" in reason_unseen({})
    assert "unless in what cannot be read: /a, /b:" in reason_unseen({"/b": "EIO", "/a": "EIO"})
    many = dict.fromkeys("/abcdef", "EIO")
    assert f"unless in what cannot be read: /, a, b and {len(many) - 3} others:" in reason_unseen(many)


DELETE, COMPACT, BOTH = CleanupPolicy.DELETE, CleanupPolicy.COMPACT, CleanupPolicy.COMPACT_AND_DELETE


@pytest.mark.parametrize(
    ("value", "policy"),
    [
        ("delete", DELETE),
        ("compact", COMPACT),
        ("compact,delete", BOTH),
        ("delete, compact", BOTH),
        ("", None),
        ("x", None),
    ],
)
def test_the_topic_config_is_read_in_any_order(value: str, policy: CleanupPolicy | None) -> None:
    assert read_cleanup_policy(value) is policy


@pytest.mark.parametrize(
    ("configs", "compacted"),
    [
        pytest.param({"cleanup.policy": "compact"}, True, id="the cleaner alone"),
        pytest.param({"cleanup.policy": "delete, compact"}, True, id="the cleaner beside retention"),
        pytest.param({"cleanup.policy": "compact,delete"}, True, id="the same, without a space"),
        pytest.param({"cleanup.policy": "delete"}, False, id="retention alone"),
        pytest.param({"cleanup.policy": "compaction"}, False, id="a word that only begins so"),
        pytest.param({"cleanup.policy": ""}, False, id="neither of them, as Kafka 4.2 allows"),
        pytest.param({"cleanup.policy": None}, False, id="a setting without a value"),
        pytest.param({}, False, id="no such setting"),
    ],
)
def test_a_topic_is_compacted_by_its_policy_alone(configs: dict[str, str | None], compacted: bool) -> None:
    assert is_compacted(configs) is compacted


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete, compact"])
def test_a_compacted_topics_settings_are_read(policy: str) -> None:
    found = read_cleaner_settings(COMPACTED | {"cleanup.policy": policy, "min.cleanable.dirty.ratio": "0.5"})
    assert found is not None
    assert found.policy in {CleanupPolicy.COMPACT, CleanupPolicy.COMPACT_AND_DELETE}
    assert (found.compaction.min_cleanable_dirty_ratio, found.delete_retention_ms) == (0.5, 1000)


def test_each_setting_of_the_cleaner_is_read_from_its_own() -> None:
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.25",
        "min.compaction.lag.ms": "2",
        "max.compaction.lag.ms": "3",
        "segment.bytes": "4",
        "segment.index.bytes": "5",
        "delete.retention.ms": "6",
    }
    assert read_cleaner_settings(configs) == CleanerSettings(
        policy=CleanupPolicy.COMPACT,
        compaction=CompactionSettings(
            min_cleanable_dirty_ratio=0.25,
            min_compaction_lag_ms=2,
            max_compaction_lag_ms=3,
            segment_bytes=4,
            segment_index_bytes=5,
        ),
        delete_retention_ms=6,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"cleanup.policy": "delete"},
        {"cleanup.policy": ""},
        {"cleanup.policy": None},
        {"cleanup.policy": "compact,other"},
        {"segment.bytes": None},
        {"segment.bytes": "many"},
        {"min.cleanable.dirty.ratio": "half"},
    ],
)
def test_nothing_is_cleaned_by_a_guess(change: dict[str, str | None]) -> None:
    assert read_cleaner_settings(COMPACTED | change) is None


@pytest.mark.parametrize(
    ("policy", "said", "most_ms"),
    [
        pytest.param("compact,delete", 2**63 - 1, 500, id="the beginning of the broker's log may go"),
        pytest.param("compact,delete", 300, 300, id="the topic itself wants it sooner"),
        pytest.param("compact", 2**63 - 1, 2**63 - 1, id="the broker only cleans it"),
    ],
)
def test_where_readers_pass_to_the_broker_values_go_before_their_tombstones_do_there(
    policy: str, said: int, most_ms: int
) -> None:
    found = read_cleaner_settings(COMPACTED | {"cleanup.policy": policy, "max.compaction.lag.ms": str(said)})
    assert found is not None
    assert found.remote_compaction == replace(found.compaction, max_compaction_lag_ms=most_ms)
