"""The daemon and a filesystem store with which something is wrong: whatever it was, in the end everything is there once.

``make files-faults`` runs all seeds, ``make test`` some.  A seed is the test's id: ``-k 'seed-17'``.
Shown here: S-063 S-230 S-231.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_daemon import STRICT, started
from tests.integration.test_s3_faults import (
    PARTITIONS,
    assert_all_is_there,
    assert_all_reads_back,
    produce,
    reader_beside,
    wait_until_trimmed,
)
from tests.support.chaos.node_disk import node_disk
from tests.support.daemon import wait_for
from tests.support.files_troubles import Site, draw_files_troubles
from tests.support.kafka_cluster import KafkaCluster
from tests.support.produce import ALL_STYLES, ProducedRecord
from tests.support.remote_events import object_keys_in

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

SEEDS = range(40)
IN_EVERY_RUN = frozenset({10, 12, 14})
MIB = 1024 * 1024
DISK_BYTES = 96 * MIB
FILES_AT_ONCE = 4


def parameters() -> list[Any]:
    marks = {seed: [] if seed in IN_EVERY_RUN else [pytest.mark.exhaustive] for seed in SEEDS}
    return [pytest.param(seed, id=f"seed-{seed}", marks=marks[seed]) for seed in SEEDS]


@pytest.mark.parametrize("seed", parameters())
def test_a_bad_directory(kafka: KafkaCluster, tmp_path: Path, seed: int) -> None:
    """Each run ends with every sealed segment finished once and readable, and no file that no event names."""
    draw, topic = random.Random(seed), f"files-faults-{seed}"
    segment_bytes = 2 * MIB if seed % 2 == 0 else 64 * 1024
    kafka.create_topic(topic, partitions=PARTITIONS, segment_bytes=segment_bytes, configs=STRICT)
    troubles = draw_files_troubles(draw, count=4)
    print(f"seed {seed}: {'; '.join(trouble.name for trouble in troubles)}")
    with node_disk(tmp_path / "disk", DISK_BYTES) as disk:
        root = disk.directory / "store"
        root.mkdir()
        with started(tmp_path, kafka, topic, store={"type": "filesystem", "root": str(root)}) as daemon:
            site, produced = Site(disk=disk, daemon=daemon), list[ProducedRecord]()
            wait_for(lambda: daemon.events("daemon.roles.started"), "the daemon works", daemon)
            for trouble in troubles:
                styles = draw.sample(ALL_STYLES, 2)
                produced += produce(kafka, topic, segment_bytes, seed=draw.randrange(1 << 30), styles=styles)
                trouble.befall(site)
            for partition in range(PARTITIONS):
                wait_until_trimmed(kafka, daemon, topic, partition)
            assert_all_is_there(kafka, daemon, topic, None, "", lambda: object_keys_in(root))
            assert daemon.stop() == 0
            # The next start of a day later removes them.
            assert len(site.half_written()) <= FILES_AT_ONCE * sum(trouble.leaves_halves for trouble in troubles)
            assert_all_reads_back(kafka, reader_beside(daemon, {}), topic, produced)
