"""The source of what is mounted read-only, as its gateway knows it: whether a topic is still there, whether the source's topics
have what was copied of it, and whose the store is."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Protocol

from tiersidecar.app.at_once import at_once
from tiersidecar.app.mount_claims import owner_at
from tiersidecar.app.mounted_remains import StoreRemains
from tiersidecar.app.repair_run import LEASE
from tiersidecar.decide.mounted_topics import Copied, HistoryView, SourceView, history_loss, source_loss, store_fault
from tiersidecar.domain.errors import MetadataNotReadyError, StoreError
from tiersidecar.domain.ids import TopicIdPartition, Uuid
from tiersidecar.domain.lease import Lease
from tiersidecar.domain.mounts import Mount
from tiersidecar.domain.trash import TrashKind
from tiersidecar.ports.clock import Blocking, Clock
from tiersidecar.ports.metadata_log import CountMetadata, MetadataView
from tiersidecar.ports.state_log import PartitionState, StateLog
from tiersidecar.ports.state_records import Leases, TrashLog
from tiersidecar.ports.store import Store
from tiersidecar.tasks.topic_owners import owner_key

_AT_ONCE = 16
_TOPICS_AT_ONCE = 4
_FIRST_LOOK_S = 10.0
"""How long clients wait at the most for a gateway that has just been started."""
_MOST_PAUSE_S = 300.0


class SourceMetadata(MetadataView, CountMetadata, Protocol):
    """The segments of the source, and whether it has said anything of a partition."""


class SourceState(StateLog, TrashLog, Leases, Protocol):
    """The source's decisions about its partitions, and whether a command is at work there."""


