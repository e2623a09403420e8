"""A Kafka Streams application whose cluster is lost with all its disks, and whose own disk is empty as well (issue 23).

Its changelog is a compacted topic, copied and cleaned by the sidecar.  A new cluster takes the bucket over, and the
application, started there with an empty state directory through the gateway, restores its table from the remote changelog
alone.  (Brokers that live keep the whole local log of a compacted topic: nothing would have to be read remotely.)
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.integration.test_daemon import STRICT
from tests.integration.test_mount import GONE, cluster_snapshot, seed_all
from tests.support.command_line import answer_of
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.kafka_admin import wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port
from tests.support.remote_events import fold, in_state, read_events
from tests.support.streams_table import DELETED, FILLER, StreamsTable, rows_after
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

APPLICATION, INPUT = "ledger", "entries"
CHANGELOG = f"{APPLICATION}-table-changelog"
SEGMENT_BYTES = 32 * 1024
CHANGELOG_SETTINGS = {
    "changelog.internal.segment.bytes": str(SEGMENT_BYTES),
    "changelog.min.cleanable.dirty.ratio": "0.01",
    "changelog.delete.retention.ms": "90000",
}
KEYS, RECORDS, WAVES = 60, 400, 3

Records = list[tuple[str, str]]


def beside(cluster: KafkaCluster, directory: Path, store: Path) -> Daemon:
    """Copies and cleans, and serves Kafka clients; what it knows is in the store within a second."""
    settings = daemon_settings(
        directory,
        bootstrap_servers=cluster.bootstrap_servers,
        log_dirs=list(cluster.brokers[0].log_dirs),
        topics=[{"name": INPUT, "local.retention.bytes": 1}, {"name": CHANGELOG}],
        store={"type": "filesystem", "root": str(store)},
        gateway={"listeners": [{"listen": f"127.0.0.1:{free_port()}"}]},
        **{
            "compaction.enabled": True,
            "compaction.interval.ms": 300,
            "snapshots.interval.ms": 300,
            "snapshots.cluster.interval.ms": 300,
            "lease.duration.ms": 3_000,
        },
    )
    return Daemon(directory, settings, roles="tier,read,gateway")


def gateway_of(daemon: Daemon) -> str:
    return str(daemon.settings["gateway"]["listeners"][0]["listen"])


def application(directory: Path, servers: str) -> StreamsTable:
    """All its changes are in transactions, as its markers are in the changelog."""
    return StreamsTable(
        directory,
        application=APPLICATION,
        topic=INPUT,
        servers=servers,
        **{"processing.guarantee": "exactly_once_v2"},
        **CHANGELOG_SETTINGS,
    )


def random_records(seed: int) -> Records:
    """Some delete their key."""
    draw = random.Random(seed)
    return [
        (f"key-{draw.randrange(KEYS)}", DELETED if draw.random() < 0.2 else f"{seed}-{number} " + "text " * 30)
        for number in range(RECORDS)
    ]


async def send(servers: str, records: Sequence[tuple[str, str]]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
        for key, value in records:
            await producer.send(INPUT, value.encode(), key=key.encode(), partition=0)
        await producer.flush()


async def committed(servers: str) -> int:
    """Return up to where the application has processed its input, by its group's offset."""
    async with AIOKafkaConsumer(bootstrap_servers=servers, group_id=APPLICATION, enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(INPUT, 0)])
        return int(await consumer.committed(TopicPartition(INPUT, 0)) or 0)


def is_processed(servers: str, end: int) -> bool:
    return asyncio.run(committed(servers)) >= end


def active_base(cluster: KafkaCluster, topic: str) -> int:
    return max(int(path.stem) for path in cluster[1].partition_dir(topic, 0).glob("*.log"))


def finished(cluster: KafkaCluster, daemon: Daemon) -> list[RemoteLogSegmentMetadata]:
    """Return the finished segments of the changelog."""
    name = daemon.settings.get("remote.log.metadata.topic.name", "__remote_log_metadata")
    found = in_state(fold(read_events(cluster.client_settings, name)), State.COPY_SEGMENT_FINISHED)
    return [one for one in found if one.topic_id_partition.topic == CHANGELOG]


