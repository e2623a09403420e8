"""Who wrote a record of the state topic: another cluster's, from a mirrored topic, count for nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.segments import TOPIC_ID_PARTITION
from tiersidecar.adapters.state_topic.codec import Writer, partition_key, stamped, topic_key, write_state
from tiersidecar.adapters.state_topic.fold import StateFold
from tiersidecar.adapters.state_topic.record_codecs import lease_key
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.ports.state_log import PartitionState, TopicState

OURS, THEIRS = Writer("ours", 1, "a"), Writer("theirs", 1, "b")
KEY = partition_key(TOPIC_ID_PARTITION)
AT_10 = PartitionState(remote_log_start_offset=Offset(10), remote_log_start_epoch=LeaderEpoch(1))
AT_99 = PartitionState(remote_log_start_offset=Offset(99), remote_log_start_epoch=LeaderEpoch(9))


def record(state: PartitionState, writer: Writer | None) -> bytes:
    value = write_state(state, {"topic": TOPIC_ID_PARTITION.topic})
    return value if writer is None else stamped(value, writer)


def fold_of(*values: bytes) -> StateFold:
    fold = StateFold("ours")
    for value in values:
        fold.apply(KEY, value, where="test")
    return fold


@pytest.mark.parametrize(
    ("writer", "start", "is_ours", "listed"),
    [
        pytest.param(OURS, 10, True, True, id="of this cluster"),
        pytest.param(None, 10, False, True, id="of the first format: it counts, and does not say whose it is"),
        pytest.param(THEIRS, -1, False, False, id="of another cluster"),
    ],
)
def test_whose_record_it_is(writer: Writer | None, start: int, is_ours: bool, listed: bool) -> None:
    fold = fold_of(record(AT_10, writer))
    assert fold.partition_state(TOPIC_ID_PARTITION).remote_log_start_offset == start
    assert fold.is_ours(TOPIC_ID_PARTITION) == is_ours
    assert (TOPIC_ID_PARTITION in fold.partitions()) == listed
    assert (TOPIC_ID_PARTITION in fold.foreign_partitions()) == (not listed)


def test_another_clusters_record_after_ours_changes_nothing_and_ours_is_written_again() -> None:
    """Compaction would leave only theirs."""
    fold = fold_of(record(AT_10, OURS), record(AT_99, THEIRS))
    assert fold.partition_state(TOPIC_ID_PARTITION) == AT_10
    value = fold.mended_value(KEY)
    assert value is not None
    again = fold_of(stamped(value, OURS))
    assert (again.partition_state(TOPIC_ID_PARTITION), again.is_ours(TOPIC_ID_PARTITION)) == (AT_10, True)


def test_a_record_of_the_first_format_is_written_again_as_ours_even_if_it_says_nothing_new() -> None:
    value = fold_of(record(AT_10, None)).merged_value(TOPIC_ID_PARTITION, PartitionState())
    assert value is not None
    written = json.loads(stamped(value, OURS))
    assert (written["cluster_id"], written["broker_id"], written["incarnation"]) == ("ours", 1, "a")
    assert fold_of(stamped(value, OURS)).merged_value(TOPIC_ID_PARTITION, PartitionState()) is None


def test_the_writer_of_a_record_is_the_last_one() -> None:
    value = fold_of(record(AT_10, OURS)).merged_value(TOPIC_ID_PARTITION, AT_99)
    assert value is not None
    assert json.loads(stamped(value, Writer("ours", 2, "c")))["broker_id"] == 2


def test_other_clusters_leases_and_topics_count_for_nothing() -> None:
    fold = StateFold("ours")
    fold.apply(
        topic_key(TOPIC_ID_PARTITION.topic_id),
        stamped(write_state(TopicState(topic="t", mode="deleting"), {}), THEIRS),
        where="",
    )
    lease = {"v": 2, "cluster_id": "theirs", "broker_id": 1, "incarnation": "x", "term": 7, "host": "h", "pid": 1}
    value = json.dumps({**lease, "version": "1", "renewed_ms": 0, "duration_ms": 1}).encode()
    fold.apply(lease_key("1"), value, where="")
    assert (fold.topic_state(TOPIC_ID_PARTITION.topic_id), fold.lease("1")) == (None, None)


@pytest.mark.parametrize(
    "change", [{"remote_log_start_offset": "9"}, {"hold": 1}, {"kept": 5}, {"leader_epochs": [[1]]}]
)
def test_one_record_of_another_cluster_that_cannot_be_read_hides_no_other(change: dict[str, object]) -> None:
    fold, other = StateFold("ours"), replace(TOPIC_ID_PARTITION, partition=TOPIC_ID_PARTITION.partition + 1)
    spoiled = json.dumps(json.loads(record(AT_99, THEIRS)) | change).encode()
    fold.apply(KEY, spoiled, where="test")
    fold.apply(partition_key(other), record(AT_10, THEIRS), where="test")
    assert [topic_id_partition.partition for topic_id_partition in fold.foreign_partitions()] == [other.partition]
