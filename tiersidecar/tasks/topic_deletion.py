"""Remove the remote data of topics that are gone, driven once and by whichever sidecar is there (docs/design/0003; S-183,
S-190).

Decided first: an entry of the trash for each partition, and nothing else until it is due.  Without a delay there are entries as
well, due at once: a read-only mount of another cluster goes by them, and else would see the log's start rise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

import structlog

from tiersidecar.decide.cleanup import Removal
from tiersidecar.decide.topic_deletion import (
    Absence,
    Remains,
    is_at_rest,
    is_ours_to_delete,
    observe_absences,
    observe_remains,
)
from tiersidecar.decide.topics import PartitionRole
from tiersidecar.decide.trash import TrashDelays, deleted_topic
from tiersidecar.domain.errors import PartitionHaltedError, RetriableError, StoreError, StoreStalledError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid, place_of
from tiersidecar.domain.trash import TrashKind
from tiersidecar.formats.aiven.keys import place_in
from tiersidecar.ports.state_log import PartitionState
from tiersidecar.reading.lineage import pictured_segments
from tiersidecar.tasks.edges import Actor, Edges, Sources
from tiersidecar.tasks.removal import RefusedLast, SegmentRemover

log = structlog.get_logger(__name__)


class TopicDeletion:
    """One per process.  ``witness`` is a topic that every broker of this cluster knows: one that does not list it is not
    believed."""

    def __init__(
        self,
        *,
        sources: Sources,
        edges: Edges,
        actor: Actor,
        remover: SegmentRemover,
        witness: str,
        grace_s: float,
        delays: TrashDelays,
    ) -> None:
        self._table, self._broker, self._metadata = sources.table, sources.broker, sources.metadata
        self._state, self._remover = sources.state, remover
        self._guard, self._broker_id, self._observe_only = actor.guard, actor.broker_id, actor.observe_only
        self._blocking, self._failpoints = edges.blocking, edges.failpoints
        self._clock, self._trash_clock = edges.clock, edges.trash_clock
        self._witness, self._grace_s, self._delays = witness, grace_s, delays
        self._absences: dict[Uuid, Absence] = {}
        self._led: set[TopicIdPartition] = set()
        self._remains: dict[Uuid, Remains] = {}
        self._observed: set[Uuid] = set()
        self._refused_last = RefusedLast()
        self._away: dict[str, StoreError] = {}

    async def run(self, interval_s: float) -> None:
        """Sweep every ``interval_s`` until cancelled; what goes wrong is logged, once in a row, and tried again."""
        logged: set[str] = set()
        while True:
            try:
                await self.sweep()
            except (RetriableError, PartitionHaltedError) as error:
                met = {_mark(one): one for one in (*self._away.values(), error)}
                for mark in met.keys() - logged:
                    log.warning("topic.deletion.retry", error=str(met[mark]))
                logged = set(met) | {mark for mark in logged if mark.startswith(_AWAY)}
            else:
                logged = set()
            await self._clock.sleep(interval_s)

    async def sweep(self) -> None:
        """Look once, and remove what is due.

        Raises:
            RetriableError: broker, metadata or store are away; nothing is taken for gone because of that.
        """
        self._away.clear()
        self._note_led()
        await self._claim_led()
        by_topic = self._of_this_cluster()
        await self._look_for(by_topic.keys())
        if not self._absences or self._guard.reason_not_to_delete_remote or self._state.halted_reason is not None:
            return
        live_brokers = (await self._broker.describe_cluster()).brokers
        failure: StoreError | PartitionHaltedError | None = None
        for topic_id, absence in self._absences.items():
            partitions = sorted(by_topic[topic_id])
            if is_ours_to_delete(
                absence,
                grace_s=self._grace_s,
                led_last=not self._led.isdisjoint(partitions),
                topic_id=topic_id,
                broker_id=self._broker_id,
                live_brokers=live_brokers.keys(),
            ):
                try:
                    await self._delete_topic(topic_id, partitions)
                except (StoreError, PartitionHaltedError) as error:  # what stops one topic must not stop those after it
                    if _ends_sweep(error):
                        raise
                    failure = failure or error
        if failure is not None:
            raise failure

    def _note_led(self) -> None:
        """Note leaders as last seen; a partition that is in no assignment any more keeps its mark."""
        for topic_id_partition, tiered in self._table.assignment.items():
            if tiered.role is PartitionRole.LEADER:
                self._led.add(topic_id_partition)
            else:
                self._led.discard(topic_id_partition)

    async def _claim_led(self) -> None:
        """Say of what we lead and the first format's records name that it is this cluster's: a topic that is deleted later was
        led here then."""
        if self._observe_only:
            return
        for topic_id_partition in self._state.partitions():
            tiered = self._table.assignment.get(topic_id_partition)
            if (
                tiered is not None
                and tiered.role is PartitionRole.LEADER
                and not self._state.is_ours(topic_id_partition)
            ):
                await self._state.publish_partition_state(topic_id_partition, PartitionState())

    def _of_this_cluster(self) -> dict[Uuid, list[TopicIdPartition]]:
        """Return partitions by topic id; of ids that were never led in this cluster none, for with a mirrored topic come
        another cluster's, whose data is in the same store and is not gone because its topic is unknown here.  Of what this
        cluster has decided to delete there may be no state any more: the process that did it ended before the trash went."""
        by_topic: defaultdict[Uuid, list[TopicIdPartition]] = defaultdict(list)
        for topic_id_partition in self._state.partitions():
            by_topic[topic_id_partition.topic_id].append(topic_id_partition)
        ours = {
            topic_id
            for topic_id, topic_id_partitions in by_topic.items()
            if any(map(self._state.is_ours, topic_id_partitions))
        }
        with_state = set(self._state.partitions())
        for topic_id_partition in self._state.trash_partitions():
            entries = () if topic_id_partition in with_state else self._state.trash(topic_id_partition)
            if any(one.kind is TrashKind.TOPIC for one in entries):
                by_topic[topic_id_partition.topic_id].append(topic_id_partition)
                ours.add(topic_id_partition.topic_id)
        return {topic_id: by_topic[topic_id] for topic_id in by_topic if topic_id in ours}

    async def _look_for(self, topic_ids: Iterable[Uuid]) -> None:
        """Ask twice: for everything, then for each topic that was not there, by its id."""
        views = await self._broker.describe_partitions()
        known = {view.topic_id_partition.topic_id for view in views}
        if not any(view.topic_id_partition.topic == self._witness for view in views):
            self._absences = {}
            return
        missing = [topic_id for topic_id in topic_ids if topic_id not in known]
        answers = await self._broker.describe_topic_ids(missing) if missing else {}
        before = self._absences.keys()
        self._absences = observe_absences(self._absences, answers, self._clock.monotonic_s())
        self._table.departing = {
            topic_id_partition
            for topic_id_partition in self._table.departing
            if topic_id_partition.topic_id in self._absences
        }
        self._remains = {topic_id: remain for topic_id, remain in self._remains.items() if topic_id in self._absences}
        for topic_id in self._absences.keys() - before:
            log.info("topic.gone", topic_id=format_uuid(topic_id), grace_s=self._grace_s)

    async def _delete_topic(self, topic_id: Uuid, partitions: Sequence[TopicIdPartition]) -> None:
        topic = partitions[0].topic
        if self._observe_only:
            if topic_id not in self._observed:
                self._observed.add(topic_id)
                log.info("topic.delete.observed", topic=topic, topic_id=format_uuid(topic_id))
            return
        if not await self._is_due(topic_id, partitions):
            return
        if not self._table.departing.issuperset(partitions):
            log.info("topic.delete.started", topic=topic, topic_id=format_uuid(topic_id), partitions=len(partitions))
            self._table.departing.update(partitions)
            await self._assign()
        if not self._is_left_to_us(partitions):
            return
        failure: StoreError | None = None
        for topic_id_partition in partitions:
            try:
                if not await self._delete_partition(topic_id_partition):
                    return
            except StoreError as error:  # nor the partitions after it
                if _ends_sweep(error):
                    raise
                failure = failure or error
        if failure is not None:
            raise failure
        await self._state.forget_topic(topic_id)
        self._table.departing.difference_update(partitions)
        self._led.difference_update(partitions)
        await self._assign()
        log.info("topic.delete.finished", topic=topic, topic_id=format_uuid(topic_id))

    async def _is_due(self, topic_id: Uuid, partitions: Sequence[TopicIdPartition]) -> bool:
        """Return whether it may be carried out; decides it where no sidecar has."""
        entries = {
            topic_id_partition: [one for one in self._state.trash(topic_id_partition) if one.kind is TrashKind.TOPIC]
            for topic_id_partition in partitions
        }
        undecided = [topic_id_partition for topic_id_partition, known in entries.items() if not known]
        if undecided:
            now_ms = self._trash_clock.now().decision_ms
            entry = deleted_topic(delays=self._delays, now_ms=now_ms, by=f"broker {self._broker_id}")
            for topic_id_partition in undecided:
                await self._state.put_into_trash(topic_id_partition, [entry])
            await self._failpoints.reach("topic.trash.published")
            topic = partitions[0].topic
            log.info("topic.delete.decided", topic=topic, topic_id=format_uuid(topic_id), due_ms=entry.due_ms)
            if self._delays.retention_ms:
                return False
            entries.update((topic_id_partition, [entry]) for topic_id_partition in undecided)
        time = self._trash_clock.now()
        return all(time.is_due(one) for known in entries.values() for one in known)

    def _is_left_to_us(self, partitions: Sequence[TopicIdPartition]) -> bool:
        """Return whether it is this sidecar's.  The one that led it begins at once.  Any other begins when none is at it: a
        deletion may take longer than its turn."""
        if not all(map(self._metadata.is_ready, partitions)):
            return False
        if not self._led.isdisjoint(partitions):
            return True
        topic_id = partitions[0].topic_id
        unfinished = chain.from_iterable(map(self._metadata.list_unfinished_segments, partitions))
        seen = Remains(
            segments=sum(map(self._metadata.segment_count, partitions)),
            unfinished=frozenset(one.remote_log_segment_id for one in unfinished),
            seen_s=self._clock.monotonic_s(),
        )
        self._remains[topic_id] = observe_remains(self._remains.get(topic_id), seen, grace_s=self._grace_s)
        return is_at_rest(self._remains[topic_id], grace_s=self._grace_s)

    async def _delete_partition(self, topic_id_partition: TopicIdPartition) -> bool:
        """Return whether nothing of it is left; what may not go now is for the next sweep."""
        segments = await pictured_segments(self._metadata.picture(topic_id_partition), self._blocking)
        due = [Removal(metadata=segment, reason="its topic is deleted") for segment in segments]
        away: StoreError | None = None
        for removal in self._refused_last.order(topic_id_partition, due):
            if self._guard.reason_not_to_delete_remote_of(topic_id_partition.topic_id):
                return False
            place = place_in(removal.metadata.custom_metadata or b"")
            if place in self._away:
                away = self._away[place]
                continue
            try:
                await self._remover.remove(removal)
            except StoreError as error:
                self._refused_last.refused(removal)
                if not error.is_away or not place_of(error.key):
                    raise
                self._away[place_of(error.key)] = away = error
        if away is not None:
            raise away
        await self._failpoints.reach("topic.partition.deleted")
        if self._metadata.segment_count(topic_id_partition):
            return False  # a copy that was still running came in between
        await self._state.forget_partition(topic_id_partition)
        return True

    async def _assign(self) -> None:
        await self._metadata.assign([*self._table.assignment, *self._table.departing])


def _ends_sweep(error: Exception) -> bool:
    """Return whether the default place hangs: each request would take minutes, and all that is deleted asks it for its owner.
    Another place that is away is left out of the sweep."""
    return isinstance(error, StoreStalledError) and not place_of(error.key)


_AWAY = "away: "


def _mark(error: Exception) -> str:
    """Return by what ``error`` is known again: of a place that is away each segment has words of its own."""
    return _AWAY + place_of(error.key) if isinstance(error, StoreError) and error.is_away else str(error)
