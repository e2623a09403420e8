"""A cluster with a sidecar beside each broker: one store, and everything else of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.support.daemon import Daemon, daemon_settings, get
from tests.support.kafka_cluster import KafkaCluster
from tests.support.patience import patient_s

T = TypeVar("T")
METADATA_PARTITIONS = 5


class Sidecars:
    """A daemon per broker of ``cluster``, not started yet; ``settings`` are those of all of them."""

    def __init__(
        self, directory: Path, cluster: KafkaCluster, *, topics: list[dict[str, Any]], **settings: Any
    ) -> None:
        self.cluster = cluster
        self.store_root = directory / "store"
        self.store_root.mkdir(parents=True)
        store = settings.pop("store", {})
        if store.get("type", "filesystem") == "filesystem":
            store = {"type": "filesystem", "root": str(self.store_root), **store}
        replicas = len(cluster.brokers)
        shared = {
            "store": store,
            "remote.log.metadata.topic.replication.factor": replicas,
            "remote.log.metadata.topic.min.isr": min(replicas, 2),
            "remote.log.metadata.topic.num.partitions": METADATA_PARTITIONS,
            **settings,
        }
        self.by_node = {
            broker.node_id: Daemon(
                (home := directory / f"sidecar-{broker.node_id}"),
                daemon_settings(
                    home,
                    bootstrap_servers=broker.bootstrap_server,
                    log_dirs=list(broker.log_dirs),
                    topics=topics,
                    **shared,
                ),
            )
            for broker in cluster.brokers
        }

    def __enter__(self) -> Self:
        for daemon in self.by_node.values():
            daemon.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in self.by_node.values():
            daemon.kill9()

    def __getitem__(self, node_id: int) -> Daemon:
        """Return the sidecar of that broker."""
        return self.by_node[node_id]

    def wait_until_ready(self) -> None:
        """Wait until every sidecar that should run says so."""
        for daemon in self.by_node.values():
            daemon.wait_until_ready()

    def wait_for(self, condition: Callable[[], T | None], what: str, *, timeout_s: float = 60.0) -> T:
        """Return the first truthy value of ``condition``.

        Raises:
            AssertionError: there was none in time, or a sidecar has failed; with the ends of all their logs.
        """
        timeout_s = patient_s(timeout_s)
        deadline_s = time.monotonic() + timeout_s
        turn = 0
        while not (value := condition()):
            turn += 1
            if turn % 20 == 0:
                failed = [node_id for node_id, daemon in self.by_node.items() if daemon.events("daemon.failed")]
                assert not failed, f"before {what}, these failed: {failed}\n{self.log_tails()}"
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not within {timeout_s:g} s: {what}\n{self.log_tails()}")
            time.sleep(0.05)
        return value

    def log_tails(self, lines: int = 15) -> str:
        """Return the last lines of each sidecar's log."""
        return "\n".join(f"-- sidecar {node}\n{one.log_tail(lines)}" for node, one in self.by_node.items())

    def status_of(self, node_id: int, topic: str) -> dict[int, dict[str, Any]]:
        """Return rows of the sidecar's status page by partition; empty while it does not answer."""
        code, body = self[node_id].status("/status")
        rows = json.loads(body)["partitions"] if code == 200 else []
        return {row["partition"]: row for row in rows if row["topic"] == topic}

    def segments_seen_by(self, node_id: int, topic: str, partition: int) -> list[tuple[str, int, int]] | None:
        """(id, start, end) of the finished segments of the history that this sidecar knows, all of them; None when it does
        not answer."""
        url = f"{self[node_id].read_url}/topics/{topic}/partitions/{partition}/segments?limit=1000"
        code, body = get(url)
        if code != 200:
            return None
        return [(row["id"], row["start_offset"], row["end_offset"]) for row in json.loads(body)["segments"]]
