"""Three brokers, a sidecar beside each: what goes back is on every replica, and survives every leader (issue 21;
`make handover`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.integration.test_back_to_local import properties_of
from tests.support.command_line import answer_of, run_command
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_placement import place
from tests.support.patience import patient_s
from tests.support.produce import IDEMPOTENT_STYLES, ProducedRecord, produce_mix
from tests.support.remote_events import object_keys_in
from tests.support.sidecars import Sidecars

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(900)]

TOPIC = "goes-back-on-three"
SEGMENT_BYTES = 32 * 1024
STRICT = {"retention.ms": "-1", "retention.bytes": "-1"}
ORDERS = ([1, 2, 3], [2, 3, 1], [3, 1, 2])


def is_trimmed(broker: KafkaBroker) -> bool:
    return len(list(broker.partition_dir(TOPIC, 0).glob("*.log"))) == 1


def fill(cluster: KafkaCluster, seed: int) -> list[ProducedRecord]:
    settings = cluster.client_settings
    return asyncio.run(
        produce_mix(settings, TOPIC, total_bytes=200_000, batch_bytes=8_192, styles=IDEMPOTENT_STYLES, seed=seed)
    )


async def read_all(cluster: KafkaCluster, isolation: str, stop: int) -> list[tuple[int, bytes | None, bytes | None]]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    at, found = TopicPartition(TOPIC, 0), list[tuple[int, bytes | None, bytes | None]]()
    async with AIOKafkaConsumer(**cluster.client_settings, isolation_level=isolation) as consumer:
        consumer.assign([at])
        consumer.seek(at, 0)
        async with asyncio.timeout(patient_s(60)):
            while await consumer.position(at) < stop:
                for records in (await consumer.getmany(at, timeout_ms=500)).values():
                    found += [(record.offset, record.key, record.value) for record in records]
    return found


def shapes(produced: list[ProducedRecord]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(one.offset, one.key, one.value) for one in produced]


def test_every_replica_gets_all(kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path) -> None:
    # The last node to stop finds no quorum, and would wait for one before it closes its logs.
    cluster = kafka_cluster(brokers=3, properties={"controlled.shutdown.enable": "false"})
    cluster.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    sidecars = Sidecars(tmp_path, cluster, topics=[{"name": TOPIC, "local.retention.bytes": 1}])
    produced: list[ProducedRecord] = []
    plan = tmp_path / "plan.json"
    with sidecars:
        for turn, order in enumerate(ORDERS):
            place(cluster.admin, TOPIC, 0, order)
            produced += fill(cluster, turn)
            leader = cluster[order[0]]
            sidecars.wait_for(partial(is_trimmed, leader), f"broker {order[0]} has trimmed", timeout_s=180)
        config = sidecars[1].config_path
        for command in (["disable", TOPIC], ["pause", TOPIC, "--deletes"]):
            done = run_command(config, *command, "--yes")
            assert done.returncode == 0, done.stderr
        answer_of(config, "handover", "back-to-local", TOPIC, "--write-plan", str(plan))
        for node in (1, 2, 3):
            staged = answer_of(sidecars[node].config_path, "handover", "restore", str(plan), "--stage")
            assert staged["files"] > 20
    objects = object_keys_in(sidecars.store_root)
    cluster.stop()
    receipts = {node: f"{plan}.broker-{node}/staged.json" for node in (1, 2, 3)}
    for broker in cluster.brokers:
        properties = properties_of(broker, tmp_path / f"{broker.node_id}.properties")
        carries = ["handover", "restore", str(plan), "--carry-out", "--broker-properties", str(properties)]
        mine = sidecars[broker.node_id].config_path
        others = [path for node, path in receipts.items() if node != broker.node_id]
        alone = run_command(mine, *carries, "--staged", others[0], "--json")
        assert any("are not staged" in fault for fault in json.loads(alone.stdout)["faults"])
        carried = answer_of(mine, *carries, *(word for path in others for word in ("--staged", path)))
        assert (carried["files"] > 20, carried["faults"]) == (True, [])
    cluster.start()
    stop = produced[-1].offset + 1
    committed = [one for one in produced if not one.aborted]
    for order in ORDERS:
        place(cluster.admin, TOPIC, 0, order)
        assert cluster[order[0]].admin.earliest_offset(TOPIC, 0) == 0
        assert answer_of(config, "handover", "verify", str(plan))["is_as_foretold"], f"broker {order[0]} leads"
        assert asyncio.run(read_all(cluster, "read_uncommitted", stop)) == shapes(produced)
        assert asyncio.run(read_all(cluster, "read_committed", committed[-1].offset + 1)) == shapes(committed)
    assert object_keys_in(sidecars.store_root) == objects
