"""Values that the status service shows, and the port that supplies them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiersidecar.decide.explain import Explanation
from tiersidecar.decide.segment_rows import SegmentRow
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.domain.offsets import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from tiersidecar.ports.telemetry import Metric
from tiersidecar.reading.reader_limits import ColdReading


@dataclass(frozen=True, slots=True, kw_only=True)
class TierBytes:
    """Places of the bytes of a log, in the order of its offsets; each is counted once.

    ``trash`` is given up and not deleted yet, ``remote`` in the store alone, ``both`` on the broker's disk too; ``pinned`` is
    held by a hard link alone, ``local`` sealed and not remote, ``active`` the segment that the broker writes.
    """

    trash: int = 0
    remote: int = 0
    both: int = 0
    pinned: int = 0
    local: int = 0
    active: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One tiered partition of this broker.

    ``copied_offset`` is the highest remote offset, inclusive; -1 stands for none, or not known, in all three offsets.
    The lag is the leader's, None for a follower: it copies nothing.  Local segments and bytes are those of the broker's own
    directory, below its log start too until it has deleted them.
    ``halted_reason`` says why the partition is parked, ``held_back_reason`` why a trim that was due was withheld.
    """

    topic_id_partition: TopicIdPartition
    role: str
    mode: str
    leader_epoch: LeaderEpoch = NO_EPOCH
    copied_offset: Offset = NO_OFFSET
    local_log_start_offset: Offset = NO_OFFSET
    remote_log_start_offset: Offset = NO_OFFSET
    copy_lag_bytes: int | None = 0
    copy_lag_segments: int | None = 0
    local_segments: int = 0
    local_size_bytes: int = 0
    remote_segments: int = 0
    remote_size_bytes: int = 0
    tiers: TierBytes = TierBytes()
    halted_reason: str | None = None
    held_back_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskStatus:
    """A file system with log dirs on it.  ``seconds_to_full`` is None where it does not fill, or that is not known yet."""

    log_dirs: tuple[str, ...]
    size_bytes: int
    free_bytes: int
    seconds_to_full: int | None
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSummary:
    """The process.  ``started_ms`` is wall clock; the mappings have a reason for each name; ``core`` says whether native
    code or Python walks over record batches, and why."""

    version: str
    core: str
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
    misplaced: Mapping[str, str] = field(default_factory=dict)
    """Led partitions that are left alone, because their directory is not here, or not the broker's."""

    disks: Sequence[DiskStatus] = ()
    losses: Sequence[str] = ()
    """Proof that data is lost, or that the store is another one than it was; nothing is done with it."""

    halted_mounts: Sequence[str] = ()
    """Why partitions that are mounted read-only are not served, while others are."""

    deletes_blocked: str = ""
    """Reason why nothing remote may be deleted in the whole cluster."""

    paused: Sequence[str] = ()
    """Pauses by operators in the whole cluster, in sentences."""

    standing_by: str = ""
    """Reason why the tier role of this process rests: another process is this broker's sidecar."""

    cold_readers: Sequence[ColdReading] = ()
    """Readers of remote data through this process, the one with the most bytes first."""

    @property
    def warnings(self) -> list[str]:
        """Return what an operator has to look at, though the process is ready.  Of misplaced partitions, which may be
        thousands, the first has its reason."""
        warnings = [f"{log_dirs}: {why}" for log_dirs, why in self.disk_troubles.items()]
        warnings += [*self.losses, *self.halted_mounts]
        if self.misplaced:
            first, others = min(self.misplaced), len(self.misplaced) - 1
            warnings.append(f"{first}{f' and {others} others' if others else ''}: {self.misplaced[first]}")
        return warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarStatus:
    """A sidecar of the cluster, by the state topic.  ``address`` is of its status service, empty for a former release;
    ``is_over``: it gave its lease back, or has not renewed it for long."""

    node_id: int
    address: str
    host: str
    version: str
    is_over: bool

    @property
    def why_not_asked(self) -> str:
        """Return why it is not asked; empty where it can be."""
        if self.address:
            return ""
        if self.is_over:
            return f"it ended, or stands still: {self.host} has not renewed its lease"
        return "it is of a former release, which does not publish its address; its own status page has its state"


class StatusSource(Protocol):
    def ready_reasons(self) -> Sequence[str]:
        """Return why the process is not ready, one sentence each; empty when it is."""

    def partitions(self, topic: str | None = None) -> Iterator[PartitionStatus]:
        """Return the tiered partitions of this broker, or of one topic, in any order.

        Each is looked at when it is reached: a caller may let the process do other work in between.
        """

    def summary(self) -> StatusSummary: ...

    def sidecars(self) -> Sequence[SidecarStatus]:
        """Return the tier roles of the cluster, by broker.

        Raises:
            MetadataNotReadyError: the state topic has not been read to its end yet.
        """

    async def segment_rows(self, topic: str, partition: int) -> Sequence[SegmentRow]:
        """Return all segments of a partition that is led here.

        Raises:
            NotLedHereError: it is not.
            TiersidecarError: the broker, the store or a topic of ours is away.
        """

    async def explanation(self, topic: str, partition: int, offset: int | None) -> Explanation:
        """Return why its segments are where they are, all or those with ``offset``; raise what :meth:`segment_rows` does."""


class RenderMetrics(Protocol):
    def series(self, metric: Metric) -> Sequence[tuple[Mapping[str, str], float]]:
        """Return labels and value of each series of a counter or gauge; empty for one without values."""

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge, for values that are computed at each scrape."""

    def render(self, *, partitions: bool = False) -> bytes:
        """Return Prometheus' text exposition, with per-partition series or summed over them; safe to call in a thread."""