class MountedSource:
    """The source, as seen by one gateway.  A topic's owner object is read until it has once named the source; a plan that names
    no cluster is of native tiering, which claims nothing.

    Where the source's topics have no event of a partition, the store is asked once, when it first matters; and for all, if at
    the first look a command at the source has its lease, or died with it: that may be `recover`, which fills the topics.  A
    running gateway notices later changes by the topics themselves."""

    def __init__(
        self,
        *,
        mount: Mount,
        store: Store,
        key_prefix: str,
        metadata: SourceMetadata,
        state: SourceState,
        clock: Clock,
        blocking: Blocking,
    ) -> None:
        self._mount, self._store, self._key_prefix, self._clock = mount, store, key_prefix, clock
        self._metadata, self._state = metadata, state
        self._faults: dict[Uuid, str] = {}
        self._unlooked = {topic.topic_id: name for name, topic in self._mount.topics.items()}
        if not self._mount.source_cluster_id:
            self._unlooked = {}
        self._remains = StoreRemains(store, key_prefix, blocking)
        self._copied: dict[TopicIdPartition, Copied] = {}
        """Copies that the store shows, and the source's topics do not have yet."""
        self._asked: set[TopicIdPartition] = set()
        self._answered: set[TopicIdPartition] = set()
        self._wakes = asyncio.Event()
        self._lease_is_known = False
        self._first_lease: Lease | None = None

    def fault(self, partition: TopicIdPartition) -> str:
        """Return why the partition is not served; empty where it is, and while nothing is known of it yet."""
        if fault := self._faults.get(partition.topic_id, ""):
            return fault
        try:
            state = self._state.partition_state(partition)
            view = SourceView(
                is_in_trash=any(entry.kind is TrashKind.TOPIC for entry in self._state.trash(partition)),
                segments=self._metadata.segment_count(partition),
                has_events=self._metadata.applied_to(partition) >= 0,
                has_state=state != PartitionState(),
            )
            return source_loss(partition, view) or self._history_loss(partition, view.has_events, state)
        except MetadataNotReadyError:
            return ""

    def _history_loss(self, partition: TopicIdPartition, has_events: bool, state: PartitionState) -> str:
        copied = self._copied.get(partition)
        if has_events and copied is None:
            return ""  # as nearly always
        epoch = -1 if copied is None else copied.leader_epoch
        view = HistoryView(
            has_events=has_events,
            highest_offset=self._metadata.highest_offset_for_epoch(partition, epoch) if epoch >= 0 else None,
            log_start=int(state.highest_start),
            held_offset=int(state.held_offset),
            was_seen=state.owner_seen_ms >= 0,
            copied=copied,
            is_recovered=self._is_recovered(),
        )
        loss = history_loss(partition, view)
        if not loss and has_events:
            del self._copied[partition]
        return loss

    def unknown(self, partition: TopicIdPartition) -> str:
        """Return why it is not known yet whether the source's topics have what was copied of it; empty once that is known."""
        if partition in self._answered:
            return ""
        try:
            has_events = self._metadata.applied_to(partition) >= 0 or self._metadata.segment_count(partition) > 0
            if has_events and not self._may_be_filled_in_part():
                return ""
        except MetadataNotReadyError:
            return ""  # nothing is reported of it then
        self._asked.add(partition)
        self._wakes.set()
        return f"{partition} is mounted read-only, and the store has not said yet whether its source's topics have all of it"

    def _may_be_filled_in_part(self) -> bool:
        if not self._lease_is_known:
            self._first_lease, self._lease_is_known = self._state.lease(LEASE), True
        return self._first_lease is not None and not self._first_lease.released

    def _is_recovered(self) -> bool:
        """Return whether the command that had the lease at the first look has ended, or one that came later."""
        self._may_be_filled_in_part()
        first, now = self._first_lease, self._state.lease(LEASE)
        if now is None or not now.released:
            return False
        return first is None or not first.released or first.holder != now.holder

    async def look_first(self) -> None:
        """Look at all topics' owners, and at what is in doubt, before clients are let in, as far as the store can answer."""
        try:
            async with asyncio.timeout(_FIRST_LOOK_S):
                await self._look(self._unlooked)
                for partition in chain.from_iterable(map(self._partitions, self._mount.topics)):
                    self.unknown(partition)
                await self._look_at_remains()
        except (StoreError, TimeoutError):
            return  # the watch goes on

    async def watch(self, interval_s: float) -> None:
        """Look again at every interval, until cancelled, at those whose owner is in doubt; and at what else is in doubt as soon
        as it is.  A store that is away is asked less and less often."""
        async with asyncio.TaskGroup() as watching:
            watching.create_task(self._watch_owners(interval_s), name="owners of what is mounted")
            watching.create_task(self._watch_remains(interval_s), name="remains of what is mounted")

    async def _watch_owners(self, interval_s: float) -> None:
        pause_s = interval_s
        while True:
            await self._clock.sleep(pause_s)
            try:
                await self._look([one for one in self._unlooked if one in self._faults or self._has_segments(one)])
                pause_s = interval_s
            except StoreError:
                pause_s = min(2 * pause_s, max(_MOST_PAUSE_S, interval_s))

    async def _watch_remains(self, interval_s: float) -> None:
        pause_s = interval_s
        while True:
            await self._wakes.wait()
            try:
                await self._look_at_remains()
                pause_s = interval_s
            except StoreError:
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, max(_MOST_PAUSE_S, interval_s))

    async def _look_at_remains(self) -> None:
        """Look at all that was asked for.

        Raises:
            StoreError: the store is away; what was not looked at is looked at next time.
        """
        by_topic: defaultdict[tuple[str, Uuid], list[TopicIdPartition]] = defaultdict(list)
        for partition in self._asked:
            by_topic[partition.topic, partition.topic_id].append(partition)
        await at_once(self._look_at_remains_of, list(by_topic.values()), _TOPICS_AT_ONCE)
        if not self._asked:  # else more was asked for meanwhile
            self._wakes.clear()

    async def _look_at_remains_of(self, partitions: Collection[TopicIdPartition]) -> None:
        """Look at one topic.  Where events have come meanwhile, only a snapshot says whether they are all."""
        by_number = {partition.partition: partition for partition in partitions}
        one = by_number[min(by_number)]
        empty = [number for number, partition in by_number.items() if not self._count(partition)]
        found = await self._remains.look(one.topic, one.topic_id, by_number, with_objects=empty)
        for number, copied in found.items():
            self._copied[by_number[number]] = copied
        self._answered.update(partitions)
        self._asked.difference_update(partitions)

    def _has_segments(self, topic_id: Uuid) -> bool:
        return any(map(self._count, self._partitions(self._unlooked[topic_id])))

    def _partitions(self, name: str) -> Iterator[TopicIdPartition]:
        topic = self._mount.topics[name]
        for number in range(topic.partitions):
            yield TopicIdPartition(topic_id=topic.topic_id, topic=name, partition=number)

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
