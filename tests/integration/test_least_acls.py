"""docs/operations/acls.md is the truth: its rights suffice, and each of them is needed."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shlex
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
from kio.schema.delete_acls.v3.request import DeleteAclsFilter, DeleteAclsRequest
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from ruamel.yaml import YAML

from tests.support.command_line import answer_of, run_command, run_without_config
from tests.support.daemon import Daemon, daemon_settings, get, wait_for
from tests.support.gateway import GatewayDaemon
from tests.support.kafka_admin import KafkaAdmin, KafkaAdminError, PlainCredentials, wait_until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_jars import KAFKA_3, KAFKA_4
from tests.support.kafka_properties import Listener
from tests.support.loopback_ports import free_port
from tests.support.produce import produce_mix
from tiersidecar.adapters.kafka.aiokafka_settings import aiokafka_kwargs
from tiersidecar.adapters.kafka.authorizer import CallerListener, open_authorizer
from tiersidecar.adapters.kafka.broker import KafkaBroker, open_broker
from tiersidecar.adapters.kafka.connection import ConnectionLimits
from tiersidecar.adapters.kafka.groups import COORDINATORS_TOPIC
from tiersidecar.adapters.kafka.security import SaslMechanism, SecurityProtocol, SecuritySettings
from tiersidecar.adapters.proposals_topic.log import write_proposal
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import LeaderEpoch, Offset
from tiersidecar.domain.proposals import DeleteProposal
from tiersidecar.ports.broker import CallerNotAuthenticatedError, Credentials, OffsetSpec

pytestmark = pytest.mark.broker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "acls.md"
METADATA_TOPIC, STATE_TOPIC, PROPOSALS_TOPIC, TIERED_TOPIC, SECRET_TOPIC = (
    "__remote_log_metadata",
    "__tiersidecar_state",
    "__tiersidecar_proposals",
    "orders",
    "secret",
)
OWN_TOPICS = (METADATA_TOPIC, STATE_TOPIC, PROPOSALS_TOPIC)
OPERATOR, GATEWAY = "tiersidecar-operator", "tiersidecar-gateway"
USERS = {
    "tiersidecar": "tier-secret",
    OPERATOR: "operator-secret",
    GATEWAY: "gateway-secret",
    "alice": "alice-secret",
    "bob": "bob-secret",
}
TOKENS = {"alice": "a" * 32, "bob": "b" * 32}
LIMITS = ConnectionLimits(connect_timeout_s=10, request_timeout_s=10)
SETTINGS = SecuritySettings(
    security_protocol=SecurityProtocol.SASL_PLAINTEXT,
    sasl_mechanism=SaslMechanism.PLAIN,
    username="tiersidecar",
    password=USERS["tiersidecar"],
)

OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Delete": 6, "Describe": 8, "DescribeConfigs": 10, "AlterConfigs": 11}
"""``AclOperation``."""
KINDS = {"--topic": 2, "--group": 3, "--cluster": 4}
"""``ResourceType``, by the option of kafka-acls.sh."""
CLUSTER_NAME = "kafka-cluster"
GROUP = "billing"
_ANY, _LITERAL, _ALLOW = 1, 3, 3
_AT_ONCE_S = 45
"""Also on a busy machine; an outage is waited for longer."""


@dataclass(frozen=True, slots=True)
class Right:
    """One rule of the page."""

    principal: str
    operation: str
    name: str
    kind: int = KINDS["--topic"]

    def __str__(self) -> str:
        return f"{self.operation} on {self.name}"


def commands() -> list[list[str]]:
    """The arguments of each kafka-acls.sh on the page."""
    blocks = re.findall(r"^```\n(kafka-acls\.sh .*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [shlex.split(block.replace("\\\n", " "))[1:] for block in blocks]


def rights() -> list[Right]:
    """The page's rules one by one."""
    found = []
    for arguments in commands():
        values: dict[str, list[str]] = {}
        for name, value in pairwise(arguments):
            values.setdefault(name, []).append(value)
        (principal,) = values["--allow-principal"]
        values["--cluster"] = [CLUSTER_NAME] if "--cluster" in arguments else []
        found += [
            Right(principal, operation, name, kind)
            for operation in values["--operation"]
            for option, kind in KINDS.items()
            for name in values.get(option, [])
        ]
    return found


