"""The gateway's rewrites, which fill in from the remote tier, over the same read path as the read service's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from tiersidecar.app.builders.read_path import hole_advice
from tiersidecar.app.config.top_level import Mode
from tiersidecar.app.gateway_pins import pending_copies
from tiersidecar.app.mounted_source import MountedSource
from tiersidecar.app.parts import Parts
from tiersidecar.decide.topics import INTERNAL_TOPICS, PartitionRole, TieredPartition
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.mounts import MOUNTED_START
from tiersidecar.formats.wire.cursor import ApiKey
from tiersidecar.ports.log_dirs import LogDirs, LogDirsView
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.pins import PendingCopies
from tiersidecar.reading.holes import Holes
from tiersidecar.reading.read_path import ReadPath
from tiersidecar.services.gateway.addresses import in_fetch
from tiersidecar.services.gateway.advertised import AdvertisedAddresses
from tiersidecar.services.gateway.audit import NO_AUDIT_TOPIC, AuditTopic
from tiersidecar.services.gateway.delete_records_rewrite import DeleteRecordsRewrite, SecondSteps
from tiersidecar.services.gateway.exchange import Rewrite
from tiersidecar.services.gateway.fetch_fill import FetchFill
from tiersidecar.services.gateway.fetch_in_hand import FetchSessions
from tiersidecar.services.gateway.fetch_rewrite import FetchRewrite, FetchSources
from tiersidecar.services.gateway.leader_epoch_rewrite import OffsetForLeaderEpochRewrite
from tiersidecar.services.gateway.list_offsets_rewrite import ListOffsetsRewrite
from tiersidecar.services.gateway.log_dirs_rewrite import DescribeLogDirsRewrite
from tiersidecar.services.gateway.mount_refusals import mount_refusals
from tiersidecar.services.gateway.mounted_logs import MountedLogs
from tiersidecar.services.gateway.out_of_range import OutOfRangeClassifier
from tiersidecar.services.gateway.remote_deletes import Proposer
from tiersidecar.services.gateway.remote_fills import RemoteFills
from tiersidecar.services.gateway.tiered_partitions import (
    ANYBODY,
    Asker,
    BothTiers,
    BrokerOffsetsCache,
    DeletedRecords,
    Mounts,
    NoMounts,
    TieredView,
)
from tiersidecar.services.gateway.unplanned_logs import UnplannedLogs
from tiersidecar.tasks.partition_table import PartitionTable
from tiersidecar.tasks.policies import TopicPolicies

_MOST_NAME_CHARACTERS = 249
"""The most of a legal topic name (Kafka's ``Topic.validate``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTier:
    """The parts that all listeners of the gateway share; ``mounts`` and ``source`` where topics are mounted read-only."""

    path: ReadPath
    offsets: BrokerOffsetsCache
    fills: RemoteFills
    sessions: FetchSessions
    tiered: TieredPartitionsInTable
    pending: PendingCopies
    holes: Holes
    audit: AuditTopic
    mounts: MountedLogs | None = None
    source: MountedSource | None = None
    second_steps: SecondSteps = field(default_factory=SecondSteps)


def open_remote_tier(stack: AsyncExitStack, parts: Parts, audit: AuditTopic = NO_AUDIT_TOPIC) -> RemoteTier:
    """Open the read path, and what stands before it, until ``stack`` closes."""
    path = parts.reads
    source = _source(parts) if parts.config.source is not None else None
    mounts = _mounts(parts, source) if source is not None else None
    offsets = BrokerOffsetsCache(broker=parts.broker, clock=parts.clock, mounts=mounts)
    stack.push_async_callback(offsets.aclose)
    fills = RemoteFills(reader=path.reader, clock=parts.clock)
    stack.push_async_callback(fills.aclose)
    return RemoteTier(
        path=path,
        offsets=offsets,
        fills=fills,
        sessions=FetchSessions(),
        tiered=TieredPartitionsInTable(parts.table, parts.policies, parts.log_dirs, parts.roster.look_soon, mounts),
        mounts=mounts,
        source=source,
        pending=pending_copies(parts),
        holes=Holes(parts.clock, "gateway.hole", hole_advice(parts.config)),
        audit=audit,
    )


def _source(parts: Parts) -> MountedSource:
    return MountedSource(
        mount=parts.mount,
        store=parts.store,
        key_prefix=parts.config.store.key_prefix,
        metadata=parts.metadata,
        state=parts.state,
        clock=parts.clock,
        blocking=parts.blocking,
    )


def _mounts(parts: Parts, source: MountedSource) -> MountedLogs:
    planned = parts.mount.topics
    return MountedLogs(
        planned={name: topic.topic_id for name, topic in planned.items()},
        unplanned=UnplannedLogs(
            planned=planned,
            seeded=lambda: _seeded(parts.table.local),
            topics=lambda: parts.table.topic_ids,
            clock=parts.clock,
        ),
        topic_id=lambda topic: parts.table.topic_ids.get(topic),
        led=lambda: _led(parts.table),
        reader=parts.reads.reader,
        clock=parts.clock,
        telemetry=parts.telemetry,
        source=source,
    )


def _seeded(local: LogDirsView) -> list[TopicIdPartition]:
    """Return those on the broker's disks whose logs begin where those of a mount do."""
    return [
        partition
        for partition, found in local.partitions.items()
        if found.segments and found.segments[0].base_offset >= MOUNTED_START
    ]


def mount_without_source(local: LogDirsView) -> str:
    """Return why a gateway without a section ``source`` does not belong before this broker; empty where it does."""
    seeded = _seeded(local)
    if not seeded:
        return ""
    return (
        f"{min(seeded)} was seeded for a read-only mount, and the configuration has no section source: "
        "without it records are written where none may be"
    )


def _led(table: PartitionTable) -> list[TopicIdPartition]:
    return [partition for partition, tiered in table.assignment.items() if tiered.role is PartitionRole.LEADER]


def fill_rewrites(parts: Parts, tier: RemoteTier, advertised: AdvertisedAddresses) -> dict[int, Rewrite]:
    """Return one listener's rewrites by API key.  In ``mode: observe`` nothing is written: the broker alone deletes."""
    reader = tier.path.reader
    tiers = BothTiers(tiered=tier.tiered, reader=reader, offsets=tier.offsets, pending=tier.pending)
    rewrites: dict[int, Rewrite] = {
        ApiKey.FETCH: FetchRewrite(
            sources=FetchSources(
                classifier=OutOfRangeClassifier(
                    tiered=tier.tiered,
                    reader=reader,
                    state=parts.state,
                    offsets=tier.offsets,
                    pending=tier.pending,
                    holes=tier.holes,
                    clock=parts.clock,
                ),
                deleted=DeletedRecords(tiered=tier.tiered, state=parts.state),
                fill=FetchFill(
                    fills=tier.fills, reader=reader, cold=tier.path.cold, clock=parts.clock, telemetry=parts.telemetry
                ),
                sessions=tier.sessions,
                mounts=tier.mounts or NoMounts(),
            ),
            clock=parts.clock,
            telemetry=parts.telemetry,
            blocking=parts.blocking,
            remote_max_wait_ms=parts.config.remote_fetch_max_wait_ms,
            find_addresses=lambda version, response: in_fetch(version, response, advertised),
        ),
        ApiKey.LIST_OFFSETS: ListOffsetsRewrite(
            tiers=tiers,
            timestamps=tier.path.timestamps,
            lineages=parts.lineages,
            timeout_ms=parts.config.remote_list_offsets_request_timeout_ms,
            blocking=parts.blocking,
            clock=parts.clock,
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpochRewrite(
            tiers=tiers,
            lineages=parts.lineages,
            blocking=parts.blocking,
            clock=parts.clock,
        ),
    }
    if tier.mounts is not None:
        rewrites |= mount_refusals(tier.mounts.is_mounted_topic, advertised)
    elif parts.config.mode is not Mode.OBSERVE:
        rewrites[ApiKey.DELETE_RECORDS] = DeleteRecordsRewrite(
            tiers=tiers,
            state=parts.state,
            proposer=Proposer(
                cluster_id=parts.identity.cluster_id,
                broker_id=parts.identity.broker_id,
                proposals=parts.proposals,
            ),
            broker=parts.broker,
            blocking=parts.blocking,
            clock=parts.clock,
            second_steps=tier.second_steps,
            audit=tier.audit,
        )
    if parts.config.gateway.remote_log_dir is not None:
        rewrites[ApiKey.DESCRIBE_LOG_DIRS] = DescribeLogDirsRewrite(
            log_dir=parts.config.gateway.remote_log_dir,
            sizes=SizesOfLed(tier.tiered, parts.table, parts.metadata),
            blocking=parts.blocking,
        )
    return rewrites


class SizesOfLed:
    """``services.gateway.log_dirs_rewrite.RemoteSizes``, by the partition table and the metadata."""

    def __init__(self, tiered: TieredPartitionsInTable, table: PartitionTable, metadata: MetadataLog) -> None:
        self._tiered, self._table, self._metadata = tiered, table, metadata

    def led_bytes(self, topic: str, partition: int) -> int | None:
        """Return the bytes of finished remote segments; None unless the broker leads the partition."""
        try:
            view = self._tiered.find(topic, partition)
            tiered = None if view is None else self._table.assignment.get(view.topic_id_partition)
            if view is None or tiered is None or tiered.role is not PartitionRole.LEADER:
                return None
            return self._metadata.remote_log_size_bytes(view.topic_id_partition)
        except MetadataNotReadyError:
            return None


@dataclass(frozen=True, slots=True)
class TableMoment:
    """``services.gateway.tiered_partitions.Moment``: what the table had.  Each look at the cluster puts others there."""

    topic_ids: Mapping[str, Uuid]
    assignment: Mapping[TopicIdPartition, TieredPartition]

    def find(self, topic: str, partition: int) -> TieredView | None:
        """Return the partition as known at that moment; None where it was not tiered."""
        topic_id = self.topic_ids.get(topic)
        if topic_id is None:
            return None
        found = TopicIdPartition(topic_id=topic_id, topic=topic, partition=partition)
        tiered = self.assignment.get(found)
        return None if tiered is None else TieredView(topic_id_partition=found, leader_epoch=tiered.view.leader_epoch)


class TieredPartitionsInTable:
    """The gateway's :class:`~tiersidecar.services.gateway.tiered_partitions.TieredPartitions`, by the partition table.

    A partition counts while the names on disk are of the same topics.  ``look_soon``: a client met an unknown partition.
    """

    def __init__(
        self,
        table: PartitionTable,
        policies: TopicPolicies,
        log_dirs: LogDirs,
        look_soon: Callable[[], None],
        mounts: Mounts | None = None,
    ) -> None:
        self._table, self._policies, self._log_dirs, self._look_soon = table, policies, log_dirs, look_soon
        self._mounts = mounts or NoMounts()
        self._names: dict[Uuid, str] = {}
        self._names_of: Mapping[str, Uuid] | None = None
        self._moment = TableMoment(table.topic_ids, table.assignment)

    def find(self, topic: str | bytes, partition: int, asker: Asker = ANYBODY) -> TieredView | None:
        """Return the tiered partition.  What a rule tiers, but the table has not met, may have just come to this broker."""
        name = topic if isinstance(topic, str) else self._name(Uuid(topic))
        if name in INTERNAL_TOPICS:
            return None
        if not self._table.topic_ids:
            raise MetadataNotReadyError(subject=f"topic {name}")  # before the first look at the cluster
        topic_id = self._table.topic_ids.get(name)
        if topic_id is None:
            # Made since the last look.  Others than the rules' are enabled one by one, and only once they are known.
            if self._policies.policy_for(name) is None:
                return None
            self._look_soon()
            raise MetadataNotReadyError(subject=f"topic {name}")
        found = TopicIdPartition(topic_id=topic_id, topic=name, partition=partition)
        tiered = self._table.assignment.get(found)
        if tiered is not None:
            if isinstance(topic, str) and (
                asker.topic_ids.get(name, topic_id) != topic_id
                or self._log_dirs.topic_id_now(name, partition) != topic_id
            ):
                self._look_soon()
                raise MetadataNotReadyError(subject=f"topic {name}, which has been created again")
            if reason := self._mounts.halted(found):
                raise MetadataNotReadyError(subject=reason)
            view = TieredView(topic_id_partition=found, leader_epoch=tiered.view.leader_epoch)
            if asker.asked_at is not self.now():  # of one and the same moment there is nothing to compare
                asker.check(view)
            return view
        if self._policies.policy_for(name) is None:
            if reason := self._mounts.halted(found):  # seeded, though no plan that this gateway has says so
                raise MetadataNotReadyError(subject=reason)
            return None
        self._look_soon()
        raise MetadataNotReadyError(subject=str(found))

    def may_be_tiered(self, topic: str) -> bool:
        """Return whether a topic of that name may be tiered."""
        if topic in INTERNAL_TOPICS or len(topic) > _MOST_NAME_CHARACTERS:
            return False  # a client names what it likes, and what is found of a name is kept
        # Before the first look at the cluster, any may be.
        return not self._table.topic_ids or self._policies.may_tier(topic)

    def find_on_disk(self, topic: str, partition: int) -> TieredView | None:
        """Return the partition as the broker has it on its disk now."""
        if topic in INTERNAL_TOPICS or self._policies.policy_for(topic) is None:
            return None
        found = self._log_dirs.leader_epoch_now(topic, partition)
        if found is None:
            return None
        topic_id, leader_epoch = found
        owner = TopicIdPartition(topic_id=topic_id, topic=topic, partition=partition)
        return TieredView(topic_id_partition=owner, leader_epoch=leader_epoch)

    def now(self) -> TableMoment:
        """Return the tiered partitions as known now: the same object until a look at the cluster puts others there."""
        table, moment = self._table, self._moment
        if moment.topic_ids is not table.topic_ids or moment.assignment is not table.assignment:
            self._moment = moment = TableMoment(table.topic_ids, table.assignment)
        return moment

    def topic_id(self, topic: str) -> Uuid | None:
        """Return the id of a topic, tiered or not; None where there is none."""
        return self._table.topic_ids.get(topic)

    def _name(self, topic_id: Uuid) -> str:
        if self._names_of is not self._table.topic_ids:  # each look at the cluster makes a new one
            self._names_of = self._table.topic_ids
            self._names = {known: name for name, known in self._names_of.items()}
        name = self._names.get(topic_id)
        if name is None:
            raise MetadataNotReadyError(subject=f"topic id {format_uuid(topic_id)}")
        return name
