"""When the snapshot is written, and what goes into it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from tiersidecar.adapters.internal_topics import TopicFacts
from tiersidecar.adapters.metadata_topic.held import HeldPartition
from tiersidecar.adapters.metadata_topic.replica import ConsumedPosition, MetadataReplica, RestoredReplica
from tiersidecar.adapters.metadata_topic.settings import MetadataTopicSettings
from tiersidecar.adapters.metadata_topic.snapshot import SavedPartition, SnapshotHead, load_snapshot, save_snapshot
from tiersidecar.domain.ids import TopicIdPartition
from tiersidecar.ports.clock import Blocking, Clock

_log = structlog.get_logger(__name__)

_Written = tuple[SnapshotHead, Mapping[int, ConsumedPosition], Sequence[TopicIdPartition]]


class SnapshotKeeper:
    """Writes what changed, now and then and at the end."""

    def __init__(self, settings: MetadataTopicSettings, *, clock: Clock, blocking: Blocking) -> None:
        self._settings, self._clock, self._blocking = settings, clock, blocking
        self._path = Path(settings.snapshot_path or "")
        self._replica: MetadataReplica | None = None
        self._written: _Written | None = None

    async def load(self) -> RestoredReplica | None:
        """Read the snapshot of the last run, if it can be used."""
        return await self._blocking.run(_load, self._path, self._settings.topic, self._settings.partitions)

    def keep(self, replica: MetadataReplica) -> None:
        """Have snapshots made of ``replica`` from now on."""
        self._replica = replica

    async def run(self) -> None:
        """Save now and then."""
        while True:
            await self._clock.sleep(self._settings.snapshot_interval_ms / 1000)
            await self.save()

    async def save(self) -> None:
        """Write what changed since the last time; nothing while the topic has lost data: then the snapshot is what is left.
        A disk that refuses it is a warning: the next start replays more."""
        replica = self._replica
        if replica is None or replica.facts is None or replica.is_lost:
            return
        replica.forget_restored()
        # Positions before images: an event may then be in both, and applied_to shows it; it is never in neither.
        positions = _positions(replica, replica.facts)
        held = [one for one in replica.all_held() if replica.partition_of(one.topic_id_partition).feeds(one)]
        dirty = [partition for partition in held if partition.is_dirty]
        saved = [_image(one) for one in dirty]
        head, kept = self._head(replica.facts), [partition.topic_id_partition for partition in held]
        if not dirty and self._written == (head, positions, kept):
            return
        self._written = None
        try:
            await self._blocking.run(save_snapshot, self._path, head, positions, saved, kept)
            self._written = (head, positions, kept)
        except (OSError, sqlite3.Error) as error:
            _mark_dirty(dirty)
            _log.warning("metadata.snapshot.not_written", path=str(self._path), reason=str(error))
        except BaseException:
            _mark_dirty(dirty)
            raise

    def _head(self, facts: TopicFacts) -> SnapshotHead:
        return SnapshotHead(
            cluster_id=facts.cluster_id,
            topic=self._settings.topic,
            topic_id=facts.topic_id,
            partition_count=self._settings.partitions,
        )


def _load(path: Path, topic: str, partition_count: int) -> RestoredReplica | None:
    return load_snapshot(path, topic=topic, partition_count=partition_count)


def _positions(replica: MetadataReplica, facts: TopicFacts) -> dict[int, ConsumedPosition]:
    return {
        partition.number: ConsumedPosition(
            position=partition.reached,
            leader_epoch=facts.leader_epochs.get(partition.number, 0),
            last=partition.last,
        )
        for partition in replica.partitions
        if partition.live
    }


def _image(held: HeldPartition) -> SavedPartition:
    held.is_dirty = False
    return SavedPartition(
        topic_id_partition=held.topic_id_partition, applied_to=held.applied_to, image=held.cache.image()
    )


def _mark_dirty(held: list[HeldPartition]) -> None:
    for partition in held:
        partition.is_dirty = True
