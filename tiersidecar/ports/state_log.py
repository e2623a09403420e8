"""``__tiersidecar_state``: what Kafka's metadata topic has no record for (DESIGN.md section 5, where state lives).

A compacted topic.  Offsets in it only rise within a leader epoch, and what a later epoch said counts: a write that would
lower one, or of an earlier epoch, is a no-op.  A publish returns after read-back, so that a delete may act on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.offsets import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Per partition.

    ``remote_log_start_offset`` is the first offset a reader may have at all, -1 while nothing moved it.
    ``trim_offset`` is the highest offset that a DeleteRecords of ours was meant to reach, published before the request
    is sent; -1 before the first.  Both come with the leader epoch that published them.
    ``accepted_loss_epoch`` is the leader epoch in which, an operator has confirmed, the log began anew: segments of the
    history before it may expire; -1 while nobody had to.
    """

    remote_log_start_offset: Offset = NO_OFFSET
    remote_log_start_epoch: LeaderEpoch = NO_EPOCH
    trim_offset: Offset = NO_OFFSET
    trim_epoch: LeaderEpoch = NO_EPOCH
    accepted_loss_epoch: LeaderEpoch = NO_EPOCH

    def merged_with(self, other: PartitionState) -> PartitionState:
        """Of each offset the one of the later leader epoch, of the same epoch the higher: a deposed leader changes nothing.

        A later leader may say a lower offset, where the earlier one spoke of a history that an unclean election ended.
        """
        start = max(self, other, key=lambda one: (one.remote_log_start_epoch, one.remote_log_start_offset))
        trim = max(self, other, key=lambda one: (one.trim_epoch, one.trim_offset))
        return PartitionState(
            remote_log_start_offset=start.remote_log_start_offset,
            remote_log_start_epoch=start.remote_log_start_epoch,
            trim_offset=trim.trim_offset,
            trim_epoch=trim.trim_epoch,
            accepted_loss_epoch=max(self.accepted_loss_epoch, other.accepted_loss_epoch),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """Per topic id: how it is tiered, and what the broker's settings were before (for ``disable``).

    ``mode`` is ``strict`` or ``race``, or, once tiering is switched off, ``detached`` (nothing is copied or trimmed, what is
    remote stays readable and expires) or ``deleting`` (all that is remote goes).  ``former_settings`` maps settings of the
    topic to its overrides before, None where it had none.
    """

    topic: str
    mode: str
    retention_ms: int = -1
    retention_bytes: int = -1
    local_retention_ms: int = -2
    local_retention_bytes: int = -2
    former_settings: Mapping[str, str | None] = field(default_factory=dict)


class StateLog(Protocol):
    def partition_state(self, topic_id_partition: TopicIdPartition) -> PartitionState:
        """The state as read back; the empty one where nothing was published.

        Raises:
            MetadataNotReadyError: the topic has not been replayed to its end yet.
        """

    def topic_state(self, topic_id: Uuid) -> TopicState | None:
        """As :meth:`partition_state`, per topic."""

    def partitions(self) -> Sequence[TopicIdPartition]:
        """Every partition with a state, of topics that exist and of those that are gone.

        Raises:
            MetadataNotReadyError: as :meth:`partition_state`.
        """

    async def publish_partition_state(self, topic_id_partition: TopicIdPartition, state: PartitionState) -> None:
        """Merge ``state`` with what is known (:meth:`PartitionState.merged_with`), write it, return after read-back: what
        counts then is in :meth:`partition_state`.  One that says nothing makes the partition known, among
        :meth:`partitions`.

        Raises:
            PublishTimeoutError: not read back in time.
        """

    async def publish_topic_state(self, topic_id: Uuid, state: TopicState) -> None:
        """Replace the topic's state; return after read-back."""

    async def forget_partition(self, topic_id_partition: TopicIdPartition) -> None:
        """Remove the partition's state (a tombstone); return after read-back.  One that has none is no error."""

    async def forget_topic(self, topic_id: Uuid) -> None:
        """As :meth:`forget_partition`, per topic."""

    @property
    def readiness_reason(self) -> str | None:
        """Why the topic has not been replayed to its end yet, for people; None when it has."""

    @property
    def halted_reason(self) -> str | None:
        """Why nothing may be trimmed or deleted on the strength of this topic (weak settings, lost data), else None."""