OURS = [right for right in rights() if right.principal == "User:tiersidecar"]


@pytest.fixture(scope="module", params=[KAFKA_4, KAFKA_3])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A broker with StandardAuthorizer, where nobody has any right yet."""
    listeners = (
        Listener(name="CLIENT", security_protocol="SASL_PLAINTEXT", sasl_mechanisms=("PLAIN",)),
        Listener(name="OPEN", security_protocol="PLAINTEXT"),
    )
    directory = tmp_path_factory.mktemp("acls")
    with KafkaCluster(directory, version=request.param, listeners=listeners, users=USERS, authorizer=True) as started:
        configs = {"retention.ms": "-1", "retention.bytes": "-1"}
        started.create_topic(TIERED_TOPIC, segment_bytes=65_536, configs=configs)
        started.create_topic(SECRET_TOPIC)
        yield started


@pytest.fixture
def granted(cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    """The page's rights, and no topic of the sidecar's own yet."""
    grant(cluster, *rights())
    yield cluster
    revoke(cluster, *rights())
    for topic in OWN_TOPICS:
        delete_topic_if_there(cluster, topic)


def grant(cluster: KafkaCluster, *wanted: Right) -> None:
    rules: Any = [
        AclCreation(
            resource_type=right.kind,  # type: ignore[arg-type]
            resource_name=right.name,
            resource_pattern_type=_LITERAL,  # type: ignore[arg-type]
            principal=right.principal,
            host="*",
            operation=OPERATIONS[right.operation],  # type: ignore[arg-type]
            permission_type=_ALLOW,  # type: ignore[arg-type]
        )
        for right in wanted
    ]
    with cluster.admin.connected() as connection:
        response: Any = connection.call(CreateAclsRequest(creations=tuple(rules)))
    assert {result.error_code.name for result in response.results} == {"none"}
    wait_until(lambda: set(wanted) <= rights_of(cluster), "the broker knows the new rights")


def revoke(cluster: KafkaCluster, *unwanted: Right) -> None:
    filters: Any = [
        DeleteAclsFilter(
            resource_type_filter=right.kind,  # type: ignore[arg-type]
            resource_name_filter=right.name,
            pattern_type_filter=_LITERAL,  # type: ignore[arg-type]
            principal_filter=right.principal,
            host_filter="*",
            operation=OPERATIONS[right.operation],  # type: ignore[arg-type]
            permission_type=_ALLOW,  # type: ignore[arg-type]
        )
        for right in unwanted
    ]
    with cluster.admin.connected() as connection:
        connection.call(DeleteAclsRequest(filters=tuple(filters)))
    wait_until(lambda: not set(unwanted) & rights_of(cluster), "the broker has dropped the old rights")


def rights_of(cluster: KafkaCluster) -> set[Right]:
    """All rights that the broker itself goes by now."""
    request: Any = DescribeAclsRequest(
        resource_type_filter=_ANY,  # type: ignore[arg-type]
        resource_name_filter=None,
        pattern_type_filter=_LITERAL,  # type: ignore[arg-type]
        principal_filter=None,
        host_filter=None,
        operation=1,  # type: ignore[arg-type]  # any
        permission_type=_ALLOW,  # type: ignore[arg-type]
    )
    with cluster.admin.connected() as connection:
        response: Any = connection.call(request)
    names = {code: name for name, code in OPERATIONS.items()}
    return {
        Right(acl.principal, names[acl.operation], resource.resource_name, resource.resource_type)
        for resource in response.resources
        for acl in resource.acls
    }


def delete_topic_if_there(cluster: KafkaCluster, topic: str) -> None:
    try:
        cluster.admin.delete_topic(topic)
    except KafkaAdminError:
        return
    wait_until(lambda: not has_topic(cluster, topic), f"{topic} is gone")


def has_topic(cluster: KafkaCluster, topic: str) -> bool:
    try:
        return bool(cluster.admin.describe_topic(topic))
    except KafkaAdminError:
        return False


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what the broker does after it has answered."""
    async with asyncio.timeout(10):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)


