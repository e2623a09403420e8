"""The source of what is mounted read-only, as its gateway knows it: whether a topic is still there, and whose the store is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from tiersidecar.app.at_once import at_once
from tiersidecar.app.mount_claims import owner_at
from tiersidecar.decide.mounted_topics import SourceView, source_loss, store_fault
from tiersidecar.domain.errors import MetadataNotReadyError, StoreError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.mounts import Mount
from tiersidecar.domain.trash import TrashKind
from tiersidecar.ports.clock import Clock
from tiersidecar.ports.metadata_log import CountMetadata, MetadataView
from tiersidecar.ports.state_log import PartitionState, StateLog
from tiersidecar.ports.state_records import TrashLog
from tiersidecar.ports.store import Store
from tiersidecar.tasks.topic_owners import owner_key

_AT_ONCE = 16
_FIRST_LOOK_S = 10.0
"""How long clients wait at the most for a gateway that has just been started."""
_MOST_PAUSE_S = 300.0


class SourceMetadata(MetadataView, CountMetadata, Protocol):
    """The segments of the source, and whether it has said anything of a partition."""


class SourceState(StateLog, TrashLog, Protocol):
    """What the source has decided about its partitions."""


class MountedSource:
    """Of one gateway.  A topic's owner object is looked at until it has once named the source; a plan that names no cluster is
    of native tiering, which claims nothing."""

    def __init__(
        self,
        *,
        mount: Mount,
        store: Store,
        key_prefix: str,
        metadata: SourceMetadata,
        state: SourceState,
        clock: Clock,
    ) -> None:
        self._mount, self._store, self._key_prefix, self._clock = mount, store, key_prefix, clock
        self._metadata, self._state = metadata, state
        self._faults: dict[Uuid, str] = {}
        self._unlooked = {topic.topic_id: name for name, topic in self._mount.topics.items()}
        if not self._mount.source_cluster_id:
            self._unlooked = {}

    def fault(self, partition: TopicIdPartition) -> str:
        """Return why the partition is not served; empty where it is, and while nothing is known of it yet."""
        if fault := self._faults.get(partition.topic_id, ""):
            return fault
        try:
            view = SourceView(
                is_in_trash=any(entry.kind is TrashKind.TOPIC for entry in self._state.trash(partition)),
                segments=self._metadata.segment_count(partition),
                has_events=self._metadata.applied_to(partition) >= 0,
                has_state=self._state.partition_state(partition) != PartitionState(),
            )
        except MetadataNotReadyError:
            return ""
        return source_loss(partition, view)

    async def look_first(self) -> None:
        """Look at all topics' owners before clients are let in, as far as the store tells in time."""
        try:
            async with asyncio.timeout(_FIRST_LOOK_S):
                await self._look(self._unlooked)
        except (StoreError, TimeoutError):
            return  # the watch goes on

    async def watch(self, interval_s: float) -> None:
        """Look again at every interval, until cancelled, at those that are in doubt.  A store that is away is asked less and
        less often."""
        pause_s = interval_s
        while True:
            await self._clock.sleep(pause_s)
            try:
                await self._look([one for one in self._unlooked if one in self._faults or self._has_segments(one)])
                pause_s = interval_s
            except StoreError:
                pause_s = min(2 * pause_s, max(_MOST_PAUSE_S, interval_s))

    def _has_segments(self, topic_id: Uuid) -> bool:
        name = self._unlooked[topic_id]
        count = self._mount.topics[name].partitions
        return any(
            self._count(TopicIdPartition(topic_id=topic_id, topic=name, partition=number)) for number in range(count)
        )

    def _count(self, partition: TopicIdPartition) -> int:
        try:
            return self._metadata.segment_count(partition)
        except MetadataNotReadyError:
            return 0

    async def _look(self, topic_ids: Iterable[Uuid]) -> None:
        await at_once(self._look_at, list(topic_ids), _AT_ONCE)

    async def _look_at(self, topic_id: Uuid) -> None:
        key, topic = owner_key(self._key_prefix, topic_id), self._unlooked[topic_id]
        was_remote = self._has_segments(topic_id)  # before the look: the source claims a topic, and then copies it
        owner = await owner_at(self._store, key)
        source = self._mount.source_cluster_id
        fault = store_fault(topic, key, source, () if owner is None else owner.lineage)
        self._faults.pop(topic_id, None)
        if not fault:
            del self._unlooked[topic_id]
        elif owner is not None or was_remote:
            self._faults[topic_id] = fault
