"""Reach the local broker, and through it the cluster, over Kafka's protocol (:mod:`tiersidecar.ports.broker`)."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11 import ListOffsetsResponse
from kio.schema.metadata.v13 import MetadataResponse

from tiersidecar.adapters.kafka import apis
from tiersidecar.adapters.kafka.connection import BrokerConnection, ConnectionLimits, refused
from tiersidecar.adapters.kafka.connector import Connector
from tiersidecar.adapters.kafka.groups import KafkaGroups
from tiersidecar.adapters.kafka.leaders import broker_addresses, leader_views
from tiersidecar.adapters.kafka.local_reads import fetch_committed
from tiersidecar.adapters.kafka.mounting import KafkaMounting
from tiersidecar.adapters.kafka.routes import Routes, Rows, addresses
from tiersidecar.adapters.kafka.security import PLAINTEXT, SecuritySettings
from tiersidecar.adapters.kafka.tls import ssl_context
from tiersidecar.adapters.kafka.tokens import open_tokens
from tiersidecar.adapters.kafka.topic_admin import KafkaTopicAdmin
from tiersidecar.domain.errors import BrokerRefusedError, BrokerUnreachableError
from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from tiersidecar.domain.segments import LeaderView
from tiersidecar.ports.broker import (
    ClusterDescription,
    EpochAsked,
    EpochEndAnswer,
    LocalBatches,
    LogDirUse,
    OffsetAnswer,
    OffsetSpec,
    ReplicaStarts,
    TrimAnswer,
)

T = TypeVar("T")

_LEADERS_MAX_AGE_S = 5.0
_LIST_OFFSETS_OF_KAFKA_4 = 10
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
    """Yield the broker behind ``bootstrap_servers`` (``host:port``, the local broker first), closed on leaving.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _AllPartitions:
    """The content of an answer for all topics, with its ``metadata_digest``."""

    digest: bytes = b""
    views: tuple[LeaderView, ...] = ()