Step = Callable[[KafkaBroker, str], Awaitable[None]]


async def create_own_topics(broker: KafkaBroker, servers: str) -> None:
    for topic in OWN_TOPICS:
        await broker.create_topic(topic, partitions=1, replication_factor=1, configs={"retention.ms": "-1"})


async def see_own_topics(broker: KafkaBroker, servers: str) -> None:
    async def seen() -> bool:
        return len(await broker.describe_partitions(OWN_TOPICS)) == len(OWN_TOPICS)

    await until(seen)


async def see_settings_of_own_topics(broker: KafkaBroker, servers: str) -> None:
    for topic in OWN_TOPICS:
        assert topic in await broker.describe_topic_configs([topic])


async def publish(broker: KafkaBroker, servers: str) -> None:
    """As the metadata topic is written: acks=all and idempotent."""
    producer = AIOKafkaProducer(
        bootstrap_servers=servers, acks="all", enable_idempotence=True, **aiokafka_kwargs(SETTINGS)
    )
    await producer.start()
    try:
        async with asyncio.timeout(10):
            for topic in OWN_TOPICS:
                await producer.send_and_wait(topic, b"event", partition=0)
    finally:
        await producer.stop()


async def read_back(broker: KafkaBroker, servers: str) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", **aiokafka_kwargs(SETTINGS))
    await consumer.start()
    try:
        for topic in OWN_TOPICS:
            consumer.assign([TopicPartition(topic, 0)])
            await consumer.end_offsets([TopicPartition(topic, 0)])
            async with asyncio.timeout(10):
                await consumer.seek_to_beginning(TopicPartition(topic, 0))
                assert (await consumer.getone()).value == b"event"
    finally:
        await consumer.stop()


async def see_tiered_topic(broker: KafkaBroker, servers: str) -> None:
    views = {view.topic_id_partition: view.leader_epoch for view in await broker.describe_partitions([TIERED_TOPIC])}
    answers = await broker.list_offsets(views, OffsetSpec.LATEST, read_committed=True)
    assert [answer.error for answer in answers.values()] == [None]


async def see_settings_of_tiered_topic(broker: KafkaBroker, servers: str) -> None:
    assert TIERED_TOPIC in await broker.describe_topic_configs([TIERED_TOPIC])


async def trim(broker: KafkaBroker, servers: str) -> None:
    (view,) = await broker.describe_partitions([TIERED_TOPIC])
    answers = await broker.delete_records({view.topic_id_partition: Offset(0)})
    assert [answer.error for answer in answers.values()] == [None]


async def list_all_groups(broker: KafkaBroker, servers: str) -> None:
    """Whether all are shown is not to be seen from a list: the adapter asks first."""
    await broker.groups.list_groups()


async def see_what_a_group_has_read(broker: KafkaBroker, servers: str) -> None:
    errors: list[str | None] = []

    async def answered() -> bool:
        (answer,) = (await broker.groups.committed_offsets([GROUP], [(TIERED_TOPIC, 0)])).values()
        errors.append(answer.error)
        return "COORDINATOR" not in str(answer.error)  # the first question makes the broker create its topic

    await until(answered)
    assert errors[-1] is None


STEPS: tuple[Step, ...] = (
    create_own_topics,
    see_own_topics,
    see_settings_of_own_topics,
    publish,
    read_back,
    see_tiered_topic,
    see_settings_of_tiered_topic,
    trim,
    list_all_groups,
    see_what_a_group_has_read,
)
"""All that the daemon asks of a broker."""


