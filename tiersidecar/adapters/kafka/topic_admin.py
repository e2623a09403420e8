"""Create topics, and read and change settings of topics and brokers (:mod:`tiersidecar.ports.broker`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import structlog
from kio.schema.describe_configs.v4.response import DescribeConfigsResult
from kio.schema.errors import ErrorCode

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.connection import BrokerConnection, refused
from tiersidecar.adapters.kafka.routes import Routes
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import BrokerId

_log = structlog.get_logger(__name__)

_TOPICS_PER_DESCRIBE = 100
"""Each has about 40 settings: more would make responses of many megabytes."""


class KafkaTopicAdmin:
    """The requests of :class:`~tiersidecar.adapters.kafka.broker.KafkaBroker` about settings."""

    def __init__(self, routes: Routes, *, broker_timeout_s: float) -> None:
        self._routes = routes
        self._broker_timeout_s = broker_timeout_s
        self._reported: set[str] = set()

    async def describe_topic_configs(
        self, topics: Iterable[str], *, names: Sequence[str] | None = None
    ) -> dict[str, dict[str, str | None]]:
        """Return each topic's effective settings, or those with ``names``.  Left out are topics that do not exist, and those
        whose settings we may not see, which a warning names once.

        Raises:
            BrokerRefusedError: we may see the settings of none of them.
        """
        asked = list(dict.fromkeys(topics))
        found: dict[str, dict[str, str | None]] = {}
        failure: BrokerRefusedError | None = None
        for start in range(0, len(asked), _TOPICS_PER_DESCRIBE):
            batch = asked[start : start + _TOPICS_PER_DESCRIBE]
            for result in await _describe_configs(await self._routes.any(), apis.TOPIC_RESOURCE, batch, names):
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

    async def describe_broker_configs(self, broker_id: BrokerId) -> dict[str, str | None]:
        """Return the effective settings of one broker; the request goes to that broker, since no other knows."""
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
        """Create ``topic``; any broker passes it on to the controller, and may itself know the topic a little later."""
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
        if topic not in self._reported:
            self._reported.add(topic)
            _log.warning("broker.topic_configs.refused", topic=topic, error=failure.error)
        return failure


async def _describe_configs(
    connection: BrokerConnection, resource_type: int, resources: Sequence[str], names: Sequence[str] | None = None
) -> tuple[DescribeConfigsResult, ...]:
    response = await connection.ask(
        apis.DESCRIBE_CONFIGS, lambda version: apis.describe_configs(version, resource_type, resources, names)
    )
    return response.results


def _settings(result: DescribeConfigsResult) -> dict[str, str | None]:
    return {row.name: row.value for row in result.configs}
