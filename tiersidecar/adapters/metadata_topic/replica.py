"""All metadata that is kept here: which user partitions, from which metadata partitions, and what is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import structlog

from tiersidecar.adapters.internal_topics import TopicFacts
from tiersidecar.adapters.metadata_topic.held import IS_READY, HeldPartition, partition_key
from tiersidecar.adapters.metadata_topic.partition_replica import LastRecord, PartitionReplica
from tiersidecar.domain.errors import MetadataNotReadyError
from tiersidecar.domain.ids import TopicIdPartition, Uuid, format_uuid
from tiersidecar.domain.metadata_cache import RemoteLogMetadataCache
from tiersidecar.formats.metadata.partitioner import metadata_partition
from tiersidecar.ports.metrics.process import METADATA_READY
from tiersidecar.ports.metrics.retention import UNSAFE_TOPICS
from tiersidecar.ports.telemetry import Telemetry

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredPartition:
    """A user partition as a snapshot has it; ``applied_to`` as in :class:`HeldPartition`."""

    topic_id_partition: TopicIdPartition
    applied_to: int
    cache: RemoteLogMetadataCache


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedPosition:
    """How far a metadata partition had been read, and by which leader epoch."""

    position: int
    leader_epoch: int
    last: LastRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredReplica:
    """Contents of a snapshot."""

    cluster_id: str
    topic_id: Uuid
    positions: Mapping[int, ConsumedPosition]
    partitions: tuple[RestoredPartition, ...]


class MetadataReplica:
    """The caches of the assigned user partitions by metadata partition.  No I/O, no waiting."""

    def __init__(
        self,
        *,
        topic: str,
        partition_count: int,
        recovery: str,
        telemetry: Telemetry,
        restored: RestoredReplica | None = None,
    ) -> None:
        self.topic = topic
        self.facts: TopicFacts | None = None
        self.restored_from = restored
        self._recovery = recovery
        self._telemetry = telemetry
        self._lost: str | None = None
        self._reported: str | None = None
        self._held: dict[bytes, HeldPartition] = {}
        self.partitions: list[PartitionReplica] = []
        self._partition_count = partition_count
        self._changes_before = 0
        self._restored = {partition_key(r.topic_id_partition): r for r in restored.partitions} if restored else {}
        self._make_partitions()

    @property
    def changes(self) -> int:
        """Return how many events were applied so far, to any partition."""
        return self._changes_before + sum(partition.changes for partition in self.partitions)

    def _make_partitions(self) -> None:
        self._changes_before = self.changes + 1
        self.partitions = [
            PartitionReplica(topic=self.topic, number=number, telemetry=self._telemetry)
            for number in range(self._partition_count)
        ]
        for number, position in (self.restored_from.positions if self.restored_from else {}).items():
            self.partitions[number].last, self.partitions[number].continues_at = position.last, position.position

    # -- assignment

    def assign(self, assigned: Iterable[TopicIdPartition]) -> None:
        """Keep exactly ``assigned``; what is kept already is not replayed."""
        wanted = {partition_key(owner): owner for owner in assigned}
        for key in self._held.keys() - wanted.keys():
            self.partition_of(self._held.pop(key).topic_id_partition).remove(key)
        for key in wanted.keys() - self._held.keys():
            held = self._restore(key) or HeldPartition(wanted[key])
            self._held[key] = held
            if self._lost is not None and held.complete_to > 0:
                held.become_ready()
            self.partition_of(held.topic_id_partition).add(key, held)
        for partition in self.partitions:
            partition.settle()
        self.report()

    def forget_restored(self) -> None:
        """Drop partitions of the snapshot that were never assigned: they are not ours any more."""
        self._restored.clear()

    def _restore(self, key: bytes) -> HeldPartition | None:
        restored = self._restored.pop(key, None)
        if restored is None or self.restored_from is None:
            return None
        partition = self.partition_of(restored.topic_id_partition)
        position = self.restored_from.positions[partition.number].position
        held = HeldPartition(
            restored.topic_id_partition, cache=restored.cache, complete_to=position, applied_to=restored.applied_to
        )
        is_lost = self._lost is not None or partition.lost is not None
        if partition.continues_at != position and not is_lost:
            held.begin_again()  # nothing else would show that the topic is not the one that the snapshot was made from
        return held

    # -- the topic behind it

    def begin_session(self, facts: TopicFacts) -> str | None:
        """Begin with a broker that is there and a topic that is ``facts``.  Returns why it is not the topic that was read
        before, else None: then nothing is read from it, and what was read before stays."""
        known, before, self._lost = self.facts, self._lost, None
        if self.restored_from is not None and self.restored_from.cluster_id != facts.cluster_id:
            _log.warning("metadata.snapshot.discarded", reason=f"it is of cluster {self.restored_from.cluster_id}")
            self._discard_restored()
        if known is not None:
            topic_id, epochs = known.topic_id, known.leader_epochs
        elif self.restored_from is not None:
            topic_id = self.restored_from.topic_id
            epochs = {number: consumed.leader_epoch for number, consumed in self.restored_from.positions.items()}
        else:
            topic_id, epochs = facts.topic_id, {}
        if topic_id != facts.topic_id:
            was, now = format_uuid(topic_id), format_uuid(facts.topic_id)
            self._lose_all(f"{self.topic} has topic id {now}, but {was} was read before")
        elif any(facts.leader_epochs.get(number, 0) < epoch for number, epoch in epochs.items()):
            self._lose_all(f"{self.topic} has lower leader epochs than it had: it comes from an older state")
        else:
            self.facts = facts
            for partition in self.partitions:
                partition.begin_session(before)
        self.report()
        return self._lost

    def _discard_restored(self) -> None:
        owners = [held.topic_id_partition for held in self._held.values()]
        self.restored_from, self._restored = None, {}
        self.assign(())
        self._make_partitions()
        self.assign(owners)

    def topic_is_missing(self) -> None:
        """Note that the topic that was read before is gone."""
        self._lose_all(f"{self.topic} is gone")

    def _lose_all(self, reason: str) -> None:
        self._lost = reason
        for held in self._held.values():
            if not held.is_ready and held.complete_to > 0:
                held.become_ready()
        self.report()

    @property
    def is_known(self) -> bool:
        """Return whether events of the topic are held already, so that a missing topic must not simply be made anew."""
        return self.facts is not None or self.restored_from is not None

    @property
    def halted_reason(self) -> str | None:
        """Return why nothing may be written or deleted on the strength of the metadata; None where it may."""
        lost = (
            [self._lost] if self._lost is not None else [why for p in self.partitions if (why := p.trouble) is not None]
        )
        if lost:
            return f"{'; '.join(lost)}: the topic lost data. {self._recovery}"
        gaps = [partition.gap for partition in self.partitions if partition.gap is not None]
        if gaps:
            return f"{'; '.join(gaps)}. {self._recovery}"
        weaknesses = self.facts.weaknesses if self.facts is not None else ()
        return "; ".join(weaknesses) or None

    @property
    def is_lost(self) -> bool:
        """Return whether a snapshot must be kept as it is: data were lost, or a replay is to show whether they were."""
        return (
            self._lost is not None
            or any(partition.trouble is not None for partition in self.partitions)
            or any(held.is_to_be_compared for held in self._held.values())
        )

    # -- what to read

    def live_positions(self) -> dict[int, int]:
        """Return where the main consumer reads each metadata partition."""
        return {p.number: p.position for p in self._readable() if p.live and p.position is not None}

    def side_positions(self) -> dict[int, int]:
        """Return where the side consumer reads."""
        return {p.number: p.side_position for p in self._readable() if p.side_position is not None}

    def unbounded(self) -> list[int]:
        """Return metadata partitions whose bounds must be learnt."""
        return [partition.number for partition in self.partitions if partition.needs_bounds]

    def _readable(self) -> Iterator[PartitionReplica]:
        return (partition for partition in self.partitions if partition.is_bounded and partition.lost is None)

    # -- what is known

    def held(self, owner: TopicIdPartition) -> HeldPartition | None:
        """Return the user partition, if it is assigned."""
        return self._held.get(partition_key(owner))

    def all_held(self) -> list[HeldPartition]:
        return list(self._held.values())

    def partition_of(self, owner: TopicIdPartition) -> PartitionReplica:
        """Return the metadata partition of a user partition."""
        return self.partitions[metadata_partition(owner, len(self.partitions))]

    def require(self, owner: TopicIdPartition) -> RemoteLogMetadataCache:
        """Return the cache of a partition that is assigned and ready.

        Raises:
            MetadataNotReadyError: it is not.
        """
        held = self._held.get(partition_key(owner))
        if held is None:
            raise MetadataNotReadyError(subject=str(owner))
        return held.require_ready()

    def report(self) -> None:
        """Set the gauges, and log it when trimming and expiry have to rest, or may go on."""
        halted = self.halted_reason
        self._telemetry.gauge(METADATA_READY, float(all(map(IS_READY, self._held.values()))))
        self._telemetry.gauge(UNSAFE_TOPICS, float(halted is not None), topic=self.topic)
        if halted != self._reported:
            self._reported = halted
            if halted is None:
                _log.info("metadata.topic.sound", topic=self.topic)
            else:
                _log.error("metadata.topic.halted", topic=self.topic, reason=halted)

    def waiting(self) -> int:
        """Return how many assigned partitions are not ready."""
        return sum(not held.is_ready for held in self._held.values())
