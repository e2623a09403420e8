"""What the status service shows, as values, and where it gets them from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One tiered partition of this broker.

    ``copied_offset`` is the highest remote offset, inclusive; -1 stands for none, or not known, in all three offsets.
    ``halted_reason`` says why the partition is parked, ``held_back_reason`` why a trim that was due was withheld.
    """

    topic_id_partition: TopicIdPartition
    role: str
    mode: str
    leader_epoch: LeaderEpoch = NO_EPOCH
    copied_offset: Offset = NO_OFFSET
    local_log_start_offset: Offset = NO_OFFSET
    remote_log_start_offset: Offset = NO_OFFSET
    copy_lag_bytes: int = 0
    copy_lag_segments: int = 0
    remote_segments: int = 0
    remote_size_bytes: int = 0
    halted_reason: str | None = None
    held_back_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSummary:
    """The process.  ``started_ms`` is wall clock; the mappings have a reason for each name."""

    version: str
    roles: tuple[str, ...]
    mode: str
    deletes_enabled: bool
    store: str
    started_ms: int
    cluster_id: str | None = None
    node_id: int | None = None
    refused_topics: Mapping[str, str] = field(default_factory=dict)
    untrimmable_topics: Mapping[str, str] = field(default_factory=dict)
    log_dir_faults: Mapping[str, str] = field(default_factory=dict)
    disk_troubles: Mapping[str, str] = field(default_factory=dict)
    standing_by: str = ""
    """Why the tier role of this process rests: another one is this broker's sidecar."""


class StatusSource(Protocol):
    def ready_reasons(self) -> Sequence[str]:
        """Why the process is not ready, one sentence each; empty when it is."""

    def partitions(self) -> Sequence[PartitionStatus]:
        """All tiered partitions of this broker, in any order."""

    def summary(self) -> StatusSummary: ...


class RenderMetrics(Protocol):
    def render(self, *, partitions: bool = False) -> bytes:
        """Prometheus' text exposition, with per-partition series or summed over them; safe to call in a thread."""
