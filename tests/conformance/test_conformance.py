"""The simulated brokers do what Kafka does, script by script (issue 16, "Models that are not kind").

``make conformance`` runs all scripts on both versions; ``make test`` some of them on the newer one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.on_kafka import PROPERTIES
from tests.conformance.run import compare
from tests.conformance.script import Script
from tests.conformance.scripts import SCRIPTS
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_jars import KAFKA_3, KAFKA_4

pytestmark = pytest.mark.broker

SHORT = {
    "a fetch into the middle of a batch",
    "records are deleted within a segment",
    "a crash after a clean restart and another delete",
    "transactions overlap and end otherwise",
    "a clean restart after a trim, then a crash, with a transaction across the border",
    "a move after an abort whose records were trimmed",
    "retention by size is set and reset",
}
"""Of every run of the tests: one of each kind that a single broker can show."""

ClusterOf = Callable[[str, int], KafkaCluster]


@pytest.fixture(scope="module")
def cluster_of() -> Iterator[ClusterOf]:
    """Starts a cluster by version and number of brokers, once each; one at a time runs."""
    scratch = Path(tempfile.mkdtemp(prefix="tiersidecar-conformance-"))
    running = dict[tuple[str, int], KafkaCluster]()

    def start(version: str, brokers: int) -> KafkaCluster:
        wanted = (version, brokers)
        if wanted not in running:
            for cluster in running.values():
                cluster.close()
            running.clear()
            running[wanted] = KafkaCluster(
                scratch / f"{version}-{brokers}", brokers=brokers, version=version, properties=PROPERTIES, log_dirs=2
            ).start()
            for broker in running[wanted].brokers:
                broker.wait_for_first_checkpoints()
        return running[wanted]

    try:
        yield start
    finally:
        for cluster in running.values():
            cluster.close()
        shutil.rmtree(scratch, ignore_errors=True)


def cases() -> Iterator[object]:
    """By version and brokers, so that each cluster is started once."""
    for version in (KAFKA_4, KAFKA_3):
        for script in sorted(SCRIPTS, key=lambda one: one.brokers):
            is_short = version == KAFKA_4 and script.name in SHORT
            marks = () if is_short else (pytest.mark.exhaustive,)
            yield pytest.param(version, script, id=f"{script.name} ({version})", marks=marks)


@pytest.mark.parametrize(("version", "script"), list(cases()))
def test_the_model_does_what_kafka_does(version: str, script: Script, cluster_of: ClusterOf, tmp_path: Path) -> None:
    found = compare(script, cluster_of(version, script.brokers), tmp_path / "model")
    assert not found, "\n".join(found)


def test_there_are_enough_scripts_and_each_has_a_name_of_its_own() -> None:
    names = [script.name for script in SCRIPTS]
    assert len(set(names)) == len(names) >= 40
    assert set(names) >= SHORT
