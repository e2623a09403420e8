"""Three brokers, a sidecar beside each: handed over with all replicas' files changed, native tiering survives every leader
(issue 21; `make handover`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.integration.test_native_beside import native_segments
from tests.integration.test_native_reads import lay_out
from tests.support.command_line import answer_of, run_command
from tests.support.handover_properties import write_handover_properties
from tests.support.kafka_admin import wait_until
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_placement import place
from tests.support.local_tiered_storage import local_tiered_storage
from tests.support.patience import patient_s
from tests.support.produce import IDEMPOTENT_STYLES, ProducedRecord, produce_mix
from tests.support.remote_events import fold, in_state, object_keys_in, read_events
from tests.support.sidecars import Sidecars
from tiersidecar.decide.native_settings import BLIND_SETTINGS, RLMM_PREFIX
from tiersidecar.domain.ids import format_uuid
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.states import RemoteLogSegmentState as State

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(900)]

TOPIC, OWN_TOPIC = "handed-over-by-three", "__another_log_metadata"
"""The events are in a topic that native tiering does not read, as the documentation proposes before a hand-over."""
SEGMENT_BYTES = 32 * 1024
BLIND = {RLMM_PREFIX + name: value for name, value in BLIND_SETTINGS.items()}
STRICT = {"retention.ms": "-1", "retention.bytes": "-1"}


def finished(cluster: KafkaCluster) -> list[RemoteLogSegmentMetadata]:
    return in_state(fold(read_events(cluster.client_settings, OWN_TOPIC)), State.COPY_SEGMENT_FINISHED)


def is_trimmed(broker: KafkaBroker) -> bool:
    return len(list(broker.partition_dir(TOPIC, 0).glob("*.log"))) == 1


def fill(cluster: KafkaCluster, seed: int) -> list[ProducedRecord]:
    settings = cluster.client_settings
    return asyncio.run(
        produce_mix(settings, TOPIC, total_bytes=200_000, batch_bytes=8_192, styles=IDEMPOTENT_STYLES, seed=seed)
    )


def test_every_replica_is_handed_over(kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path) -> None:
    storage = tmp_path / "native"
    native = local_tiered_storage(storage) | {
        "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
        # The last node to stop finds no quorum, and would wait for one before it closes its logs.
        "controlled.shutdown.enable": "false",
    }
    cluster = kafka_cluster(brokers=3, properties={**native, **BLIND})
    cluster.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, configs=STRICT)
    sidecars = Sidecars(
        tmp_path,
        cluster,
        topics=[{"name": TOPIC, "local.retention.bytes": 1}],
        **{"lease.duration.ms": 3_000, "remote.log.metadata.topic.name": OWN_TOPIC},
    )
    produced: list[ProducedRecord] = []
    with sidecars:
        for turn, order in enumerate(([1, 2, 3], [2, 3, 1], [3, 1, 2])):
            place(cluster.admin, TOPIC, 0, order)
            produced += fill(cluster, turn)
            leader = cluster[order[0]]
            sidecars.wait_for(
                partial(is_trimmed, leader),
                f"broker {order[0]} has trimmed to its active segment",
                timeout_s=180,
            )
    before, segments = object_keys_in(sidecars.store_root), finished(cluster)
    config, plan = sidecars[1].config_path, tmp_path / "plan.json"
    writes = ["handover", "to-native", TOPIC, "--write-plan", str(plan)]
    wait_until(lambda: run_command(config, *writes).returncode == 0, "the sidecars' leases are over", 120)
    cluster.admin.alter_topic(TOPIC, {"remote.storage.enable": "true"})
    cluster.stop()
    for broker in cluster.brokers:
        properties = write_handover_properties(tmp_path / f"{broker.node_id}.properties", plan, broker.log_dirs)
        wanted = ["handover", "files", str(plan), "--broker-properties", str(properties), "--carry-out"]
        done = answer_of(sidecars[broker.node_id].config_path, *wanted)
        # A log that begins with its first segment has no log start of its own to be taken out.
        assert (done["written"] in (1, 2), done["faults"]) == (True, [])
        broker.set_properties(dict.fromkeys(BLIND))
    (root,) = storage.rglob("kafka-tiered-storage")
    for segment in segments:
        lay_out(sidecars[1], segment, root)
    cluster.start()

    for order in ([1, 2, 3], [2, 3, 1], [3, 1, 2]):
        place(cluster.admin, TOPIC, 0, order)
        assert cluster[order[0]].admin.earliest_offset(TOPIC, 0) == 0
        digest = answer_of(config, "handover", "verify", str(plan))
        assert digest["is_as_foretold"], f"broker {order[0]} leads"
    assert object_keys_in(sidecars.store_root) == before
    assert {format_uuid(one.remote_log_segment_id.uuid) for one in segments} <= native_segments(storage)
    assert asyncio.run(read_all(cluster)) == [(one.offset, one.key, one.value) for one in produced]


async def read_all(cluster: KafkaCluster) -> list[tuple[int, bytes | None, bytes | None]]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    at, found = TopicPartition(TOPIC, 0), list[tuple[int, bytes | None, bytes | None]]()
    async with AIOKafkaConsumer(**cluster.client_settings) as consumer:
        consumer.assign([at])
        (stop,) = (await consumer.end_offsets([at])).values()
        consumer.seek(at, 0)
        async with asyncio.timeout(patient_s(60)):
            while await consumer.position(at) < stop:
                for records in (await consumer.getmany(at, timeout_ms=500)).values():
                    found += [(record.offset, record.key, record.value) for record in records]
    return found
