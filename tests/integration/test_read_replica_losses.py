"""What a read-only mount may lose (issue 21): disks of its nodes, topics of its source, and the way to the source's store."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka.admin import AdminClient

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT
from tests.integration.test_mount import TOPIC, beside, fill, seed_all, shapes
from tests.integration.test_read_replica import (
    CLIENTS,
    GROUP,
    LOCAL,
    USERS,
    Replica,
    allow,
    halts_of_first,
    in_front_of,
    is_described,
    read,
    settings_of_another,
    watermarks,
)
from tests.support.command_line import answer_of, run_without_config
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tests.support.patience import patient_s
from tiersidecar.domain.mounts import MOUNTED_START

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

PARTITIONS = 3
EMPTY_LOG = f"{MOUNTED_START:020d}.log"


@contextmanager
def replica_of(directory: Path, version: str) -> Iterator[Replica]:
    """One node with two disks; its metadata log is on the second one, and the first replica on the first."""
    store, plan = directory / "store", directory / "mount.json"
    store.mkdir()
    cluster = KafkaCluster(
        directory / "replica",
        version=version,
        listeners=[CLIENTS],
        users=USERS,
        authorizer=True,
        log_dirs=2,
        # Where eligible leader replicas are on, what was on a lost disk has no leader until then.
        properties={"unclean.leader.election.interval.ms": "1000"},
    )
    (node,) = cluster.brokers
    node.set_properties({"metadata.log.dir": str(node.log_dirs[1])})
    source = KafkaCluster(directory / "source")
    sidecar = beside(source, directory / "sidecar", store)
    sidecar.settings["deletes.topic.grace.ms"] = 1_000
    with source, sidecar:
        source.create_topic(TOPIC, partitions=PARTITIONS, segment_bytes=SEGMENT_BYTES, configs=STRICT)
        sidecar.wait_until_ready()
        produced, _ = asyncio.run(fill(source))
        wait_for(lambda: is_described(store), "the topic is described in the store", sidecar)
        gateway = in_front_of(cluster, directory / "gateway", store, source, plan)
        found = Replica(source=source, sidecar=sidecar, cluster=cluster, gateway=gateway, produced=produced)
        found.copied()
        gateway.write_config()
        answer_of(gateway.config_path, "mount", "plan", "--read-only", "--brokers", "1", "--out", str(plan))
        seed_all(cluster, plan)
        with cluster, gateway:
            cluster.create_topic(LOCAL)
            for operation in ("read", "delete"):
                allow(cluster, "alice", operation, "--topic", TOPIC)
            allow(cluster, "alice", "describe", "--topic", LOCAL)
            allow(cluster, "alice", "read", "--group", GROUP)
            gateway.wait_until_ready()
            yield found


def seeded_again(replica: Replica, plan: Path) -> dict[str, Any]:
    """The new disks of the stopped node are formatted and seeded, and it is started."""
    (node,) = replica.cluster.brokers
    assert node.format_storage().wait(patient_s(60)) == 0
    (done,) = seed_all(replica.cluster, plan)
    replica.cluster.start()
    return done


def lose(disk: Path) -> None:
    shutil.rmtree(disk)
    disk.mkdir()


def logs_of(node: KafkaBroker) -> dict[str, Path]:
    """Where each replica of the mounted topic is, by its name."""
    return {path.name: path.parent for disk in node.log_dirs for path in disk.glob(f"{TOPIC}-?")}


@pytest.mark.parametrize("version", [KAFKA_4, KAFKA_3])
def test_a_node_that_has_lost_disks_is_seeded_again_and_goes_on(tmp_path: Path, version: str) -> None:
    """One of two, then all but its metadata log; and then a log that the broker began at 0 without a seed."""
    with replica_of(tmp_path, version) as replica:
        plan, (node,), end = tmp_path / "mount.json", replica.cluster.brokers, replica.copied()
        alice, expected = replica.login("alice"), shapes(replica.produced, 0, replica.copied(), "read_uncommitted")

        def is_as_before() -> None:
            wait_for(lambda: watermarks(replica) == (0, end), "the topic is served again", replica.gateway, 60)
            assert asyncio.run(read(alice, "read_uncommitted", 0, end)) == expected
            assert replica.local_end() == MOUNTED_START
            assert all(not (disk / name / EMPTY_LOG).stat().st_size for name, disk in logs_of(node).items())

        is_as_before()
        before = logs_of(node)
        assert before[f"{TOPIC}-0"] == node.log_dirs[0]
        replica.cluster.stop()
        lose(node.log_dirs[0])
        lost = [name for name, disk in before.items() if disk == node.log_dirs[0]]
        assert 0 < len(lost) < PARTITIONS
        done = seeded_again(replica, plan)
        assert (done["partitions"], done["partitions_there_already"]) == (PARTITIONS, PARTITIONS - len(lost))
        is_as_before()
        assert logs_of(node) == before

        replica.cluster.stop()
        lose(node.log_dirs[0])
        for path in node.log_dirs[1].iterdir():
            if path.is_dir() and path.name != "__cluster_metadata-0":
                shutil.rmtree(path)
        done = seeded_again(replica, plan)
        assert (done["partitions"], done["partitions_there_already"]) == (PARTITIONS, 0)
        is_as_before()

        replica.cluster.stop()
        shutil.rmtree(logs_of(node)[f"{TOPIC}-0"] / f"{TOPIC}-0")
        replica.cluster.start()
        wait_for(lambda: halts_of_first(replica), "the log that begins at 0 halts", replica.gateway, 60)
        replica.cluster.stop()
        seeding = ["mount", "seed", str(plan), "--server-properties", str(node.directory / "server.properties")]
        refused = run_without_config(*seeding)
        assert refused.returncode != 0
        assert "remove this directory, and seed again" in " ".join(refused.stderr.split())
        shutil.rmtree(logs_of(node)[f"{TOPIC}-0"] / f"{TOPIC}-0")
        seeded_again(replica, plan)
        is_as_before()
        known = AdminClient(replica.librdkafka("alice")).list_topics(timeout=30).topics
        assert set(known) >= {TOPIC, LOCAL}, "the cluster's own topics are known still, and alice's rights"


async def committed(replica: Replica) -> int | None:
    async with AIOKafkaConsumer(**replica.login("alice"), group_id=GROUP, enable_auto_commit=False) as consumer:
        offset: int | None = await consumer.committed(TopicPartition(TOPIC, 0))
        return offset


async def commit(replica: Replica, offset: int) -> None:
    async with AIOKafkaConsumer(**replica.login("alice"), group_id=GROUP, enable_auto_commit=False) as consumer:
        place = TopicPartition(TOPIC, 0)
        consumer.assign([place])
        await consumer.commit({place: OffsetAndMetadata(offset, "")})


async def read_on(replica: Replica) -> list[int]:
    """What a member of the group gets, and commits, in some seconds."""
    found = list[int]()
    async with AIOKafkaConsumer(
        TOPIC, **replica.login("alice"), group_id=GROUP, auto_offset_reset="earliest", auto_commit_interval_ms=200
    ) as consumer:
        with suppress(TimeoutError):
            async with asyncio.timeout(8):
                while True:
                    found.append(int((await consumer.getone()).offset))
    return found


def test_a_topic_that_is_deleted_at_the_source_resets_no_group(tmp_path: Path) -> None:
    """Nor does a gateway whose store has another key.prefix than the source's."""
    with replica_of(tmp_path, KAFKA_4) as replica:
        half = replica.produced[len(replica.produced) // 2].offset
        asyncio.run(commit(replica, half))
        elsewhere = dict(replica.gateway.settings["store"]) | {"key.prefix": "elsewhere/"}
        settings = settings_of_another(replica, tmp_path / "other", {}) | {"store": elsewhere}
        with Daemon(tmp_path / "other", settings, roles="gateway") as gateway:
            other = replace(replica, gateway=gateway)
            wait_for(lambda: halts_of_first(other), "the other store is found out", other.gateway, 60)
            code, body = other.gateway.status("/readyz")
            assert code == 503
            assert "another key.prefix" in body
            assert asyncio.run(read_on(other)) == []
            assert watermarks(other) is None
        assert asyncio.run(committed(replica)) == half
        replica.source.admin.delete_topic(TOPIC)
        waiting = asyncio.run(read_until_gone(replica, half))
        assert waiting == [offset for offset in waiting if offset >= half], "nobody was sent back"
        reason = halts_of_first(replica)[0]["reason"]
        assert "its topic was deleted at the source" in reason
        wait_for(lambda: not segments_of(replica), "its segments have gone", replica.sidecar, 60)
        assert asyncio.run(read_on(replica)) == []
        assert watermarks(replica) is None
        at = asyncio.run(committed(replica))
        assert at is not None
        assert at >= half, "the group is where it was, or further"
        assert len(halts_of_first(replica)) == 1
        code, body = replica.gateway.status("/status?halted=1")
        assert code == 200
        assert reason in {row["halted_reason"] for row in json.loads(body)["partitions"]}
        admin = AdminClient(replica.librdkafka("alice"))  # kept: its answers end with it
        admin.delete_topics([TOPIC])[TOPIC].result(30)
        wait_for(lambda: TOPIC not in admin.list_topics(timeout=10).topics, "it is gone here too", replica.gateway, 30)


async def read_until_gone(replica: Replica, start: int) -> list[int]:
    """What a client gets while the topic is deleted at the source, one that would go to the beginning if it were sent away."""
    found, place = list[int](), TopicPartition(TOPIC, 0)
    async with AIOKafkaConsumer(
        **replica.login("alice"), auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.assign([place])
        consumer.seek(place, start)
        async with asyncio.timeout(patient_s(90)):
            while not halts_of_first(replica):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [one.offset for one in records]
        for _ in range(10):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += [one.offset for one in records]
    return found


def segments_of(replica: Replica) -> list[Path]:
    return list(replica.sidecar.store_root.rglob("*.log"))
