"""The daemon and Azurite with a bad way between them: whatever it was, in the end everything is there once.

``make azure-faults`` runs all seeds, ``make test`` some.  A seed is the test's id: ``-k 'seed-17'``.
Shown here: S-230 S-231 S-290 S-292.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.integration.test_daemon import STRICT, started
from tests.integration.test_s3_faults import (
    IMPATIENT_MS,
    PARTITIONS,
    assert_all_is_there,
    assert_all_reads_back,
    produce,
    reader_beside,
    suffer,
    wait_until_trimmed,
)
from tests.support.azure_fault_proxy import AzureFaultProxy, server_of
from tests.support.azure_troubles import AZURE_TROUBLES
from tests.support.azurite_server import ACCOUNT, AzuriteServer, azure_store_section, running_azurite
from tests.support.daemon import Daemon, wait_for
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ALL_STYLES, ProducedRecord
from tests.support.s3_fault_proxy import fault_proxy_in_a_thread
from tests.support.s3_troubles import Troubled, draw_troubles
from tests.support.toxiproxy import running_toxiproxy

pytestmark = [pytest.mark.broker, pytest.mark.server, pytest.mark.timeout(240)]

SEEDS = range(40)
IN_EVERY_RUN = frozenset({10, 12, 14})
MIB = 1024 * 1024


def parameters() -> list[Any]:
    marks = {seed: [] if seed in IN_EVERY_RUN else [pytest.mark.exhaustive] for seed in SEEDS}
    return [pytest.param(seed, id=f"seed-{seed}", marks=marks[seed]) for seed in SEEDS]


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzuriteServer]:
    with running_azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@contextmanager
def troubled(server: AzuriteServer, directory: Path) -> Iterator[Troubled[AzuriteServer]]:
    """The way is daemon, toxiproxy, fault proxy, Azurite; nothing is wrong yet."""
    with (
        fault_proxy_in_a_thread(AzureFaultProxy(url=""), server_of(server.url)) as proxy,
        running_toxiproxy(directory, proxy.url.removeprefix("http://")) as network,
    ):
        yield Troubled(server=server, proxy=proxy, network=network)


@pytest.mark.parametrize("seed", parameters())
def test_a_bad_way_to_azure(kafka: KafkaCluster, azurite: AzuriteServer, tmp_path: Path, seed: int) -> None:
    """Each run ends with every sealed segment finished once and readable, and no blob or block that no event names."""
    draw, topic = random.Random(seed), f"azure-faults-{seed}"
    # Every second seed has segments of several blocks.
    segment_bytes = 2 * MIB if seed % 2 == 0 else 64 * 1024
    kafka.create_topic(topic, partitions=PARTITIONS, segment_bytes=segment_bytes, configs=STRICT)
    azurite.create_container(topic)
    troubles = draw_troubles(draw, count=4, kinds=AZURE_TROUBLES)
    print(f"seed {seed}: {'; '.join(trouble.name for trouble in troubles)}")
    with troubled(azurite, tmp_path) as way:
        store = {
            **azure_store_section(azurite, topic),
            "azure.endpoint.url": f"{way.url}/{ACCOUNT}",
            "upload.stall.timeout": IMPATIENT_MS["upload.stall.timeout"],
            "request.timeout": IMPATIENT_MS["request.timeout"],
            "azure.request.attempt.timeout": 1_000,
            "azure.max.attempts": draw.randint(1, 3),
            "azure.upload.block.size": MIB // 2,
        }
        with started(tmp_path, kafka, topic, store=store) as daemon:
            produced: list[ProducedRecord] = []
            wait_for(lambda: daemon.events("daemon.roles.started"), "the daemon works", daemon)
            for trouble in troubles:
                styles = draw.sample(ALL_STYLES, 2)
                produced += produce(kafka, topic, segment_bytes, seed=draw.randrange(1 << 30), styles=styles)
                suffer(way, trouble, daemon)
            for partition in range(PARTITIONS):
                wait_until_trimmed(kafka, daemon, topic, partition)
            assert_all_is_there(kafka, daemon, topic, way, topic, lambda: stored_segments(azurite, topic))
            assert daemon.stop() == 0
            assert set(azurite.unfinished_blobs(topic)) <= left_over(daemon)
            patient = {"azure.endpoint.url": azurite.url, "azure.request.attempt.timeout": 60_000}
            assert_all_reads_back(kafka, reader_beside(daemon, patient), topic, produced)
        if segment_bytes > MIB:
            assert cast(AzureFaultProxy, way.proxy).blocks, "segments of several blocks went up in blocks"


def stored_segments(server: AzuriteServer, container: str) -> set[str]:
    """Keys of segments' blobs, without owner objects and snapshots."""
    return {key for key in server.names(container) if key.endswith((".log", ".indexes", ".rsm-manifest"))}


def left_over(daemon: Daemon) -> set[str]:
    """Keys whose blocks the daemon could not drop, and said so: the service drops them after a week."""
    return {event["key"] for event in daemon.events("store.upload.left_over")}