async def failing_steps(cluster: KafkaCluster, *, last: Step = STEPS[-1]) -> set[Step]:
    """Those of the daemon's requests, up to ``last``, that the broker refuses."""
    servers, failed = cluster.bootstrap_servers_of("CLIENT"), set[Step]()
    async with open_broker(servers, SETTINGS, limits=LIMITS) as broker:
        for step in STEPS[: STEPS.index(last) + 1]:
            try:
                await step(broker, servers)
            except (BrokerRefusedError, KafkaError, AssertionError, TimeoutError):
                failed.add(step)
    return failed


def test_the_page_names_the_rights() -> None:
    assert len(OURS) == 3 * 4 + 2 + 3
    assert {right.name for right in OURS} == {*OWN_TOPICS, TIERED_TOPIC, CLUSTER_NAME, COORDINATORS_TOPIC, "*"}


def test_the_commands_of_the_page_are_kafkas(cluster: KafkaCluster) -> None:
    """Run as printed, with the tool of this Kafka; what they add is what the other tests give."""
    tool = "kafka.admin.AclCommand" if cluster.version == KAFKA_3 else "org.apache.kafka.tools.AclCommand"
    places = {"$BROKER": cluster.bootstrap_servers, "admin.properties": str(cluster.command_config)}
    for arguments in commands():
        cluster.run_tool(tool, *(places.get(argument, argument) for argument in arguments))
    assert rights_of(cluster) == set(rights())
    revoke(cluster, *rights())


def test_a_gateway_of_its_own_has_no_right_to_delete_nor_to_say_anything() -> None:
    of_gateway = [right for right in rights() if right.principal == f"User:{GATEWAY}"]
    assert {right.operation for right in of_gateway} == {"Read", "Write", "Describe", "DescribeConfigs"}
    assert [right.name for right in of_gateway if right.operation == "Write"] == [PROPOSALS_TOPIC]


async def test_the_rights_suffice(granted: KafkaCluster) -> None:
    assert await failing_steps(granted) == set()


@pytest.mark.parametrize("missing", OURS, ids=str)
async def test_each_right_is_needed(granted: KafkaCluster, missing: Right) -> None:
    revoke(granted, missing)
    of_own = missing.name in OWN_TOPICS
    needing: dict[str, Step] = {
        "Describe": see_what_a_group_has_read if missing.kind == KINDS["--group"] else list_all_groups,
        "Create": create_own_topics,
        "Write": publish,
        "Read": read_back,
        "DescribeConfigs": see_settings_of_own_topics if of_own else see_settings_of_tiered_topic,
        "Delete": trim,
    }
    step = needing[missing.operation]

    assert step in await failing_steps(granted, last=step)


async def test_the_rights_go_no_further(granted: KafkaCluster) -> None:
    """Not a record of a tiered topic, not a setting, no other topic."""
    servers = granted.bootstrap_servers_of("CLIENT")
    async with open_broker(servers, SETTINGS, limits=LIMITS) as broker:
        await create_own_topics(broker, servers)
        await see_own_topics(broker, servers)
        seen = {view.topic_id_partition.topic for view in await broker.describe_partitions()}
        assert seen - {COORDINATORS_TOPIC} == {*OWN_TOPICS, TIERED_TOPIC}
        refused: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: broker.describe_partitions([SECRET_TOPIC]),
            lambda: broker.describe_topic_configs([SECRET_TOPIC]),
            lambda: broker.alter_topic_configs(TIERED_TOPIC, {"retention.ms": "1"}),
            lambda: broker.create_topic("another", partitions=1, replication_factor=1, configs={}),
        )
        for ask in refused:
            with pytest.raises(BrokerRefusedError, match="AUTHORIZATION_FAILED") as refusal:
                await ask()
            assert not refusal.value.retriable
        caller = Credentials(username="tiersidecar", password=USERS["tiersidecar"])
        async with open_authorizer(callers_of(granted), limits=LIMITS) as authorizer:
            assert not await authorizer.may_read(caller, TIERED_TOPIC)
    await asyncio.to_thread(wait_until, lambda: denials(granted), "the denials are in the broker's log")


