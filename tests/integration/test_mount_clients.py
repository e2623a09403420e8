"""Clients that go on where they were, over mounted history and live data (issue 21).

They read and commit in a cluster, which is lost, and in the new one through the gateways, across the border, while leaders
change and members and sidecars come and go.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT
from tests.integration.test_mount import GONE, as_left, cluster_snapshot, seed_all
from tests.support.background_thread import LastingThread
from tests.support.command_line import answer_of
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.gateway_clients import CLIENTS
from tests.support.java_clients import JavaClients
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_tools import KafkaTools
from tests.support.leader_changes import LeaderChanges
from tests.support.loopback_ports import free_port
from tests.support.produce import IDEMPOTENT_STYLES, ProducedRecord, Style, produce_mix
from tests.support.reading import Access, Client, Reading

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

TOPIC, PARTITIONS = "orders", (0, 1)
LIVE = [Style(idempotent=True)]
JAVA = "java-console"


def sidecars(directory: Path, cluster: KafkaCluster, store: Path) -> dict[int, Daemon]:
    """One beside each broker, with its gateway; what they know is in the store within a second."""
    ports = {broker.node_id: free_port() for broker in cluster.brokers}
    brokers = len(cluster.brokers)
    found = {}
    for broker in cluster.brokers:
        home = directory / f"sidecar-{broker.node_id}"
        listener = {
            "listen": f"127.0.0.1:{ports[broker.node_id]}",
            "broker": broker.bootstrap_server,
            "advertised.nodes": {node: f"127.0.0.1:{port}" for node, port in ports.items()},
        }
        settings = daemon_settings(
            home,
            bootstrap_servers=broker.bootstrap_server,
            log_dirs=list(broker.log_dirs),
            topics=[{"name": TOPIC, "local.retention.bytes": 1}],
            gateway={"listeners": [listener]},
        )
        settings |= {
            "store": {"type": "filesystem", "root": str(store)},
            "snapshots.interval.ms": 300,
            "snapshots.cluster.interval.ms": 300,
            "lease.duration.ms": 3_000,
            "remote.log.metadata.topic.replication.factor": brokers,
            "remote.log.metadata.topic.min.isr": min(brokers, 2),
        }
        found[broker.node_id] = Daemon(home, settings, roles="tier,gateway")
    return found


def through(daemons: Mapping[int, Daemon]) -> Access:
    """The gateways."""
    return Access(servers=",".join(str(one.settings["gateway"]["listeners"][0]["listen"]) for one in daemons.values()))


class Live(LastingThread):
    """Writes a little again and again, from N on."""

    def __init__(self, cluster: KafkaCluster) -> None:
        super().__init__("live data", ends_within_s=120)
        self._settings = cluster.client_settings
        self._known: list[ProducedRecord] = []
        self._lock = threading.Lock()

    @property
    def records(self) -> list[ProducedRecord]:
        with self._lock:
            return list(self._known)

    def work(self) -> None:
        seed = 100
        while not self.stopping.is_set():
            seed += 1
            some = asyncio.run(
                produce_mix(
                    self._settings,
                    TOPIC,
                    partitions=len(PARTITIONS),
                    total_bytes=40_000,
                    batch_bytes=8_192,
                    styles=LIVE,
                    seed=seed,
                )
            )
            with self._lock:
                self._known += some
            self.stopping.wait(0.3)


@dataclass
class Reader:
    """One client library, in a group of its own, over all its sessions; ``seen`` are offsets by partition, as they came."""

    name: str
    client: Client
    seen: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    @property
    def group(self) -> str:
        return f"group-{self.name}"

    def read(self, access: Access, visible: Mapping[int, Sequence[int]], ends: Mapping[int, int]) -> None:
        """A session from where the group is to ``ends``; it commits there.  Kafka's console consumer ends by the number of
        records instead, of whichever partitions, and commits what it has printed."""
        wanted = {partition: [one for one in visible[partition] if one < ends[partition]] for partition in ends}
        places = {partition: max(self.seen[partition], default=-1) + 1 for partition in ends}
        reading = Reading(
            topic=TOPIC,
            ends=dict.fromkeys(ends, 2**62) if self.name == JAVA else ends,
            start="committed" if any(places.values()) else "earliest",
            membership="classic",
            group=self.group,
            committed=places,
            visible=wanted,
            isolation="read_committed",
            commits=True,
        )
        for partition, offset, *_ in self.client(access, reading):
            self.seen[partition].append(offset)


@contextmanager
def clients(directory: Path) -> Iterator[list[Reader]]:
    directory.mkdir()
    with KafkaTools(directory) as tools:
        java = JavaClients(tools, directory)
        yield [
            Reader(JAVA, java.console),
            *(Reader(name, CLIENTS[name]) for name in ("confluent-kafka", "franz-go", "aiokafka")),
        ]


def visible(records: Sequence[ProducedRecord], below: Mapping[int, int]) -> dict[int, list[int]]:
    """Offsets that a reader of committed records is to see."""
    found: dict[int, list[int]] = {partition: [] for partition in PARTITIONS}
    for one in records:
        if one.offset < below[one.partition] and not one.aborted:
            found[one.partition].append(one.offset)
    return found


def ends_of(records: Sequence[ProducedRecord]) -> dict[int, int]:
    return {number: max(one.offset for one in records if one.partition == number) + 1 for number in PARTITIONS}


def fill(cluster: KafkaCluster, seed: int) -> list[ProducedRecord]:
    return asyncio.run(
        produce_mix(
            cluster.client_settings,
            TOPIC,
            partitions=len(PARTITIONS),
            total_bytes=300_000,
            batch_bytes=8_192,
            styles=IDEMPOTENT_STYLES,
            seed=seed,
        )
    )


def before_the_loss(cluster: KafkaCluster, directory: Path, store: Path, readers: list[Reader]) -> list[ProducedRecord]:
    """Each group reads a part and commits it, in a later leader epoch than the first."""
    cluster.create_topic(TOPIC, partitions=len(PARTITIONS), segment_bytes=SEGMENT_BYTES, configs=STRICT)
    produced = fill(cluster, 1)
    cluster.brokers[0].restart()
    produced += fill(cluster, 2)
    daemons = sidecars(directory, cluster, store)
    with daemons[1] as daemon:
        daemon.wait_until_ready()
        for number in PARTITIONS:
            logs = cluster.brokers[0].partition_dir(TOPIC, number)
            wait_for(
                lambda logs=logs: len(list(logs.glob("*.log"))) == 1, "all sealed segments are remote alone", daemon
            )
        below = ends_of(produced)
        for reader in readers:
            part = {number: end // 3 for number, end in below.items()}
            shown = visible(produced, below)
            part = {number: next(one for one in shown[number] if one >= place) for number, place in part.items()}
            reader.read(through(daemons), shown, part)

        def are_kept() -> bool:
            kept = cluster_snapshot(store)
            return kept is not None and all(
                all(kept.groups.get(one.group, {}).get((TOPIC, number)) is not None for number in one.seen)
                for one in readers
            )

        wait_for(are_kept, "the groups' offsets are in the store", daemon)
        # One more look: what was there first may have been of a session that was not over.
        answer_of(daemon.config_path, "mount", "snapshot")
        daemon.kill9()
    return produced


def test_clients_go_on_over_mounted_history_and_live_data(tmp_path: Path) -> None:
    """No refusal, no gap, no loop: over all its sessions each group sees every committed record once."""
    store, plan = tmp_path / "store", tmp_path / "mount.json"
    store.mkdir()
    with ExitStack() as stack:
        readers = stack.enter_context(clients(tmp_path / "clients"))
        with KafkaCluster(tmp_path / "former") as former:
            produced = before_the_loss(former, tmp_path / "former-sidecars", store, readers)
        second = KafkaCluster(tmp_path / "second", brokers=3)
        daemons = sidecars(tmp_path / "second-sidecars", second, store)
        for daemon in daemons.values():
            daemon.write_config()
        config = daemons[1].config_path
        found = answer_of(
            config, "mount", "plan", "--brokers", "1,2,3", "--replication-factor", "3", "--out", str(plan)
        )
        assert found["groups"] == len(readers)
        seed_all(second, plan)
        stack.enter_context(second)
        done = answer_of(config, "mount", "publish", str(plan), GONE, "--carry-out")
        assert (done["groups_restored"], done["groups_refused"]) == (len(readers), {})
        border = {number: second.admin_of_leader(TOPIC, number).earliest_offset(TOPIC, number) for number in PARTITIONS}
        for daemon in daemons.values():
            stack.enter_context(daemon)
        for daemon in daemons.values():
            daemon.wait_until_ready()
        history = as_left(produced, plan, border)
        changes = stack.enter_context(LeaderChanges(second, [(TOPIC, number) for number in PARTITIONS]))
        live = stack.enter_context(Live(second))
        wait_for(lambda: {one.partition for one in live.records} == set(PARTITIONS), "live data", daemons[1])

        for session in ("across the border", "restarted"):
            for reader in readers:
                before = changes.count_of(TOPIC)
                wait_for(lambda before=before: changes.count_of(TOPIC) > before, "leaders change", daemons[1])
                records = [*history, *live.records]
                reader.read(through(daemons), visible(records, ends_of(records)), ends_of(records))
                live.raise_failure()
                changes.raise_failure()
            if session != "restarted":
                daemons[2].kill9()
                daemons[2].start()
                daemons[2].wait_until_ready()
        moved = rebalance(through(daemons), history, live)
        live.stop()
        changes.stop()
        everything = [*history, *live.records]
        for reader in readers:
            for number in PARTITIONS:
                got = reader.seen[number]
                # The console consumer commits when it ends, which an election can keep it from: it reads once more, no loop,
                # and not up to the same end.
                wanted = [one for one in visible(everything, ends_of(everything))[number] if one <= max(got)]
                is_committed = reader.name != JAVA
                read = got if is_committed else sorted(set(got))
                assert read == wanted, f"{reader.name}, partition {number}: {difference(got, wanted)}"
                assert max(Counter(got).values()) <= (1 if is_committed else 2), difference(got, wanted)
                assert max(got) >= border[number]
        for number in PARTITIONS:
            got = sorted(moved[number])
            wanted = [one for one in visible(everything, ends_of(everything))[number] if one <= got[-1]]
            assert got == wanted, f"two members, partition {number}: {difference(got, wanted)}"


def difference(got: Sequence[int], wanted: Sequence[int]) -> str:
    again = [one for one, count in Counter(got).items() if count > 1]
    missing = sorted(set(wanted) - set(got))
    return f"{len(missing)} missing {missing[:5]}, {len(again)} twice {sorted(again)[:5]}, {len(got)} of {len(wanted)}"


class Member:
    """librdkafka in a group; what it has read of a partition it commits before it gives that up."""

    def __init__(self, access: Access) -> None:
        self.seen: dict[int, list[int]] = defaultdict(list)
        self.had: set[int] = set()
        self._places: dict[int, int] = {}
        self._consumer = confluent_kafka.Consumer(
            {
                **access.librdkafka_settings,
                "group.id": "rebalanced",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 10_000,
                "max.partition.fetch.bytes": 30_000,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([TOPIC], on_assign=self._assigned, on_revoke=self._revoked)

    def _assigned(self, consumer: Any, partitions: Sequence[Any]) -> None:
        self.had = {one.partition for one in partitions}
        self._places = {}

    def _revoked(self, consumer: Any, partitions: Sequence[Any]) -> None:
        self.commit()
        self.had = set()

    def commit(self) -> None:
        places = [confluent_kafka.TopicPartition(TOPIC, number, place) for number, place in self._places.items()]
        if places:
            self._consumer.commit(offsets=places, asynchronous=False)

    def poll(self) -> None:
        for message in self._consumer.consume(20, timeout=0.1):
            assert message.error() is None, message.error()
            number, offset = message.partition(), message.offset()
            assert number is not None
            assert offset is not None
            self.seen[number].append(offset)
            self._places[number] = offset + 1

    def close(self) -> None:
        self.commit()
        self._consumer.close()


def rebalance(access: Access, history: Sequence[ProducedRecord], live: Live) -> dict[int, list[int]]:
    """What two members see together: the second one joins while the first one is in the history, and leaves again."""
    first, second = Member(access), None
    try:
        _poll_until([first], lambda: sum(map(len, first.seen.values())) > 50)
        second = Member(access)
        both = [first, second]
        _poll_until(both, lambda: len(first.had) == 1 and len(second.had) == 1)
        half = {number: len(first.seen[number]) + len(second.seen[number]) for number in PARTITIONS}
        _poll_until(
            both,
            lambda: all(
                len(first.seen[number]) + len(second.seen[number]) > half[number] + 20 for number in PARTITIONS
            ),
        )
        second.close()
        ends = ends_of([*history, *live.records])
        _poll_until(
            [first], lambda: all(max(first.seen[number], default=-1) >= ends[number] - 1 for number in PARTITIONS)
        )
        first.commit()
    finally:
        first.close()
    return {number: [*first.seen[number], *second.seen[number]] for number in PARTITIONS}


def _poll_until(members: Sequence[Member], done: Any) -> None:
    for _ in range(900):
        if done():
            return
        for member in members:
            member.poll()
    raise AssertionError([({number: len(seen) for number, seen in one.seen.items()}, one.had) for one in members])
