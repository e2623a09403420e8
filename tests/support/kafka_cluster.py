"""A real Kafka cluster of 1 or 3 nodes (KRaft, on loopback, in a scratch directory) for tests and the demo."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.kafka_admin import KafkaAdmin, wait_until
from tests.support.kafka_broker import KafkaBroker, java_command
from tests.support.kafka_format import format_brokers, random_id
from tests.support.kafka_jars import KAFKA_4
from tests.support.kafka_properties import ADMIN, CONTROLLER, INTERNAL, ClusterPlan, Listener, NodeAddress
from tests.support.loopback_ports import free_port
from tests.support.patience import patient_s


class KafkaCluster:
    """``brokers`` nodes, numbered from 1; formatted when made, started by :meth:`start` or as a context manager.

    Args:
        directory: a scratch directory; node n lives in ``broker-n``.
        brokers: 1 or 3.
        version: a release on Maven Central, :data:`KAFKA_4` or :data:`KAFKA_3` for instance.
        properties: broker properties, over our own choice of fast and small ones.
        log_dirs: how many log dirs each node has; the first holds the metadata log.
        listeners: listeners beside INTERNAL, by which tests and tools come in.
        users: name and password of users, known to PLAIN on the SASL listeners and to SCRAM.
        authorizer: StandardAuthorizer; then INTERNAL is SASL PLAIN, with ``admin`` as the one super user.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 1,
        version: str = KAFKA_4,
        properties: Mapping[str, str] | None = None,
        log_dirs: int = 1,
        listeners: Sequence[Listener] = (),
        users: Mapping[str, str] | None = None,
        authorizer: bool = False,
    ) -> None:
        names = (INTERNAL, CONTROLLER, *(listener.name for listener in listeners))
        plan = ClusterPlan(
            version=version,
            cluster_id=random_id(),
            nodes=tuple(
                NodeAddress(node_id=node_id, ports={name: free_port() for name in names})
                for node_id in range(1, brokers + 1)
            ),
            listeners=tuple(listeners),
            users=dict(users or {}),
            authorizer=authorizer,
            properties=dict(properties or {}),
        )
        self.directory = directory
        self.version = version
        self.cluster_id = plan.cluster_id
        self.brokers = tuple(
            KafkaBroker(plan, node, directory / f"broker-{node.node_id}", log_dirs=log_dirs) for node in plan.nodes
        )
        self.command_config = directory / "command-config.properties"
        self._authorizer = authorizer
        self._write_command_config()
        format_brokers(self.brokers, plan)

    def start(self) -> Self:
        """Start all nodes at once and wait until each knows all the others; none runs when that fails.

        Raises:
            BrokerStartError: one ended, or was not ready in time.
        """
        try:
            for broker in self.brokers:
                broker.launch()
            for broker in self.brokers:
                broker.wait_until_ready()
            for broker in self.brokers:
                self._wait_until_whole(broker)
        except BaseException:
            self.close()
            raise
        return self

    def stop(self) -> None:
        """Shut all down in order, at once."""
        self._end(signal.SIGTERM)

    def close(self) -> None:
        """Kill whatever still runs."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, node_id: int) -> KafkaBroker:
        """Return the broker of that node id."""
        return self.brokers[node_id - 1]

    @property
    def bootstrap_servers(self) -> str:
        """Host and port of every broker's INTERNAL listener, comma separated."""
        return self.bootstrap_servers_of(INTERNAL)

    def bootstrap_servers_of(self, listener: str) -> str:
        """Host and port of every broker's listener of that name, comma separated."""
        return ",".join(broker.bootstrap_server_of(listener) for broker in self.brokers)

    @property
    def client_settings(self) -> dict[str, str]:
        """Return keyword arguments for aiokafka's clients: the bootstrap servers, and the admin's login if one is needed."""
        settings = {"bootstrap_servers": self.bootstrap_servers}
        if self._authorizer:
            settings |= {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
            settings |= {"sasl_plain_username": ADMIN.username, "sasl_plain_password": ADMIN.password}
        return settings

    @property
    def admin(self) -> KafkaAdmin:
        """Return a client of the first broker that runs.

        Raises:
            LookupError: none does.
        """
        running = [broker for broker in self.brokers if broker.is_running]
        if (
            not running
        ):  # not by next(): a StopIteration out of a thread leaves the caller that awaits it waiting for ever
            raise LookupError("no broker of this cluster runs")
        return running[0].admin

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        segment_bytes: int | None = None,
        configs: Mapping[str, str] | None = None,
        nodes: Sequence[int] = (),
    ) -> str:
        """Create ``topic``, on all brokers by default; gives its name.  All of it is on ``nodes`` if there are any.

        ``segment_bytes`` may be far below 1 MiB, the minimum of ``segment.bytes`` since Kafka 4.
        """
        key = "segment.bytes" if self.version.startswith("3.") else "internal.segment.bytes"
        rolled = {} if segment_bytes is None else {key: str(segment_bytes)}
        self.admin.create_topic(
            topic,
            partitions=partitions,
            replication_factor=replication_factor or len(self.brokers),
            configs={**rolled, **(configs or {})},
            nodes=nodes,
        )
        return topic

    def leader_of(self, topic: str, partition: int) -> KafkaBroker:
        """Return the broker that leads the partition.

        Raises:
            LookupError: none does.
        """
        for row in self.admin.describe_topic(topic).partitions:
            if row.partition_index == partition and row.leader_id > 0:
                return self[row.leader_id]
        raise LookupError(f"{topic}-{partition} has no leader")

    def admin_of_leader(self, topic: str, partition: int) -> KafkaAdmin:
        """Return a client of the broker that leads the partition, as soon as one does."""
        return wait_until(lambda: self._leader(topic, partition), f"{topic}-{partition} has a leader").admin

    def run_tool(
        self, main_class: str, *arguments: str, check: bool = True, stdin: str | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's command line tools, its log on stderr; ``--bootstrap-server`` is the caller's to give.

        Raises:
            RuntimeError: it failed, and ``check`` was asked for; the message has what it printed.
        """
        done = subprocess.run(
            [*java_command(self.version, level="WARN", target="err"), main_class, *arguments],
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=patient_s(timeout_s),
            cwd=self.directory,
            check=False,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{main_class} ended with code {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done

    def _leader(self, topic: str, partition: int) -> KafkaBroker | None:
        try:
            return self.leader_of(topic, partition)
        except LookupError:
            return None

    def _end(self, how: signal.Signals) -> None:
        for broker in self.brokers:
            broker.begin_to_end(how)
        for broker in self.brokers:
            broker.wait_for_end()

    def _wait_until_whole(self, broker: KafkaBroker) -> None:
        wait_until(
            lambda: len(broker.admin.describe_cluster().brokers) == len(self.brokers),
            f"broker {broker.node_id} knows all the others",
        )

    def _write_command_config(self) -> None:
        lines = ["security.protocol=PLAINTEXT"]
        if self._authorizer:
            module = "org.apache.kafka.common.security.plain.PlainLoginModule"
            login = f'{module} required username="{ADMIN.username}" password="{ADMIN.password}";'
            lines = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", f"sasl.jaas.config={login}"]
        self.command_config.write_text("\n".join(lines) + "\n")
