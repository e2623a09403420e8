"""What the status service shows of this process: filled in as the parts come up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tiersidecar.app.config.config import Config
from tiersidecar.app.config.top_level import Role
from tiersidecar.app.identity import Identity
from tiersidecar.decide.topics import TieredPartition
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_OFFSET, Offset
from tiersidecar.domain.segments import LocalPartition
from tiersidecar.ports.metadata_log import MetadataLog
from tiersidecar.ports.state_log import StateLog
from tiersidecar.services.status.source import PartitionStatus, StatusSummary
from tiersidecar.tasks.board import Board
from tiersidecar.tasks.lanes import Lanes
from tiersidecar.tasks.pending_copies import pending_copies


@dataclass(slots=True, kw_only=True)
class ProcessStatus:
    """Implements :class:`~tiersidecar.services.status.source.StatusSource`.

    ``reasons`` are asked each time: each gives why its part is not ready, or an empty text.  ``starting`` is what the
    process waits for before it has any parts; empty once all have started.
    """

    version: str
    config: Config
    roles: frozenset[Role]
    board: Board
    started_ms: int
    store: str = ""
    identity: Identity | None = None
    metadata: MetadataLog | None = None
    state: StateLog | None = None
    lanes: Lanes | None = None
    starting: str = "starting"
    standing_by: Callable[[], str] = lambda: ""
    reasons: list[Callable[[], str]] = field(default_factory=list)

    def ready_reasons(self) -> Sequence[str]:
        if self.starting:
            return [self.starting]
        return [reason for ask in self.reasons if (reason := ask())]

    def partitions(self) -> Sequence[PartitionStatus]:
        return [self._partition(tiered) for tiered in self.board.assignment.values()]

    def summary(self) -> StatusSummary:
        return StatusSummary(
            version=self.version,
            roles=tuple(sorted(role.value for role in self.roles)),
            mode=self.config.mode.value,
            deletes_enabled=self.config.deletes_enabled,
            store=self.store,
            started_ms=self.started_ms,
            cluster_id=None if self.identity is None else self.identity.cluster_id,
            node_id=None if self.identity is None else self.identity.broker_id,
            refused_topics=self.board.refused_topics,
            untrimmable_topics=self.board.untrimmable_topics,
            log_dir_faults=self.board.local.faults,
            disk_troubles=self.board.disk_troubles,
            standing_by=self.standing_by(),
        )

    def _partition(self, tiered: TieredPartition) -> PartitionStatus:
        tip = tiered.view.topic_id_partition
        local = self.board.local_partition(tip)
        copied_offset = self.board.copied_offsets.get(tip, NO_OFFSET)
        waiting = () if local is None else pending_copies(self.board, local, copied_offset)
        segments, size_bytes = self._remote(tiered)
        halted = "" if self.lanes is None else self.lanes.halted(tip) or self.lanes.trouble(tip)
        return PartitionStatus(
            topic_id_partition=tip,
            role=tiered.role.value,
            mode=tiered.policy.mode.value,
            leader_epoch=tiered.view.leader_epoch,
            copied_offset=Offset(copied_offset),
            local_log_start_offset=Offset(self._local_start(tiered, local)),
            remote_log_start_offset=self._remote_log_start(tiered),
            copy_lag_bytes=sum(segment.size_bytes for segment in waiting),
            copy_lag_segments=len(waiting),
            remote_segments=segments,
            remote_size_bytes=size_bytes,
            halted_reason=halted or None,
            held_back_reason=self.board.untrimmable_topics.get(tip.topic)
            or self.board.expiry_stops.get(tip)
            or self.board.unproven.get(tip)
            or self._trim_hold(tip)
            or self.board.held_back.get(tip)
            or None,
        )

    def _trim_hold(self, tip: TopicIdPartition) -> str:
        hold = self.board.trim_holds.get(tip)
        return "" if hold is None else hold.reason

    def _local_start(self, tiered: TieredPartition, local: LocalPartition | None) -> int:
        known = self.board.log_start_offsets.get(tiered.view.topic_id_partition)
        if known is not None:
            return known
        return local.segments[0].base_offset if local is not None and local.segments else NO_OFFSET

    def _remote(self, tiered: TieredPartition) -> tuple[int, int]:
        """Segments and bytes; zeros while the metadata are not ready."""
        tip = tiered.view.topic_id_partition
        if self.metadata is None or not self.metadata.is_ready(tip):
            return 0, 0
        return self.metadata.segment_count(tip), self.metadata.remote_log_size_bytes(tip)

    def _remote_log_start(self, tiered: TieredPartition) -> Offset:
        if self.state is None:
            return NO_OFFSET
        tip = tiered.view.topic_id_partition
        try:
            return self.state.partition_state(tip).start_in(self.board.lineage_on_disk(tip))
        except MetadataNotReadyError:
            return NO_OFFSET
