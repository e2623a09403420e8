"""A topic that was tiered goes back to its broker's disk, and the broker has all of it without the sidecar (issue 21; U45).

Objects are compressed and encrypted; the log has transactions of both outcomes, two leader epochs, and a beginning that users
have deleted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.integration.test_daemon import STRICT, active_base, produce, started, wait_until_trimmed
from tests.integration.test_native_reads import shapes
from tests.support.command_line import run_command
from tests.support.daemon import Daemon, wait_for
from tests.support.gateway import GatewayDaemon
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.patience import patient_s
from tests.support.produce import ProducedRecord
from tests.support.read_service import fetch_records, shape_of
from tests.support.remote_events import object_keys_in
from tiersidecar.adapters.restored_segment import STAGED
from tiersidecar.app.cli import app

pytestmark = pytest.mark.broker

TOPIC = "goes-back"
SEGMENT_BYTES = 32 * 1024


def told(daemon: Daemon, *arguments: str) -> Result:
    """``tiersidecar handover`` in this process: to start one takes longer than most of it."""
    return CliRunner().invoke(app, ["handover", *arguments, "--config", str(daemon.config_path)])


def asked(daemon: Daemon, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = told(daemon, *arguments, "--json")
    assert done.exit_code == code, f"{arguments}: {done.exit_code}\n{done.stdout}\n{done.stderr}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def properties_of(broker: KafkaBroker, path: Path) -> Path:
    path.write_text(f"log.dirs={','.join(map(str, broker.log_dirs))}\n")
    return path


async def consumed(cluster: KafkaCluster, start: int, stop: int, isolation: str) -> list[Any]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    at, found = TopicPartition(TOPIC, 0), list[Any]()
    async with AIOKafkaConsumer(**cluster.client_settings, isolation_level=isolation) as consumer:
        consumer.assign([at])
        consumer.seek(at, start)
        async with asyncio.timeout(patient_s(60)):
            while await consumer.position(at) < stop:
                for records in (await consumer.getmany(at, timeout_ms=500)).values():
                    found += [(record.offset, record.key, record.value) for record in records]
    return found


def files_of(broker: KafkaBroker) -> set[str]:
    return {path.name for path in broker.partition_dir(TOPIC, 0).iterdir()}


def test_a_topic_goes_back_to_its_disk(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path, rsa_key_files: dict[str, str]
) -> None:
    cluster = kafka_cluster(properties={"log.retention.check.interval.ms": "500"})
    broker = cluster.brokers[0]
    cluster.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    store = {
        "type": "filesystem",
        "root": str(tmp_path / "sidecar" / "store"),
        "compression.enabled": True,
        "encryption.enabled": True,
        "encryption.key.pair.id": "first",
        "encryption.key.pairs": {"first": rsa_key_files},
        "chunk.size": "16KiB",
    }
    daemon = started(tmp_path / "sidecar", cluster, TOPIC, store=store, **{"lease.duration.ms": 3_000})
    produced: list[ProducedRecord] = produce(cluster, TOPIC, total_bytes=300_000)
    start = produced[len(produced) // 9].offset  # within a segment, and within a batch
    with daemon:
        wait_until_trimmed(cluster, daemon, TOPIC)
        broker.stop()
        broker.start()  # a second leader epoch
        produced += produce(cluster, TOPIC, total_bytes=200_000, seed=1)
        border = wait_until_trimmed(cluster, daemon, TOPIC)
        deleted = run_command(daemon.config_path, "delete-records", TOPIC, "-p", "0", "--offset", str(start), "--yes")
        assert deleted.returncode == 0, deleted.stderr
        looked = asked(daemon, "back-to-local", TOPIC)
        kinds = {one.split(": ")[2] for one in looked["notes"] if one.startswith("first: ")}
        assert kinds == {"not-detached", "deletes"}
        off = run_command(daemon.config_path, "disable", TOPIC, "--yes")
        assert off.returncode == 0, off.stderr
        paused = run_command(daemon.config_path, "pause", TOPIC, "--deletes", "--yes")
        assert paused.returncode == 0, paused.stderr
        plan = tmp_path / "plan.json"
        settings = {name: daemon.settings[name] for name in SHARED}
        with GatewayDaemon(tmp_path / "gateway", broker, **settings) as gateway:
            gateway.wait_until_ready()
            wanted = ["--write-plan", str(plan), "--records", gateway.bootstrap_server]
            written = asked(daemon, "back-to-local", TOPIC, *wanted)
        (partition,) = written["partitions"]
        assert (partition["log_start_offset"], partition["broker_log_start_offset"]) == (start, border)
        assert partition["gaps"] == []
        objects = object_keys_in(daemon.store_root)
        before = files_of(broker)
        staged = asked(daemon, "restore", str(plan), "--stage")  # while both run
        assert staged["files"] > 20
        assert {name for name in files_of(broker) - before if not name.endswith(STAGED)} == set()
        properties = properties_of(broker, tmp_path / "server.properties")
        carries = ["restore", str(plan), "--carry-out", "--broker-properties", str(properties)]
        assert "the broker runs" in told(daemon, *carries).stderr
        assert daemon.stop() == 0

    broker.stop()
    done = asked(daemon, *carries, "--digests")
    assert (done["files"], done["checkpoints"]) == (staged["files"], 2)
    assert asked(daemon, "restore", str(plan), "--undo")["files"] == staged["files"]
    broker.start()
    assert cluster.admin.earliest_offset(TOPIC, 0) == border, "as before"
    broker.stop()
    assert asked(daemon, *carries)["files"] == staged["files"]
    broker.start()

    assert cluster.admin.earliest_offset(TOPIC, 0) == start
    verified = asked(daemon, "verify", str(plan), "--records")
    assert verified["is_as_foretold"], verified
    left = [one for one in produced if one.offset >= start]
    stop = produced[-1].offset + 1
    assert asyncio.run(consumed(cluster, start, stop, "read_uncommitted")) == shapes(left)
    committed = [one for one in left if not one.aborted]
    assert asyncio.run(consumed(cluster, start, committed[-1].offset + 1, "read_committed")) == shapes(committed)
    assert object_keys_in(daemon.store_root) == objects, "objects stay until the operator says otherwise"
    with daemon:
        daemon.wait_until_ready()
        looks = daemon.metric("process_cpu_seconds_total")
        wait_for(lambda: daemon.metric("process_cpu_seconds_total") > looks + 0.3, "it has looked at all", daemon)
        assert cluster.admin.earliest_offset(TOPIC, 0) == start, "a detached topic is not trimmed"
        takes_up(daemon)
        assert wait_until_trimmed(cluster, daemon, TOPIC) == active_base(cluster, TOPIC)
        below = [shape_of(one) for one in left if one.offset < border]
        assert list(fetch_records(daemon.read_url, TOPIC, 0, offset=start, stop=border)) == below
    assert objects <= object_keys_in(daemon.store_root), "nothing that is remote was copied once more, or is gone"
    assert len(object_keys_in(daemon.store_root)) <= len(objects) + 3


def takes_up(daemon: Daemon) -> None:
    for command in (["enable", TOPIC, "--local-retention-bytes", "1"], ["resume", TOPIC, "--deletes"]):
        done = run_command(daemon.config_path, *command, "--yes")
        assert done.returncode == 0, done.stderr


SHARED = ("topics", "store", "remote.log.metadata.topic.name", "state.topic.name")
