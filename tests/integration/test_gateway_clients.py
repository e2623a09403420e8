"""Real clients read a tiered topic through the gateway as they read it before it was tiered (issue 9; S-153, U7, T-51)."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from tests.integration.test_daemon import SEGMENT_BYTES, STRICT
from tests.support.daemon import Daemon, daemon_settings, wait_for
from tests.support.gateway_clients import CLIENTS, Access, Reading, Seen
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_properties import ADMIN, Listener
from tests.support.loopback_ports import free_port
from tests.support.produce import produce_mix

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

TOPIC, MOVING, DELETED, PARTITIONS = "orders", "moving", "deleted", (0, 1)
CLIENT = Listener(name="CLIENT", security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("PLAIN", "SCRAM-SHA-512"))
USERS = {"alice": "alice-secret", "bob": "bob-secret"}
ISOLATIONS = ("read_uncommitted", "read_committed")
_BYTES = "org.apache.kafka.common.serialization.BytesDeserializer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiered:
    """A topic of two partitions with every codec and aborted transactions, of which only the active segments are local.

    ``before`` is what each client read of it directly, while all of it was local, ``largest_before`` what the broker said of
    the largest timestamp; ``local_starts`` is where the tiers meet.
    """

    kafka: KafkaCluster
    daemon: Daemon
    servers: str
    ends: dict[int, int]
    local_starts: dict[int, int]
    before: dict[tuple[str, str], list[Seen]]
    java_before: dict[str, list[str]]
    largest_before: dict[int, int]

    def access(self, user: str = "alice", mechanism: str = "PLAIN", servers: str = "") -> Access:
        return Access(servers=servers or self.servers, mechanism=mechanism, username=user, password=USERS[user])

    @property
    def config(self) -> str:
        """alice, for Kafka's tools."""
        return _login(self.kafka, "alice")

    def tool(self, main_class: str, *arguments: str, servers: str = "") -> str:
        """One of Kafka's own, through the gateway unless told otherwise."""
        options = ("--bootstrap-server", servers or self.servers, "--command-config", self.config)
        return self.kafka.run_tool(f"org.apache.kafka.tools.{main_class}", *options, *arguments).stdout

    def listed(self, topic: str, spec: str, *, servers: str = "") -> dict[int, int]:
        """Offsets by partition, as kafka-get-offsets prints them."""
        printed = self.tool("GetOffsetShell", "--topic", topic, "--time", spec, servers=servers)
        return {int(line.split(":")[1]): int(line.split(":")[2]) for line in printed.splitlines()}


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    directory = tmp_path_factory.mktemp("gateway-clients")
    with ExitStack() as stack:
        kafka = stack.enter_context(
            KafkaCluster(directory / "kafka", listeners=(CLIENT,), users=USERS, authorizer=True)
        )
        for topic, partitions in ((TOPIC, 2), (MOVING, 1), (DELETED, 1)):
            kafka.create_topic(topic, partitions=partitions, segment_bytes=SEGMENT_BYTES, configs=STRICT)
        _allow(kafka, "alice", "--topic", "*")
        _allow(kafka, "alice", "--group", "*")
        _allow(kafka, "bob", "--group", "*")
        for topic, size in ((TOPIC, 1_500_000), (DELETED, 400_000)):
            count = len(PARTITIONS) if topic == TOPIC else 1
            asyncio.run(
                produce_mix(kafka.client_settings, topic, partitions=count, total_bytes=size, batch_bytes=16_384)
            )
        ends = {partition: kafka.admin.latest_offset(TOPIC, partition) for partition in PARTITIONS}
        port = free_port()
        tiered = Tiered(
            kafka=kafka,
            daemon=_daemon(directory, kafka, port),
            servers=f"127.0.0.1:{port}",
            ends=ends,
            local_starts={},
            before={},
            java_before={},
            largest_before={},
        )
        direct = kafka.bootstrap_servers_of("CLIENT")
        for isolation in ISOLATIONS:
            for client, read in CLIENTS.items():
                reading = Reading(topic=TOPIC, ends=ends, isolation=isolation)
                tiered.before[client, isolation] = read(tiered.access(servers=direct), reading)
            tiered.java_before[isolation] = console(tiered, direct, isolation)
        tiered.largest_before.update(tiered.listed(TOPIC, "max-timestamp", servers=direct))
        daemon = stack.enter_context(tiered.daemon)
        daemon.wait_until_ready()
        for partition in PARTITIONS:
            tiered.local_starts[partition] = _wait_until_trimmed(tiered, TOPIC, partition)
        _wait_until_trimmed(tiered, DELETED, 0)
        yield tiered


