"""Native tiering is switched on beside a running sidecar: what the broker copies is never taken for ours (S-063, S-230).

The broker writes its events with the same broker id, into the same topic: only the journal of our own copies tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT, finished, produce, started
from tests.support.daemon import wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.local_tiered_storage import METADATA_PARTITIONS, local_tiered_storage
from tests.support.remote_events import fold, read_events
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.segments import MetadataEvent, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiersidecar.domain.states import RemoteLogSegmentState as State

pytestmark = pytest.mark.broker


def native_segments(storage: Path) -> set[str]:
    """Ids of the segments whose log files lie in the broker's remote storage."""
    return {path.name.removesuffix(".log").split("-", 1)[1] for path in storage.rglob("*.log")}


def test_copies_of_the_broker_in_flight_are_not_deleted(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    """``remote.storage.enable=true`` on an untrimmed topic: until the sidecar has noticed, and after it."""
    storage = tmp_path / "native"
    cluster = kafka_cluster(properties=local_tiered_storage(storage))
    topic = cluster.create_topic("native-beside", segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produce(cluster, topic, total_bytes=400_000)
    settings = {
        "remote.log.metadata.topic.name": "__remote_log_metadata",
        "remote.log.metadata.topic.num.partitions": METADATA_PARTITIONS,
        "remote.log.metadata.topic.min.isr": 1,
    }
    with started(tmp_path, cluster, topic, rule={"local.retention.bytes": -1}, **settings) as daemon:
        wait_for(lambda: len(finished(cluster, daemon)) > 2, "the sidecar copies", daemon)
        cluster.admin.alter_topic(topic, {"remote.storage.enable": "true"})
        produce(cluster, topic, total_bytes=8_000_000, seed=1)
        wait_for(lambda: daemon.events("topic.refused"), "the sidecar notices", daemon, timeout_s=120)
        copied = native_segments(storage)
        assert len(copied) > 10, "the broker copied while the sidecar had not noticed"
        looks = daemon.metric("tiersidecar_unsafe_topics", topic=topic)
        assert looks == 1
        events = read_events(cluster.client_settings, "__remote_log_metadata")
        states = {format_uuid(one.remote_log_segment_id.uuid): one.state for one in fold(events)}
        known = {State.COPY_SEGMENT_STARTED, State.COPY_SEGMENT_FINISHED}
        assert {segment: states[segment] for segment in copied if states[segment] not in known} == {}
        ours = {event["segment_id"].rpartition(":")[2] for event in daemon.events("segment.deleted")}
        assert not ours & copied
        assert copied <= native_segments(storage)
        check_is_as_simulated(events, copied)


def check_is_as_simulated(events: list[MetadataEvent], copied: set[str]) -> None:
    """What ``simulation.native_copies`` takes for granted: the broker's own id, and one segment of a partition at a time."""
    about = (RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate)
    native = [
        event
        for event in events
        if isinstance(event, about) and format_uuid(event.remote_log_segment_id.uuid) in copied
    ]
    assert {event.broker_id for event in events if isinstance(event, about)} == {one.broker_id for one in native}
    for begun, done in zip(native[::2], native[1::2], strict=False):
        assert (begun.state, done.state) == (State.COPY_SEGMENT_STARTED, State.COPY_SEGMENT_FINISHED)
        assert begun.remote_log_segment_id == done.remote_log_segment_id