async def test_a_topic_that_we_may_not_see_is_never_taken_for_a_deleted_one(granted: KafkaCluster) -> None:
    """A lost ACL must not let expiry of deleted topics loose on the store."""
    ids = {topic: granted.admin.describe_topic(topic).topic_id for topic in (TIERED_TOPIC, SECRET_TOPIC)}
    seen, hidden = (Uuid(found.bytes) for found in ids.values() if found is not None)
    gone = Uuid(bytes(15) + b"\x07")
    async with open_broker(granted.bootstrap_servers_of("CLIENT"), SETTINGS, limits=LIMITS) as broker:
        assert await broker.describe_topic_ids([seen, hidden, gone]) == {
            seen: None,
            hidden: "TOPIC_AUTHORIZATION_FAILED",
            gone: "UNKNOWN_TOPIC_ID",
        }


def callers_of(cluster: KafkaCluster) -> CallerListener:
    return CallerListener(
        bootstrap_servers=cluster.bootstrap_servers_of("CLIENT"),
        security_protocol=SecurityProtocol.SASL_PLAINTEXT,
        sasl_mechanism=SaslMechanism.PLAIN,
    )


async def test_the_broker_decides_who_may_read(granted: KafkaCluster) -> None:
    """DESIGN section 4, rule 7; a changed ACL holds at once."""
    alice = Credentials(username="alice", password=USERS["alice"])
    bob = Credentials(username="bob", password=USERS["bob"])
    async with open_authorizer(callers_of(granted), limits=LIMITS) as authorizer:
        assert await authorizer.may_read(alice, TIERED_TOPIC)
        assert not await authorizer.may_read(alice, SECRET_TOPIC)
        assert not await authorizer.may_read(bob, TIERED_TOPIC)
        with pytest.raises(CallerNotAuthenticatedError):
            await authorizer.may_read(Credentials(username="alice", password=USERS["bob"]), TIERED_TOPIC)
        with pytest.raises(CallerNotAuthenticatedError):
            await authorizer.may_read(Credentials(), TIERED_TOPIC)

        right = Right("User:alice", "Read", TIERED_TOPIC)
        revoke(granted, right)
        assert not await authorizer.may_read(alice, TIERED_TOPIC)
        grant(granted, Right("User:alice", "Describe", TIERED_TOPIC))
        assert not await authorizer.may_read(alice, TIERED_TOPIC)
        revoke(granted, Right("User:alice", "Describe", TIERED_TOPIC))


async def test_anonymous_callers_read_what_anonymous_may(granted: KafkaCluster) -> None:
    listener = CallerListener(bootstrap_servers=granted.bootstrap_servers_of("OPEN"))
    right = Right("User:ANONYMOUS", "Read", TIERED_TOPIC)
    async with open_authorizer(listener, limits=LIMITS) as authorizer:
        assert not await authorizer.may_read(Credentials(), TIERED_TOPIC)
        grant(granted, right)
        assert await authorizer.may_read(Credentials(), TIERED_TOPIC)
        assert not await authorizer.may_read(Credentials(), SECRET_TOPIC)
        revoke(granted, right)


async def test_unfenced_offsets_need_no_more_than_fenced(granted: KafkaCluster) -> None:
    servers = granted.bootstrap_servers_of("CLIENT")
    async with open_broker(servers, SETTINGS, limits=LIMITS) as broker:
        (view,) = await broker.describe_partitions([TIERED_TOPIC])
        answers = await broker.list_offsets({view.topic_id_partition: LeaderEpoch(-1)}, OffsetSpec.EARLIEST)
        assert answers[view.topic_id_partition].error is None


