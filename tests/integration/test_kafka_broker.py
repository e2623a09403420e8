"""The brokers that all other integration tests stand on: real, hurt at will, and tolerant of our files in the ways we use.

The rules about foreign names are there because nothing of ours may change how a broker starts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from kio.schema.metadata.v12.response import MetadataResponsePartition

from tests.support.kafka_admin import KafkaAdminError, wait_until
from tests.support.kafka_broker import BrokerStartError, KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_format import META_PROPERTIES
from tests.support.kafka_jars import KAFKA_3, KAFKA_4, class_archive
from tiersidecar.formats.kafka.record_batches import iter_batch_headers
from tiersidecar.formats.kafka.records import read_records

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]
ClusterFactory = Callable[..., KafkaCluster]


async def produce(cluster: KafkaCluster, topic: str, count: int, value_bytes: int = 1000) -> None:
    async with AIOKafkaProducer(**cluster.client_settings, acks="all", max_batch_size=4096) as producer:
        for number in range(count):
            await producer.send(topic, value=b"%d" % number + b"." * value_bytes, partition=0)


async def count_records(cluster: KafkaCluster, topic: str) -> int:
    partition = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(**cluster.client_settings, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        seen = 0
        while await consumer.position(partition) < end:
            batches = await consumer.getmany(partition, timeout_ms=500)
            seen += sum(len(records) for records in batches.values())
    return seen


def segments_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.log"))


async def test_a_topic_with_small_segments_rolls_them(kafka: KafkaCluster) -> None:
    topic = kafka.create_topic("rolls", segment_bytes=20_000)
    await produce(kafka, topic, 100)
    directory = kafka.leader_of(topic, 0).partition_dir(topic, 0)
    wait_until(lambda: len(segments_in(directory)) >= 4, "four segments")
    assert segments_in(directory)[0] == "00000000000000000000.log"


async def test_the_older_kafka_rolls_them_too(kafka_39: KafkaCluster) -> None:
    topic = kafka_39.create_topic("rolls", segment_bytes=20_000)
    await produce(kafka_39, topic, 100)
    directory = kafka_39.leader_of(topic, 0).partition_dir(topic, 0)
    wait_until(lambda: len(segments_in(directory)) >= 4, "four segments")


def what_the_log_dirs_hold(broker: KafkaBroker) -> dict[str, object]:
    """Ids and times apart: names of files, keys of meta.properties, and the records of the metadata log."""
    found: dict[str, object] = {}
    for log_dir in broker.log_dirs:
        for path in log_dir.iterdir():
            lines = path.read_bytes().splitlines() if path.name == META_PROPERTIES else []
            keys = {line.partition(b"=")[0] for line in lines if not line.startswith(b"#")}
            found[f"{log_dir.name}/{path.name}"] = keys or records_in(path)
    return found


def records_in(path: Path) -> list[bytes | None]:
    data = path.read_bytes()
    batches = (data[position : position + header.size_bytes] for position, header in iter_batch_headers(data))
    return [record.value for batch in batches for record in read_records(batch) if not record.is_control]


@pytest.mark.parametrize("version", [KAFKA_4, KAFKA_3])
def test_log_dirs_are_formatted_as_by_kafkas_tool(tmp_path: Path, version: str) -> None:
    ours, other = (KafkaCluster(tmp_path / name, version=version, log_dirs=2)[1] for name in ("ours", "other"))
    for log_dir in other.log_dirs:
        shutil.rmtree(log_dir)
        log_dir.mkdir()
    assert other.format_storage().wait() == 0
    assert what_the_log_dirs_hold(ours) == what_the_log_dirs_hold(other)


def test_a_broker_maps_the_archive_of_its_classes(kafka: KafkaCluster) -> None:
    """Where this java could write one: it starts on half of the processor time."""
    archive = class_archive()
    mapped = Path(f"/proc/{kafka.brokers[0].pid}/maps").read_text()
    assert archive.parent.is_dir()
    assert (str(archive) in mapped) == archive.is_file()


def test_a_tool_of_kafkas_own_sees_the_topic(kafka: KafkaCluster) -> None:
    topic = kafka.create_topic("seen-by-a-tool", partitions=2)
    shown = kafka.run_tool(
        "org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", kafka.bootstrap_servers, "--topic", topic
    )
    assert shown.stdout.split() == [f"{topic}:0:0", f"{topic}:1:0"]


async def test_a_killed_broker_comes_back_with_its_records(kafka_cluster: ClusterFactory) -> None:
    cluster = kafka_cluster(log_dirs=2)
    topic = cluster.create_topic("survives", segment_bytes=20_000)
    await produce(cluster, topic, 50)
    cluster[1].kill9()
    assert not cluster[1].is_running
    cluster[1].start()
    assert await count_records(cluster, topic) == 50


def test_a_paused_broker_leaves_the_cluster_and_returns(kafka_cluster: ClusterFactory) -> None:
    cluster = kafka_cluster(brokers=3)
    topic = cluster.create_topic("elects")
    paused = cluster.leader_of(topic, 0)
    witness = next(broker for broker in cluster.brokers if broker is not paused)

    def leader_and_isr() -> tuple[int, int]:
        row = witness.admin.describe_topic(topic).partitions[0]
        return row.leader_id, len(row.isr_nodes)

    assert leader_and_isr() == (paused.node_id, 3)
    paused.sigstop()
    wait_until(lambda: leader_and_isr()[0] not in (-1, paused.node_id), "another broker leads")
    paused.sigcont()
    wait_until(lambda: leader_and_isr()[1] == 3, "all three are in sync")


def test_three_brokers_elect_another_leader_when_one_is_killed(kafka_cluster: ClusterFactory) -> None:
    cluster = kafka_cluster(brokers=3)
    topic = cluster.create_topic("elects")
    killed = cluster.leader_of(topic, 0)
    epoch = killed.admin.describe_topic(topic).partitions[0].leader_epoch
    killed.kill9()

    def led_by_another() -> MetadataResponsePartition | None:
        try:
            (row,) = cluster.admin.describe_topic(topic).partitions
        except KafkaAdminError:  # the topic is news to this broker: the killed one was asked to make it
            return None
        # A broker that has not heard of the election yet may show who led before.
        return row if row.leader_id not in (-1, killed.node_id) and row.leader_epoch > epoch else None

    wait_until(led_by_another, "another broker leads, in a later epoch", 60)
    killed.start()

    def are_in_sync() -> bool:
        try:
            return len(cluster.admin.describe_topic(topic).partitions[0].isr_nodes) == 3
        except (KafkaAdminError, OSError):  # the broker that has just been started does not answer yet
            return False

    wait_until(are_in_sync, "all three are in sync", 60)


async def test_files_of_ours_do_not_stop_a_broker_from_starting(kafka_cluster: ClusterFactory) -> None:
    """Plain files in a log dir's root, foreign names in a partition directory: skipped, and left where they are."""
    cluster = kafka_cluster()
    topic = cluster.create_topic("shares", segment_bytes=20_000)
    await produce(cluster, topic, 50)
    broker = cluster[1]
    partition_dir = broker.partition_dir(topic, 0)
    broker.stop()
    ours = [broker.log_dirs[0] / "tiersidecar-pin-00000000000000000000.log", partition_dir / "tiersidecar.note"]
    for path in ours:
        path.write_text("ours")
    # A pin: one more name for a sealed segment's inode.
    ours[0].unlink()
    ours[0].hardlink_to(partition_dir / "00000000000000000000.log")
    broker.start()
    assert all(path.exists() for path in ours)
    assert await count_records(cluster, topic) == 50


def test_an_unknown_directory_in_a_log_dir_stops_a_broker(kafka_cluster: ClusterFactory) -> None:
    cluster = kafka_cluster()
    broker = cluster[1]
    broker.stop()
    (broker.log_dirs[0] / "tiersidecar").mkdir()
    with pytest.raises(BrokerStartError, match="tiersidecar"):
        broker.start()


def test_the_index_cache_directory_of_native_tiering_is_the_exception(kafka_cluster: ClusterFactory) -> None:
    cluster = kafka_cluster()
    broker = cluster[1]
    broker.stop()
    (broker.log_dirs[0] / "remote-log-index-cache").mkdir()
    broker.start()
