"""Requests to the local broker: one Protocol per request family.

Each raises :class:`~tiersidecar.domain.errors.BrokerUnreachableError` when it does not answer, and
:class:`~tiersidecar.domain.errors.BrokerRefusedError` with Kafka's error name when it refuses the whole request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Protocol

from tiersidecar.domain.ids import BrokerId, TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_EPOCH, LeaderEpoch, Offset
from tiersidecar.domain.segments import LeaderView


class OffsetSpec(IntEnum):
    """ListOffsets timestamps with a meaning of their own."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The cluster as the connected broker sees it.  ``brokers`` maps node id to ``host:port``."""

    cluster_id: str
    brokers: Mapping[BrokerId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAnswer:
    """One partition's answer to ListOffsets: ``error`` is None or Kafka's error name."""

    offset: Offset
    timestamp_ms: int
    leader_epoch: LeaderEpoch
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochAsked:
    """A question to the leader in ``current_epoch``, and to no other: where does your log end ``epoch``?"""

    current_epoch: LeaderEpoch
    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndAnswer:
    """One partition's answer to OffsetForLeaderEpoch: the last epoch of the log that is not after the one asked for, and its
    end (exclusive).  ``epoch`` is -1 where the log has none from the one asked for on.  ``error`` is None or Kafka's error
    name."""

    epoch: LeaderEpoch
    end_offset: Offset
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimAnswer:
    """One partition's answer to DeleteRecords: the new log start, or Kafka's error name."""

    low_watermark: Offset
    error: str | None = None


class DescribeCluster(Protocol):
    async def describe_cluster(self) -> ClusterDescription: ...


class DescribePartitions(Protocol):
    async def describe_partitions(self, topics: Sequence[str] | None = None) -> tuple[LeaderView, ...]:
        """Return leader, epoch and replicas of every partition of ``topics`` (None: all), without unknown topics."""


class DescribeTopicIds(Protocol):
    async def describe_topic_ids(self, topic_ids: Iterable[Uuid]) -> dict[Uuid, str | None]:
        """Return by topic id: None for one that exists, else Kafka's error name.  ``UNKNOWN_TOPIC_ID`` says that it does not;
        one that we may not see is ``TOPIC_AUTHORIZATION_FAILED``."""


class ListOffsets(Protocol):
    async def list_offsets(
        self,
        partitions: Mapping[TopicIdPartition, LeaderEpoch],
        spec: OffsetSpec | int,
        *,
        read_committed: bool = False,
    ) -> dict[TopicIdPartition, OffsetAnswer]:
        """Return offsets by ``spec`` (or a timestamp in ms), fenced by each partition's current leader epoch (-1: unfenced).

        ``LATEST`` with ``read_committed`` is the last stable offset, without it the high watermark.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStarts:
    """Start of the log of each replica of a partition; ``silent`` has the others with the reason why that is not known."""

    starts: Mapping[BrokerId, Offset]
    silent: Mapping[BrokerId, str]


class EndOfEpochs(Protocol):
    async def end_of_epochs(
        self, asked: Mapping[TopicIdPartition, EpochAsked]
    ) -> dict[TopicIdPartition, EpochEndAnswer]:
        """Return where the leaders' logs end these epochs (OffsetForLeaderEpoch)."""


class DeleteRecords(Protocol):
    async def delete_records(
        self,
        offsets: Mapping[TopicIdPartition, Offset],
        *,
        leader_epochs: Mapping[TopicIdPartition, LeaderEpoch] | None = None,
    ) -> dict[TopicIdPartition, TrimAnswer]:
        """Move log starts to these offsets (exclusive end of what goes).

        Partitions that are led in another epoch than ``leader_epochs`` says are left alone, with FENCED_LEADER_EPOCH: the
        request itself carries none, and a process that stood still since its last look would trim another's history.
        """


class DescribeConfigs(Protocol):
    async def describe_topic_configs(
        self, topics: Iterable[str], *, names: Sequence[str] | None = None
    ) -> dict[str, dict[str, str | None]]:
        """Return the effective settings by name of each topic: those of ``names``, all of them unless given."""

    async def describe_broker_configs(self, broker_id: BrokerId) -> dict[str, str | None]:
        """Return the effective settings of one broker; values of sensitive ones are None."""


class DescribeOverrides(Protocol):
    async def describe_topic_overrides(self, topic: str) -> dict[str, str | None]:
        """Return only the settings of the topic itself, by name.

        Raises:
            BrokerRefusedError: the topic does not exist, or may not be seen.
        """


class DescribeLogSizes(Protocol):
    async def describe_log_sizes(self, topic: str) -> dict[int, int]:
        """Return the bytes on disk of each partition's leader, by partition; those whose leader did not answer are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirUse:
    """A log dir of one broker.  ``usable_bytes`` are what its volume has left, -1 below Kafka 3.3; ``partition_bytes`` the
    sizes of the topic's replicas there."""

    log_dir: str
    usable_bytes: int
    partition_bytes: Mapping[int, int]


class DescribeLogDirs(Protocol):
    async def describe_log_dirs(
        self, broker_id: BrokerId, topic: str, partitions: Sequence[int]
    ) -> tuple[LogDirUse, ...]:
        """Return the log dirs of a broker that have replicas of the topic; none where it may not be asked.

        Raises:
            BrokerUnreachableError: it does not answer.
        """


class GroupType(StrEnum):
    """Type of a group: ``CONSUMER`` commits offsets (classic, consumer, streams), ``SHARE`` does not."""

    CONSUMER = "consumer"
    SHARE = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAnswer:
    """One group's offsets by topic and partition, each the next to be read; or Kafka's name of the error that prevented an
    answer.  Partitions without an offset are left out.  ``begun`` are those that a share group's members have been given and of
    which nothing is acknowledged: its start offset is reported from the first acknowledgement on."""

    offsets: Mapping[tuple[str, int], Offset]
    error: str | None = None
    begun: frozenset[tuple[str, int]] = frozenset()


class ReadGroups(Protocol):
    async def list_groups(self) -> dict[str, GroupType]:
        """Return every group of the cluster.

        Raises:
            BrokerRefusedError: not all of them can be seen: a right is missing, or a coordinator is not there (retriable).
        """

    async def list_share_groups(self) -> tuple[str, ...]:
        """Return every share group; send no request, and need no right, where the brokers are too old to have any.

        Raises:
            BrokerRefusedError: as :meth:`list_groups`.
        """

    async def committed_offsets(
        self, groups: Collection[str], partitions: Collection[tuple[str, int]]
    ) -> dict[str, GroupAnswer]:
        """Return the committed offsets of these consumer groups; of one that does not exist, nothing."""

    async def share_start_offsets(
        self, groups: Collection[str], partitions: Collection[tuple[str, int]]
    ) -> dict[str, GroupAnswer]:
        """Return where these share groups begin: all before it is acknowledged or archived."""


class AlterConfigs(Protocol):
    async def alter_topic_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Set (or, with None, remove) single overrides; the others stay (IncrementalAlterConfigs)."""


class CreateTopics(Protocol):
    async def create_topic(
        self, topic: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        """Create ``topic``; one that exists already is no error.

        Raises:
            BrokerRefusedError: retriable where brokers are missing for the replication factor.
        """


class Broker(
    DescribeCluster,
    DescribePartitions,
    DescribeTopicIds,
    ListOffsets,
    EndOfEpochs,
    DeleteRecords,
    DescribeConfigs,
    DescribeOverrides,
    DescribeLogSizes,
    AlterConfigs,
    CreateTopics,
    Protocol,
):
    """The local broker, and through it the cluster."""

    @property
    def groups(self) -> ReadGroups: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials of a caller of the read service: username and password, or a bearer token; all None is ANONYMOUS."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


class AuthorizeRead(Protocol):
    async def log_in(self, credentials: Credentials) -> None:
        """Return when the broker has accepted the caller.

        Raises:
            CallerNotAuthenticatedError: it has refused the credentials.
        """

    async def may_read(self, credentials: Credentials, topic: str) -> bool:
        """Return whether the broker itself lets this caller READ ``topic``.

        Raises:
            CallerNotAuthenticatedError: the broker refused the credentials, or demands some and none were given.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBatches:
    """A broker's answer to one Fetch.

    ``records`` are whole batches from the one that holds the offset, the last one perhaps cut off.  ``aborted`` has producer id
    and first offset of each aborted transaction that reaches into them, also of those that began before.
    """

    records: bytes
    high_watermark: Offset
    last_stable_offset: Offset
    aborted: tuple[tuple[int, Offset], ...]


class ReadLocal(Protocol):
    """Reads of the broker's own log as the caller: it authorizes, and shows nothing above the high watermark."""

    async def fetch(
        self,
        credentials: Credentials,
        topic_id_partition: TopicIdPartition,
        offset: int,
        *,
        max_bytes: int,
        read_committed: bool = False,
        last_fetched_epoch: LeaderEpoch = NO_EPOCH,
    ) -> LocalBatches:
        """Return batches from ``offset`` on; none at the end, which for read_committed is the last stable offset.

        With ``last_fetched_epoch``, the leader epoch of what lies right before ``offset`` in the caller's history, only if the
        broker's log has the same up to there.

        Raises:
            HistoryChangedError: it has not, as far as the broker knows.
            OffsetOutOfRangeError: the broker's log does not hold ``offset``, with what it holds.
            CallerNotAuthenticatedError: as with :class:`AuthorizeRead`.
            BrokerUnreachableError: it did not answer.
            BrokerRefusedError: it may not be read, or not here.
        """

    async def find_offset(
        self, credentials: Credentials, topic_id_partition: TopicIdPartition, timestamp_ms: int
    ) -> OffsetAnswer:
        """Return the ListOffsets answer for a timestamp (-1 latest, -3 the largest); offset -1 when there is none.

        Raises:
            As :meth:`fetch`.
        """


class CallerNotAuthenticatedError(Exception):
    """The broker did not accept the caller's credentials."""
