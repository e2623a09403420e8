"""A broker with native tiering reads what the sidecar wrote: its events by Kafka's own metadata manager, its segments and
indexes record for record.

Kafka's own LocalTieredStorage stands for the plugin: our objects are laid out as its files.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.integration.test_daemon import STRICT, active_base, finished, produce, started
from tests.integration.test_native_beside import native_segments
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_admin import wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.local_tiered_storage import METADATA_PARTITIONS, local_tiered_storage
from tests.support.patience import patient_s
from tests.support.produce import ProducedRecord
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.reading.remote_objects import recorded_keys

pytestmark = pytest.mark.broker

TOPIC = "handed-over"
SUFFIXES = {
    "offset": "index",
    "timestamp": "timeindex",
    "producerSnapshot": "snapshot",
    "leaderEpoch": "leader_epoch_checkpoint",
    "transaction": "txnindex",
}
"""Of LocalTieredStorage's files, by the names of the index blob's parts."""


def lay_out(daemon: Daemon, segment: RemoteLogSegmentMetadata, storage: Path) -> None:
    """The objects of ``segment``, neither compressed nor encrypted, as files of LocalTieredStorage."""
    owner, keys = segment.topic_id_partition, recorded_keys(segment)
    directory = storage / f"{owner.topic}-{owner.partition}-{format_uuid(owner.topic_id)}"
    directory.mkdir(parents=True, exist_ok=True)
    name = f"{segment.start_offset:020d}-{format_uuid(segment.remote_log_segment_id.uuid)}"
    manifest = json.loads((daemon.store_root / keys.manifest).read_text())
    indexes = (daemon.store_root / keys.indexes).read_bytes()
    os.link(daemon.store_root / keys.log, directory / f"{name}.log")
    for part, suffix in SUFFIXES.items():
        place = manifest["segmentIndexes"][part]
        if place is not None:
            end = place["position"] + place["size"]
            (directory / f"{name}.{suffix}").write_bytes(indexes[place["position"] : end])


async def consumed(cluster: KafkaCluster, stop: int, isolation: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """What the broker itself gives from offset 0 on up to ``stop``."""
    at, found = TopicPartition(TOPIC, 0), list[tuple[int, bytes | None, bytes | None]]()
    async with AIOKafkaConsumer(
        **cluster.client_settings, isolation_level=isolation, fetch_max_wait_ms=100
    ) as consumer:
        consumer.assign([at])
        consumer.seek(at, 0)
        async with asyncio.timeout(patient_s(60)):
            while await consumer.position(at) < stop:
                for records in (await consumer.getmany(at, timeout_ms=500)).values():
                    found += [(record.offset, record.key, record.value) for record in records if record.offset < stop]
    return found


def shapes(produced: list[ProducedRecord]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in produced]


def test_a_native_broker_gives_record_for_record_what_the_sidecar_copied(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    """All of it is still local when tiering changes hands, as FORMATS has it; then the broker gives its own copy up."""
    storage = tmp_path / "native"
    cluster = kafka_cluster(properties={**local_tiered_storage(storage), "log.retention.check.interval.ms": "500"})
    cluster.create_topic(TOPIC, segment_bytes=32 * 1024, configs=STRICT)
    produced = produce(cluster, TOPIC, total_bytes=400_000)
    settings = {
        "remote.log.metadata.topic.name": "__remote_log_metadata",
        "remote.log.metadata.topic.num.partitions": METADATA_PARTITIONS,
        "remote.log.metadata.topic.min.isr": 1,
    }
    stop = active_base(cluster, TOPIC)
    with started(tmp_path, cluster, TOPIC, rule={"local.retention.bytes": -1}, **settings) as daemon:
        wait_for(lambda: [one.next_offset for one in finished(cluster, daemon)][-1:] == [stop], "all is copied", daemon)
        assert daemon.stop() == 0
    ours = finished(cluster, daemon)
    (root,) = storage.rglob("kafka-tiered-storage")
    for segment in ours:
        lay_out(daemon, segment, root)
    copied = native_segments(storage)
    assert len(copied) == len(ours) > 5
    cluster.admin.alter_topic(TOPIC, {"remote.storage.enable": "true", "local.retention.bytes": "1"})

    directory = cluster.brokers[0].partition_dir(TOPIC, 0)
    wait_until(lambda: {int(one.stem) for one in directory.glob("*.log")} == {stop}, "only the active segment is local")
    assert cluster.admin.earliest_offset(TOPIC, 0) == 0
    below = [record for record in produced if record.offset < stop]
    assert asyncio.run(consumed(cluster, stop, "read_uncommitted")) == shapes(below)
    assert asyncio.run(consumed(cluster, stop, "read_committed")) == shapes([one for one in below if not one.aborted])
    assert native_segments(storage) == copied, "nothing was copied again, and nothing deleted"
