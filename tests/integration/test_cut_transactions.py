"""read_committed where one history commits a transaction and the other, which counts after an unclean election, aborts it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.integration.test_daemon import STRICT, active_base
from tests.integration.test_lost_producer_state import assert_hidden, produce_more
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_placement import elect_uncleanly, place
from tests.support.loopback_ports import free_port
from tests.support.produce import ProducedRecord, draw_batch
from tests.support.read_service import fetch_records, shape_of
from tests.support.sidecars import Sidecars
from tiersidecar.formats.kafka.producer_state import write_producer_snapshot

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

TOPIC = "cut"
READY_S = 180.0
SMALL, LARGE = 64 * 1024, 1024 * 1024
"""Of segments: replicas that roll elsewhere begin segments within those of others."""


async def begun(cluster: KafkaCluster) -> tuple[AIOKafkaProducer, list[ProducedRecord]]:
    """A batch in a transaction that is left open: of the same producer id each time."""
    settings = {"transactional_id": f"{TOPIC}-tx", "transaction_timeout_ms": 600_000, "max_batch_size": 16_384}
    producer = AIOKafkaProducer(**cluster.client_settings, **settings)
    await producer.start()
    await producer.begin_transaction()
    batch = draw_batch(random.Random(0), producer, TOPIC, 0, value_bytes=1000)
    first = await (await producer.send_batch(batch.builder, TOPIC, partition=0))
    return producer, [replace(record, offset=first.offset + record.offset, aborted=True) for record in batch.records]


class Histories:
    """Broker 1 commits what broker 2, which is elected uncleanly, has as open and has lost its state of."""

    def __init__(self, cluster: KafkaCluster, sidecars: Sidecars) -> None:
        self.cluster, self.sidecars = cluster, sidecars

    async def diverge(self) -> list[ProducedRecord]:
        """What was produced in the history that counts, ``aborted`` as it says."""
        cluster, admin = self.cluster, self.cluster[1].admin
        produced = await produce_more(cluster, TOPIC, 1, seed=1)
        producer, undecided = await begun(cluster)
        try:
            produced += undecided + await produce_more(cluster, TOPIC, 5 * SMALL, seed=2)
            await asyncio.to_thread(self._add_a_replica_that_rolls_elsewhere)
            produced += await produce_more(cluster, TOPIC, 1, seed=3)
            await asyncio.to_thread(cluster[2].stop)
            self.cut = await asyncio.to_thread(admin.latest_offset, TOPIC, 0)
            await producer.commit_transaction()
        finally:
            await producer.stop()
        while not await asyncio.to_thread(active_base, cluster, TOPIC):
            await produce_more(cluster, TOPIC, SMALL, seed=4)
        return produced

    def elect(self) -> None:
        """The one that was copied goes on past the cut; the new leader knows of no producer."""
        self.sidecars[1].kill9()
        self.cluster[1].kill9()
        directory = self.cluster[2].partition_dir(TOPIC, 0)
        for snapshot in directory.glob("*.snapshot"):
            snapshot.write_bytes(write_producer_snapshot(()))  # as a broker writes them that has lost the last one
        self.cluster[2].start()
        elect_uncleanly(self.cluster[2].admin, TOPIC, 0, 2)
        assert self.cluster[2].admin.latest_offset(TOPIC, 0) == self.cut

    async def abort(self) -> list[ProducedRecord]:
        producer, undecided = await begun(self.cluster)
        try:
            await producer.abort_transaction()
        finally:
            await producer.stop()
        return undecided + await produce_more(self.cluster, TOPIC, 1, seed=5)

    def _add_a_replica_that_rolls_elsewhere(self) -> None:
        admin, key = self.cluster[1].admin, "internal.segment.bytes"
        admin.alter_topic(TOPIC, {key: str(SMALL)})
        place(admin, TOPIC, 0, [1, 2])
        admin.alter_topic(TOPIC, {key: str(LARGE)})
        assert active_base(self.cluster, TOPIC) == 0
        assert len(list(self.cluster[2].partition_dir(TOPIC, 0).glob("*.log"))) > 3


def test_what_the_history_that_counts_has_aborted_is_hidden_though_the_other_one_committed_it(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    """Before anything is copied of the new history, and after; the broker that leads does not know."""
    cluster = kafka_cluster(brokers=3, properties={"replica.fetch.max.bytes": "32768"})  # less than a small segment
    cluster.create_topic(TOPIC, segment_bytes=LARGE, configs=STRICT)
    place(cluster.admin, TOPIC, 0, [1])
    sidecars = Sidecars(tmp_path, cluster, topics=[{"name": TOPIC, "local.retention.bytes": 1}])
    listen = f"127.0.0.1:{free_port()}"
    new, histories = sidecars[2], Histories(cluster, sidecars)
    addresses = {str(node): listen for node in (1, 2, 3)}  # broker 2 leads whenever the gateway is asked
    new.settings["gateway"] = {"listeners": [{"listen": listen, "advertised.nodes": addresses}]}
    with sidecars[1] as old, new:
        old.wait_until_ready(READY_S)
        new.wait_until_ready(READY_S)  # the topics of both are there while all brokers are
        new.kill9()
        produced = asyncio.run(histories.diverge())
        assert any(one.aborted for one in produced)
        sidecars.wait_for(lambda: old.events("segment.copy.finished"), "the segment that will be cut is remote")
        histories.elect()
        produced += asyncio.run(histories.abort())

        new.roles = "read,gateway"
        new.start()
        new.wait_until_ready(READY_S)
        shown = list(fetch_records(new.read_url, TOPIC, 0, stop=produced[-1].offset + 1, isolation="read_committed"))
        assert shown == [shape_of(one) for one in produced if not one.aborted]
        assert new.stop() == 0

        cluster[2].admin.alter_topic(TOPIC, {"internal.segment.bytes": str(SMALL)})
        produced += asyncio.run(produce_more(cluster, TOPIC, 2 * SMALL, seed=6))
        new.roles = "tier,read,gateway"
        new.start()
        new.wait_until_ready(READY_S)
        sidecars.wait_for(
            lambda: histories.cut < cluster[2].admin.earliest_offset(TOPIC, 0) == active_base(cluster, TOPIC),
            "all but the active segment is remote",
            timeout_s=120,
        )
        assert new.events("segment.transactions.completed"), "the broker's index lacked it"
        assert_hidden(new, listen, TOPIC, produced, active_base(cluster, TOPIC))
