"""What must never be taken for a leftover: objects of lost, foreign or strangely written metadata, and of other key
prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.directory_store import DirectoryStore
from tiersidecar.decide.reconcile_findings import FindingKind as K
from tiersidecar.decide.reconcile_findings import Graces
from tiersidecar.domain.ids import BrokerId, RemoteLogSegmentId, TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.offsets import EpochEntry, LeaderEpoch, Offset
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State
from tiersidecar.formats.aiven.keys import CustomMetadata, planned_keys, write_custom_metadata
from tiersidecar.formats.metadata.serde import write_event
from tiersidecar.reconcile.inputs import KnownTopic, ReconcileSettings
from tiersidecar.spark.reconcile_job import ReconcileInputs, Reconciler

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NOW_MS = 4_000_000_000_000
RAW = "partition int, offset bigint, value binary"
OURS = TopicIdPartition(topic_id=Uuid(b"a-topic-of-ours-"), topic="ours", partition=0)
GONE = TopicIdPartition(topic_id=Uuid(b"a-topic-of-them-"), topic="theirs", partition=0)


@dataclass(slots=True)
class Bucket:
    """Objects of segments of ten offsets each, and the events that name some of them."""

    root: Path
    key_prefix: str = ""
    topics: Sequence[KnownTopic] = (KnownTopic(topic=OURS.topic, topic_id=format_uuid(OURS.topic_id)),)
    metadata_doubt: Callable[[int, int], str] = lambda known, foreign: ""
    values: list[bytes] = field(default_factory=list)
    ids: Iterator[int] = field(default_factory=lambda: iter(range(1, 1000)))

    def segment(
        self, start: int, *states: State, owner: TopicIdPartition = OURS, custom: bytes | None = None
    ) -> RemoteLogSegmentMetadata:
        made = RemoteLogSegmentMetadata(
            remote_log_segment_id=RemoteLogSegmentId(
                topic_id_partition=owner, uuid=Uuid(b"a-segment-of-nr%d" % (next(self.ids) % 10))
            ),
            start_offset=Offset(start),
            end_offset=Offset(start + 9),
            max_timestamp_ms=0,
            broker_id=BrokerId(1),
            event_timestamp_ms=0,
            segment_size_in_bytes=100,
            segment_leader_epochs=(EpochEntry(LeaderEpoch(0), Offset(start)),),
        )
        for state in states:
            self.publish(made if state is State.COPY_SEGMENT_STARTED else self.update(made, state, custom))
        return made

    def update(self, segment: RemoteLogSegmentMetadata, state: State, custom: bytes | None) -> MetadataEvent:
        return RemoteLogSegmentMetadataUpdate(
            remote_log_segment_id=segment.remote_log_segment_id,
            broker_id=BrokerId(1),
            event_timestamp_ms=0,
            state=state,
            custom_metadata=custom,
        )

    def publish(self, event: MetadataEvent) -> None:
        self.values.append(write_event(event, knows_txn_index_empty=True))

    def put(self, segment: RemoteLogSegmentMetadata, *, key_prefix: str | None = None) -> None:
        keys = planned_keys(segment, self.key_prefix if key_prefix is None else key_prefix)
        for key in keys.in_upload_order:
            self.put_object(key)

    def put_object(self, key: str) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"some bytes")

    def findings(self, spark: SparkSession) -> list[dict[str, Any]]:
        with reconciled(spark, self) as found:
            return [row.asDict() for row in found.collect()]


@contextmanager
def reconciled(spark: SparkSession, bucket: Bucket) -> Iterator[DataFrame]:
    settings = ReconcileSettings(
        key_prefix=bucket.key_prefix,
        graces=Graces(finding_ms=0, copy_ms=0),
        open_store=DirectoryStore(str(bucket.root)),
        reads_manifests=False,
    )
    rows = [(0, at, bytearray(value)) for at, value in enumerate(bucket.values)]
    inputs = ReconcileInputs(
        early_events=spark.createDataFrame(rows, RAW),
        late_events=lambda: spark.createDataFrame([], RAW),
        topics=bucket.topics,
        metadata_doubt=bucket.metadata_doubt,
    )
    job = Reconciler(spark, settings, lambda text: None)
    try:
        yield job.run(inputs, now_ms=lambda: NOW_MS).findings
    finally:
        job.close()


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


STARTED, FINISHED = State.COPY_SEGMENT_STARTED, State.COPY_SEGMENT_FINISHED
DELETING, DELETED = State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED


def kinds(rows: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(row["kind"], row["action"]) for row in rows}


def test_an_orphan_is_one_only_if_events_of_its_partition_reach_beyond_it(spark: SparkSession, bucket: Bucket) -> None:
    """STARTED is durable before the first byte: no event means lost events, and here those of the tail or of all
    (finding 3)."""
    bucket.put(bucket.segment(10, STARTED, FINISHED))
    bucket.put(orphan := bucket.segment(0))
    bucket.put(tail := bucket.segment(20))
    bucket.put(alone := bucket.segment(0, owner=replace(OURS, partition=1)))
    rows = bucket.findings(spark)
    found = {row["segment_id"]: (row["kind"], row["action"]) for row in rows}
    named = [format_uuid(one.remote_log_segment_id.uuid) for one in (orphan, tail, alone)]
    assert [found.pop(one) for one in named] == [
        (K.ORPHAN_OBJECT, "delete-object"),
        (K.LOST_METADATA, "look"),
        (K.LOST_METADATA, "look"),
    ]
    assert not found
    assert "its partition end at offset 19" in next(row["detail"] for row in rows if row["segment_id"] == named[1])


def test_no_orphan_is_proposed_for_deletion_while_the_metadata_are_in_doubt(
    spark: SparkSession, bucket: Bucket
) -> None:
    bucket.put(bucket.segment(10, STARTED, FINISHED))
    bucket.put(bucket.segment(0))
    bucket.metadata_doubt = lambda known, foreign: f"{known} known and {foreign} foreign"
    rows = bucket.findings(spark)
    assert kinds(rows) == {(K.LOST_METADATA, "look")}
    assert {row["detail"] for row in rows} == {"no event names its segment, but 1 known and 0 foreign"}


@pytest.mark.parametrize(
    "is_owned", [False, True], ids=["another cluster's, for all we know", "a deleted topic of ours"]
)
def test_deletions_of_unknown_topics_are_left_unless_the_id_was_ours(
    spark: SparkSession, bucket: Bucket, is_owned: bool
) -> None:
    """Metadata mirrored from another cluster: its deletions are its own (finding 3)."""
    if is_owned:
        bucket.topics = [
            *bucket.topics,
            KnownTopic(topic="", topic_id=format_uuid(GONE.topic_id), is_gone=True),
        ]
    bucket.put(bucket.segment(0, STARTED, FINISHED, DELETING, owner=GONE))
    bucket.put(bucket.segment(10, STARTED, FINISHED, DELETING, DELETED, owner=GONE))
    bucket.put(bucket.segment(20, owner=GONE))
    wanted = {(K.UNKNOWN_TOPIC_ID, "look")}
    if is_owned:
        wanted |= {(K.DANGLING_DELETE, "delete-segment"), (K.OBJECT_AFTER_DELETE, "delete-object")}
    assert kinds(bucket.findings(spark)) == wanted


def test_an_event_with_custom_metadata_of_another_kind_counts_and_is_told(spark: SparkSession, bucket: Bucket) -> None:
    """Left out, its segment would look like a copy that is stuck, or like no segment at all."""
    bucket.put(bucket.segment(0, STARTED, FINISHED, custom=b"\xffanother plugin's"))
    bucket.put(bucket.segment(10, STARTED, FINISHED))
    assert kinds(bucket.findings(spark)) == {(K.UNREADABLE_EVENT, "look")}


def test_a_partition_beyond_all_bounds_ends_no_run(spark: SparkSession, bucket: Bucket) -> None:
    """In an event and in a key: neither is Kafka's."""
    bucket.put(bucket.segment(0, STARTED, FINISHED))
    value = bytearray(bucket.values[0])
    at = bytes(value).index(OURS.topic_id) + 16
    value[at : at + 4] = b"\x80\0\0\0"
    bucket.values.append(bytes(value))
    bucket.put(beyond := bucket.segment(10, owner=replace(OURS, partition=2**31)))
    assert kinds(rows := bucket.findings(spark)) == {(K.UNREADABLE_EVENT, "look"), (K.FOREIGN_OBJECT, "look")}
    assert {row["key"] for row in rows} == {"", *planned_keys(beyond).in_upload_order}