def live_through(cluster: KafkaCluster, daemon: Daemon, app: StreamsTable) -> dict[str, str]:
    """Return the table after all waves.  In the second one the sidecar is killed, and the gateway with it."""
    rows: dict[str, str] = {}
    for wave in range(WAVES):
        records = random_records(wave)
        rows = rows_after(rows, records)
        asyncio.run(send(cluster.bootstrap_servers, records))
        if wave == 1:
            daemon.kill9()
            daemon.start()
            daemon.wait_until_ready()
        app.wait_for_table(rows)
    # What follows rolls both topics and leaves the table as it is then: what is lost with the active segments.
    fillers = [(f"{FILLER}-{number}", "a" * 6000) for number in range(6)]
    rows = rows_after(rows, fillers)
    asyncio.run(send(cluster.bootstrap_servers, fillers))
    app.wait_for_table(rows)
    ends = {topic: cluster.admin.latest_offset(topic, 0) for topic in (INPUT, CHANGELOG)}
    while any(active_base(cluster, topic) <= end for topic, end in ends.items()):
        asyncio.run(send(cluster.bootstrap_servers, fillers[:1]))
        end = cluster.admin.latest_offset(INPUT, 0)
        wait_until(partial(is_processed, cluster.bootstrap_servers, end), "it is processed")
    assert app.table() == rows
    return rows


def wait_until_remote(cluster: KafkaCluster, daemon: Daemon, store: Path) -> int:
    """Return the end of the remote changelog, once the application's offsets are in the store too.  All of it is cleaned, but
    perhaps for the last segment, which may end within a transaction."""
    stop, until = active_base(cluster, CHANGELOG), active_base(cluster, INPUT)

    def is_done() -> bool:
        cleaned = max((one["cleaner_offset"] for one in daemon.events("partition.cleaned")), default=0)
        last = max(finished(cluster, daemon), key=lambda one: one.end_offset)
        return last.next_offset == stop and last.start_offset <= cleaned

    def are_groups_kept() -> bool:
        kept = cluster_snapshot(store)
        found = None if kept is None else kept.groups.get(APPLICATION, {}).get((INPUT, 0))
        return found is not None and found.offset >= until and {INPUT, CHANGELOG} <= set(kept.topics)

    wait_for(is_done, f"the changelog is copied and cleaned up to {stop}", daemon, 90)
    wait_for(lambda: cluster.admin.earliest_offset(INPUT, 0) == until, "the input is remote", daemon)
    wait_for(are_groups_kept, "the application's offset is in the store", daemon)
    return stop


def take_over(tmp_path: Path, second: KafkaCluster, sidecar: Daemon) -> dict[str, Any]:
    """Mount the bucket in ``second``, which runs when this returns; the caller closes it."""
    plan = tmp_path / "mount.json"
    sidecar.write_config()
    found = answer_of(sidecar.config_path, "mount", "plan", "--brokers", "1", "--out", str(plan))
    seed_all(second, plan)
    second.start()
    done = answer_of(sidecar.config_path, "mount", "publish", str(plan), GONE, "--carry-out")
    assert done["done"], done
    return found


def test_a_table_is_restored_from_the_remote_changelog_alone(tmp_path: Path) -> None:
    """S-240, S-242, U21: tombstones, transactions and cleaned segments included."""
    store = tmp_path / "store"
    store.mkdir()
    former = KafkaCluster(tmp_path / "former", properties={"log.cleaner.backoff.ms": "200"})
    daemon = beside(former, tmp_path / "former-sidecar", store)
    with former, daemon:
        former.create_topic(INPUT, segment_bytes=SEGMENT_BYTES, configs=STRICT)
        daemon.wait_until_ready()
        with application(tmp_path / "first-life", gateway_of(daemon)) as app:
            app.wait_until_running()
            rows = live_through(former, daemon, app)
            app.close()
        stop = wait_until_remote(former, daemon, store)
        assert daemon.events("segment.cleaned"), "what is restored was rewritten"
        assert daemon.events("lane.halted") == []
        daemon.kill9()
    shutil.rmtree(former.directory)
    shutil.rmtree(tmp_path / "first-life")
    assert 0 < sum(key.startswith("key-") for key in rows) < KEYS, "some keys are deleted at the end"

    second = KafkaCluster(tmp_path / "second")
    sidecar = beside(second, tmp_path / "second-sidecar", store)
    try:
        found = take_over(tmp_path, second, sidecar)
        ends = {row["topic"]: row["ends"][0]["end"] for row in found["partitions_by_topic"]}
        assert ends[CHANGELOG] == stop
        assert second.admin.earliest_offset(CHANGELOG, 0) == stop, "the brokers have nothing of it"
        with sidecar:
            sidecar.wait_until_ready()
            with application(tmp_path / "second-life", gateway_of(sidecar)) as app:
                app.wait_until_running()
                restored = app.restoration
                assert restored is not None
                assert (restored.start, restored.end) == (0, second.admin.latest_offset(CHANGELOG, 0))
                app.wait_for_table(rows)
                go_on(second, app, rows)
                app.close()
    finally:
        sidecar.kill9()
        second.close()


def go_on(cluster: KafkaCluster, app: StreamsTable, rows: dict[str, str]) -> None:
    """What is processed from then on counts on from what was restored."""
    records = random_records(WAVES)
    asyncio.run(send(cluster.bootstrap_servers, records))
    app.wait_for_table(rows_after(rows, records))
