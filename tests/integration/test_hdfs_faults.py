"""The daemon, the example of a store, and HDFS with a bad way between them: in the end everything is there once.

``make hdfs-faults`` runs all seeds, ``make test`` some.  A seed is the test's id: ``-k 'seed-17'``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
from tests.support.daemon import wait_for
from tests.support.hdfs_cluster import HdfsCluster, hdfs_options, install_store, running_hdfs
from tests.support.hdfs_fault_proxy import HdfsFaultProxy
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
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_store(tmp_path_factory.mktemp("installed"))


@contextmanager
def troubled(cluster: HdfsCluster, directory: Path) -> Iterator[Troubled[HdfsCluster]]:
    """The way is daemon, toxiproxy, fault proxy, name or data node; nothing is wrong yet."""
    with (
        fault_proxy_in_a_thread(HdfsFaultProxy(url=""), cluster.url) as proxy,
        running_toxiproxy(directory, proxy.url.removeprefix("http://")) as network,
    ):
        yield Troubled(server=cluster, proxy=proxy, network=network)


@pytest.mark.parametrize("seed", parameters())
def test_a_bad_way_to_hdfs(
    kafka: KafkaCluster,
    hdfs: HdfsCluster,
    installed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Each run ends with every sealed segment finished once and readable, and no object that no event names."""
    monkeypatch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
    draw, topic = random.Random(seed), f"hdfs-faults-{seed}"
    # Every second seed has segments of several blocks.
    segment_bytes = 2 * MIB if seed % 2 == 0 else 64 * 1024
    kafka.create_topic(topic, partitions=PARTITIONS, segment_bytes=segment_bytes, configs=STRICT)
    hdfs.make_directory(f"/{topic}")
    troubles = draw_troubles(draw, count=4)
    print(f"seed {seed}: {'; '.join(trouble.name for trouble in troubles)}")
    with troubled(hdfs, tmp_path) as way:
        impatient = {"request.timeout.s": 1, "max.attempts": draw.randint(1, 3), "checksums": draw.random() < 0.5}
        store = {
            "type": "hdfs",
            "upload.stall.timeout": IMPATIENT_MS["upload.stall.timeout"],
            "request.timeout": IMPATIENT_MS["request.timeout"],
            "options": hdfs_options(way.url, f"/{topic}", **impatient),
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
            assert_all_is_there(kafka, daemon, topic, way, topic, lambda: stored_segments(hdfs, topic))
            assert daemon.stop() == 0
            reader = reader_beside(daemon, {"options": hdfs_options(hdfs.url, f"/{topic}")})
            assert_all_reads_back(kafka, reader, topic, produced)


def stored_segments(cluster: HdfsCluster, topic: str) -> set[str]:
    """Keys of segments' objects, without owner objects, snapshots and uploads that a server that was away kept."""
    return {key for key in cluster.files(f"/{topic}") if key.endswith((".log", ".indexes", ".rsm-manifest"))}