def _allow(kafka: KafkaCluster, user: str, *resource: str) -> None:
    operations = ["Read", "Describe", "Delete", *(["Write"] if resource[0] == "--topic" else [])]
    kafka.run_tool(
        "org.apache.kafka.tools.AclCommand",
        *("--bootstrap-server", kafka.bootstrap_servers, "--command-config", str(kafka.command_config)),
        *("--add", "--force", "--allow-principal", f"User:{user}", *resource),
        *(part for operation in operations for part in ("--operation", operation)),
    )


def _login(kafka: KafkaCluster, user: str) -> str:
    """A client configuration for Kafka's tools; gives its path."""
    path = kafka.directory / f"{user}.properties"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    login = f'{module} required username="{user}" password="{USERS[user]}";'
    path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={login}\n")
    return str(path)


def _daemon(directory: Path, kafka: KafkaCluster, port: int) -> Daemon:
    broker = kafka.brokers[0]
    settings = daemon_settings(
        directory / "daemon",
        bootstrap_servers=kafka.bootstrap_servers,
        log_dirs=list(broker.log_dirs),
        topics=[{"name": topic, "local.retention.bytes": 1} for topic in (TOPIC, MOVING, DELETED)],
        gateway={"listeners": [{"listen": f"127.0.0.1:{port}", "broker": broker.bootstrap_server_of("CLIENT")}]},
    )
    settings["broker"] |= {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": ADMIN.username,
        "sasl.password": ADMIN.password,
    }
    return Daemon(directory / "daemon", settings, roles="tier,gateway")


def _wait_until_trimmed(tiered: Tiered, topic: str, partition: int) -> int:
    logs = tiered.kafka.brokers[0].partition_dir(topic, partition)

    def trimmed() -> int | None:
        start = tiered.kafka.admin.earliest_offset(topic, partition)
        return start if 0 < start == max(int(log.stem) for log in logs.glob("*.log")) else None

    return int(wait_for(trimmed, f"{topic}-{partition} is trimmed to its active segment", tiered.daemon))


def console(tiered: Tiered, servers: str, isolation: str, *properties: str) -> list[str]:
    """What the Java console consumer prints in a group of its own, by partition, in each in its order."""
    options = [
        *(f"print.{part}=true" for part in ("partition", "offset", "timestamp", "headers", "key")),
        *(f"{part}.deserializer={_BYTES}" for part in ("key", "value", "headers")),
    ]
    count = len(tiered.before["aiokafka", isolation])
    printed = tiered.kafka.run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", servers, "--command-config", tiered.config, "--topic", TOPIC, "--from-beginning"),
        *("--isolation-level", isolation, "--max-messages", str(count), "--timeout-ms", "60000"),
        *(part for one in properties for part in ("--command-property", one)),
        *(part for one in options for part in ("--formatter-property", one)),
    ).stdout
    return sorted(printed.splitlines(), key=lambda line: line.split("\t")[1])


# -- the table: each client from each place, isolation levels, mechanisms and limits taking turns