def test_the_daemon_lives_on_these_rights(granted: KafkaCluster, tmp_path: Path) -> None:
    """From nothing to records that only the store has, with no request that the broker denies."""
    asyncio.run(produce_mix(granted.client_settings, TIERED_TOPIC, total_bytes=600_000, batch_bytes=16_384, seed=1))
    broker = granted.brokers[0]
    before = len(denials(granted))
    settings = daemon_settings(
        tmp_path,
        bootstrap_servers=granted.bootstrap_servers_of("CLIENT"),
        log_dirs=list(broker.log_dirs),
        topics=[{"name": TIERED_TOPIC, "local.retention.bytes": 1, "trim.consumer.groups.pattern": ".*"}],
    )
    settings["broker"] |= login_of("tiersidecar")
    settings["read"] |= {
        "callers": [
            {"bearer.token": TOKENS[user], "sasl.username": user, "sasl.password": USERS[user]} for user in TOKENS
        ]
    }
    with Daemon(tmp_path, settings) as daemon:
        daemon.wait_until_ready()
        wait_for(lambda: granted.admin.earliest_offset(TIERED_TOPIC, 0) > 0, "the topic is trimmed", daemon)
        assert denials(granted)[before:] == []

        url = f"{daemon.read_url}/topics/{TIERED_TOPIC}/partitions/0/records?offset=0&limit=10"
        assert get(url, headers=basic("alice", USERS["alice"]))[0] == 200
        assert get(url, headers=basic("bob", USERS["bob"]))[0] == 403
        assert get(url, headers=basic("alice", "wrong"))[0] == 401
        assert get(url)[0] == 401
        answers = {user: get(url, headers={"Authorization": f"Bearer {token}"})[0] for user, token in TOKENS.items()}
        assert answers == {"alice": 200, "bob": 403}
        assert get(url, headers={"Authorization": f"Bearer {TOKENS['alice'][:-1]}"})[0] == 401
        assert daemon.stop() == 0


def test_the_commands_live_on_the_operators_rights(granted: KafkaCluster, tmp_path: Path) -> None:
    """The daemon has made its topics, and is away: the operator switches the topic on and off, and deletes records of it."""
    asyncio.run(produce_mix(granted.client_settings, TIERED_TOPIC, total_bytes=100_000, batch_bytes=16_384, seed=2))
    settings = daemon_settings(
        tmp_path,
        bootstrap_servers=granted.bootstrap_servers_of("CLIENT"),
        log_dirs=list(granted.brokers[0].log_dirs),
        topics=[],
    )
    settings["broker"] |= login_of("tiersidecar")
    with Daemon(tmp_path, settings) as daemon:
        daemon.wait_until_ready()
        assert daemon.stop() == 0
    granted.admin.alter_topic(TIERED_TOPIC, {"retention.ms": "86400000"})
    refused = run_command(daemon.config_path, "enable", TIERED_TOPIC, "--yes")
    assert refused.returncode == 1
    assert "TOPIC_AUTHORIZATION_FAILED" in refused.stderr
    assert "docs/operations/acls.md" in refused.stderr
    strangers = tmp_path / "stranger.yaml"
    with strangers.open("w") as file:
        YAML().dump({**settings, "broker": {**settings["broker"], **login_of("bob")}}, file)
    began_s = time.monotonic()
    refused = run_command(strangers, "pause", TIERED_TOPIC, "--yes")
    assert time.monotonic() - began_s < _AT_ONCE_S, "a right that is missing does not come by waiting"
    assert refused.returncode == 1
    assert "may not Describe there" in refused.stderr

    before = len(denials(granted))
    operators = tmp_path / "operator.yaml"
    with operators.open("w") as file:
        YAML().dump({**settings, "broker": {**settings["broker"], **login_of(OPERATOR)}}, file)
    assert answer_of(operators, "enable", TIERED_TOPIC, "--yes")["done"]
    assert answer_of(operators, "disable", TIERED_TOPIC, "--yes")["done"]
    assert answer_of(operators, "delete-records", TIERED_TOPIC, "-p", "0", "--offset", "1", "--yes")["done"]
    assert answer_of(operators, "accept-log-loss", TIERED_TOPIC, "-p", "0", "--yes")["done"]
    assert denials(granted)[before:] == []
    granted.admin.alter_topic(TIERED_TOPIC, {"retention.ms": "-1"})


