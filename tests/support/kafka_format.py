"""Formatted log dirs without a JVM for each: only the first cluster of its kind is formatted by ``kafka.tools.StorageTool``.

Beside ids, which are each cluster's own, the tool writes the first records of the metadata log: versions of features, and the
users' SCRAM credentials.  They are kept in the user's cache.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

from tests.support.build_cache import build_once
from tests.support.kafka_broker import BrokerStartError, KafkaBroker
from tests.support.kafka_jars import kafka_jars
from tests.support.kafka_properties import ClusterPlan

FIRST_RECORDS = "bootstrap.checkpoint"
META_PROPERTIES = "meta.properties"


def format_brokers(brokers: Sequence[KafkaBroker], plan: ClusterPlan) -> None:
    """Leave the log dirs of ``brokers``, the nodes of ``plan``, as the tool would.

    Raises:
        BrokerStartError: the tool had to run, and failed.
    """
    kind = hashlib.sha256(f"{kafka_jars(plan.version).name} {sorted(plan.users.items())}".encode()).hexdigest()[:12]
    kept = build_once(f"kafka-{plan.version}-formatted-{kind}", lambda directory: _format_one(brokers[0], directory))
    for broker in brokers:
        for log_dir in broker.log_dirs:
            shutil.copyfile(kept / FIRST_RECORDS, log_dir / FIRST_RECORDS)
            ids = {"node.id": broker.node_id, "directory.id": random_id(), "cluster.id": plan.cluster_id, "version": 1}
            lines = (f"{key}={value}\n" for key, value in ids.items())
            (log_dir / META_PROPERTIES).write_text("".join(lines))


def random_id() -> str:
    """Return a UUID as Kafka writes them, without a dash at the front, which its tools would take for an option."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def _format_one(broker: KafkaBroker, directory: Path) -> None:
    if broker.format_storage().wait() != 0:
        raise BrokerStartError(f"broker {broker.node_id} could not be formatted:\n{broker.log_tail()}")
    shutil.copyfile(broker.log_dirs[0] / FIRST_RECORDS, directory / FIRST_RECORDS)
