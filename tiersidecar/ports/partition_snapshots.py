"""Snapshots in the store of one partition in both topics, so that the topics can be rebuilt from the bucket alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tiersidecar.domain.ids import TopicIdPartition, format_uuid
from tiersidecar.domain.offsets import LeaderEpoch
from tiersidecar.domain.own_objects import SNAPSHOTS
from tiersidecar.domain.policy import Pause
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.domain.trash import TrashEntry
from tiersidecar.ports.state_log import PartitionState, TopicState


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SnapshotVersion:
    """Order of two snapshots of a partition: that of the later leader is later, of one leader the later one."""

    leader_epoch: LeaderEpoch
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSnapshot:
    """``segments`` are those in any state but DELETE_SEGMENT_FINISHED, ascending by start offset, with all their fields.

    ``highest_offsets`` gives, by leader epoch, the highest offset (inclusive) that was ever copied: deletion does not lower it.
    All is of one moment, ``written_ms`` by the clock of the sidecar of broker ``broker_id``.  ``topic_state``, ``trash`` and
    ``pauses`` are the state topic's other records; ``settings`` are for the operator, to set the sidecars up again.
    """

    cluster_id: str
    topic_id_partition: TopicIdPartition
    version: SnapshotVersion
    written_ms: int
    broker_id: int
    incarnation: str
    segments: tuple[RemoteLogSegmentMetadata, ...]
    highest_offsets: Mapping[int, int]
    state: PartitionState
    topic_state: TopicState | None = None
    trash: tuple[TrashEntry, ...] = ()
    pauses: tuple[Pause, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


def state_with(snapshot: PartitionState, known: PartitionState) -> PartitionState:
    """Return the union of a snapshot's state and that of the topic.

    The snapshot counts as the earlier one: a former leader's records count then, whatever a later leader writes that never
    read them.  A topic with a later undelete has read the snapshot's deletes, and undone them.
    """
    if known.start_generation > snapshot.start_generation:
        return known.merged_with(snapshot)
    return snapshot.merged_with(known)


def snapshot_directory(key_prefix: str, owner: TopicIdPartition) -> str:
    """Return the prefix of the keys of a partition's snapshots."""
    return f"{key_prefix}{SNAPSHOTS}{format_uuid(owner.topic_id)}/{owner.partition}/"


class SnapshotShelf(Protocol):
    """Storage of partition snapshots."""

    async def latest(self, owner: TopicIdPartition) -> tuple[SnapshotVersion | None, PartitionSnapshot | None]:
        """Return which version is the latest, None where there is none; and the latest snapshot that can be read.

        Raises:
            StoreError: the store is away.
        """

    async def put(self, snapshot: PartitionSnapshot) -> None:
        """Store it beside the earlier ones, of which all but the last go.  It overwrites nothing, and a reader takes the one of
        the highest version: a deposed leader's late snapshot does not count.

        Raises:
            ObjectExistsError: there is one of this version.
            StoreError: the store is away.
        """
