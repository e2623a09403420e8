"""The state of this process for the status service: filled in as the parts come up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.identity import Identity
from tiersidecar.app.service_manager import Progress
from tiersidecar.app.stop_signals import BeforeStop
from tiersidecar.decide.explain import Explanation
from tiersidecar.decide.segment_rows import SegmentRow
from tiersidecar.decide.topics import PartitionRole, TieredPartition
from tiersidecar.domain.errors import MetadataNotReadyError, NotLedHereError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.offsets import NO_OFFSET, Offset
from tiersidecar.domain.policy import pause_sentence
from tiersidecar.domain.segments import LocalPartition, LocalSegment
from tiersidecar.domain.trash import TrashKind
from tiersidecar.formats import native
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.state_log import StateLog
from tiersidecar.ports.state_records import KnownLeases, TrashLog
from tiersidecar.reading.reader_limits import ColdReading, ColdReads, summed_readings
from tiersidecar.services.status.source import DiskStatus, PartitionStatus, SidecarStatus, StatusSummary, TierBytes
from tiersidecar.tasks.copy_admission import pending_copies
from tiersidecar.tasks.explain import ExplainTask
from tiersidecar.tasks.lanes import Lane, Lanes
from tiersidecar.tasks.partition_table import DiskNote, PartitionTable
from tiersidecar.tasks.transaction_waits import wait_sentence

_LOSSES_SHOWN = 10
_LONG_OVER = 3
"""Durations of a lease."""


@dataclass(slots=True, kw_only=True)
class ProcessStatus:
    """Implements :class:`~tiersidecar.services.status.source.StatusSource`.

    ``reasons`` are asked each time: each gives why its part is not ready, or an empty text.  ``starting`` is what the
    process waits for before it has any parts; empty once all have started.
    """

    version: str
    config: Config
    roles: frozenset[Role]
    table: PartitionTable
    started_ms: int
    store: str = ""
    identity: Identity | None = None
    metadata: MetadataLog | None = None
    state: StateLog | None = None
    leases: KnownLeases | None = None
    trash: TrashLog | None = None
    lanes: Lanes | None = None
    starting: str = "starting"
    standing_by: Callable[[], str] = lambda: ""
    explains: ExplainTask | None = None
    progress: Progress | None = None
    calls_ended: Callable[[], int] = lambda: 0
    """How many slices of segments were read."""
    cold: ColdReads | None = None
    cold_elsewhere: Callable[[], Sequence[ColdReading]] = lambda: ()
    """Readers of remote data through worker processes."""
    node_elsewhere: Callable[[], tuple[str, int] | None] = lambda: None
    """Cluster id and node id of the broker, as worker processes know them: a process that only starts them asks no broker."""
    deletes_blocked: Callable[[], str] = lambda: ""
    mount_halted: Callable[[TopicIdPartition], str] = lambda _: ""
    mount_halts: Callable[[], Sequence[str]] = lambda: ()
    reasons: list[Callable[[], str]] = field(default_factory=list)
    before_stop: BeforeStop = field(default_factory=BeforeStop)

    def why_halted(self, topic_id_partition: TopicIdPartition, lane: Lane) -> str:
        return "" if self.lanes is None else self.lanes.why_halted(topic_id_partition, lane)

    def ready_reasons(self) -> Sequence[str]:
        if self.starting:
            return [self.starting]
        return [reason for ask in self.reasons if (reason := ask())]

    def partitions(self, topic: str | None = None) -> Iterator[PartitionStatus]:
        misplaced = (self.table.unseen.get(topic_id_partition) for topic_id_partition in self.table.misplaced)
        unseen = [tiered for tiered in misplaced if tiered is not None]
        for tiered in (*self.table.assignment.values(), *unseen):
            if topic is None or tiered.view.topic_id_partition.topic == topic:
                yield self._partition(tiered)

    def summary(self) -> StatusSummary:
        own = None if self.identity is None else (self.identity.cluster_id, self.identity.broker_id)
        cluster_id, node_id = own or self.node_elsewhere() or (None, None)
        return StatusSummary(
            version=self.version,
            core=str(native.core),
            roles=tuple(sorted(role.value for role in self.roles)),
            mode=self.config.mode.value,
            deletes_enabled=self.config.deletes_enabled,
            store=self.store,
            started_ms=self.started_ms,
            cluster_id=cluster_id,
            node_id=node_id,
            refused_topics=self.table.refused_topics,
            untrimmable_topics=self.table.untrimmable_topics,
            log_dir_faults=self.table.local.faults,
            disk_troubles=self.table.disk_troubles,
            losses=_some((*self.table.missing_owners.values(), *self._lost_logs(), *self._removed_places())),
            halted_mounts=_some(self.mount_halts()),
            misplaced={str(topic_id_partition): reason for topic_id_partition, reason in self.table.misplaced.items()},
            deletes_blocked=self.deletes_blocked(),
            paused=self._paused(),
            disks=[_disk(note) for note in self.table.disks],
            standing_by=self.standing_by(),
            cold_readers=summed_readings([*(() if self.cold is None else self.cold.readings), *self.cold_elsewhere()]),
        )

    def _paused(self) -> Sequence[str]:
        try:
            return [] if self.state is None else [pause_sentence(pause) for pause in self.state.pauses()]
        except MetadataNotReadyError:
            return []

    def sidecars(self) -> Sequence[SidecarStatus]:
        if self.config.source is not None:  # the leases that a replica reads are those of its source's sidecars
            return []
        if self.leases is None:
            raise MetadataNotReadyError(subject="the state topic")
        return sidecars_of(self.leases.known_leases(), time.time_ns() // 1_000_000)

    async def segment_rows(self, topic: str, partition: int) -> Sequence[SegmentRow]:
        return await self._explains(topic, partition).rows(topic, partition)

    async def explanation(self, topic: str, partition: int, offset: int | None) -> Explanation:
        return await self._explains(topic, partition).explain(topic, partition, offset)

    def _explains(self, topic: str, partition: int) -> ExplainTask:
        """Return the task, unless this process stands by, or stands still: it would report what another one decides."""
        if self.explains is None or self.standing_by():
            raise NotLedHereError(topic=topic, partition=partition, leader_id=-1)
        return self.explains

    def _lost_logs(self) -> Iterator[str]:
        return (record.lost_log for record in self.table.records.values() if record.lost_log)

    def _removed_places(self) -> Iterator[str]:
        return (record.removed_place for record in self.table.records.values() if record.removed_place)

    def _partition(self, tiered: TieredPartition) -> PartitionStatus:
        topic_id_partition = tiered.view.topic_id_partition
        local = self.table.local_partition(topic_id_partition)
        record, copied_offset = self.table.record(topic_id_partition), self.table.record(topic_id_partition).last_copied
        leads = tiered.role is PartitionRole.LEADER
        waiting = pending_copies(self.table, local, copied_offset) if leads and local is not None else ()
        on_disk = () if local is None else [one.size_bytes for one in local.segments if not one.pinned]
        segments, size_bytes = self._remote(tiered)
        halted = (
            self.mount_halted(topic_id_partition)
            if self.lanes is None
            else self.lanes.halted(topic_id_partition) or self.lanes.trouble(topic_id_partition)
        )
        return PartitionStatus(
            topic_id_partition=topic_id_partition,
            role=tiered.role.value,
            mode=tiered.policy.mode.value,
            leader_epoch=tiered.view.leader_epoch,
            copied_offset=Offset(copied_offset),
            local_log_start_offset=Offset(self._local_start(tiered, local)),
            remote_log_start_offset=self._remote_log_start(tiered),
            copy_lag_bytes=sum(segment.size_bytes for segment in waiting) if leads else None,
            copy_lag_segments=len(waiting) if leads else None,
            local_segments=len(on_disk),
            local_size_bytes=sum(on_disk),
            remote_segments=segments,
            remote_size_bytes=size_bytes,
            tiers=self._tiers(topic_id_partition, local, waiting, size_bytes) if leads else TierBytes(),
            halted_reason=halted or None,
            held_back_reason=self.table.misplaced.get(topic_id_partition)
            or self.table.untrimmable_topics.get(topic_id_partition.topic)
            or record.expiry_stop
            or (record.unproven.reason if record.unproven is not None else "")
            or self._trim_hold(topic_id_partition)
            or self._transaction_waits(topic_id_partition)
            or record.behind_trash
            or (f"trimming waits for a cleaner: {record.uncleaned.reason}" if record.uncleaned is not None else "")
            or record.copy_held_back
            or None,
        )

    def _transaction_waits(self, topic_id_partition: TopicIdPartition) -> str:
        """Return them with what copying itself says: the last stable offset that it waits at."""
        record = self.table.record(topic_id_partition)
        if not record.transaction_waits:
            return ""
        waits = wait_sentence(record.transaction_waits)
        return "; ".join(filter(None, (record.copy_held_back, waits))) if waits else ""

    def _trim_hold(self, topic_id_partition: TopicIdPartition) -> str:
        hold = self.table.record(topic_id_partition).trim_hold
        return "" if hold is None else hold.reason

    def _local_start(self, tiered: TieredPartition, local: LocalPartition | None) -> int:
        known = self.table.record(tiered.view.topic_id_partition).log_start_offset
        if known != NO_OFFSET:
            return known
        return local.segments[0].base_offset if local is not None and local.segments else NO_OFFSET

    def _remote(self, tiered: TieredPartition) -> tuple[int, int]:
        """Return segments and bytes; zeros while the metadata are not ready."""
        topic_id_partition = tiered.view.topic_id_partition
        if self.metadata is None or not self.metadata.is_ready(topic_id_partition):
            return 0, 0
        return self.metadata.segment_count(topic_id_partition), self.metadata.remote_log_size_bytes(topic_id_partition)

    def _tiers(
        self,
        topic_id_partition: TopicIdPartition,
        local: LocalPartition | None,
        waiting: Sequence[LocalSegment],
        remote_bytes: int,
    ) -> TierBytes:
        """Count by what is known without asking: replicas roll differently, so a segment at the border may be counted for its
        neighbour."""
        trash = min(self._trash_bytes(topic_id_partition), remote_bytes)
        kept = remote_bytes - trash
        if local is None:
            return TierBytes(trash=trash, remote=kept)
        start = self.table.record(topic_id_partition).log_start_offset
        not_remote = {segment.base_offset for segment in waiting}
        active = pinned = alone = on_disk = 0
        for one in local.segments:
            if one.next_base_offset is None:
                active += one.size_bytes
            elif one.base_offset in not_remote:
                pinned, alone = (pinned + one.size_bytes, alone) if one.pinned else (pinned, alone + one.size_bytes)
            elif not one.pinned and one.next_base_offset > start:
                on_disk += one.size_bytes
        both = min(on_disk, kept)
        return TierBytes(trash=trash, remote=kept - both, both=both, pinned=pinned, local=alone, active=active)

    def _trash_bytes(self, topic_id_partition: TopicIdPartition) -> int:
        if (
            self.trash is None
            or self.state is None
            or self.metadata is None
            or not self.metadata.is_ready(topic_id_partition)
        ):
            return 0
        try:
            generation = self.state.partition_state(topic_id_partition).start_generation
            entries = [one for one in self.trash.trash(topic_id_partition) if not one.is_undone(generation)]
        except MetadataNotReadyError:
            return 0
        if not entries:
            return 0
        if any(entry.kind is TrashKind.TOPIC for entry in entries):
            return self.metadata.remote_log_size_bytes(topic_id_partition)
        up_to = max(entry.up_to for entry in entries)
        named = frozenset[Uuid]().union(*(entry.segments for entry in entries))
        return sum(
            segment.segment_size_in_bytes
            for segment in self.metadata.list_remote_log_segments(topic_id_partition)
            if segment.end_offset < up_to or segment.remote_log_segment_id.uuid in named
        )

    def _remote_log_start(self, tiered: TieredPartition) -> Offset:
        if self.state is None:
            return NO_OFFSET
        topic_id_partition = tiered.view.topic_id_partition
        try:
            return self.state.partition_state(topic_id_partition).start_in(
                self.table.lineage_on_disk(topic_id_partition)
            )
        except MetadataNotReadyError:
            return NO_OFFSET


def sidecars_of(leases: Iterable[Lease], now_ms: int) -> list[SidecarStatus]:
    """Return those of brokers, by node id.  Clocks of two machines differ: only what is long over is taken for over."""
    found = [
        SidecarStatus(
            node_id=lease.broker_id,
            address=lease.status_address,
            host=lease.host,
            version=lease.version,
            is_over=lease.released or now_ms - lease.renewed_ms > _LONG_OVER * lease.duration_ms,
        )
        for lease in leases
        if lease.broker_id >= 0
    ]
    return sorted(found, key=lambda one: one.node_id)


def _some(losses: Sequence[str]) -> Sequence[str]:
    """Return the first of them: of a store that is not mounted each topic says the same; /status?halted=1 has all."""
    hidden = len(losses) - _LOSSES_SHOWN
    return [*losses[:_LOSSES_SHOWN], *([f"and {hidden} more"] if hidden > 0 else [])]


def _disk(note: DiskNote) -> DiskStatus:
    return DiskStatus(
        log_dirs=note.log_dirs,
        size_bytes=note.size_bytes,
        free_bytes=note.free_bytes,
        seconds_to_full=round(note.full_in_s) if math.isfinite(note.full_in_s) else None,
        state=note.state.value,
    )
