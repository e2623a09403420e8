"""The local broker, and through it the cluster, over Kafka's protocol (:mod:`tiersidecar.ports.broker`)."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain

import structlog
from kio.schema.describe_configs.v4.response import DescribeConfigsResult
from kio.schema.errors import ErrorCode

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.border_reads import read_aborted_beyond
from tiersidecar.adapters.kafka.connection import BrokerConnection, ConnectionLimits, refused
from tiersidecar.adapters.kafka.connector import Connector
from tiersidecar.adapters.kafka.groups import KafkaGroups
from tiersidecar.adapters.kafka.leaders import broker_addresses, leader_views
from tiersidecar.adapters.kafka.routes import Routes, Rows
from tiersidecar.adapters.kafka.security import PLAINTEXT, SecuritySettings
from tiersidecar.adapters.kafka.tls import ssl_context
from tiersidecar.adapters.kafka.tokens import open_tokens
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from tiersidecar.domain.segments import LeaderView
from tiersidecar.formats.kafka.indexes import AbortedTransaction
from tiersidecar.ports.broker import ClusterDescription, OffsetAnswer, OffsetSpec, TrimAnswer

_log = structlog.get_logger(__name__)

_LEADERS_MAX_AGE_S = 5.0
_LIST_OFFSETS_OF_KAFKA_4 = 10
_TOPICS_PER_DESCRIBE = 100
"""Each has about 40 settings: more would make responses of many megabytes."""
_MOVED = frozenset(
    {"NOT_LEADER_OR_FOLLOWER", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "UNKNOWN_TOPIC_OR_PARTITION"}
)
_HIDDEN = frozenset({ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed})


@asynccontextmanager
async def open_broker(
    bootstrap_servers: str | Sequence[str],
    settings: SecuritySettings = PLAINTEXT,
    *,
    client_id: str = "tiersidecar",
    limits: ConnectionLimits | None = None,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> AsyncIterator[KafkaBroker]:
    """The broker behind ``bootstrap_servers`` (``host:port``, the local broker first), closed on leaving.

    Entering connects to nothing: a broker that is not there yet shows at the first call, and each call connects again
    when it must.

    Raises:
        ConfigError: certificates that cannot be used.
    """
    connector = Connector(
        settings,
        client_id=client_id,
        tls=ssl_context(settings),
        tokens=open_tokens(settings.oauth_token_source) if settings.oauth_token_source else None,
        limits=limits,
        monotonic_s=monotonic_s,
    )
    routes = Routes(connector, addresses(bootstrap_servers), monotonic_s=monotonic_s)
    try:
        # The broker gives up first, so that its own reason reaches us.
        yield KafkaBroker(routes, broker_timeout_s=connector.limits.request_timeout_s * 0.8)
    finally:
        await routes.close()


def addresses(bootstrap_servers: str | Sequence[str]) -> tuple[str, ...]:
    """``bootstrap.servers`` as single addresses, in their order.

    Raises:
        ValueError: there is none.
    """
    text = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise ValueError("no bootstrap servers")
    return found


class KafkaBroker:
    """Every Protocol of :mod:`tiersidecar.ports.broker`.  It retries nothing: callers know what may be done again."""

    def __init__(self, routes: Routes, *, broker_timeout_s: float) -> None:
        self._routes = routes
        self.groups = KafkaGroups(routes)
        self._broker_timeout_s = broker_timeout_s
        self._told: set[str] = set()

    async def describe_cluster(self) -> ClusterDescription:
        response = await self._routes.metadata(())
        return ClusterDescription(cluster_id=response.cluster_id or "", brokers=broker_addresses(response))

    async def kafka_version(self) -> tuple[int, int]:
        """(4, 0) or (3, 9): on which side of the change of formats the local broker is, told by the requests it knows.

        ListOffsets version 10 came with 4.0 (KIP-1075).  Brokers do not tell their version otherwise.
        """
        newest = (await self._routes.any()).newest_version(apis.LIST_OFFSETS)
        return (4, 0) if newest >= _LIST_OFFSETS_OF_KAFKA_4 else (3, 9)

    async def describe_partitions(self, topics: Sequence[str] | None = None) -> tuple[LeaderView, ...]:
        """As the port says.  A named topic that we may not see is refused; of all topics, only visible ones are there."""
        if topics is not None and not topics:
            return ()
        response = await self._routes.metadata(topics)
        for topic in response.topics:
            if topics is not None and topic.error_code in _HIDDEN:
                raise refused(apis.METADATA, f"topic {topic.name}", topic.error_code)
        # A thread: of a big cluster's 64,000 partitions these take 0.3 s.
        return await asyncio.to_thread(lambda: tuple(chain.from_iterable(map(leader_views, response.topics))))

    async def describe_topic_ids(self, topic_ids: Iterable[Uuid]) -> dict[Uuid, str | None]:
        """As the port says; by the first broker that answers."""
        wanted = tuple(dict.fromkeys(topic_ids))
        if not wanted:
            return {}
        connection = await self._routes.any()
        response = await connection.ask(apis.METADATA, lambda version: apis.metadata_by_id(version, wanted))
        return {
            Uuid(topic.topic_id.bytes): _error_name(topic.error_code)
            for topic in response.topics
            if topic.topic_id is not None
        }

    async def list_offsets(
        self,
        partitions: Mapping[TopicIdPartition, LeaderEpoch],
        spec: OffsetSpec | int,
        *,
        read_committed: bool = False,
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        """As the port says; what keeps one partition from being answered is its ``error``."""

        async def ask(connection: BrokerConnection, group: Sequence[TopicIdPartition]) -> Rows[OffsetAnswer]:
            response = await connection.ask(
                apis.LIST_OFFSETS,
                lambda version: apis.list_offsets(
                    version,
                    _by_topic({key: partitions[key] for key in group}),
                    int(spec),
                    read_committed=read_committed,
                    timeout_s=self._broker_timeout_s,
                ),
            )
            return {
                (topic.name, row.partition_index): OffsetAnswer(
                    offset=Offset(row.offset),
                    timestamp_ms=row.timestamp,
                    leader_epoch=LeaderEpoch(row.leader_epoch),
                    error=_error_name(row.error_code),
                )
                for topic in response.topics
                for row in topic.partitions
            }

        answers = await self._routes.ask_leaders(partitions, ask, _no_offset, max_age_s=_LEADERS_MAX_AGE_S)
        self._routes.forget(key.topic for key, answer in answers.items() if answer.error in _MOVED)
        return answers

    async def aborted_beyond(
        self, topic_id_partition: TopicIdPartition, end_offset: int
    ) -> Sequence[AbortedTransaction] | None:
        """The aborted transactions that reach over ``end_offset``, the end (exclusive) of the remote tier; None when the
        broker cannot tell (:mod:`~tiersidecar.adapters.kafka.border_reads`)."""
        return await read_aborted_beyond(self._routes, topic_id_partition, end_offset, max_age_s=_LEADERS_MAX_AGE_S)

    async def delete_records(
        self,
        offsets: Mapping[TopicIdPartition, Offset],
        *,
        leader_epochs: Mapping[TopicIdPartition, LeaderEpoch] | None = None,
    ) -> dict[TopicIdPartition, TrimAnswer]:
        """As the port says.  The request names topics, not ids, and no epochs: leaders, their epochs and ids are always looked
        up right before it, and it goes to that very broker.  So nothing is sent for a topic that was deleted and created
        again, nor to a leader that the caller does not know of.  The leader answers once all followers have
        trimmed as well, so this goes over connections of its own."""

        async def ask(connection: BrokerConnection, group: Sequence[TopicIdPartition]) -> Rows[TrimAnswer]:
            response = await connection.ask(
                apis.DELETE_RECORDS,
                lambda version: apis.delete_records(
                    version, _by_topic({key: offsets[key] for key in group}), timeout_s=self._broker_timeout_s
                ),
            )
            return {
                (topic.name, row.partition_index): TrimAnswer(
                    low_watermark=Offset(row.low_watermark), error=_error_name(row.error_code)
                )
                for topic in response.topics
                for row in topic.partitions
            }

        return await self._routes.ask_leaders(
            offsets, ask, _no_trim, max_age_s=0.0, aside=True, leader_epochs=leader_epochs
        )

    async def describe_topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str | None]]:
        """As the port says.  Topics that do not exist are left out, and those whose settings we may not see, which a
        warning names once.

        Raises:
            BrokerRefusedError: we may see the settings of none of them.
        """
        names = list(dict.fromkeys(topics))
        found: dict[str, dict[str, str | None]] = {}
        failure: BrokerRefusedError | None = None
        for start in range(0, len(names), _TOPICS_PER_DESCRIBE):
            batch = names[start : start + _TOPICS_PER_DESCRIBE]
            for result in await _describe_configs(await self._routes.any(), apis.TOPIC_RESOURCE, batch):
                if result.error_code is ErrorCode.none:
                    found[result.resource_name] = _settings(result)
                elif result.error_code is not ErrorCode.unknown_topic_or_partition:
                    failure = self._refused_configs(result)
        if failure is not None and not found:
            raise failure
        return found

    async def describe_topic_overrides(self, topic: str) -> dict[str, str | None]:
        for result in await _describe_configs(await self._routes.any(), apis.TOPIC_RESOURCE, [topic]):
            if result.error_code is not ErrorCode.none:
                raise refused(apis.DESCRIBE_CONFIGS, f"topic {topic}", result.error_code, result.error_message)
            return {row.name: row.value for row in result.configs if row.config_source == apis.DYNAMIC_TOPIC_CONFIG}
        raise refused(apis.DESCRIBE_CONFIGS, f"topic {topic}", ErrorCode.unknown_server_error)

    async def describe_log_sizes(self, topic: str) -> dict[int, int]:
        """As the port says; needs Describe on the cluster, without it the sizes are left out."""

        async def ask(connection: BrokerConnection, group: Sequence[TopicIdPartition]) -> Rows[int]:
            wanted = [key.partition for key in group]
            response = await connection.ask(
                apis.DESCRIBE_LOG_DIRS, lambda version: apis.describe_log_dirs(version, topic, wanted)
            )
            return {
                (found.name, row.partition_index): row.partition_size
                for log_dir in response.results
                for found in log_dir.topics
                for row in found.partitions
                if not row.is_future_key
            }

        keys = [view.topic_id_partition for view in await self.describe_partitions([topic])]
        sizes = await self._routes.ask_leaders(keys, ask, lambda error: -1, max_age_s=_LEADERS_MAX_AGE_S)
        return {key.partition: size for key, size in sizes.items() if size >= 0}

    async def describe_broker_configs(self, broker_id: BrokerId) -> dict[str, str | None]:
        """As the port says; the request goes to that broker, no other knows."""
        connection = await self._routes.broker(broker_id)
        for result in await _describe_configs(connection, apis.BROKER_RESOURCE, [str(broker_id)]):
            if result.error_code is ErrorCode.none:
                return _settings(result)
            raise refused(apis.DESCRIBE_CONFIGS, f"broker {broker_id}", result.error_code, result.error_message)
        raise refused(apis.DESCRIBE_CONFIGS, f"broker {broker_id}", ErrorCode.unknown_server_error)

    async def alter_topic_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        connection = await self._routes.any()
        response = await connection.ask(
            apis.INCREMENTAL_ALTER_CONFIGS,
            lambda version: apis.incremental_alter_configs(version, topic, changes),
        )
        for row in response.responses:
            if row.error_code is not ErrorCode.none:
                raise refused(apis.INCREMENTAL_ALTER_CONFIGS, f"topic {topic}", row.error_code, row.error_message)

    async def create_topic(
        self, topic: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        """As the port says; any broker passes it on to the controller, and may itself know the topic a little later."""
        connection = await self._routes.any()
        response = await connection.ask(
            apis.CREATE_TOPICS,
            lambda version: apis.create_topic(
                version,
                topic,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=configs,
                timeout_s=self._broker_timeout_s,
            ),
        )
        for row in response.topics:
            if row.error_code in (ErrorCode.none, ErrorCode.topic_already_exists):
                continue
            failure = refused(apis.CREATE_TOPICS, f"topic {topic}", row.error_code, row.error_message)
            # Brokers that are still starting are missing for the replication factor.
            failure.retriable |= row.error_code is ErrorCode.invalid_replication_factor
            raise failure

    def _refused_configs(self, result: DescribeConfigsResult) -> BrokerRefusedError:
        topic = result.resource_name
        failure = refused(apis.DESCRIBE_CONFIGS, f"topic {topic}", result.error_code, result.error_message)
        if topic not in self._told:
            self._told.add(topic)
            _log.warning("broker.topic_configs.refused", topic=topic, error=failure.error)
        return failure


async def _describe_configs(
    connection: BrokerConnection, resource_type: int, names: Sequence[str]
) -> tuple[DescribeConfigsResult, ...]:
    response = await connection.ask(
        apis.DESCRIBE_CONFIGS, lambda version: apis.describe_configs(version, resource_type, names)
    )
    return response.results


def _by_topic(values: Mapping[TopicIdPartition, int]) -> dict[str, dict[int, int]]:
    topics: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for key, value in values.items():
        topics[key.topic][key.partition] = value
    return topics


def _settings(result: DescribeConfigsResult) -> dict[str, str | None]:
    return {row.name: row.value for row in result.configs}


def _error_name(error_code: ErrorCode) -> str | None:
    return None if error_code is ErrorCode.none else error_code.name.upper()


def _no_offset(error: str) -> OffsetAnswer:
    return OffsetAnswer(offset=NO_OFFSET, timestamp_ms=-1, leader_epoch=NO_EPOCH, error=error)


def _no_trim(error: str) -> TrimAnswer:
    return TrimAnswer(low_watermark=NO_OFFSET, error=error)