@pytest.mark.parametrize("configured", ["a", "ab"])
def test_key_prefixes_that_begin_alike_are_kept_apart(spark: SparkSession, bucket: Bucket, configured: str) -> None:
    """Under one of them "btopic" is a topic's name, under the other one "topic" is."""
    other = {"a": "ab", "ab": "a"}[configured]
    bucket.key_prefix = configured
    short, long = (
        TopicIdPartition(topic_id=Uuid(b"the-topic-%-6s" % name.encode()), topic=name, partition=0)
        for name in ("topic", "btopic")
    )
    bucket.topics = [KnownTopic(topic=one.topic, topic_id=format_uuid(one.topic_id)) for one in (short, long)]
    recorded = write_custom_metadata(CustomMetadata(object_prefix=other))
    for owner in (short, long):
        bucket.put(bucket.segment(10, STARTED, FINISHED, owner=owner))
        bucket.put(bucket.segment(20, STARTED, FINISHED, owner=owner, custom=recorded), key_prefix=other)
    orphan = bucket.segment(0, owner=long)
    bucket.put(orphan)
    named = {(row["kind"], row["topic"], row["key"]) for row in bucket.findings(spark)}
    keys = planned_keys(orphan, configured).in_upload_order
    assert named == {(K.ORPHAN_OBJECT, "btopic", key) for key in keys}


def test_an_object_whose_key_names_another_topic_than_its_id_is_foreign(spark: SparkSession, bucket: Bucket) -> None:
    """Of a deployment under the prefix "ab", seen from one under "a"."""
    bucket.key_prefix = "a"
    bucket.put(bucket.segment(10, STARTED, FINISHED))
    bucket.put(bucket.segment(0), key_prefix="ab")
    assert kinds(bucket.findings(spark)) == {(K.FOREIGN_OBJECT, "look")}
