"""An archive of a broker's loaded classes (class data sharing): it starts on 1.5 s of processor time instead of 2.6."""

from __future__ import annotations

import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.support.build_cache import build_once
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_jars import KAFKA_4, class_archive

_END_TIMEOUT_S = 120.0
"""Writing takes seconds, and longer on a busy machine."""


def prepare_class_archive(version: str = KAFKA_4) -> None:
    """Have every JVM that is started after this use the archive: some ten seconds the first time.

    A java that writes none, or not in time, leaves none, and brokers start as they would.

    Raises:
        BrokerStartError: no broker of ``version`` runs here.
    """
    build_once(class_archive(version).parent.name, lambda directory: _archive(version, directory))


def _archive(version: str, directory: Path) -> None:
    """Write the archive of one broker that has begun, and ends in good order: the JVM writes it then, and only a whole one is
    taken."""
    written = directory / "written.jsa"
    cluster = KafkaCluster(directory / "kafka", version=version)
    (broker,) = cluster.brokers
    broker.jvm_options = (f"-XX:ArchiveClassesAtExit={written}",)
    with cluster:
        cluster.create_topic("any")
        broker.begin_to_end(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired, FileNotFoundError):
            broker.wait_for_exit(_END_TIMEOUT_S)
            written.rename(directory / class_archive(version).name)
    shutil.rmtree(cluster.directory)