SMALL = {"max_partition_bytes": 2_000, "fetch_max_bytes": 20_000}
IMPATIENT = {"max_wait_ms": 10}
TABLE = [
    ("aiokafka", "earliest", "read_uncommitted", "PLAIN", {}),
    ("aiokafka", "earliest", "read_committed", "SCRAM-SHA-512", SMALL),
    ("aiokafka", "timestamp", "read_uncommitted", "SCRAM-SHA-512", IMPATIENT),
    ("aiokafka", "timestamp", "read_committed", "PLAIN", {}),
    ("aiokafka", "committed", "read_uncommitted", "PLAIN", SMALL),
    ("aiokafka", "committed", "read_committed", "SCRAM-SHA-512", {}),
    ("aiokafka", "border", "read_uncommitted", "SCRAM-SHA-512", {}),
    ("aiokafka", "border", "read_committed", "PLAIN", IMPATIENT),
    ("confluent-kafka", "earliest", "read_uncommitted", "SCRAM-SHA-512", SMALL),
    ("confluent-kafka", "earliest", "read_committed", "PLAIN", {}),
    ("confluent-kafka", "timestamp", "read_uncommitted", "PLAIN", {}),
    ("confluent-kafka", "timestamp", "read_committed", "SCRAM-SHA-512", IMPATIENT),
    ("confluent-kafka", "committed", "read_uncommitted", "SCRAM-SHA-512", {}),
    ("confluent-kafka", "committed", "read_committed", "PLAIN", SMALL),
    ("confluent-kafka", "border", "read_uncommitted", "PLAIN", IMPATIENT),
    ("confluent-kafka", "border", "read_committed", "SCRAM-SHA-512", {}),
    ("kafka-python", "earliest", "read_uncommitted", "PLAIN", IMPATIENT),
    ("kafka-python", "earliest", "read_committed", "SCRAM-SHA-512", {}),
    ("kafka-python", "timestamp", "read_uncommitted", "SCRAM-SHA-512", {}),
    ("kafka-python", "timestamp", "read_committed", "PLAIN", SMALL),
    ("kafka-python", "committed", "read_uncommitted", "PLAIN", {}),
    ("kafka-python", "committed", "read_committed", "SCRAM-SHA-512", IMPATIENT),
    ("kafka-python", "border", "read_uncommitted", "SCRAM-SHA-512", SMALL),
    ("kafka-python", "border", "read_committed", "PLAIN", {}),
]


@pytest.mark.parametrize(("client", "start", "isolation", "mechanism", "limits"), TABLE)
def test_the_same_records_in_the_same_order(
    tiered: Tiered, client: str, start: str, isolation: str, mechanism: str, limits: dict[str, int]
) -> None:
    before = tiered.before[client, isolation]
    assert len(before) > 500
    reading = Reading(topic=TOPIC, ends=tiered.ends, isolation=isolation, **limits)  # type: ignore[arg-type]
    starts = dict.fromkeys(PARTITIONS, 0)
    match start:
        case "timestamp":
            since_ms = sorted(one[2] for one in before)[len(before) // 3]
            reading = replace(reading, since_ms=since_ms)
            everything = tiered.before[client, "read_uncommitted"]
            for partition in PARTITIONS:
                starts[partition] = _first_since(everything, partition, since_ms, tiered.ends)
        case "committed":
            starts = {0: 100, 1: tiered.local_starts[1] - 1}
            reading = replace(reading, group=f"{client}-{isolation}")
            asyncio.run(_commit(tiered, f"{client}-{isolation}", starts))
        case "border":
            starts = {0: tiered.local_starts[0] - 3, 1: tiered.local_starts[1]}
            reading = replace(reading, starts=starts)
    seen = CLIENTS[client](tiered.access(mechanism=mechanism), reading)
    assert seen == [one for one in before if one[1] >= starts[one[0]]]


def _first_since(records: list[Seen], partition: int, since_ms: int, ends: dict[int, int]) -> int:
    """Transaction markers have timestamps as well, but of no record."""
    return next((one[1] for one in records if one[0] == partition and one[2] >= since_ms), ends[partition])


async def _commit(tiered: Tiered, group: str, offsets: dict[int, int]) -> None:
    async with AIOKafkaConsumer(
        **tiered.access().python_settings, group_id=group, enable_auto_commit=False
    ) as consumer:
        partitions = [TopicPartition(TOPIC, partition) for partition in offsets]
        consumer.assign(partitions)
        await consumer.commit({one: OffsetAndMetadata(offsets[one.partition], "") for one in partitions})


@pytest.mark.parametrize(("isolation", "protocol"), [("read_uncommitted", "classic"), ("read_committed", "consumer")])
def test_the_java_console_consumer_prints_what_it_printed(tiered: Tiered, isolation: str, protocol: str) -> None:
    """In incremental fetch sessions, of both group protocols."""
    found = console(tiered, tiered.servers, isolation, f"group.protocol={protocol}")
    assert found == tiered.java_before[isolation]


def test_who_may_not_read_directly_may_not_through_the_gateway(tiered: Tiered) -> None:
    """Rule 7: what is remote is denied by the broker as well."""
    for servers in (tiered.kafka.bootstrap_servers_of("CLIENT"), tiered.servers):
        told = tiered.kafka.run_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", servers, "--command-config", _login(tiered.kafka, "bob"), "--topic", TOPIC),
            *("--partition", "0", "--offset", "5", "--max-messages", "1", "--timeout-ms", "20000"),
            check=False,
        )
        assert told.stdout == ""
        assert "TopicAuthorizationException: Not authorized to access topics: [orders]" in told.stderr