def test_check_config_names_what_is_missing_on_the_state_topic_and_looks_at_the_rest(
    granted: KafkaCluster, tmp_path: Path
) -> None:
    """It waited half a minute for a state that cannot be read, said that it took too long, and looked at no tiered topic."""
    settings = daemon_settings(
        tmp_path,
        bootstrap_servers=granted.bootstrap_servers_of("CLIENT"),
        log_dirs=list(granted.brokers[0].log_dirs),
        topics=[{"name": TIERED_TOPIC}],
    )
    settings["broker"] |= login_of("tiersidecar")
    with Daemon(tmp_path, settings) as daemon:
        daemon.wait_until_ready()
        assert daemon.stop() == 0
    for missing in (
        right for right in OURS if right.name == STATE_TOPIC and right.operation in {"Read", "DescribeConfigs"}
    ):
        revoke(granted, missing)
        done = run_without_config("check-config", str(daemon.config_path), "--connect", "--json")
        grant(granted, missing)
        errors = [one["says"] for one in json.loads(done.stdout)["findings"] if one["level"] == "error"]
        assert f"we may not {missing}" in errors
        assert not any("too long" in one for one in errors)
        assert f"on topic {TIERED_TOPIC}: all that is needed" in done.stdout


def test_a_gateway_of_its_own_lives_on_its_rights(granted: KafkaCluster, tmp_path: Path) -> None:
    """Users delete through it, local records and remote ones, and the broker denies it nothing.

    What somebody forges who may write proposals is refused as far as the broker can tell, with an event.
    """
    first = granted.admin.earliest_offset(
        TIERED_TOPIC, 0
    )  # other tests of this broker have trimmed it, and told nobody
    asyncio.run(produce_mix(granted.client_settings, TIERED_TOPIC, total_bytes=600_000, batch_bytes=16_384, seed=3))
    broker, delete = granted.brokers[0], Right("User:alice", "Delete", TIERED_TOPIC)
    grant(granted, delete)
    listener = {
        "listen": f"127.0.0.1:{free_port()}",
        "broker": granted.bootstrap_servers_of("CLIENT"),
        "broker.tls": "off",
    }
    topics = [{"name": TIERED_TOPIC, "local.retention.bytes": 1, "trim.consumer.groups.pattern": ".*"}]
    settings = daemon_settings(
        tmp_path / "sidecar",
        bootstrap_servers=granted.bootstrap_servers_of("CLIENT"),
        log_dirs=list(broker.log_dirs),
        topics=topics,
    )
    settings["broker"] |= login_of("tiersidecar")
    of_gateway = {"bootstrap.servers": granted.bootstrap_servers_of("CLIENT"), **login_of(GATEWAY)}
    through = PlainCredentials(username="alice", password=USERS["alice"])
    before = len(denials(granted))
    gateway = GatewayDaemon(
        tmp_path / "gateway",
        broker,
        listeners=[listener],
        topics=topics,
        broker_section=of_gateway,
        store=settings["store"],
    )
    with ExitStack() as stack:
        sidecar = stack.enter_context(Daemon(tmp_path / "sidecar", settings, roles="tier"))
        sidecar.wait_until_ready()  # it makes the topics, which the gateway would try to, too
        stack.enter_context(gateway)
        gateway.wait_until_ready()
        wait_for(lambda: granted.admin.earliest_offset(TIERED_TOPIC, 0) > first + 10, "the topic is trimmed", sidecar)
        alice = KafkaAdmin(port=int(gateway.bootstrap_server.rpartition(":")[2]), credentials=through)
        local_start = granted.admin.earliest_offset(TIERED_TOPIC, 0)
        assert alice.earliest_offset(TIERED_TOPIC, 0) == first
        assert alice.delete_records(TIERED_TOPIC, 0, first + 7) == first + 7
        assert alice.earliest_offset(TIERED_TOPIC, 0) == first + 7
        assert granted.admin.earliest_offset(TIERED_TOPIC, 0) == local_start
        assert denials(granted)[before:] == []
        (said,) = sidecar.events("records.deleted")
        assert {"principal": "User:alice", "offset": first + 7, "topic": TIERED_TOPIC}.items() <= said.items()
        assert said["client"].startswith("127.0.0.1:")

        asyncio.run(_propose(granted, forged(granted, said["leader_epoch"])))
        wait_for(lambda: len(sidecar.events("proposal.refused")) == 4, "what is forged is refused", sidecar)
        assert alice.earliest_offset(TIERED_TOPIC, 0) == first + 7
        assert alice.delete_records(TIERED_TOPIC, 0, local_start + 1) == local_start + 1
        assert granted.admin.earliest_offset(TIERED_TOPIC, 0) == local_start + 1
        assert denials(granted)[before:] == []
    revoke(granted, delete)
    asyncio.run(_gateway_can_do_no_more(granted))