class KafkaBroker(KafkaTopicAdmin):
    """Every Protocol of :mod:`tiersidecar.ports.broker`.  It retries nothing: callers know which requests may be repeated."""

    def __init__(self, routes: Routes, *, broker_timeout_s: float) -> None:
        super().__init__(routes, broker_timeout_s=broker_timeout_s)
        self._all_partitions = _AllPartitions()
        self.groups = KafkaGroups(routes)
        self.mounting = KafkaMounting(routes, broker_timeout_s=broker_timeout_s)

    async def describe_cluster(self) -> ClusterDescription:
        response = await self._routes.metadata(())
        return ClusterDescription(cluster_id=response.cluster_id or "", brokers=broker_addresses(response))

    async def kafka_version(self) -> tuple[int, int]:
        """Return (4, 0) or (3, 9), for the local broker's side of the change of formats, by the requests that it knows.

        ListOffsets version 10 came with 4.0 (KIP-1075).  Brokers do not return their version otherwise.
        """
        newest = (await self._routes.any()).newest_version(apis.LIST_OFFSETS)
        return (4, 0) if newest >= _LIST_OFFSETS_OF_KAFKA_4 else (3, 9)

    async def missing_apis(self) -> list[str]:
        """Return names of the requests of the sidecar that the local broker does not know in any version of ours."""
        connection = await self._routes.any()
        return sorted(api.name for api in apis.NEEDED if connection.newest_version(api) < api.oldest)

    async def authorized_operations(self, topics: Sequence[str]) -> dict[str, int | None]:
        """Return our rights on each of ``topics``, a bit for each ``AclOperation`` (KIP-430): None where the broker does not
        say, 0 where we may not even see the topic.  Unknown topics are left out."""
        connection = await self._routes.any()
        response = await connection.ask(
            apis.METADATA, lambda version: apis.metadata(version, topics, authorized_operations=True)
        )
        found: dict[str, int | None] = {}
        for row in response.topics:
            if row.name is None or row.error_code is ErrorCode.unknown_topic_or_partition:
                continue
            said = row.topic_authorized_operations
            found[row.name] = 0 if row.error_code in _HIDDEN else None if said == apis.NOT_SAID else said
        return found

    async def authorized_cluster_operations(self) -> int | None:
        """Return the same for the cluster."""
        connection = await self._routes.any()
        response = await connection.ask(apis.DESCRIBE_CLUSTER, apis.describe_cluster)
        if response.error_code is not ErrorCode.none:
            raise refused(apis.DESCRIBE_CLUSTER, "the cluster", response.error_code, response.error_message)
        said = response.cluster_authorized_operations
        return None if said == apis.NOT_SAID else said

    async def describe_partitions(self, topics: Sequence[str] | None = None) -> tuple[LeaderView, ...]:
        """Return the leaders.  A named topic that we may not see is refused; of all topics, only visible ones are there."""
        if topics is None:
            return await self._describe_all_partitions()
        if not topics:
            return ()
        response = await self._routes.metadata(topics)
        for topic in response.topics:
            if topic.error_code in _HIDDEN:
                raise refused(apis.METADATA, f"topic {topic.name}", topic.error_code)
        return await _views(response)

    async def _describe_all_partitions(self) -> tuple[LeaderView, ...]:
        """Return the same object as long as the broker's answer is the same: nothing of thousands of partitions is decoded."""
        known = self._all_partitions
        digest, response = await self._routes.metadata_of_all(known.digest)
        if response is None:
            return known.views
        self._all_partitions = _AllPartitions(digest=digest, views=await _views(response))
        return self._all_partitions.views

    async def describe_topic_ids(self, topic_ids: Iterable[Uuid]) -> dict[Uuid, str | None]:
        """Return by topic id: None for one that exists, else Kafka's error name; the first broker that answers counts."""
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
        """Return offsets by ``spec``; a partition without an answer has the reason as its ``error``."""

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
            return _offset_rows(response)

        answers = await self._routes.ask_leaders(partitions, ask, _no_offset, max_age_s=_LEADERS_MAX_AGE_S)
        self._routes.forget(key.topic for key, answer in answers.items() if answer.error in _MOVED)
        return answers

    async def replica_log_starts(self, views: Sequence[LeaderView]) -> dict[TopicIdPartition, ReplicaStarts]:
        """Ask all replicas for their log starts; a broker that is away, or has no such replica, is among the silent ones."""
        hosted: defaultdict[BrokerId, list[TopicIdPartition]] = defaultdict(list)
        for view in views:
            for replica in view.replicas:
                hosted[replica].append(view.topic_id_partition)
        starts: dict[TopicIdPartition, dict[BrokerId, Offset]] = {view.topic_id_partition: {} for view in views}
        silent: dict[TopicIdPartition, dict[BrokerId, str]] = {view.topic_id_partition: {} for view in views}
        for broker_id, keys in hosted.items():
            try:
                answers = await self._log_starts_on(broker_id, keys)
            except (BrokerUnreachableError, BrokerRefusedError) as error:
                answers = {key: _no_offset(str(error)) for key in keys}
            for key, answer in answers.items():
                if answer.error is None and answer.offset >= 0:
                    starts[key][broker_id] = answer.offset
                else:
                    silent[key][broker_id] = answer.error or "it has no log of it"
        return {key: ReplicaStarts(starts=starts[key], silent=silent[key]) for key in starts}

    async def _log_starts_on(
        self, broker_id: BrokerId, keys: Sequence[TopicIdPartition]
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        connection = await self._routes.broker(broker_id)
        response = await connection.ask(
            apis.LIST_OFFSETS,
            lambda version: apis.list_offsets(
                version,
                _by_topic(dict.fromkeys(keys, NO_EPOCH)),
                int(OffsetSpec.EARLIEST),
                read_committed=False,
                timeout_s=self._broker_timeout_s,
                replica_id=apis.DEBUGGER,
            ),
        )
        rows, nothing = _offset_rows(response), _no_offset("UNKNOWN_SERVER_ERROR")
        return {key: rows.get((key.topic, key.partition), nothing) for key in keys}

    async def end_of_epochs(
        self, asked: Mapping[TopicIdPartition, EpochAsked]
    ) -> dict[TopicIdPartition, EpochEndAnswer]:
        """Return where the leaders' logs end these epochs; a partition without an answer has the reason as its ``error``."""

        async def ask(connection: BrokerConnection, group: Sequence[TopicIdPartition]) -> Rows[EpochEndAnswer]:
            questions = _by_topic({key: (asked[key].current_epoch, asked[key].epoch) for key in group})
            response = await connection.ask(
                apis.OFFSET_FOR_LEADER_EPOCH, lambda version: apis.offset_for_leader_epoch(version, questions)
            )
            return {
                (topic.topic, row.partition): EpochEndAnswer(
                    epoch=LeaderEpoch(row.leader_epoch),
                    end_offset=Offset(row.end_offset),
                    error=_error_name(row.error_code),
                )
                for topic in response.topics
                for row in topic.partitions
            }

        answers = await self._routes.ask_leaders(asked, ask, _no_epoch_end, max_age_s=_LEADERS_MAX_AGE_S)
        self._routes.forget(key.topic for key, answer in answers.items() if answer.error in _MOVED)
        return answers

    async def fetch_committed(
        self, topic_id_partition: TopicIdPartition, offset: int, *, max_bytes: int, last_fetched_epoch: LeaderEpoch
    ) -> LocalBatches:
        """Fetch committed batches (:func:`tiersidecar.adapters.kafka.local_reads.fetch_committed`)."""
        return await fetch_committed(
            self._routes,
            topic_id_partition,
            offset,
            max_bytes=max_bytes,
            last_fetched_epoch=last_fetched_epoch,
            max_age_s=_LEADERS_MAX_AGE_S,
        )

    async def delete_records(
        self,
        offsets: Mapping[TopicIdPartition, Offset],
        *,
        leader_epochs: Mapping[TopicIdPartition, LeaderEpoch] | None = None,
    ) -> dict[TopicIdPartition, TrimAnswer]:
        """Move log starts.  The request names topics, not ids, and no epochs: leaders, their epochs and ids are always looked
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
            offsets, ask, _no_trim, max_age_s=0.0, dedicated=True, leader_epochs=leader_epochs
        )

    async def describe_log_sizes(self, topic: str) -> dict[int, int]:
        """Return the leaders' bytes on disk by partition; needs Describe on the cluster, without it the sizes are left out."""

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

    async def describe_log_dirs(
        self, broker_id: BrokerId, topic: str, partitions: Sequence[int]
    ) -> tuple[LogDirUse, ...]:
        """Return the broker's log dirs with replicas of the topic; needs Describe on the cluster."""
        connection = await self._routes.broker(broker_id)
        response = await connection.ask(
            apis.DESCRIBE_LOG_DIRS, lambda version: apis.describe_log_dirs(version, topic, partitions)
        )
        found = []
        for log_dir in response.results:
            rows = {
                int(row.partition_index): int(row.partition_size)
                for one in log_dir.topics
                for row in one.partitions
                if not row.is_future_key
            }
            if rows:
                usable = int(getattr(log_dir, "usable_bytes", -1))
                found.append(LogDirUse(log_dir=str(log_dir.log_dir), usable_bytes=usable, partition_bytes=rows))
        return tuple(found)


async def _views(response: MetadataResponse) -> tuple[LeaderView, ...]:
    # A thread: the 64,000 partitions of a big cluster take 0.3 s.
    return await asyncio.to_thread(lambda: tuple(chain.from_iterable(map(leader_views, response.topics))))


def _by_topic(values: Mapping[TopicIdPartition, T]) -> dict[str, dict[int, T]]:
    topics: defaultdict[str, dict[int, T]] = defaultdict(dict)
    for key, value in values.items():
        topics[key.topic][key.partition] = value
    return topics


def _error_name(error_code: ErrorCode) -> str | None:
    return None if error_code is ErrorCode.none else error_code.name.upper()


def _offset_rows(response: ListOffsetsResponse) -> Rows[OffsetAnswer]:
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


def _no_offset(error: str) -> OffsetAnswer:
    return OffsetAnswer(offset=NO_OFFSET, timestamp_ms=-1, leader_epoch=NO_EPOCH, error=error)


def _no_epoch_end(error: str) -> EpochEndAnswer:
    return EpochEndAnswer(epoch=NO_EPOCH, end_offset=NO_OFFSET, error=error)


def _no_trim(error: str) -> TrimAnswer:
    return TrimAnswer(low_watermark=NO_OFFSET, error=error)
