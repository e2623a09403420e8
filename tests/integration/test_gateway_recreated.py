"""A topic that is made anew under its name, while it is read by its name: nothing of the former once its client can know
(issue 17).  ``TIERSIDECAR_RECREATIONS`` for another number than 25."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from kio.schema.metadata.v12.request import MetadataRequestTopic
from kio.schema.types import TopicName

from tests.support.daemon import Daemon, daemon_settings
from tests.support.gateway_attacker import FETCH, METADATA, Attacker, fetch_frame, read_answer
from tests.support.kafka_admin import KafkaAdminError, wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port

RECREATIONS = int(os.environ.get("TIERSIDECAR_RECREATIONS", "25"))
TOPIC, READ_FROM, END = "anew", 40, 120

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300 + 20 * RECREATIONS)]


class Reader(threading.Thread):
    """Asks for Metadata, then fetches by name, on one connection and without a rest.  ``seen``: which id was told last, and of
    which generations the records were that came after."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port, self._stopping = port, threading.Event()
        self.seen: set[tuple[bytes, int]] = set()
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                with Attacker(self._port) as client:
                    self._read(client)
        except BaseException as error:  # noqa: BLE001 - the test tells it
            self.trouble = error

    def has_seen(self, generation: int) -> bool:
        assert self.trouble is None
        return any(one == generation for _, one in tuple(self.seen))

    def stop(self) -> None:
        self._stopping.set()
        self.join(60)

    def _read(self, client: Attacker) -> None:
        told = b""
        asked = MetadataRequestTopic(topic_id=None, name=TopicName(TOPIC))
        while not self._stopping.is_set():
            (topic,) = client.call(
                METADATA,
                12,
                topics=(asked,),
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            ).topics
            told = topic.topic_id.bytes if topic.topic_id is not None else told
            client.send(fetch_frame(TOPIC, offset=READ_FROM))
            frame = client.frame()
            if frame is None:
                return  # the gateway ended it: on with another
            for row in read_answer(FETCH, 11, frame).responses[0].partitions:
                found = re.findall(rb"generation (\d+);", bytes(row.records or b""))
                self.seen |= {(told, int(generation)) for generation in found}


def test_nothing_of_a_former_topic_is_served_once_the_new_one_s_id_is_told(
    kafka_cluster: Callable[..., KafkaCluster], tmp_path: Path
) -> None:
    cluster, port = kafka_cluster(properties={"log.segment.delete.delay.ms": "0"}), free_port()
    settings: dict[str, Any] = daemon_settings(
        tmp_path / "daemon",
        bootstrap_servers=cluster[1].bootstrap_server,
        log_dirs=list(cluster[1].log_dirs),
        topics=[{"name": TOPIC, "local.retention.bytes": 1}],
        gateway={"listeners": [{"listen": f"127.0.0.1:{port}"}]},
    )
    ids = list[bytes]()
    with Daemon(tmp_path / "daemon", settings, roles="tier,gateway") as daemon:
        daemon.wait_until_ready()
        reader = Reader(port)
        reader.start()
        for generation in range(RECREATIONS + 1):
            cluster.create_topic(TOPIC, segment_bytes=4096, configs={"retention.ms": "-1", "retention.bytes": "-1"})
            topic_id = cluster.admin.describe_topic(TOPIC).topic_id
            assert topic_id is not None
            ids.append(topic_id.bytes)
            if generation == RECREATIONS:
                break
            asyncio.run(_produce(cluster, generation))
            wait_until(lambda: _local_start(cluster) > READ_FROM, "the topic is remote", 90)
            wait_until(
                partial(reader.has_seen, generation),
                "the gateway fills from it",
                60,
            )
            assert stale(reader, ids) == set(), f"after {generation} times"
            cluster.admin.delete_topic(TOPIC)
        wait_until(lambda: reader.trouble or ids[-1] in cluster_ids(cluster), "the last one is there", 30)
        reader.stop()
    assert reader.trouble is None
    assert {generation for _, generation in reader.seen} == set(range(RECREATIONS)), "each was read"
    assert stale(reader, ids) == set()


def stale(reader: Reader, ids: list[bytes]) -> set[tuple[int, int]]:
    """Which topic the client had been told last, and of which former one the records were that it got."""
    seen = {(told, generation) for told, generation in tuple(reader.seen) if told in ids}
    return {(ids.index(told), generation) for told, generation in seen if ids.index(told) > generation}


def cluster_ids(cluster: KafkaCluster) -> list[bytes]:
    topic_id = cluster.admin.describe_topic(TOPIC).topic_id
    return [] if topic_id is None else [topic_id.bytes]


async def _produce(cluster: KafkaCluster, generation: int) -> None:
    async with AIOKafkaProducer(**cluster.client_settings) as producer:
        for _ in range(END):
            await producer.send_and_wait(TOPIC, b"generation %d;" % generation + bytes(150), partition=0)


def _local_start(cluster: KafkaCluster) -> int:
    try:
        return cluster.admin.earliest_offset(TOPIC, 0)
    except KafkaAdminError:
        return 0
