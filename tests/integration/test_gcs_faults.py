"""The daemon and fake-gcs-server with a bad way between them: whatever it was, in the end everything is there once.

``make gcs-faults`` runs all seeds, ``make test`` some.  A seed is the test's id: ``-k 'seed-17'``.
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
from tests.support.daemon import wait_for
from tests.support.gcs_fault_proxy import GcsFaultProxy
from tests.support.gcs_server import GcsServer, gcs_store_section, running_gcs_server
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ALL_STYLES, ProducedRecord
from tests.support.s3_fault_proxy import fault_proxy_in_a_thread
from tests.support.s3_troubles import Troubled, draw_troubles
from tests.support.toxiproxy import running_toxiproxy

pytestmark = [pytest.mark.broker, pytest.mark.server, pytest.mark.timeout(240)]

SEEDS = range(40)
IN_EVERY_RUN = frozenset({10, 12, 14})
BUCKET = "kafka-tier"
MIB = 1024 * 1024


def parameters() -> list[Any]:
    marks = {seed: [] if seed in IN_EVERY_RUN else [pytest.mark.exhaustive] for seed in SEEDS}
    return [pytest.param(seed, id=f"seed-{seed}", marks=marks[seed]) for seed in SEEDS]


@contextmanager
def running_troubled_gcs(directory: Path) -> Iterator[Troubled[GcsServer]]:
    """The way is daemon, toxiproxy, fault proxy, fake-gcs-server; nothing is wrong yet."""
    with (
        running_gcs_server(directory) as server,
        fault_proxy_in_a_thread(GcsFaultProxy(url=""), server.url) as proxy,
        running_toxiproxy(directory, proxy.url.removeprefix("http://")) as network,
    ):
        server.create_bucket(BUCKET)
        yield Troubled(server=server, proxy=proxy, network=network)


@pytest.mark.parametrize("seed", parameters())
def test_a_bad_way_to_gcs(kafka: KafkaCluster, tmp_path: Path, seed: int) -> None:
    """Each run ends with every sealed segment finished once and readable, and no object that no event names."""
    draw, topic = random.Random(seed), f"gcs-faults-{seed}"
    # Every second seed has segments of several chunks.
    segment_bytes = 2 * MIB if seed % 2 == 0 else 64 * 1024
    kafka.create_topic(topic, partitions=PARTITIONS, segment_bytes=segment_bytes, configs=STRICT)
    troubles = draw_troubles(draw, count=4)
    print(f"seed {seed}: {'; '.join(trouble.name for trouble in troubles)}")
    with running_troubled_gcs(tmp_path) as gcs:
        store = {
            **gcs_store_section(gcs.url, BUCKET),
            "upload.stall.timeout": IMPATIENT_MS["upload.stall.timeout"],
            "request.timeout": IMPATIENT_MS["request.timeout"],
            "gcs.request.attempt.timeout": 1_000,
            "gcs.max.attempts": draw.randint(1, 3),
            "gcs.resumable.upload.chunk.size": MIB // 2,
        }
        with started(tmp_path, kafka, topic, store=store) as daemon:
            produced: list[ProducedRecord] = []
            wait_for(lambda: daemon.events("daemon.roles.started"), "the daemon works", daemon)
            for trouble in troubles:
                styles = draw.sample(ALL_STYLES, 2)
                produced += produce(kafka, topic, segment_bytes, seed=draw.randrange(1 << 30), styles=styles)
                suffer(gcs, trouble, daemon)
            for partition in range(PARTITIONS):
                wait_until_trimmed(kafka, daemon, topic, partition)
            assert_all_is_there(kafka, daemon, topic, gcs, BUCKET, lambda: stored_segments(gcs.server))
            assert daemon.stop() == 0
            reader = reader_beside(daemon, {"gcs.endpoint.url": gcs.server.url, "gcs.request.attempt.timeout": 60_000})
            assert_all_reads_back(kafka, reader, topic, produced)
        if any(trouble.faults() for trouble in troubles) and segment_bytes > MIB:
            assert cast(GcsFaultProxy, gcs.proxy).sessions, "segments of several chunks went up in chunks"


def stored_segments(server: GcsServer) -> set[str]:
    """Keys of segments' objects, without owner objects and snapshots."""
    return {key for key in server.names(BUCKET) if key.endswith((".log", ".indexes", ".rsm-manifest"))}