def forged(cluster: KafkaCluster, leader_epoch: int) -> list[bytes]:
    """No bytes of ours; of a former topic of this name; above the high watermark; what the broker has not deleted."""
    topic_id = cluster.admin.describe_topic(TIERED_TOPIC).topic_id
    assert topic_id is not None
    end = cluster.admin.latest_offset(TIERED_TOPIC, 0)
    honest = DeleteProposal(
        cluster_id=str(cluster.admin.describe_cluster().cluster_id),
        topic_id_partition=TopicIdPartition(topic_id=Uuid(topic_id.bytes), topic=TIERED_TOPIC, partition=0),
        offset=Offset(end),
        leader_epoch=LeaderEpoch(leader_epoch),
        low_watermark=Offset(-1),
        start_generation=0,
        principal="User:mallory",
        client_id="",
        address="192.0.2.1:1",
        gateway=BrokerId(1),
        proposed_ms=0,
    )
    former = replace(honest.topic_id_partition, topic_id=Uuid(bytes(15) + b"\x07"))
    return [
        b"\x00\xffgarbage",
        write_proposal(replace(honest, topic_id_partition=former, offset=Offset(9))),
        write_proposal(replace(honest, offset=Offset(2**62))),
        write_proposal(honest),
    ]


async def _propose(cluster: KafkaCluster, values: list[bytes]) -> None:
    async with AIOKafkaProducer(**cluster.client_settings) as producer:
        for value in values:
            await producer.send_and_wait(PROPOSALS_TOPIC, value, partition=0)


async def _gateway_can_do_no_more(cluster: KafkaCluster) -> None:
    servers = cluster.bootstrap_servers_of("CLIENT")
    login = replace(SETTINGS, username=GATEWAY, password=USERS[GATEWAY])
    async with open_broker(servers, login, limits=LIMITS) as broker:
        (view,) = await broker.describe_partitions([TIERED_TOPIC])
        answers = await broker.delete_records({view.topic_id_partition: Offset(0)})
        assert [answer.error for answer in answers.values()] == ["TOPIC_AUTHORIZATION_FAILED"]
    for topic in (STATE_TOPIC, METADATA_TOPIC):
        async with AIOKafkaProducer(bootstrap_servers=servers, **aiokafka_kwargs(login)) as producer:
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait(topic, b"event", partition=0)


def login_of(user: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": USERS[user],
    }


def denials(cluster: KafkaCluster) -> list[str]:
    """What the authorizer has denied so far, by the broker's log."""
    return [line for line in cluster.brokers[0].log_path.read_text().splitlines() if "is Denied" in line]


def basic(username: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()}