async def test_seeking_to_and_fro_over_a_moving_border_finds_each_record_in_its_place(tiered: Tiered) -> None:
    draw, values = random.Random(9), dict[int, bytes]()
    partition = TopicPartition(MOVING, 0)
    settings = tiered.access().python_settings
    borders = set[int]()
    async with (
        AIOKafkaProducer(**settings, acks="all") as producer,
        AIOKafkaConsumer(**settings, auto_offset_reset="none", fetch_max_wait_ms=50) as consumer,
    ):
        consumer.assign([partition])
        async with asyncio.timeout(120):
            while len(borders) < 6:
                for _ in range(40):
                    value = b"%d " % len(values) + draw.randbytes(1500)
                    sent = await producer.send_and_wait(MOVING, value, partition=0)
                    values[sent.offset] = value
                border = await asyncio.to_thread(tiered.kafka.admin.earliest_offset, MOVING, 0)
                borders.add(border)
                end = max(values) + 1
                near = [offset for offset in range(border - 5, border + 5) if 0 <= offset < end]
                for start in (0, draw.randrange(end), *draw.sample(near, min(3, len(near)))):
                    consumer.seek(partition, start)
                    first = (await consumer.getone()).offset
                    assert first == start
                    found = {
                        one.offset: one.value
                        for one in (await consumer.getmany(partition, timeout_ms=0)).get(partition, [])
                    }
                    assert found == {offset: values[offset] for offset in range(start + 1, start + 1 + len(found))}


# -- Kafka's own tools


@pytest.mark.parametrize("spec", ["earliest", "latest", "max-timestamp", "earliest-local", "latest-tiered", "-6"])
def test_kafka_get_offsets_with_every_spec(tiered: Tiered, spec: str) -> None:
    expected = {
        "earliest": dict.fromkeys(PARTITIONS, 0),
        "latest": tiered.ends,
        "max-timestamp": tiered.largest_before,
        "earliest-local": tiered.local_starts,
        "latest-tiered": {partition: start - 1 for partition, start in tiered.local_starts.items()},
        "-6": tiered.local_starts,
    }
    assert tiered.listed(TOPIC, spec) == expected[spec]


def test_kafka_consumer_groups_resets_to_offsets_of_both_tiers(tiered: Tiered) -> None:
    printed = tiered.tool(
        "consumer.group.ConsumerGroupCommand",
        *("--group", "reset", "--topic", TOPIC, "--reset-offsets", "--to-earliest", "--execute"),
    )
    assert [line.split()[-1] for line in printed.splitlines() if TOPIC in line] == ["0", "0"]


def test_kafka_delete_records_moves_the_log_start_of_both_tiers(tiered: Tiered, tmp_path: Path) -> None:
    local_start = tiered.kafka.admin.earliest_offset(DELETED, 0)
    for offset, expected in ((50, 50), (local_start + 1, local_start + 1)):
        wanted = tmp_path / f"{offset}.json"
        wanted.write_text(
            json.dumps({"partitions": [{"topic": DELETED, "partition": 0, "offset": offset}], "version": 1})
        )
        printed = tiered.tool("DeleteRecordsCommand", "--offset-json-file", str(wanted))
        assert f"low_watermark: {expected}" in printed
        assert tiered.listed(DELETED, "earliest") == {0: expected}
    assert tiered.kafka.admin.earliest_offset(DELETED, 0) == local_start + 1
