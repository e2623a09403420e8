"""Read from the cluster, before and after a listing: its topics, and id, begin and end of the metadata topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from tiersidecar.adapters.kafka.broker import KafkaBroker, open_broker
from tiersidecar.adapters.kafka.connection import ConnectionLimits
from tiersidecar.app.builders.security import bootstrap_servers, broker_security
from tiersidecar.app.config.config import Config
from tiersidecar.domain.errors import BrokerRefusedError
from tiersidecar.domain.ids import format_uuid
from tiersidecar.ports.broker import DescribePartitions, ListOffsets, OffsetSpec
from tiersidecar.reconcile.inputs import KnownTopic


class TopicBroker(DescribePartitions, ListOffsets, Protocol):
    """The questions to the broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBounds:
    """Offsets by partition, the end exclusive; the id in 22 characters."""

    topic_id: str
    begin: dict[int, int]
    end: dict[int, int]


async def read_topic_bounds(broker: TopicBroker, topic: str) -> TopicBounds:
    """Ask the partitions' leaders.

    Raises:
        BrokerUnreachableError: one does not answer.
        BrokerRefusedError: there is no such topic, or we may not see it.
    """
    views = await broker.describe_partitions([topic])
    if not views:
        raise BrokerRefusedError(api="Metadata", subject=f"topic {topic}", error="UNKNOWN_TOPIC_OR_PARTITION")
    asked = {view.topic_id_partition: view.leader_epoch for view in views}
    found: list[dict[int, int]] = []
    for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST):
        answers = await broker.list_offsets(asked, spec)
        for topic_id_partition, answer in answers.items():
            if answer.error is not None:
                raise BrokerRefusedError(api="ListOffsets", subject=str(topic_id_partition), error=answer.error)
        found.append(
            {topic_id_partition.partition: int(answer.offset) for topic_id_partition, answer in answers.items()}
        )
    return TopicBounds(topic_id=format_uuid(views[0].topic_id_partition.topic_id), begin=found[0], end=found[1])


_TOPICS_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """``metadata`` is where the metadata topic begins and ends."""

    cluster_id: str
    topics: Sequence[KnownTopic]
    metadata: TopicBounds


async def read_cluster_facts(config: Config) -> ClusterFacts:
    """Ask the cluster.

    Raises:
        BrokerUnreachableError: it does not answer.
        BrokerRefusedError: there is no metadata topic, or we may not see it.
    """
    async with _open_broker(config) as broker:
        cluster = await broker.describe_cluster()
        ids = {
            view.topic_id_partition.topic: view.topic_id_partition.topic_id
            for view in await broker.describe_partitions()
        }
        compacted = await _compacted(broker, sorted(ids))
        return ClusterFacts(
            cluster_id=cluster.cluster_id,
            topics=[
                KnownTopic(topic=topic, topic_id=format_uuid(topic_id), is_compacted=topic in compacted)
                for topic, topic_id in ids.items()
            ],
            metadata=await read_topic_bounds(broker, config.remote_log_metadata_topic_name),
        )


async def read_metadata_end(config: Config) -> dict[int, int]:
    """Return where the metadata topic ends now; raises as :func:`read_cluster_facts`."""
    async with _open_broker(config) as broker:
        return (await read_topic_bounds(broker, config.remote_log_metadata_topic_name)).end


async def _compacted(broker: KafkaBroker, topics: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for some in _pages(topics):
        configs = await broker.describe_topic_configs(some)
        found |= {topic for topic, config in configs.items() if "compact" in (config.get("cleanup.policy") or "")}
    return found


def _pages(topics: Sequence[str]) -> Iterable[Sequence[str]]:
    return (topics[start : start + _TOPICS_AT_ONCE] for start in range(0, len(topics), _TOPICS_AT_ONCE))


@asynccontextmanager
async def _open_broker(config: Config) -> AsyncIterator[KafkaBroker]:
    limits = ConnectionLimits(request_timeout_s=config.broker.request_timeout_ms / 1000)
    client_id = f"{config.broker.client_id}-reconcile"
    async with open_broker(
        bootstrap_servers(config.broker), broker_security(config.broker), client_id=client_id, limits=limits
    ) as broker:
        yield broker
