"""Everything that chaos strikes: three brokers on small disks, a sidecar beside each, one S3 server behind a bad network."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.chaos.node_disk import NodeDisk, node_disk
from tests.support.kafka_admin import KafkaAdmin, KafkaAdminError, wait_until
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_cluster import KafkaCluster
from tests.support.loopback_ports import free_port
from tests.support.s3_server import s3_store_section
from tests.support.s3_troubles import TroubledS3, running_troubled_s3
from tests.support.sidecars import Sidecars

SEGMENT_BYTES = 128 * 1024
PLAIN, TRANSACTIONAL, PASSING = "chaos-plain", "chaos-transactional", "chaos-passing-"
METADATA_TOPIC, STATE_TOPIC = "__remote_log_metadata", "__tiersidecar_state"
PARTITIONS = {PLAIN: 3, TRANSACTIONAL: 2}
CONFIGS = {"retention.ms": "-1", "retention.bytes": "-1", "min.insync.replicas": "2"}
_NODES = (1, 2, 3)
_DISK_BYTES = 384 * 1024 * 1024
_BUCKET = "chaos"
_IMPATIENT_MS = {"upload.stall.timeout": 2_000, "request.timeout": 3_000, "s3.api.call.attempt.timeout": 2_000}
_PROPERTIES = {
    "min.insync.replicas": "2",
    # Transactions whose producer died hold the last stable offset, and with it all copying.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A small disk: nothing that is trimmed stays.
    "log.segment.delete.delay.ms": "100",
    "metadata.log.max.record.bytes.between.snapshots": "2000000",
}


@dataclass(slots=True)
class World:
    """``node_locks``: who holds a node's may do something to it.  ``events`` counts what struck, by its kind."""

    cluster: KafkaCluster
    sidecars: Sidecars
    s3: TroubledS3
    disks: dict[int, NodeDisk]
    bucket: Path
    gateways: dict[int, str]
    stopping: threading.Event = field(default_factory=threading.Event)
    node_locks: dict[int, threading.Lock] = field(default_factory=lambda: {node: threading.Lock() for node in _NODES})
    away: set[int] = field(default_factory=set)
    """Nodes whose broker answers no client right now."""

    events: Counter[str] = field(default_factory=Counter)
    story: list[str] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def record(self, kind: str, detail: str = "") -> None:
        """Record one more fault."""
        self.events[kind] += 1
        self.story.append(f"{time.monotonic() - self.began_s:7.1f} s  {kind}{f': {detail}' if detail else ''}")

    def pause(self, seconds: float) -> bool:
        """Wait; says whether it goes on after that."""
        return not self.stopping.wait(seconds)

    @property
    def admin(self) -> KafkaAdmin:
        """Return a client of a broker that should answer."""
        return next(broker for broker in self.cluster.brokers if broker.node_id not in self.away).admin

    @contextmanager
    def broker_away(self, broker: KafkaBroker) -> Iterator[None]:
        """Keep this broker from being asked until the end of the block."""
        self.away.add(broker.node_id)
        try:
            yield
        finally:
            self.away.discard(broker.node_id)

    def wait_until_in_sync(self, timeout_s: float = 120.0) -> None:
        """Wait for every replica of every topic: the next broker to go must not be the last that has the data.

        Raises:
            TimeoutError: it does not come to that.
        """
        wait_until(self._in_sync, "all replicas are in sync", timeout_s)

    def _in_sync(self) -> bool:
        try:
            topics = [self.admin.describe_topic(topic) for topic in (*PARTITIONS, METADATA_TOPIC, STATE_TOPIC)]
        except (OSError, KafkaAdminError):
            return False
        rows = [row for topic in topics for row in topic.partitions]
        return all(len(row.isr_nodes) == len(row.replica_nodes) and row.leader_id > 0 for row in rows)

    def leader_of(self, topic: str, partition: int) -> KafkaBroker:
        """Return the leader once there is one that answers."""

        def leader() -> KafkaBroker | None:
            try:
                rows = self.admin.describe_topic(topic).partitions
            except (OSError, KafkaAdminError):
                return None
            found = next((row.leader_id for row in rows if row.partition_index == partition), -1)
            return None if found <= 0 or found in self.away else self.cluster[found]

        return wait_until(leader, f"{topic}-{partition} has a leader", 60)


@contextmanager
def running_world(directory: Path) -> Iterator[World]:
    """Yield all of it, up and ready, with both topics made."""
    with ExitStack() as stack:
        kafka = directory / "kafka"
        disks = {node: stack.enter_context(node_disk(kafka / f"broker-{node}", _DISK_BYTES)) for node in _NODES}
        s3 = stack.enter_context(running_troubled_s3(directory))
        bucket = s3.server.directory / _BUCKET
        bucket.mkdir()
        cluster = stack.enter_context(KafkaCluster(kafka, brokers=3, properties=_PROPERTIES))
        for topic, partitions in PARTITIONS.items():
            cluster.create_topic(topic, partitions=partitions, segment_bytes=SEGMENT_BYTES, configs=CONFIGS)
        sidecars = Sidecars(
            directory / "sidecars",
            cluster,
            topics=[{"pattern": "chaos-.*", "local.retention.bytes": 2 * SEGMENT_BYTES}],
            store={**s3_store_section(s3.url, _BUCKET), **_IMPATIENT_MS},
            **{"deletes.topic.grace.ms": 5_000},
        )
        gateways = {node: f"127.0.0.1:{free_port()}" for node in _NODES}
        for node, daemon in sidecars.by_node.items():
            daemon.settings["state.dir"] = str(disks[node].directory / "tiersidecar-state")
            advertised = {str(gateway): address for gateway, address in gateways.items()}
            daemon.settings["gateway"] = {"listeners": [{"listen": gateways[node], "advertised.nodes": advertised}]}
            daemon.roles = "tier,read,gateway"
        stack.enter_context(sidecars)
        sidecars.wait_until_ready()
        yield World(cluster=cluster, sidecars=sidecars, s3=s3, disks=disks, bucket=bucket, gateways=gateways)
