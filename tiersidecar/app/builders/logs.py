"""Open the metadata log, the state log and the proposals, as configured."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tiersidecar.adapters.internal_topics import TopicBroker
from tiersidecar.adapters.kafka.aiokafka_settings import aiokafka_kwargs
from tiersidecar.adapters.kafka.broker import KafkaBroker
from tiersidecar.adapters.metadata_topic.log import open_metadata_topic
from tiersidecar.adapters.metadata_topic.settings import MetadataTopicSettings
from tiersidecar.adapters.null_logs import NullMetadataLog, NullProposals, NullStateLog
from tiersidecar.adapters.proposals_topic.log import ProposalsTopicSettings, open_proposals_topic
from tiersidecar.adapters.state_topic.log import open_state_topic
from tiersidecar.adapters.state_topic.remembered import FileMemory
from tiersidecar.adapters.state_topic.settings import StateTopicSettings
from tiersidecar.app.builders.security import bootstrap_servers, broker_security
from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Mode, Role
from tiersidecar.app.identity import patiently
from tiersidecar.domain.segments import knows_txn_index_empty
from tiersidecar.ports.clock import Blocking, Clock, Ids
from tiersidecar.ports.failpoints import NO_FAILPOINTS, Failpoints
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.proposals import Proposals
from tiersidecar.ports.state_records import RequestingStateLog
from tiersidecar.ports.telemetry import Telemetry


@asynccontextmanager
async def open_metadata_log(
    config: Config,
    roles: frozenset[Role],
    *,
    broker: TopicBroker,
    kafka_version: tuple[int, int],
    blocking: Blocking,
    clock: Clock,
    ids: Ids,
    telemetry: Telemetry,
    failpoints: Failpoints = NO_FAILPOINTS,
) -> AsyncIterator[MetadataLog]:
    """Open ``remote.log.metadata.topic.name``; it is created if missing, except in ``mode: observe``.

    Raises:
        FatalError: at any time, cancelling the body, as :func:`open_metadata_topic` says.
    """
    topic = config.remote_log_metadata_topic_name
    if await _stays_unmade(config, broker, topic, clock):
        yield NullMetadataLog()
        return
    settings = MetadataTopicSettings(
        bootstrap_servers=bootstrap_servers(config.broker),
        security=aiokafka_kwargs(broker_security(config.broker)),
        topic=topic,
        partitions=config.remote_log_metadata_topic_num_partitions,
        replication_factor=config.remote_log_metadata_topic_replication_factor,
        min_insync_replicas=config.remote_log_metadata_topic_min_isr,
        consume_wait_ms=config.remote_log_metadata_consume_wait_ms,
        initialization_retry_max_timeout_ms=config.remote_log_metadata_initialization_retry_max_timeout_ms,
        initialization_retry_interval_ms=config.remote_log_metadata_initialization_retry_interval_ms,
        snapshot_path=_snapshot_path(config, roles),
        client_id=config.broker.client_id,
        recovery=recovery_of_source(config, roles),
    )
    async with open_metadata_topic(
        settings,
        broker=broker,
        clock=clock,
        ids=ids,
        telemetry=telemetry,
        blocking=blocking,
        failpoints=failpoints,
        knows_txn_index_empty=lambda: knows_txn_index_empty(kafka_version),
    ) as metadata:
        yield metadata


@asynccontextmanager
async def open_state_log(
    config: Config,
    *,
    broker: TopicBroker,
    clock: Clock,
    ids: Ids,
    telemetry: Telemetry,
    failpoints: Failpoints = NO_FAILPOINTS,
    broker_id: int = -1,
    incarnation: str = "",
    roles: frozenset[Role] = frozenset(),
    blocking: Blocking | None = None,
) -> AsyncIterator[RequestingStateLog]:
    """Open ``state.topic.name``; it is created if missing, except in ``mode: observe``.

    With ``blocking``, what is known of the topic is kept in ``state.dir``, in a file per process; a command, which has no role,
    keeps none.
    """
    topic = config.state_topic_name
    if await _stays_unmade(config, broker, topic, clock):
        yield NullStateLog()
        return
    settings = StateTopicSettings(
        bootstrap_servers=bootstrap_servers(config.broker),
        security=aiokafka_kwargs(broker_security(config.broker)),
        topic=topic,
        replication_factor=config.remote_log_metadata_topic_replication_factor,
        min_insync_replicas=config.remote_log_metadata_topic_min_isr,
        consume_wait_ms=config.remote_log_metadata_consume_wait_ms,
        client_id=config.broker.client_id,
        broker_id=broker_id,
        incarnation=incarnation,
        may_write=not roles or Role.TIER in roles,  # a command has none
        recovery=recovery_of_source(config, roles),
    )
    memory = None
    if blocking is not None and roles and config.mode is not Mode.OBSERVE:
        memory = FileMemory(Path(_memory_path(config, roles)), blocking=blocking)
    async with open_state_topic(
        settings, broker=broker, clock=clock, ids=ids, telemetry=telemetry, failpoints=failpoints, memory=memory
    ) as state:
        yield state


@asynccontextmanager
async def open_proposals(config: Config, *, broker: KafkaBroker, clock: Clock, ids: Ids) -> AsyncIterator[Proposals]:
    """Open ``proposals.topic.name``; in ``mode: observe``, and of what is mounted read-only, nothing is written."""
    if config.mode is Mode.OBSERVE or config.source is not None:
        yield NullProposals()
        return
    settings = ProposalsTopicSettings(
        bootstrap_servers=bootstrap_servers(config.broker),
        security=aiokafka_kwargs(broker_security(config.broker)),
        topic=config.proposals_topic_name,
        replication_factor=config.remote_log_metadata_topic_replication_factor,
        min_insync_replicas=config.remote_log_metadata_topic_min_isr,
        client_id=config.broker.client_id,
    )
    async with open_proposals_topic(settings, broker=broker, clock=clock, ids=ids) as proposals:
        yield proposals


def _snapshot_path(config: Config, roles: frozenset[Role]) -> str | None:
    """Return the path, one per process; None for a command, which has no role."""
    return str(Path(config.state_dir) / f"remote-log-metadata.{'-'.join(sorted(roles))}.sqlite") if roles else None


def _memory_path(config: Config, roles: frozenset[Role]) -> str:
    return str(Path(config.state_dir) / f"state-topic.{'-'.join(sorted(roles))}.json")


def recovery_of_source(config: Config, roles: frozenset[Role]) -> str:
    """Return what to do where a topic of the source of a read-only mount lost data; empty without a source."""
    if config.source is None:
        return ""
    return (
        "It is the source's: what was read before is served on, and nothing new comes. Recover the topic at the source, with "
        "`tiersidecar recover --carry-out` there, and do nothing here before that has ended. Then stop this gateway, remove "
        f"{_snapshot_path(config, roles)} and {_memory_path(config, roles)}, and start it; accept-topic-loss is of no use "
        "here. If the topic itself comes back as it was, it goes on by itself."
    )


async def _stays_unmade(config: Config, broker: TopicBroker, topic: str, clock: Clock) -> bool:
    if config.mode is not Mode.OBSERVE or config.source is not None:
        return False
    return not await patiently(lambda: broker.describe_partitions([topic]), clock)
